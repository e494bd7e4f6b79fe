// The greedy choice over an int8 output head in two planes: reads little more than half of the bytes, and finds what
// all the logits would have given.
//
// With q + 128 = 16 high + low, a logit is sum(s x q) = sum(s x (16 (high - 8) + 7.5)) + error, where the error is
// sum(s x (low - 7.5)). The first pass computes the first part from the plane of high nibbles. Low nibbles are what
// rounding left and look random (pack_planes() sees to it): a low nibble has variance 21.25, so the error's deviation
// is d = sqrt(21.25 sum(s^2 x^2)), computed from the scales and the activations. The second pass computes the exact
// logits, in the ordinary int8 kernel: first of the likeliest strip, where estimate - kDoubt * d is largest, then of
// those on the shortlist, where estimate + kTrust * d of a column reaches the largest logit of the likeliest one.
//
// So the largest logit is missed only if its error exceeds kTrust deviations: odds of 1e-12 for each column whose logit
// comes near the largest at all. The first pass drops most strips before d is known for each of their columns, those
// where estimate + kTrust * d stays below the largest estimate - kDoubt * d; then the errors of two columns have to
// differ by kTrust * d1 + kDoubt * d2, which is 8.5 of their difference's deviations if d1 = d2, and never less than
// kDoubt. What is on a row's shortlist depends on the row alone, not on the number of threads or the order of the
// strips. Its neighbours may have more strips computed for it, and more rows or earlier steps the whole head: that
// could be told from its choice only where a scan would have missed.
namespace trimaran::TRIMARAN_ISA {

constexpr int kScanRows = 2 * kIntRows;  // with more the multiplications take the time, not the bytes
constexpr float kTrust = 7, kDoubt = 5;
constexpr float kDeviation = 4.6097722f;  // of the random low nibbles of values of size 1

// The plane of high nibbles as int4z whose minimum is its scale: GroupTerms of begin_shortlist() hold 16 * scale and
// 7.5 * scaled sum.
struct HighNibbles : NibbleBlock<false> {
  static constexpr int kMinima = kScales;
};

inline void begin_shortlist(const Shortlist& list) {
  const Linear& op = list.job;
  const int groups = op.w->k / kGroup;
  for (int r = 0; r < op.rows; r++) {
    const int8_t* q = op.a.q + r * op.a.q_stride;
    const GroupTerms* from = op.a.groups + r * op.a.group_stride;
    float all = 0;
    for (int g = 0; g < groups; g++, q += kGroup) {
      int sum = 0;
      for (int i = 0; i < kGroup; i++) sum += q[i] * q[i];
      const float squares = from[g].scale * from[g].scale * float(sum);
      list.squares[r * groups + g] = squares;
      list.terms[r * groups + g] = {16 * from[g].scale, 7.5f * from[g].scaled_sum, from[g].correct128, 0};
      all += squares;
    }
    list.reach[r] = kTrust * kDeviation * __builtin_sqrtf(all);
  }
}

// Estimates of one row and strip: sets the strip's `upper`, and the row's `likeliest` if it is that.
inline void review(const Shortlist& list, int strip, int row, const float* y) {
  const Linear& op = list.job;
  const int groups = op.w->k / kGroup;
  const uint8_t* p = op.w->data + strip * op.w->strip_bytes;
  const uint8_t* largest = p + groups * HighNibbles::kBytes;
  const float infinity = __builtin_inff();
  float& upper = list.upper[size_t(strip) * op.rows + row];
  upper = -infinity;
  F16 a = load(y), b = load(y + 16);
  if (op.bias) a = add(a, load(op.bias + strip * kStrip)), b = add(b, load(op.bias + strip * kStrip + 16));
  // Most strips fall already by their columns' largest scales. NaN is never below.
  const F16 reach = set1(list.reach[row]), lower = set1(list.likeliest[row].value);
  const F16 far_a = fma(load_half(largest), reach, a), far_b = fma(load_half(largest + 32), reach, b);
  if (!any_not_below(far_a, lower) && !any_not_below(far_b, lower)) return;
  if (!(reduce_max(max(far_a, far_b)) < infinity)) {
    upper = infinity;
    return;
  }
  F16 va = zero(), vb = zero();
  for (int g = 0; g < groups; g++, p += HighNibbles::kBytes) {
    const F16 sa = load_half(p + HighNibbles::kScales), sb = load_half(p + HighNibbles::kScales + 32);
    const F16 squares = set1(list.squares[row * groups + g]);
    va = fma(mul(sa, sa), squares, va);
    vb = fma(mul(sb, sb), squares, vb);
  }
  const F16 da = mul(sqrt(va), set1(kDeviation)), db = mul(sqrt(vb), set1(kDeviation)), none = set1(-infinity);
  const int columns = smaller(kStrip, op.w->n - strip * kStrip), columns_b = bigger(0, columns - 16);
  const auto most = [&](F16 x, F16 z) TRIMARAN_BODY {
    return reduce_max(max(first_lanes(smaller(16, columns), x, none), first_lanes(columns_b, z, none)));
  };
  const F16 trust = set1(kTrust), doubt = set1(-kDoubt);
  upper = most(fma(da, trust, a), fma(db, trust, b));
  const float least = most(fma(da, doubt, a), fma(db, doubt, b));
  const Best found{least, strip};
  if (found.beats(list.likeliest[row])) list.likeliest[row] = found;
}

inline void scan(const Shortlist& list, int first_strip, int end_strip) {
  Linear op = list.job;
  op.a.groups = list.terms, op.a.group_stride = op.w->k / kGroup;
  for (int s = first_strip; s < end_strip; s++) {
    for_int_tiles<HighNibbles, false, kIntRows>(op, op.w->data + s * op.w->strip_bytes, true,
                                                [&](int first, auto rows, const float* y) TRIMARAN_BODY {
                                                  for (int r = 0; r < rows; r++)
                                                    review(list, s, first + r, y + r * kStrip);
                                                });
  }
}

// The exact logits of a strip for some rows; nothing is fetched ahead, because the next strip may not be wanted.
inline void score_strip(const Shortlist& list, int strip, int first_row, int rows) {
  Linear op = list.job;
  op.rows = rows;
  op.a = from_row(op.a, first_row);
  op.best += first_row;
  for_int_tiles<PlanesBlock, false, kIntRows>(op, planes_of(*op.w, strip), false,
                                              [&](int first, auto count, float* y)
                                                  TRIMARAN_BODY { finish(op, strip, first, count, y); });
}

inline void score_likeliest(const Shortlist& list) {
  for (int r = 0; r < list.job.rows; r++) {
    const Best& likeliest = list.likeliest[r];
    if (likeliest.id >= 0) score_strip(list, likeliest.id, r, 1);
    const float reached = list.job.best[r].value;
    list.least[r] = reached > likeliest.value ? reached : likeliest.value;
  }
}

inline int rescore(const Shortlist& list, int first_strip, int end_strip) {
  const int rows = list.job.rows;
  int scored = 0;
  for (int s = first_strip; s < end_strip; s++) {
    const float* upper = list.upper + size_t(s) * rows;
    int first = rows, end = 0;  // rows between two that want the strip cost next to nothing
    for (int r = 0; r < rows; r++) {
      if (s == list.likeliest[r].id || upper[r] < list.least[r]) continue;
      first = smaller(first, r), end = r + 1;
    }
    if (first < end) score_strip(list, s, first, end - first), scored++;
  }
  return scored;
}

}  // namespace trimaran::TRIMARAN_ISA
