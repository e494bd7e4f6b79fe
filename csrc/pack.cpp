#include "pack.h"

#include <algorithm>
#include <cmath>

namespace trimaran {
namespace {

struct BlockShape {
  int inputs;  // per block
  int dwords;  // per column
  uint32_t flip;
};

BlockShape block_shape(WeightFormat f) {
  switch (f) {
    case WeightFormat::kFp32:
      return {2, 2, 0};
    case WeightFormat::kBf16:
      return {2, 1, 0};
    case WeightFormat::kInt8:
      return {kGroup, 8, 0x80808080};  // q becomes q + 128
    default:
      return {kGroup, 4, 0};
  }
}

uint32_t load_dword(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}

}  // namespace

WeightView WeightView::from_row(size_t row) const {
  WeightView w = *this;
  const size_t terms = row * (k / kGroup);
  w.data += row * k / block_shape(format).inputs * block_shape(format).dwords * 4;
  if (scale) w.scale += terms;
  if (minimum) w.minimum += terms;
  return w;
}

int strip_row(int n, bool paired, int strip, int c) {
  if (!paired) {
    const int row = strip * kStrip + c;
    return row < n ? row : -1;
  }
  const int within = strip * 16 + c % 16;
  return within < n / 2 ? within + (c < 16 ? 0 : n / 2) : -1;
}

void pack_strips(const WeightView& w, bool paired, int first, int end, uint8_t* out) {
  const BlockShape shape = block_shape(w.format);
  const int blocks = w.k / shape.inputs;
  const size_t row_bytes = size_t(blocks) * shape.dwords * 4, bytes = strip_bytes(w.format, w.k);
  const size_t block_bytes = bytes / blocks;
  for (int s = first; s < end; s++) {
    for (int c = 0; c < kStrip; c++) {
      const int row = strip_row(w.n, paired, s, c);
      uint8_t* to = out + s * bytes + c * 4;
      if (row < 0) {  // a column of zeros is stored as q = 0
        for (int b = 0; b < blocks && shape.flip; b++) {
          for (int d = 0; d < shape.dwords; d++) std::memcpy(to + b * block_bytes + d * kStrip * 4, &shape.flip, 4);
        }
        continue;
      }
      const uint8_t* from = w.data + row * row_bytes;
      for (int b = 0; b < blocks; b++, from += shape.dwords * 4) {
        for (int d = 0; d < shape.dwords; d++) {
          const uint32_t v = load_dword(from + d * 4) ^ shape.flip;
          std::memcpy(to + b * block_bytes + d * kStrip * 4, &v, 4);
        }
      }
      if (!is_quantised(w.format)) continue;
      uint8_t* terms = out + s * bytes + shape.dwords * kStrip * 4 + c * 2;
      for (int b = 0; b < blocks; b++, terms += block_bytes) {
        std::memcpy(terms, w.scale + size_t(row) * blocks + b, 2);
        if (w.minimum) std::memcpy(terms + kStrip * 2, w.minimum + size_t(row) * blocks + b, 2);
      }
    }
  }
}

namespace {

constexpr uint32_t kLow = 0x0F0F0F0F, kHigh = 0xF0F0F0F0;
constexpr uint16_t kInfinity = 0x7C00;  // fp16

// What a scan of the high nibbles takes for granted: low ones that look random, as those of rounded numbers do.
bool low_nibbles_look_random(const uint8_t* q, int k) {
  constexpr double kMean = 1.25, kVariance = 27;  // allowed; random ones have mean 0 and variance 21.25
  double sum = 0, squares = 0;
  for (int i = 0; i < k; i++) {
    const double low = (q[i] & 15) - 7.5;
    sum += low, squares += low * low;
  }
  return std::abs(sum) < kMean * k && squares < kVariance * k;
}

// The largest of a column's scales (fp16 bits of positive numbers are in order); infinite where one is no number.
uint16_t largest_scale(const uint16_t* scale, int blocks) {
  uint16_t most = 0;
  for (int b = 0; b < blocks; b++) most = std::max<uint16_t>(most, scale[b] & 0x7FFF);
  return std::min(most, kInfinity);
}

}  // namespace

void pack_planes(const WeightView& w, int first, int end, uint8_t* high, uint8_t* low) {
  const int blocks = w.k / kGroup;
  for (int s = first; s < end; s++) {
    uint8_t* largest = high + (s + 1) * high_strip_bytes(w.k) - kStrip * 2;
    bool random = true;
    for (int c = 0; c < kStrip; c++) {
      const int row = s * kStrip + c;
      uint8_t* to_high = high + s * high_strip_bytes(w.k) + c * 4;
      uint8_t* to_low = low + s * low_strip_bytes(w.k) + c * 4;
      const uint8_t* from = w.data + size_t(row) * w.k;
      for (int b = 0; b < blocks; b++, to_high += kStrip * 18, to_low += kStrip * 16, from += kGroup) {
        for (int d = 0; d < 4; d++) {
          uint32_t u = 0x80808080, v = u;  // columns of zeros
          if (row < w.n) u ^= load_dword(from + d * 4), v ^= load_dword(from + d * 4 + 16);
          const uint32_t upper = (u >> 4 & kLow) | (v & kHigh), lower = (u & kLow) | (v & kLow) << 4;
          std::memcpy(to_high + d * kStrip * 4, &upper, 4);
          std::memcpy(to_low + d * kStrip * 4, &lower, 4);
        }
        if (row < w.n) std::memcpy(to_high + kStrip * 16 - c * 2, w.scale + size_t(row) * blocks + b, 2);
      }
      if (row >= w.n) continue;
      const uint16_t most = largest_scale(w.scale + size_t(row) * blocks, blocks);
      std::memcpy(largest + c * 2, &most, 2);
      random = random && most < kInfinity && low_nibbles_look_random(w.data + size_t(row) * w.k, w.k);
    }
    if (!random) std::fill_n(reinterpret_cast<uint16_t*>(largest), kStrip, kInfinity);
  }
}

namespace {

void unpack_planes_row(const Matrix& m, int row, float* out) {
  const int c = row % kStrip;
  const uint8_t* high = m.data + row / kStrip * m.strip_bytes + c * 4;
  const uint8_t* low = m.low + row / kStrip * low_strip_bytes(m.k) + c * 4;
  for (int b = 0; b < m.k / kGroup; b++, high += kStrip * 18, low += kStrip * 16, out += kGroup) {
    uint16_t half;
    std::memcpy(&half, high + kStrip * 16 - c * 2, 2);
    const float scale = half_to_float(half);
    for (int d = 0; d < 4; d++) {
      const uint32_t h = load_dword(high + d * kStrip * 4), l = load_dword(low + d * kStrip * 4);
      const uint32_t u = (h & kLow) << 4 | (l & kLow), v = (h & kHigh) | (l >> 4 & kLow);
      for (int i = 0; i < 4; i++) {
        out[d * 4 + i] = scale * float(int(u >> (8 * i) & 255) - 128);
        out[d * 4 + i + 16] = scale * float(int(v >> (8 * i) & 255) - 128);
      }
    }
  }
}

}  // namespace

void unpack_row(const Matrix& m, int row, float* out) {
  if (m.low) return unpack_planes_row(m, row, out);
  const BlockShape shape = block_shape(m.format);
  const int blocks = m.k / shape.inputs, c = row % kStrip;
  const size_t block_bytes = m.strip_bytes / blocks;
  const uint8_t* block = m.data + row / kStrip * m.strip_bytes;
  for (int b = 0; b < blocks; b++, block += block_bytes) {
    const uint8_t* terms = block + shape.dwords * kStrip * 4 + c * 2;
    uint16_t half[2] = {};
    if (is_quantised(m.format)) std::memcpy(&half[0], terms, 2);
    if (m.format == WeightFormat::kInt4z) std::memcpy(&half[1], terms + kStrip * 2, 2);
    const float scale = half_to_float(half[0]), minimum = half_to_float(half[1]);
    for (int d = 0; d < shape.dwords; d++) {
      const uint32_t v = load_dword(block + d * kStrip * 4 + c * 4);
      float* to = out + b * shape.inputs;
      switch (m.format) {
        case WeightFormat::kFp32:
          to[d] = bits_to_float(v);
          break;
        case WeightFormat::kBf16:
          to[0] = bits_to_float(v << 16), to[1] = bits_to_float(v & 0xFFFF0000);
          break;
        case WeightFormat::kInt8:
          for (int i = 0; i < 4; i++) to[d * 4 + i] = scale * float(int(v >> (8 * i) & 255) - 128);
          break;
        default:
          for (int i = 0; i < 4; i++) {
            const int zero = m.format == WeightFormat::kInt4 ? 8 : 0, q = int(v >> (8 * i) & 255);
            to[d * 4 + i] = scale * float((q & 15) - zero) + minimum;
            to[d * 4 + i + 16] = scale * float((q >> 4) - zero) + minimum;
          }
      }
    }
  }
}

}  // namespace trimaran
