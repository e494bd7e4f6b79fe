// Passes over one row of logits or weights, for the choice of its token (csrc/sampler.cpp puts them together).
//
// A weight is 2^x rounded to a multiple of 2^-34. Up to 2^19 such numbers of at most 1 add up exactly in doubles,
// whatever the order, and no product is fused with a sum. So every instruction set, and the reference in
// src/trimaran/engine/filters.py, finds the same bits.
namespace trimaran::TRIMARAN_ISA {

constexpr float kInfinity = __builtin_inff();

// f(i, entries i to i + 15) for [first, end); entries behind the end are `rest`.
template <class F>
TRIMARAN_INLINE void for_vectors(const float* x, int first, int end, float rest, F&& f) {
  int i = first;
  for (; i + 16 <= end; i += 16) f(i, load(x + i));
  if (i < end) {
    float lanes[16];
    for (int j = 0; j < 16; j++) lanes[j] = i + j < end ? x[i + j] : rest;
    f(i, load(lanes));
  }
}

inline RowPeak scan_row(const float* x, int n, float* maxima) {
  F16 peak = set1(-kInfinity), taint = zero();  // 0 times a number is 0, times anything else it is NaN
  for (int first = 0; first < n; first += kMaximaBlock) {
    F16 best = set1(-kInfinity), t = zero();
    for_vectors(x, first, smaller(n, first + kMaximaBlock), x[first], [&](int, F16 v) TRIMARAN_BODY {
      best = max(best, v);
      t = fma(v, zero(), t);
    });
    maxima[first / kMaximaBlock] = reduce_max(best);
    peak = max(peak, best);
    taint = add(taint, t);
  }
  return {reduce_max(peak), !any_nan(taint, taint)};
}

// 2^x for x <= 0, rounded to a multiple of 2^-34; exactly 1 at 0. The polynomial is that of exp2().
TRIMARAN_INLINE F16 weight(F16 x) {
  const F16 y = max(x, set1(-64.f)), n = round_even(y), f = sub(y, n);
  F16 p = set1(0.00132647273f);
  p = add(mul(p, f), set1(0.00967151299f));
  p = add(mul(p, f), set1(0.0555073358f));
  p = add(mul(p, f), set1(0.240222424f));
  p = add(mul(p, f), set1(0.693147004f));
  p = add(mul(p, f), set1(1.f));
  p = scale_by_power(p, n);
  const F16 coarse = set1(0x1p-11f);  // from here to twice of it, floats lie 2^-34 apart
  return either(p, coarse, p, sub(add(p, coarse), coarse));
}

// sums[b] of the weights >= least that f(i) makes, by block.
template <class F>
TRIMARAN_INLINE void sum_blocks(const float* x, int n, float least, double* sums, F&& f) {
  const F16 limit = set1(least);
  for (int first = 0; first < n; first += kSumBlock) {
    Sums s = no_sums();
    for_vectors(x, first, smaller(n, first + kSumBlock), -kInfinity, [&](int i, F16 v) TRIMARAN_BODY {
      const F16 w = f(i, v);
      s = add(s, zero_below(w, w, limit));
    });
    sums[first / kSumBlock] = reduce_add(s);
  }
}

inline void weigh_row(const float* x, int n, float peak, float sharpness, float least, float* weights, double* sums) {
  const F16 top = set1(peak), factor = set1(sharpness);
  sum_blocks(x, n, least, sums, [&](int i, F16 v) TRIMARAN_BODY {
    const F16 w = weight(mul(sub(v, top), factor));
    store(weights + i, w);
    return w;
  });
}

inline void sum_heavy(const float* weights, int n, float least, double* sums) {
  sum_blocks(weights, n, least, sums, [](int, F16 w) TRIMARAN_BODY { return w; });
}

inline int keep_heavy(const float* weights, int n, float least, float* heavy) {
  const F16 limit = set1(least);
  int kept = 0;
  for_vectors(weights, 0, n, -kInfinity, [&](int, F16 w) TRIMARAN_BODY {
    const uint32_t mask = at_least(w, limit);
    if (mask) kept += store_selected(heavy + kept, mask, w);
  });
  return kept;
}

inline Parts part_list(float* list, int n, float pivot, float* below) {
  const F16 limit = set1(pivot), infinite = set1(kInfinity), none = set1(-kInfinity);
  F16 least = infinite, most = none;
  Sums s = no_sums();
  int above = 0, beneath = 0;
  for_vectors(list, 0, n, -kInfinity, [&](int, F16 v) TRIMARAN_BODY {  // writes only what was read before
    const uint32_t mask = at_least(v, limit);
    above += store_selected(list + above, mask, v);
    beneath += store_selected(below + beneath, ~mask & 0xFFFF, v);
    s = add(s, zero_below(v, v, limit));
    least = min(least, either(v, limit, v, infinite));
    most = max(most, either(v, limit, none, v));
  });
  return {above, reduce_add(s), -reduce_max(sub(zero(), least)), reduce_max(most)};
}

}  // namespace trimaran::TRIMARAN_ISA
