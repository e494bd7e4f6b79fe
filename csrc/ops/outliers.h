// Single numbers beside a matrix, each added to one weight: to the products of a tile, by ascending input.
namespace trimaran::TRIMARAN_ISA {

inline void add_outliers(const Linear& op, int strip, int first_row, int rows, float* y) {
  const OutlierRow* end = op.w->outliers + op.w->outlier_starts[strip + 1];
  for (const OutlierRow* o = op.w->outliers + op.w->outlier_starts[strip]; o < end; o++) {
    unroll<2>(TRIMARAN_UNROLL(half) {
      const F16 values = load_half(reinterpret_cast<const uint8_t*>(o->values + half * 16));
      for (int r = 0; r < rows; r++) {
        float* sums = y + r * kStrip + half * 16;
        const F16 x = gather(op.a.f32 + size_t(first_row + r) * op.a.f32_stride, o->inputs + half * 16);
        store(sums, fma(values, x, load(sums)));
      }
    });
  }
}

}  // namespace trimaran::TRIMARAN_ISA
