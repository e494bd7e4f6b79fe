// Single numbers beside a matrix, each added to one weight: to the products of a tile, by ascending input.
namespace trimaran::TRIMARAN_ISA {

// An input as the matrix meets it.
TRIMARAN_INLINE float activation(const Activations& a, size_t row, int input) {
  if (!a.q) return a.f32[row * a.f32_stride + input];
  const float scale = a.groups[row * a.group_stride + input / kGroup].scale;
  const int8_t* q = a.q + row * a.q_stride;
  if (!a.wide) return scale * float(q[input]);
  q += input / kGroup * 2 * kGroup + input % kGroup;
  return scale * float(256 * q[0] + q[kGroup]);
}

// fp16 of finite numbers: move the fields, correct the exponent's bias.
TRIMARAN_INLINE float finite_half(uint16_t h) {
  const float magnitude = bits_to_float(uint32_t(h & 0x7FFF) << 13) * 0x1p112f;
  return h & 0x8000 ? -magnitude : magnitude;
}

inline void add_outliers(const Linear& op, int strip, int first_row, int rows, float* y) {
  const uint32_t* starts = op.w->outlier_starts + size_t(strip) * kStrip;
  for (int c = 0; c < kStrip; c++) {
    for (uint32_t i = starts[c]; i < starts[c + 1]; i++) {
      const Outlier& outlier = op.w->outliers[i];
      const float value = finite_half(outlier.value);
      for (int r = 0; r < rows; r++) {
        float& sum = y[r * kStrip + c];
        sum = fused(value, activation(op.a, size_t(first_row + r), outlier.input), sum);
      }
    }
  }
}

}  // namespace trimaran::TRIMARAN_ISA
