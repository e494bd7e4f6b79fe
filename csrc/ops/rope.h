// Norm and rotations of one head of a query or key.
namespace trimaran::TRIMARAN_ISA {

// Rotates the first dims of x, pairs (i, i + dims / 2); products and sums are rounded one by one. y may be x.
TRIMARAN_INLINE void rotate(const Rotation& rope, const float* x, int position, float* y) {
  const int half = rope.dims / 2;
  const float *c = rope.cos + size_t(position) * half, *s = rope.sin + size_t(position) * half;
  int i = 0;
  for (; i + 16 <= half; i += 16) {
    const F16 u = load(x + i), v = load(x + i + half), cos = load(c + i), sin = load(s + i);
    store(y + i, sub(mul(u, cos), mul(v, sin)));
    store(y + i + half, add(mul(v, cos), mul(u, sin)));
  }
  for (; i < half; i++) {
    const float u = x[i], v = x[i + half];
    y[i] = u * c[i] - v * s[i];
    y[i + half] = v * c[i] + u * s[i];
  }
}

// Norm and rotation of a row's query or key number `head`, x, into y.
TRIMARAN_INLINE void turn_head(const Attention& a, const HeadNorm& norm, const float* x, int row, int head,
                               int position, float* y) {
  if (norm.weight) {
    const float* w = norm.weight + (norm.inverse_rms ? head * a.head_dim : 0);
    const F16 r = set1(norm.inverse_rms ? norm.inverse_rms[row] : inverse_rms(x, a.head_dim, norm.eps));
    for (int i = 0; i < a.head_dim; i += 16) store(y + i, mul(mul(load(x + i), r), load(w + i)));
    x = y;
  }
  rotate(a.rope, x, position, y);
  for (int i = a.rope.dims; i < a.head_dim; i++) y[i] = x[i];
}

// Lanes i and i + N become their sum and their difference.
template <int N>
TRIMARAN_INLINE F16 butterfly(F16 x) {
  constexpr float a = 1.f, b = N == 1 ? -1.f : 1.f, c = N == 2 ? -1.f : 1.f, d = b * c;
  constexpr float e = N == 4 ? -1.f : 1.f, f = N == 8 ? -1.f : 1.f, g = e * f;
  static constexpr float kSigns[16] = {a,     b,     c,     d,     e * a, e * b, e * c, e * d,
                                       f * a, f * b, f * c, f * d, g * a, g * b, g * c, g * d};
  return fma(x, load(kSigns), swap_lanes<N>(x));
}

// Every `width` of n dimensions become their Hadamard transform, an orthogonal matrix, its own inverse: products of a
// query and a key stay what they were, and what one dimension has much of is spread over `width` before it is rounded.
// The width is a power of two of at least 16 that divides n.
TRIMARAN_INLINE void hadamard(float* x, int n, int width) {
  const F16 norm = set1(1.f / __builtin_sqrtf(float(width)));
  for (int i = 0; i < n; i += 16) {
    store(x + i, mul(butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(load(x + i))))), norm));
  }
  for (int half = 16; half < width; half *= 2) {
    for (int i = 0; i < n; i += (i + 16) % (2 * half) == half ? half + 16 : 16) {
      const F16 u = load(x + i), v = load(x + i + half);
      store(x + i, add(u, v));
      store(x + i + half, sub(u, v));
    }
  }
}

}  // namespace trimaran::TRIMARAN_ISA
