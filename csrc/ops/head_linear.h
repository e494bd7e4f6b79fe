// A matrix for each head: the float tiles of ops/linear.h, each on its head's share of a row.
namespace trimaran::TRIMARAN_ISA {

template <class Pair>
TRIMARAN_INLINE void head_strip(const HeadLinear& op, int strip) {
  const int head = strip / op.w->strips, column = strip % op.w->strips * kStrip;
  const int columns = smaller(kStrip, op.w->n - column);
  const uint8_t* p = op.w->data + size_t(strip) * op.w->strip_bytes;
  for_row_tiles<kFloatRows>(op.rows, [&](int first, auto rows) TRIMARAN_BODY {
    alignas(64) float y[rows * kStrip];
    const float* x = op.x + first * op.x_stride + size_t(head) * op.share;
    float_tile<Pair, rows>(p, op.w->k, x, op.x_stride, first == 0, y);
    for (int r = 0; r < rows; r++) {  // only a head's own columns: its neighbour's are another thread's
      float* out = op.out + (first + r) * op.out_stride + size_t(head) * op.w->n + column;
      std::memcpy(out, y + r * kStrip, columns * sizeof(float));
    }
  });
}

inline void head_linear(const HeadLinear& op, int first_strip, int end_strip) {
  const bool bf16 = op.w->format == WeightFormat::kBf16;
  for (int s = first_strip; s < end_strip; s++) bf16 ? head_strip<Bf16Pair>(op, s) : head_strip<Fp32Pair>(op, s);
}

}  // namespace trimaran::TRIMARAN_ISA
