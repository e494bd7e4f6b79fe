// e4m3 weights with a scale per 128 inputs, times float activations: the same sums as of the dequantised numbers in
// fp32.
namespace trimaran::TRIMARAN_ISA {

// The scales of 16 columns, times what tiny_e4m3() lacks.
TRIMARAN_INLINE F16 fp8_scales(const uint8_t* p) {
  return mul(load(reinterpret_cast<const float*>(p)), set1(0x1p120f));
}

// f(first input, quad of the first 16 columns, of the others, their scales) for every four inputs of a strip.
template <class F>
TRIMARAN_INLINE void for_fp8_quads(const uint8_t* strip, int k, bool stream, F&& f) {
  const uint8_t* p = strip + header_bytes(WeightFormat::kFp8, k);
  for (int first = 0; first < k; first += kFp8Block, strip += kStrip * 4) {
    const F16 a = fp8_scales(strip), b = fp8_scales(strip + 64);
    const int end = smaller(k, first + kFp8Block);
    for (int i = first; i < end; i += 4, p += kStrip * 4) {
      if (stream) prefetch(p + kPrefetchAhead), prefetch(p + kPrefetchAhead + 64);
      f(i, load_bytes(p), load_bytes(p + 64), a, b);
    }
  }
}

template <int R>
TRIMARAN_INLINE void fp8_tile(const uint8_t* strip, int k, const float* x, size_t x_stride, bool stream, float* y) {
  F16 f[2 * R];
  unroll<2 * R>(TRIMARAN_UNROLL(i) { f[i] = zero(); });
  for_fp8_quads(strip, k, stream, [&](int first, Bytes qa, Bytes qb, F16 scale_a, F16 scale_b) TRIMARAN_BODY {
    unroll<4>(TRIMARAN_UNROLL(i) {
      const F16 a = mul(tiny_e4m3<i>(qa), scale_a), b = mul(tiny_e4m3<i>(qb), scale_b);
      unroll<R>(TRIMARAN_UNROLL(r) {
        const F16 input = set1(x[r * x_stride + first + i]);
        f[2 * r] = fma(a, input, f[2 * r]);
        f[2 * r + 1] = fma(b, input, f[2 * r + 1]);
      });
    });
  });
  unroll<2 * R>(TRIMARAN_UNROLL(i) { store(y + i * 16, f[i]); });
}

inline void dequantise_fp8(const uint8_t* strip, int k, float* to) {
  for_fp8_quads(strip, k, true, [&](int first, Bytes qa, Bytes qb, F16 scale_a, F16 scale_b) TRIMARAN_BODY {
    unroll<4>(TRIMARAN_UNROLL(i) {
      store(to + (first + i) * kStrip, mul(tiny_e4m3<i>(qa), scale_a));
      store(to + (first + i) * kStrip + 16, mul(tiny_e4m3<i>(qb), scale_b));
    });
  });
}

inline void fp8_strip(const Linear& op, int strip) {
  const uint8_t* p = op.w->data + strip * op.w->strip_bytes;
  if (op.rows > kFloatRows) {  // more than a tile: widened once
    dequantise_fp8(p, op.w->k, reinterpret_cast<float*>(op.scratch));
    float_strip<Fp32Pair>(op, strip, op.scratch, false);
    return;
  }
  with_constant<kFloatRows>(op.rows, [&](auto rows) TRIMARAN_BODY {
    alignas(64) float y[rows * kStrip];
    fp8_tile<rows>(p, op.w->k, op.a.f32, op.a.f32_stride, true, y);
    finish(op, strip, 0, rows, y);
  });
}

}  // namespace trimaran::TRIMARAN_ISA
