// Functions on vectors, and the loops whose index is a constant. Included once per instruction set.
namespace trimaran::TRIMARAN_ISA {

// f(0), f(1), ... f(N - 1), each index a constant for the front end.
template <int N, class F>
TRIMARAN_INLINE void unroll(F&& f) {
  [&]<int... I>(std::integer_sequence<int, I...>)
      TRIMARAN_BODY { (f(std::integral_constant<int, I>{}), ...); }(std::make_integer_sequence<int, N>{});
}
#define TRIMARAN_UNROLL(i) [&](auto i) TRIMARAN_BODY

// f(constant i, argument i) for each further argument.
template <class F, class... T>
TRIMARAN_INLINE void enumerate(F&& f, const T&... x) {
  [&]<int... I>(std::integer_sequence<int, I...>)
      TRIMARAN_BODY { (f(std::integral_constant<int, I>{}, x), ...); }(std::make_integer_sequence<int, sizeof...(T)>{});
}

// Calls f(constant n) for a run-time n in 1..N.
template <int N, class F>
TRIMARAN_INLINE void with_constant(int n, F&& f) {
  if constexpr (N > 1) {
    if (n < N) return with_constant<N - 1>(n, f);
  }
  f(std::integral_constant<int, N>{});
}

// Rows cut into equal tiles of at most Max: 16 rows become 8 + 8 rather than 12 + 4. f(first row, constant rows).
template <int Max, class F>
TRIMARAN_INLINE void for_row_tiles(int rows, F&& f) {
  int tiles = (rows + Max - 1) / Max;
  for (int first = 0; first < rows; tiles--) {
    const int n = (rows - first + tiles - 1) / tiles;
    with_constant<Max>(n, [&](auto constant) TRIMARAN_BODY { f(first, constant); });
    first += n;
  }
}

TRIMARAN_INLINE int smaller(int a, int b) { return a < b ? a : b; }
TRIMARAN_INLINE int bigger(int a, int b) { return a > b ? a : b; }

// 2^x to about 2e-7 relative for x <= 127; exactly 0 below -126; NaN stays NaN. Minimax polynomial on [-1/2, 1/2].
TRIMARAN_INLINE F16 exp2(F16 x) {
  const F16 low = set1(-126.f), y = max(low, x), n = round_even(y), f = sub(y, n);
  F16 p = set1(0.00132647273f);
  p = fma(p, f, set1(0.00967151299f));
  p = fma(p, f, set1(0.0555073358f));
  p = fma(p, f, set1(0.240222424f));
  p = fma(p, f, set1(0.693147004f));
  p = fma(p, f, set1(1.f));
  return zero_below(scale_by_power(p, n), x, low);
}
TRIMARAN_INLINE float exp2(float x) {
  float lanes[16];
  store(lanes, exp2(set1(x)));
  return lanes[0];
}

// 2^x to about 1e-4 relative for x <= 0, at least 2^-126; NaN stays NaN. For weights that are rounded to 8 bits.
TRIMARAN_INLINE F16 exp2_coarse(F16 x) {
  const F16 y = max(set1(-126.f), x), n = round_even(y), f = sub(y, n);
  F16 p = set1(0.0550083f);
  p = fma(p, f, set1(0.2422105f));
  p = fma(p, f, set1(0.6932828f));
  p = fma(p, f, set1(1.f));
  return scale_by_power(p, n);
}

// log2(x) to about 2e-6, for normal x above zero.
TRIMARAN_INLINE F16 log2(F16 x) {
  F16 power;
  const F16 f = sub(split_power(x, power), set1(1.f));
  F16 p = set1(-0.0251232033f);
  p = fma(p, f, set1(0.119298238f));
  p = fma(p, f, set1(-0.274623258f));
  p = fma(p, f, set1(0.455527088f));
  p = fma(p, f, set1(-0.717557872f));
  p = fma(p, f, set1(1.44247531f));
  return add(power, fma(p, f, set1(2.12374089e-6f)));
}

// x / (1 + e^-x).
TRIMARAN_INLINE F16 silu(F16 x) {
  const F16 e = exp2(min(mul(x, set1(-1.44269504f)), set1(126.f)));
  return div(x, add(set1(1.f), e));
}

// x / 2 * (1 + tanh(u)) with u = sqrt(2 / pi) * (x + 0.044715 x^3), which is x / (1 + e^(-2 u)).
TRIMARAN_INLINE F16 gelu_tanh(F16 x) {
  const F16 cubic = fma(mul(mul(x, x), x), set1(0.044715f), x);
  const F16 e = exp2(min(mul(cubic, set1(-2.30220818f)), set1(126.f)));
  return div(x, add(set1(1.f), e));
}

// 1 - 2 / (1 + e^(2 x)), NaN where x is.
TRIMARAN_INLINE F16 tanh(F16 x) {
  const F16 e = exp2(min(set1(126.f), mul(x, set1(2.88539008f))));
  return sub(set1(1.f), div(set1(2.f), add(set1(1.f), e)));
}

// x / 2 * (1 + erf(x / sqrt(2))). erf as in Abramowitz and Stegun, 7.1.26, which is off by at most 1.5e-7.
TRIMARAN_INLINE F16 gelu(F16 x) {
  const F16 a = mul(abs(x), set1(0.70710678f)), one = set1(1.f);
  const F16 t = div(one, fma(a, set1(0.3275911f), one));
  F16 p = set1(1.061405429f);
  p = fma(p, t, set1(-1.453152027f));
  p = fma(p, t, set1(1.421413741f));
  p = fma(p, t, set1(-0.284496736f));
  p = fma(p, t, set1(0.254829592f));
  const F16 tail = mul(mul(p, t), exp2(mul(mul(a, a), set1(-1.44269504f))));  // 1 - erf(|x| / sqrt(2))
  const F16 half = mul(x, set1(0.5f));
  // erf is odd: x / 2 + |x| / 2 * erf(|x| / sqrt(2)).
  return add(half, mul(abs(half), sub(one, tail)));
}

}  // namespace trimaran::TRIMARAN_ISA
