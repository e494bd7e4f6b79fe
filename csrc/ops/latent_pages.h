// Tokens of latent attention in their pages: a row of numbers each, so that any of them can be read by itself.
//
//   fp32, bf16   latent, rope
//   int8         latent, rope, scale of the latent, scale of the rope part
//
// In int8 each part is rounded after a Hadamard transform of every 16 dimensions, which reading undoes. What is not
// finite gives its part the scale NaN.
namespace trimaran::TRIMARAN_ISA {

TRIMARAN_INLINE uint8_t* token_at(const TokenLayer& kv, const int32_t* pages, int position) {
  return kv.base + size_t(pages[position / kv.page_size]) * kv.page_bytes +
         size_t(position % kv.page_size) * kv.token_bytes;
}

// Rounds n numbers to int8, after their transform; returns their scale.
TRIMARAN_INLINE float round_part(float* x, int n, int8_t* q) {
  hadamard(x, n);
  return round_vector(x, n, q).scale;
}

// Writes a token's latent and key part; overwrites them.
TRIMARAN_INLINE void store_parts(KvFormat format, float* y, int latent, int rope, uint8_t* to) {
  const int width = latent + rope;
  switch (format) {
    case KvFormat::kFp32:
      std::memcpy(to, y, width * sizeof(float));
      break;
    case KvFormat::kBf16:
      for (int i = 0; i < width; i += 16) store(reinterpret_cast<uint16_t*>(to) + i, load(y + i));
      break;
    case KvFormat::kInt8: {
      auto* q = reinterpret_cast<int8_t*>(to);
      const float scales[2] = {round_part(y, latent, q), round_part(y + latent, rope, q + latent)};
      std::memcpy(to + width, scales, sizeof scales);
      break;
    }
    default:  // refused when the cache is made
      break;
  }
}

// Norms, rotates and appends the latent and key part of a step's row.
inline void store_latent(const LatentAttention& a, int row, int position, const int32_t* pages) {
  const int n = a.latent;
  const float* x = a.rows + row * a.rows_stride;
  const F16 r = set1(inverse_rms(x, n, a.eps));
  float* y = a.scratch;
  for (int i = 0; i < n; i += 16) store(y + i, mul(mul(load(x + i), r), load(a.norm + i)));
  rotate(a.rope, x + n, position, y + n);
  store_parts(a.kv.format, y, n, a.rope.dims, token_at(a.kv, pages, position));
}

TRIMARAN_INLINE void widen_part(const int8_t* q, int n, float scale, float* to) {
  for (int i = 0; i < n; i++) to[i] = float(q[i]) * scale;
  hadamard(to, n);
}

// A token as floats: where it lies, or at `to`.
TRIMARAN_INLINE const float* widen_token(KvFormat format, const uint8_t* from, int n, int rope, float* to) {
  const int width = n + rope;
  switch (format) {
    case KvFormat::kFp32:
      return reinterpret_cast<const float*>(from);
    case KvFormat::kBf16:
      for (int i = 0; i < width; i += 16) store(to + i, load(reinterpret_cast<const uint16_t*>(from) + i));
      break;
    case KvFormat::kInt8: {
      float scales[2];
      std::memcpy(scales, from + width, sizeof scales);
      const auto* q = reinterpret_cast<const int8_t*>(from);
      widen_part(q, n, scales[0], to);
      widen_part(q + n, rope, scales[1], to + n);
      break;
    }
    default:  // refused when the cache is made
      break;
  }
  return to;
}

}  // namespace trimaran::TRIMARAN_ISA
