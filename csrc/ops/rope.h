// Rotations of one head of a query or key.
namespace trimaran::TRIMARAN_ISA {

// Rotates the first rope_dims of x, pairs (i, i + rope_dims / 2); products and sums are rounded one by one.
TRIMARAN_INLINE void rope(const Attention& a, const float* x, int position, float* y) {
  const int half = a.rope_dims / 2;
  const float *c = a.cos + size_t(position) * half, *s = a.sin + size_t(position) * half;
  int i = 0;
  for (; i + 16 <= half; i += 16) {
    const F16 u = load(x + i), v = load(x + i + half), cos = load(c + i), sin = load(s + i);
    store(y + i, sub(mul(u, cos), mul(v, sin)));
    store(y + i + half, add(mul(v, cos), mul(u, sin)));
  }
  for (; i < half; i++) {
    y[i] = x[i] * c[i] - x[i + half] * s[i];
    y[i + half] = x[i + half] * c[i] + x[i] * s[i];
  }
  for (i = a.rope_dims; i < a.head_dim; i++) y[i] = x[i];
}

struct Signs {
  float of[16][16];
};
constexpr Signs hadamard_signs() {
  Signs s{};
  for (int i = 0; i < 16; i++) {
    for (int j = 0; j < 16; j++) s.of[i][j] = __builtin_parity(i & j) ? -1.f : 1.f;
  }
  return s;
}
constexpr Signs kHadamard = hadamard_signs();

// Every 16 dimensions become their Hadamard transform, an orthogonal matrix: products of a query and a key stay what
// they were, and what one dimension has much of is spread over 16 before it is rounded.
TRIMARAN_INLINE void hadamard(float* x, int head_dim) {
  for (int i = 0; i < head_dim; i += 16) {
    F16 sum = zero();
    unroll<16>(TRIMARAN_UNROLL(j) { sum = fma(set1(x[i + j]), load(kHadamard.of[j]), sum); });
    store(x + i, mul(sum, set1(0.25f)));
  }
}

}  // namespace trimaran::TRIMARAN_ISA
