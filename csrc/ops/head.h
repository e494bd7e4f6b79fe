// The greedy choice over an int8 output head in two planes: reads little more than half of the bytes, and finds what
// all the logits would have given.
//
// With q + 128 = 16 high + low, a logit is sum(s x q) = sum(s x (16 (high - 8) + 7.5)) + error, where the error is
// sum(s x (low - 7.5)). The first pass computes the first part from the plane of high nibbles. Low nibbles are what
// rounding left and look random (pack_planes() sees to it): a low nibble has variance 21.25, so the error's deviation
// is d = sqrt(21.25 sum(s^2 x^2)), computed from the scales and the activations. A strip stays on the shortlist unless
// estimate + kDeviations * d of all its columns is below the largest estimate - kDeviations * d of any column. The
// second pass computes the exact logits of the strips that stayed, in the ordinary int8 kernel.
//
// The largest logit is missed only if its error and that of the column which sent it away differ by
// kDeviations * (d1 + d2); their difference has a deviation of sqrt(d1^2 + d2^2). For each column whose logit comes
// near the largest at all that is 7 deviations, odds of 1e-12, if d1 = d2; 6.7 deviations, 1e-11, if one is twice the
// other; never less than 5, 3e-7. Which strips stay depends on the row alone: not on its neighbours, on the number of
// threads, or on the order of the strips.
namespace trimaran::TRIMARAN_ISA {

constexpr int kScanRows = 2 * kIntRows;  // with more the multiplications take the time, not the bytes
constexpr float kDeviations = 5;
constexpr float kReach = kDeviations * 4.6097722f;  // of the random low nibbles of values of size 1

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
    list.reach[r] = kReach * __builtin_sqrtf(all);
  }
}

// Estimates of one row and strip: sets the strip's `upper` and raises the row's `lower`.
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
  const F16 reach = set1(list.reach[row]), lower = set1(list.lower[row]);
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
  const F16 da = mul(sqrt(va), set1(kReach)), db = mul(sqrt(vb), set1(kReach)), none = set1(-infinity);
  const int columns = smaller(kStrip, op.w->n - strip * kStrip), columns_b = bigger(0, columns - 16);
  const auto most = [&](F16 x, F16 z) TRIMARAN_BODY {
    return reduce_max(max(first_lanes(smaller(16, columns), x, none), first_lanes(columns_b, z, none)));
  };
  upper = most(add(a, da), add(b, db));
  const float least = most(sub(a, da), sub(b, db));
  if (least > list.lower[row]) list.lower[row] = least;
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

inline void rescore(const Shortlist& list, int first_strip, int end_strip) {
  Linear op = list.job;
  op.rows = 1;
  for (int s = first_strip; s < end_strip; s++) {
    for (int r = 0; r < list.job.rows; r++) {
      if (list.upper[size_t(s) * list.job.rows + r] < list.lower[r]) continue;
      op.a.q = list.job.a.q + r * list.job.a.q_stride;
      op.a.groups = list.job.a.groups + r * list.job.a.group_stride;
      op.best = list.job.best + r;
      const auto done = [&](int, auto, float* y) TRIMARAN_BODY { finish(op, s, 0, 1, y); };
      for_int_tiles<PlanesBlock, false, kIntRows>(op, planes_of(*op.w, s), false,
                                                  done);  // no prefetch: the next is not wanted
    }
  }
}

}  // namespace trimaran::TRIMARAN_ISA
