// Tokens of latent attention in their pages: a row of numbers each, so that any of them can be read by itself.
//
//   latent | its scales | rope | its scales
//
//            latent          rope    either by itself: scales
//   fp32     fp32            fp32    none
//   bf16     bf16            bf16    none
//   fp8      e4m3            int8    fp32, absmax / 448, of 256ths; fp32, absmax / 127
//   int8     int8            int8    fp32, absmax / 127
//   int4     int4            bf16    of int4: [group of 32]{scale, minimum} in bf16
//   int8/4   int4            int8
//
// A byte of int4 has dimensions i and i + 16 of a group. Integers are rounded after a Hadamard transform (see rope.h):
// queries go through it too, and what is gathered is turned back. A part that is not finite gets a scale of NaN.
namespace trimaran::TRIMARAN_ISA {

TRIMARAN_INLINE uint8_t* token_at(const TokenLayer& kv, const int32_t* pages, int position) {
  return kv.pages.of(pages[position / kv.page_size]) + size_t(position % kv.page_size) * kv.token_bytes;
}

// The transform of a part, and what undoes it.
TRIMARAN_INLINE void turn_part(KvFormat f, float* x, int n) {
  if (f == KvFormat::kInt8 || f == KvFormat::kInt4) hadamard(x, n, hadamard_width(f, n));
}

// Writes n numbers in a part's format; overwrites them.
TRIMARAN_INLINE void store_part(KvFormat f, float* x, int n, uint8_t* to) {
  const float bad = __builtin_nanf("");
  turn_part(f, x, n);
  switch (f) {
    case KvFormat::kFp32:
      std::memcpy(to, x, n * sizeof(float));
      break;
    case KvFormat::kBf16:
      for (int i = 0; i < n; i += 16) store(reinterpret_cast<uint16_t*>(to) + i, load(x + i));
      break;
    case KvFormat::kFp8: {
      const Scaled scaled(x, n);
      for (int i = 0; i < n; i++) to[i] = scaled.round(x[i]);
      std::memcpy(to + n, scaled.finite ? &scaled.scale : &bad, sizeof bad);
      break;
    }
    case KvFormat::kInt8: {
      const float scale = round_vector(x, n, reinterpret_cast<int8_t*>(to)).scale;
      std::memcpy(to + n, &scale, sizeof scale);
      break;
    }
    case KvFormat::kInt4: {
      auto* q = reinterpret_cast<int8_t*>(x);  // integers take the place of the numbers that they come from
      auto* scales = reinterpret_cast<uint16_t*>(to + kv_code_bytes(f, n));
      if (!round_groups(x, n, q, scales, 1)) scales[0] = to_bf16(bad);
      for (int i = 0; i < n; i += kGroup, to += 16) {
        for (int j = 0; j < 16; j++) to[j] = uint8_t(q[i + j] | (i + 16 < n ? q[i + 16 + j] << 4 : 0));
      }
      break;
    }
    default:  // no part's
      break;
  }
}

// Reads a part's n numbers as they are held, which `turn_part` undoes.
TRIMARAN_INLINE void load_part(KvFormat f, const uint8_t* from, int n, float* to) {
  float scale;
  switch (f) {
    case KvFormat::kFp32:
      std::memcpy(to, from, n * sizeof(float));
      break;
    case KvFormat::kBf16:
      for (int i = 0; i < n; i += 16) store(to + i, load(reinterpret_cast<const uint16_t*>(from) + i));
      break;
    case KvFormat::kFp8:
      std::memcpy(&scale, from + n, sizeof scale);
      for (int i = 0; i < n; i += 16) store(to + i, mul(load_256ths(from + i), set1(scale)));
      break;
    case KvFormat::kInt8:
      std::memcpy(&scale, from + n, sizeof scale);
      for (int i = 0; i < n; i++) to[i] = float(int8_t(from[i])) * scale;
      break;
    case KvFormat::kInt4: {
      const auto* scales = reinterpret_cast<const uint16_t*>(from + kv_code_bytes(f, n));
      for (int i = 0; i < n; i += kGroup, from += 16, scales += 2) {
        const float step = from_bf16(scales[0]), minimum = from_bf16(scales[1]);
        for (int j = 0; j < 16; j++) to[i + j] = float(from[j] & 15) * step + minimum;
        for (int j = 0; i + 16 < n && j < 16; j++) to[i + 16 + j] = float(from[j] >> 4) * step + minimum;
      }
      break;
    }
    default:  // no part's
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
  uint8_t* to = token_at(a.kv, pages, position);
  const KvFormat latent = latent_of(a.kv.format);
  store_part(latent, y, n, to);
  store_part(rope_of(a.kv.format), y + n, a.rope.dims, to + part_bytes(latent, n));
}

// A token as floats: where it lies, or at `to`.
TRIMARAN_INLINE const float* load_token(const LatentAttention& a, const uint8_t* from, float* to) {
  if (a.kv.format == KvFormat::kFp32) return reinterpret_cast<const float*>(from);
  const KvFormat latent = latent_of(a.kv.format);
  load_part(latent, from, a.latent, to);
  load_part(rope_of(a.kv.format), from + part_bytes(latent, a.latent), a.rope.dims, to + a.latent);
  return to;
}

}  // namespace trimaran::TRIMARAN_ISA
