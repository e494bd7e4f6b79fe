// Storage formats and their sizes: the mirror of src/trimaran/base/formats.py (a test compares the two).
#pragma once
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace trimaran {

enum class WeightFormat { kFp32, kBf16, kInt8, kInt4, kInt4z, kFp8, kCodebook4, kCodebook3 };
enum class KvFormat { kFp32, kBf16, kFp8, kInt8, kInt4, kInt8Int4, kFp8Static, kInt8Static };

constexpr int kGroup = 32;         // values along the input dimension that share one scale
constexpr int kStrip = 32;         // output columns that are stored and computed together
constexpr int kTileTokens = 16;    // tokens of a KV tile
constexpr int kBlockTokens = 128;  // tokens whose softmax is reduced on its own; blocks are merged in ascending order

constexpr int kWideHead = 128;   // dimensions, above which a head is wide
constexpr int kFineGroup = 16;   // dimensions that share a scale in int4 keys of wide heads
constexpr int kValueGroup = 64;  // dimensions that share a scale in int4 values of wide heads

constexpr int kFp8Block = 128;  // inputs that share a scale in fp8 weights

constexpr bool is_codebook(WeightFormat f) { return f == WeightFormat::kCodebook4 || f == WeightFormat::kCodebook3; }
constexpr bool has_group_scales(WeightFormat f) {
  return f == WeightFormat::kInt8 || f == WeightFormat::kInt4 || f == WeightFormat::kInt4z;
}
// Whether it may meet int8 activations, and whether it has scales at all.
constexpr bool is_integer(WeightFormat f) { return has_group_scales(f) || is_codebook(f); }
constexpr bool is_quantised(WeightFormat f) { return is_integer(f) || f == WeightFormat::kFp8; }
constexpr int levels_of(WeightFormat f) {
  return f == WeightFormat::kCodebook4 ? 16 : f == WeightFormat::kCodebook3 ? 8 : 0;
}

// Bytes of kGroup weights of one output, their scales included where they have some of their own.
constexpr int group_bytes(WeightFormat f) {
  switch (f) {
    case WeightFormat::kFp32:
      return 128;
    case WeightFormat::kBf16:
      return 64;
    case WeightFormat::kInt8:
      return 34;
    case WeightFormat::kInt4:
      return 18;
    case WeightFormat::kInt4z:
      return 20;
    case WeightFormat::kFp8:
      return 32;
    case WeightFormat::kCodebook4:
      return 16;
    case WeightFormat::kCodebook3:
      return 12;
  }
  return 0;
}

// Bytes that the k inputs of one output share: the levels (16 bytes, whatever their number) and their scale; fp8
// scales.
constexpr int shared_bytes(WeightFormat f, int k) {
  if (is_codebook(f)) return 18;
  return f == WeightFormat::kFp8 ? (k + kFp8Block - 1) / kFp8Block * 4 : 0;
}

// Bytes of one output with k inputs.
constexpr size_t row_bytes(WeightFormat f, int k) { return size_t(k) * group_bytes(f) / kGroup + shared_bytes(f, k); }

// Formats of keys and of values by themselves.
constexpr KvFormat keys_of(KvFormat f) { return f == KvFormat::kInt8Int4 ? KvFormat::kInt8 : f; }
constexpr KvFormat values_of(KvFormat f) { return f == KvFormat::kInt8Int4 ? KvFormat::kInt4 : f; }

// Bytes of the numbers of one key or value; nibbles of int4 lie in pairs of 16 dimensions.
constexpr int kv_code_bytes(KvFormat f, int head_dim) {
  switch (f) {
    case KvFormat::kFp32:
      return 4 * head_dim;
    case KvFormat::kBf16:
      return 2 * head_dim;
    case KvFormat::kFp8:
    case KvFormat::kInt8:
    case KvFormat::kFp8Static:
    case KvFormat::kInt8Static:
      return head_dim;
    case KvFormat::kInt4:
      return (head_dim + 31) / 32 * 16;
    case KvFormat::kInt8Int4:  // of two formats
      break;
  }
  return 0;
}

// Whether pages have no scales, because they are given beforehand.
constexpr bool is_static(KvFormat f) { return f == KvFormat::kFp8Static || f == KvFormat::kInt8Static; }

// Whether values are held after a Hadamard transform.
constexpr bool turns_values(KvFormat f) { return values_of(f) == KvFormat::kInt4 || f == KvFormat::kInt8Static; }

// What layers hold that are exempt from the format.
constexpr KvFormat wider(KvFormat f) { return f == KvFormat::kFp32 ? f : KvFormat::kBf16; }

// Bytes of the scales of one key, and of one value.
constexpr int kv_scale_bytes(KvFormat f) {
  return f == KvFormat::kFp32 || f == KvFormat::kBf16 || is_static(f) ? 0 : 4;
}
constexpr int part_scale_bytes(KvFormat f, int dims) {  // of a part of a latent
  return f == KvFormat::kInt4 ? (dims + kGroup - 1) / kGroup * 4 : kv_scale_bytes(f);
}
constexpr bool has_fine_keys(KvFormat f, int head_dim) { return f == KvFormat::kInt4 && head_dim > kWideHead; }
constexpr int key_scale_bytes(KvFormat f, int head_dim) {
  return part_scale_bytes(f, head_dim) + (has_fine_keys(f, head_dim) ? 4 : 0);
}
constexpr int value_group(int head_dim) { return head_dim > kWideHead ? kValueGroup : head_dim; }  // of int4
constexpr int most_value_scales(int head_dim) { return (head_dim + value_group(head_dim) - 1) / value_group(head_dim); }
constexpr int value_scale_bytes(KvFormat f, int head_dim) {
  return f == KvFormat::kInt4 ? most_value_scales(head_dim) * 2 : kv_scale_bytes(f);
}

// Dimensions of a key or value that one Hadamard transform goes over.
constexpr int hadamard_width(KvFormat f, int dims) {
  const int most = dims > kWideHead && f != KvFormat::kInt4 ? kWideHead : kGroup, power = dims & -dims;
  return power < most ? power : most;
}

// Pages that lie side by side are 2 to the power of this: as many as hold a block of attention.
constexpr int bundle_bits(int page_size) {
  int bits = 0;
  while (page_size << (bits + 1) <= kBlockTokens) bits++;
  return bits;
}

// Bytes of one token's key and value of one kv head, scales included.
constexpr int kv_token_bytes(KvFormat f, int head_dim) {
  return kv_code_bytes(keys_of(f), head_dim) + key_scale_bytes(keys_of(f), head_dim) +
         kv_code_bytes(values_of(f), head_dim) + value_scale_bytes(values_of(f), head_dim);
}

// Formats of the two parts of a token of latent attention: what is gathered, and what is key alone.
constexpr KvFormat latent_of(KvFormat f) { return values_of(f); }
constexpr KvFormat rope_of(KvFormat f) {
  if (f == KvFormat::kFp8) return KvFormat::kInt8;
  if (f == KvFormat::kInt4) return KvFormat::kBf16;
  return keys_of(f);
}

// Bytes of a part of n numbers, scales included, and of both.
constexpr int part_bytes(KvFormat f, int n) { return kv_code_bytes(f, n) + part_scale_bytes(f, n); }
constexpr int latent_token_bytes(KvFormat f, int latent, int rope) {
  return part_bytes(latent_of(f), latent) + part_bytes(rope_of(f), rope);
}

// Bytes of an indexer's key.
constexpr int index_token_bytes(KvFormat f, int dim) { return f == KvFormat::kFp32 ? 4 * dim : dim + 4; }

// Bytes of one packed strip of kStrip outputs with k inputs each.
constexpr size_t strip_bytes(WeightFormat f, int k) { return kStrip * row_bytes(f, k); }
// Of those, what lies in front of a strip's blocks.
constexpr size_t header_bytes(WeightFormat f, int k) { return size_t(kStrip) * shared_bytes(f, k); }

constexpr int strip_count(int n) { return (n + kStrip - 1) / kStrip; }
constexpr int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

inline WeightFormat weight_format(const std::string& name) {
  if (name == "fp32") return WeightFormat::kFp32;
  if (name == "bf16") return WeightFormat::kBf16;
  if (name == "int8") return WeightFormat::kInt8;
  if (name == "int4") return WeightFormat::kInt4;
  if (name == "int4z") return WeightFormat::kInt4z;
  if (name == "fp8") return WeightFormat::kFp8;
  if (name == "codebook4") return WeightFormat::kCodebook4;
  if (name == "codebook3") return WeightFormat::kCodebook3;
  throw std::invalid_argument("unknown weight format '" + name + "'");
}

inline KvFormat kv_format(const std::string& name) {
  if (name == "fp32") return KvFormat::kFp32;
  if (name == "bf16") return KvFormat::kBf16;
  if (name == "fp8") return KvFormat::kFp8;
  if (name == "int8") return KvFormat::kInt8;
  if (name == "int4") return KvFormat::kInt4;
  if (name == "int8/int4") return KvFormat::kInt8Int4;
  if (name == "fp8-static") return KvFormat::kFp8Static;
  if (name == "int8-static") return KvFormat::kInt8Static;
  throw std::invalid_argument("unknown KV format '" + name + "'");
}

inline float bits_to_float(uint32_t u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

// fp16 to fp32: move the fields, correct the exponent's bias; 2^16 and above were infinities and NaNs.
inline float half_to_float(uint16_t h) {
  const float magnitude = bits_to_float(uint32_t(h & 0x7FFF) << 13) * 0x1p112f;
  uint32_t bits;
  std::memcpy(&bits, &magnitude, 4);
  if (magnitude >= 0x1p16f) bits |= 0x7F800000;
  return bits_to_float(bits | uint32_t(h & 0x8000) << 16);
}

}  // namespace trimaran
