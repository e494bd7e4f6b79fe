// Weight matrices in packed form: strips of 32 output columns, read from front to back by every kernel.
//
// A format's canonical row (src/trimaran/kernels/weights.py) is a string of dwords; a strip interleaves the dwords of
// its 32 columns, so that one vector holds the same inputs of 16 columns and results come out across the lanes:
//
//   block of 32 inputs x 32 columns
//     int4   4 x [16 columns | 16 columns], a dword = 8 inputs (low nibbles i..i+3, high nibbles i+16..i+19);
//            32 fp16 scales                                                       512 +  64      =  576 B
//     int4z  the same; 32 fp16 minima                                             512 +  64 + 64 =  640 B
//     int8   8 x [16 columns | 16 columns], a dword = 4 inputs stored as q + 128; 32 fp16 scales = 1088 B
//     int8 in two planes (the output head, see ops/head.h): q + 128 = 16 high + low
//            plane of high nibbles laid out as int4, after a strip's blocks 32 fp16 (the largest scale of each column)
//            plane of low nibbles, 4 x [16 columns | 16 columns] without scales
//     codebook4   as int4 without scales                                          512             =  512 B
//     codebook3   two dwords of the low two bits (bits 2s of the first: quad s, of the second: quad s + 4), one of the
//            high bits (bit q: quad q), each [16 columns | 16 columns]            384             =  384 B
//            before a strip's blocks, for either: levels + 128 as tables of 16 bytes, [2 halves][4][4]: table j of lane
//            l is of column 4 l + j of the half; 32 fp16 scales                                   =  576 B
//     fp8    as int8, without scales                                                              = 1024 B
//            before a strip's blocks: 32 fp32 scales for every 128 inputs
//     bf16   16 x [16 columns | 16 columns], a dword = 2 inputs                                  = 2048 B
//     fp32   32 x [16 columns | 16 columns]                                                      = 4096 B
//
// Columns beyond n are zero. A paired matrix [gate; up] has 16 gate columns and the 16 matching up columns in a strip,
// so that silu(gate) * up needs no second pass.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace trimaran {

// Raised by whoever changes a byte of what is packed: packed weights that were kept are of no use then.
constexpr int kPackingVersion = 1;

struct WeightView {  // canonical arrays, row-major; null where the format has none
  WeightFormat format;
  int n, k;
  int count;  // matrices of n rows, one under the other
  const uint8_t* data;
  const uint16_t *scale, *minimum;  // [n][k / 32]; scale of codebooks: [n]
  const float* block_scale;         // [n][ceil(k / 128)]
  const int8_t* codebook;           // [n][levels]
  const int32_t* outlier_starts;    // [n + 1], of outlier_columns and outlier_values; may be null
  const int32_t* outlier_columns;
  const uint16_t* outlier_values;
  bool sparse;                 // has outliers
  size_t packed_outlier_rows;  // of one that is packed already, and so has no arrays: rows of outliers in all strips

  WeightView from_row(size_t row) const;
  size_t data_row_bytes() const;
};

constexpr int matrix_strips(int n, bool paired) { return paired ? (n / 2 + 15) / 16 : strip_count(n); }

// Bytes of the packed matrix.
constexpr size_t matrix_bytes(WeightFormat f, int n, int k, bool paired) {
  return strip_bytes(f, k) * matrix_strips(n, paired);
}

// int8 in two planes: bytes of a strip of each, and of the whole matrix.
constexpr size_t high_strip_bytes(int k) { return strip_bytes(WeightFormat::kInt4, k) + kStrip * 2; }
constexpr size_t low_strip_bytes(int k) { return size_t(k) * kStrip / 2; }
constexpr size_t planes_bytes(int n, int k) { return (high_strip_bytes(k) + low_strip_bytes(k)) * strip_count(n); }

// The row of the matrix that is column c of a strip, or -1.
int strip_row(int n, bool paired, int strip, int c);

// Packs strips [first, end) to `out`, the start of the packed matrix (zero-filled).
void pack_strips(const WeightView& w, bool paired, int first, int end, uint8_t* out);

// Rows of outliers that each strip of a matrix needs: as many as the column with the most.
uint32_t outlier_rows(const int32_t* starts, int n, bool paired, int strip);

// Packs the outliers of all strips to `out` (zero-filled) from row `first` on; returns where they end. `starts`: by
// strip, then the end.
uint32_t pack_outliers(const WeightView& w, bool paired, int strips, uint32_t first, uint32_t* starts, OutlierRow* out);

// Packs strips [first, end) of an int8 matrix to the two planes (zero-filled).
void pack_planes(const WeightView& w, int first, int end, uint8_t* high, uint8_t* low);

// Row `row` of an unpaired packed matrix as k floats: the embedding reads the output head's weights.
void unpack_row(const Matrix& m, int row, float* out);

}  // namespace trimaran
