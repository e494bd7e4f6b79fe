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
    case WeightFormat::kFp8:
      return {kGroup, 8, 0};
    case WeightFormat::kCodebook3:
      return {kGroup, 3, 0};
    default:
      return {kGroup, 4, 0};
  }
}

uint32_t load_dword(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}

// Canonical bytes of a block of one row: codes of codebook3 lie in nibbles.
int canonical_bytes(WeightFormat f) { return f == WeightFormat::kCodebook3 ? 16 : block_shape(f).dwords * 4; }

// A block of one row as the dwords that the strip holds.
void block_dwords(WeightFormat f, const uint8_t* from, uint32_t* to) {
  const BlockShape shape = block_shape(f);
  if (f != WeightFormat::kCodebook3) {
    for (int d = 0; d < shape.dwords; d++) to[d] = load_dword(from + d * 4) ^ shape.flip;
    return;
  }
  to[0] = to[1] = to[2] = 0;
  for (int i = 0; i < kGroup; i++) {
    const uint32_t code = i < 16 ? from[i] & 7 : from[i - 16] >> 4 & 7;
    const int quad = i / 4, at = 8 * (i % 4);
    to[quad / 4] |= (code & 3) << (at + 2 * (quad % 4));
    to[2] |= (code >> 2) << (at + quad);
  }
}

// Code i of a block, of dwords that lie `stride` bytes apart.
int code_of(WeightFormat f, const uint8_t* p, int stride, int i) {
  const int quad = i / 4, at = 8 * (i % 4);
  if (f == WeightFormat::kCodebook4) return load_dword(p + quad % 4 * stride) >> (at + quad / 4 * 4) & 15;
  const uint32_t low = load_dword(p + quad / 4 * stride) >> (at + 2 * (quad % 4)) & 3;
  return int(low | (load_dword(p + 2 * stride) >> (at + quad) & 1) << 2);
}

// Where the table of column c lies in a strip's header, and where the scales of all columns do.
constexpr int table_offset(int c) { return c / 16 * 256 + c % 4 * 64 + c % 16 / 4 * 16; }
constexpr int kTablesBytes = kStrip * 16;

// Column c of a strip's header; row -1: a column of zeros.
void pack_header(const WeightView& w, int row, int c, uint8_t* header) {
  if (is_codebook(w.format)) {
    const int count = levels_of(w.format);
    for (int i = 0; i < 16; i++) {
      const int level = row < 0 || i >= count ? 0 : w.codebook[size_t(row) * count + i];
      header[table_offset(c) + i] = uint8_t(level + 128);
    }
    if (row >= 0) std::memcpy(header + kTablesBytes + c * 2, w.scale + row, 2);
  } else if (w.format == WeightFormat::kFp8 && row >= 0) {
    const int blocks = shared_bytes(w.format, w.k) / 4;
    for (int b = 0; b < blocks; b++) {
      std::memcpy(header + (b * kStrip + c) * 4, w.block_scale + size_t(row) * blocks + b, 4);
    }
  }
}

float e4m3_to_float(uint8_t b) {
  const float magnitude = bits_to_float(uint32_t(b & 0x7F) << 20) * 0x1p120f;
  return b & 0x80 ? -magnitude : magnitude;
}

}  // namespace

size_t WeightView::data_row_bytes() const { return size_t(k) / block_shape(format).inputs * canonical_bytes(format); }

WeightView WeightView::from_row(size_t row) const {
  WeightView w = *this;
  const size_t terms = row * (is_codebook(format) ? 1 : k / kGroup);
  w.data += row * data_row_bytes();
  if (scale) w.scale += terms;
  if (minimum) w.minimum += terms;
  if (block_scale) w.block_scale += row * (shared_bytes(format, k) / 4);
  if (codebook) w.codebook += row * levels_of(format);
  if (outlier_starts) w.outlier_starts += row;
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
  const size_t bytes = strip_bytes(w.format, w.k), header = header_bytes(w.format, w.k);
  const size_t block_bytes = (bytes - header) / blocks;
  for (int s = first; s < end; s++) {
    for (int c = 0; c < kStrip; c++) {
      const int row = strip_row(w.n, paired, s, c);
      pack_header(w, row, c, out + s * bytes);
      uint8_t* to = out + s * bytes + header + c * 4;
      if (row < 0) {  // a column of zeros is stored as q = 0
        for (int b = 0; b < blocks && shape.flip; b++) {
          for (int d = 0; d < shape.dwords; d++) std::memcpy(to + b * block_bytes + d * kStrip * 4, &shape.flip, 4);
        }
        continue;
      }
      const uint8_t* from = w.data + row * w.data_row_bytes();
      for (int b = 0; b < blocks; b++, from += canonical_bytes(w.format)) {
        uint32_t dwords[8];
        block_dwords(w.format, from, dwords);
        for (int d = 0; d < shape.dwords; d++) std::memcpy(to + b * block_bytes + d * kStrip * 4, dwords + d, 4);
      }
      if (!has_group_scales(w.format)) continue;
      uint8_t* terms = out + s * bytes + shape.dwords * kStrip * 4 + c * 2;
      for (int b = 0; b < blocks; b++, terms += block_bytes) {
        std::memcpy(terms, w.scale + size_t(row) * blocks + b, 2);
        if (w.minimum) std::memcpy(terms + kStrip * 2, w.minimum + size_t(row) * blocks + b, 2);
      }
    }
  }
}

uint32_t outlier_rows(const int32_t* starts, int n, bool paired, int strip) {
  uint32_t most = 0;
  for (int c = 0; c < kStrip; c++) {
    const int row = strip_row(n, paired, strip, c);
    if (row >= 0) most = std::max(most, uint32_t(starts[row + 1] - starts[row]));
  }
  return most;
}

uint32_t pack_outliers(const WeightView& w, bool paired, int strips, uint32_t first, uint32_t* starts,
                       OutlierRow* out) {
  for (int s = 0; s < strips; s++) {
    starts[s] = first;
    for (int c = 0; c < kStrip; c++) {
      const int row = strip_row(w.n, paired, s, c);
      if (row < 0) continue;
      OutlierRow* to = out + first;
      for (int at = w.outlier_starts[row]; at < w.outlier_starts[row + 1]; at++, to++) {
        to->inputs[c] = uint16_t(w.outlier_columns[at]), to->values[c] = w.outlier_values[at];
      }
    }
    first += outlier_rows(w.outlier_starts, w.n, paired, s);
  }
  starts[strips] = first;
  return first;
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

void unpack_levels(const Matrix& m, int row, float* out) {
  const int c = row % kStrip, bytes = kStrip * group_bytes(m.format);
  const uint8_t* strip = m.data + row / kStrip * m.strip_bytes;
  uint16_t half;
  std::memcpy(&half, strip + kTablesBytes + c * 2, 2);
  const float scale = half_to_float(half);
  const uint8_t* block = strip + header_bytes(m.format, m.k) + c * 4;
  for (int i = 0; i < m.k; i++) {
    const int code = code_of(m.format, block + i / kGroup * bytes, kStrip * 4, i % kGroup);
    out[i] = scale * float(strip[table_offset(c) + code] - 128);
  }
  if (!m.outliers) return;
  const uint32_t* starts = m.outlier_starts + row / kStrip;
  for (const OutlierRow* o = m.outliers + starts[0]; o < m.outliers + starts[1]; o++) {
    out[o->inputs[c]] += half_to_float(o->values[c]);
  }
}

}  // namespace

void unpack_row(const Matrix& m, int row, float* out) {
  if (m.low) return unpack_planes_row(m, row, out);
  if (is_codebook(m.format)) return unpack_levels(m, row, out);
  const BlockShape shape = block_shape(m.format);
  const int blocks = m.k / shape.inputs, c = row % kStrip;
  const size_t header = header_bytes(m.format, m.k), block_bytes = (m.strip_bytes - header) / blocks;
  const uint8_t* strip = m.data + row / kStrip * m.strip_bytes;
  const uint8_t* block = strip + header;
  for (int b = 0; b < blocks; b++, block += block_bytes) {
    const uint8_t* terms = block + shape.dwords * kStrip * 4 + c * 2;
    uint16_t half[2] = {};
    if (has_group_scales(m.format)) std::memcpy(&half[0], terms, 2);
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
        case WeightFormat::kFp8: {
          float s;
          std::memcpy(&s, strip + (b * kGroup / kFp8Block * kStrip + c) * 4, 4);
          for (int i = 0; i < 4; i++) to[d * 4 + i] = s * e4m3_to_float(uint8_t(v >> (8 * i)));
          break;
        }
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
