// The kernels as the program calls them: plain argument structs, and one table of functions per instruction set.
//
// All float matrices are row-major with a row stride of a multiple of 32 floats; columns beyond the true width are
// zero, so vector loops need no tails.
#pragma once
#include <cstddef>
#include <cstdint>

#include "formats.h"
#include "isa/inline.h"

namespace trimaran {

// Numbers beside a strip of codebooks, one of each column; a column that has no more adds nothing to input 0.
struct OutlierRow {
  uint16_t inputs[kStrip];
  uint16_t values[kStrip];  // fp16
};
constexpr int kMostOutlierInputs = 1 << 16;

// A weight matrix in packed form (see pack.h).
struct Matrix {
  WeightFormat format;
  int n, k;     // outputs and inputs
  bool paired;  // a strip holds 16 gate columns and the 16 up columns that belong to them
  int strips;
  size_t strip_bytes;
  const uint8_t* data;
  const uint8_t* low;  // int8 in two planes: the low nibbles, `data` holds the high ones; null: whole bytes
  // Those of strip s are outliers[outlier_starts[s]] and the next ones, a column's by ascending input; null: none.
  const uint32_t* outlier_starts;
  const OutlierRow* outliers;
};

// What a linear kernel needs of one group of 32 quantised activations: one 16-byte broadcast source.
struct GroupTerms {
  float scale;         // absmax / 127; of a group of 15 bits a 256th of that
  float scaled_sum;    // scale * sum(q): meets the minimum of int4z weights
  int32_t correct128;  // -128 * sum(q): start of an accumulator whose weights are q + 128
  int32_t wide;        // 1 if its values have 15 bits

  int32_t correct8() const { return correct128 / 16; }
};

// Rows that are ready for a linear layer; either the int8 part or the float part is used. Beside int8, a matrix with
// outliers reads floats too: what the integers stand for.
//
// A wide row keeps 15 bits of the values of its coarser groups, q = 256 * high + low: each group is 32 high bytes, then
// 32 low bytes. Of the others it keeps 7, as other rows do, and the second bytes are 0.
struct Activations {
  int8_t* q;
  bool wide;
  GroupTerms* groups;
  size_t q_stride, group_stride;
  float* f32;
  size_t f32_stride;
};

// The rows from `row` on.
TRIMARAN_INLINE Activations from_row(Activations a, size_t row) {
  if (a.q) a.q += row * a.q_stride, a.groups += row * a.group_stride;
  if (a.f32) a.f32 += row * a.f32_stride;
  return a;
}

struct Prepare {  // optionally normalises, then quantises or copies
  const float* x;
  size_t x_stride;
  const int32_t* gather;  // row r reads x[gather[r]]; null: row r
  const float* norm;      // RMSNorm weight; null: none
  float eps;
  int width;  // true width, for the mean
  int k;      // width rounded up to a multiple of 32
  int8_t* q;  // null: write f32
  bool wide;
  bool both;  // with q: f32 gets what the integers stand for
  GroupTerms* groups;
  size_t q_stride, group_stride;
  float* f32;
  size_t f32_stride;
};

enum class Epilogue { kStore, kAdd, kSwiglu, kGeglu, kLogits, kRouted };

struct Best {
  float value;
  int32_t id;

  // Larger, or as large and of a lower id.
  TRIMARAN_INLINE bool beats(const Best& other) const {
    return value > other.value || (value == other.value && id < other.id);
  }
};

struct RoutedRow {  // a row that one expert's result is added to, times the weight
  int32_t row;
  float weight;
};

struct Linear {
  const Matrix* w;
  const float* bias;  // padded, in strip order; null: none
  Activations a;
  int rows;
  Epilogue epilogue;
  float* out;  // null with kLogits: only the best ids are wanted
  size_t out_stride;
  const float* residual;
  size_t residual_stride;
  const int32_t* residual_rows;  // row r adds residual row residual_rows[r]; null: row r
  const RoutedRow* routed;       // [rows], with kRouted: where out's rows lie
  Best* best;                    // [rows], with kLogits: running arg-max
  uint8_t* scratch;              // one strip: dequantised, joined from two planes, or looked up in codebooks
};

// The greedy choice over a matrix in two planes (ops/head.h): one member's view of it.
struct Shortlist {
  Linear job;         // gives the exact logits; `best` is wanted alone
  GroupTerms* terms;  // [rows][k / 32], of the high nibbles
  float* squares;     // [rows][k / 32]: sum of squares of the activations
  float* reach;       // [rows]
  float* upper;       // [strips][rows], of all members: what no logit of the strip is thought to exceed
  Best* likeliest;    // [rows]: what the largest logit is thought to reach at least, and the strip that says so; or -1
  float* least;       // [rows]: what it does reach, in that strip, or is thought to
};

constexpr int kMostRoutes = 64;  // experts of a row, and groups of experts

// How experts are chosen: see Route in src/trimaran/kernels/program.py.
struct Routing {
  int experts, top_k;
  bool softmax;  // else sigmoid
  int groups, top_groups;
  bool normalise;
  float epsilon, factor;
};

// Where one slice of every page lies: what a layer holds of one kv head, or of its latents. Pages that are neighbours
// by number lie in bundles, slice by slice: [bundle][slice][page]{bytes}. So where the pages of a sequence follow one
// another, a block of attention is read in one go, which memory serves half as fast again as pieces of one page.
struct PageSlices {
  uint8_t* base;
  size_t bytes;  // of a page's slice
  size_t bundle_bytes;
  int bundle_bits;  // a bundle has 2^bundle_bits pages

  uint8_t* of(int32_t page) const {
    const int32_t place = page & ((1 << bundle_bits) - 1);
    return base + size_t(page >> bundle_bits) * bundle_bytes + size_t(place) * bytes;
  }
};

// Where the keys and values of one layer lie: page -> tile of 16 tokens {K | V | scales}.
struct KvLayer {
  KvFormat format;
  PageSlices first_head;
  size_t head_bytes;  // from a head's slices to the next one's
  size_t tile_bytes;
  int tiles_per_page;
  const float *key_scales, *value_scales;  // [kv heads], of a static format
};

struct HeadScale {  // of the key and value of one head, in a static format
  float key = 1, value = 1;
};

constexpr int kMostGroups = 4;  // cache groups of a program

struct SequenceRows {
  int first_row, rows;
  int context;                        // tokens in the cache before the first row
  int out_row;                        // of the first row: where attention writes its result
  const int32_t* pages[kMostGroups];  // by cache group
};

struct AttentionUnit;
struct UnitPart;
struct ReadAhead;

struct Rotation {
  int dims;
  const float *cos, *sin;  // [position][dims / 2]
};

// RMSNorm of queries or keys before their rotation.
struct HeadNorm {
  const float* weight;  // null: none
  float eps;
  const float* inverse_rms;  // [rows], of all heads together, each with weights of its own; null: heads by themselves
};

struct Attention {
  KvLayer kv;
  int group;  // whose pages kv lies in
  const float* qkv;
  size_t qkv_stride;
  float* out;
  size_t out_stride;
  int heads, kv_heads, head_dim;
  int window;   // a row at position i sees those after i - window; 0: all
  bool causal;  // rows see none behind them; else all of their sequence
  float scale;  // of the scores, log2(e) included
  HeadNorm q_norm, k_norm;
  Rotation rope;
  const float* query_scale;  // [position]; null: 1
  const SequenceRows* sequences;
  const UnitPart* parts;  // of all units
  ReadAhead* ahead;       // of this thread
  float* partials;        // (O, m, l) of single blocks, for rows whose blocks are shared among threads
  float* scratch;         // attention_scratch() floats
};

// Some of the (token, query head) rows of one sequence and kv head.
// Rows are numbered token-major: row = token * (heads / kv_heads) + head within the kv head's group.
struct UnitPart {
  int sequence;
  int row, rows;
  int shared;  // blocks of tokens, from the first on, that lie in the same full pages as those of the part before it
  bool store;  // the unit with the last of its blocks appends its token's key and value first (single-token sequences)
};

// Parts of one kv head against some of their blocks of tokens. A part that is not alone has all its rows in the unit.
struct AttentionUnit {
  int kv_head;
  int part, parts;                // range of parts
  int rows;                       // of all parts, at most kUnitRows
  int block, blocks;              // range of blocks to process
  int first_block, total_blocks;  // of the rows
  int64_t partial;                // index of the first partial of these rows (first_block), or -1: finish here
  int group;                      // counter of the units that share the rows, with partial >= 0
};

// Where a unit is: at a block, and at a part or at several neighbours that find it in the same pages.
struct Place {
  int block, part, parts;
  int row, rows;  // of the unit: those of the parts
};

// How far a thread has fetched the tiles that it will read: always so many ahead, across blocks and units, because
// blocks of few tokens leave no time to fetch what comes after them.
struct ReadAhead {
  bool to_first_cache = false;          // else to the second, see fetches_to_first_cache()
  const AttentionUnit* end = nullptr;   // of the units that this thread will probably work on one after another
  const AttentionUnit* next = nullptr;  // the one of them that it has not begun
  const AttentionUnit* unit = nullptr;  // whose tiles are being fetched
  Place place;                          // the last place of that unit whose tiles were looked up
  const uint8_t* tiles[kBlockTokens / kTileTokens];
  int first = 0, count = 0;  // of the tiles: those that are still to be fetched
  int fetched = 0;           // tiles that were fetched and not yet read
};

// Passes over one row of logits, for the choice of its token (ops/sampling.h); rows of any length.
constexpr int kMaximaBlock = 64;  // entries that share a maximum
constexpr int kSumBlock = 512;    // entries that share a sum

struct RowPeak {
  float value;
  bool finite;  // all of the row
};

struct Parts {        // a list of numbers, split by a pivot
  int above;          // how many are at least the pivot; they now lead the list
  double sum;         // of those
  float least, most;  // the least of those above, the most of those below; infinite where there are none
};

struct HeadLinear;  // latent.h, as the next ones
struct LatentAttention;
struct LatentUnit;
struct SelectTokens;

struct Kernels {
  const char* name;
  int scan_rows;  // most rows for which scan() and rescore() are quicker than linear()
  void (*prepare)(const Prepare&, int first, int end);
  void (*linear)(const Linear&, int first_strip, int end_strip);
  // One row: `out` gets top_k experts, then their weights. `bias`: null is none; `scratch`: 2 * experts floats, padded.
  void (*route)(const Routing&, const float* logits, const float* bias, float* scratch, float* out);
  void (*begin_shortlist)(const Shortlist&);
  void (*scan)(const Shortlist&, int first_strip, int end_strip);
  void (*score_likeliest)(const Shortlist&);
  int (*rescore)(const Shortlist&, int first_strip, int end_strip);  // returns how many strips were on the shortlist
  float (*inverse_rms)(const float* x, int width, float eps);
  void (*store_kv)(const Attention&, int row, int position, int kv_head, const int32_t* pages);
  void (*attend)(const Attention&, const AttentionUnit&);
  void (*merge)(const Attention&, const AttentionUnit&);
  void (*head_linear)(const HeadLinear&, int first_strip, int end_strip);
  void (*store_latent)(const LatentAttention&, int row, int position, const int32_t* pages);
  void (*attend_latents)(const LatentAttention&, const LatentUnit&);
  void (*merge_latents)(const LatentAttention&, const LatentUnit&, int row);
  void (*store_key)(const SelectTokens&, int row, int position, const int32_t* pages);
  void (*score_tokens)(const SelectTokens&, int sequence, int row, int first, int end, float* scores);
  void (*choose_tokens)(float* scores, int n, int most, float* out);
  // Tiles, or tokens of latents, one behind the other, from one page format to another (ops/transcode.h).
  void (*convert_heads)(KvFormat from, HeadScale from_scale, const uint8_t* tiles, KvFormat to, HeadScale to_scale,
                        uint8_t* out, int count, int head_dim, float* scratch);
  void (*convert_latents)(KvFormat from, const uint8_t* tokens, KvFormat to, uint8_t* out, int count, int latent,
                          int rope, float* scratch);
  void (*convert_index_keys)(KvFormat from, const uint8_t* tiles, KvFormat to, uint8_t* out, int count, int dim,
                             float* scratch);
  void (*swiglu)(const float* gate_up, float* out, int width);
  void (*geglu)(const float* gate_up, float* out, int width);
  void (*gelu)(const float* x, float* out, int width);  // exact to about 2e-7
  void (*tanh)(const float* x, float* out, int width);  // the same
  void (*add)(const float* a, const float* b, float* out, int width);
  // out = weight * (x - mean) / sqrt(variance + eps) + bias; weight and bias padded with zeros. out may be x.
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, float* out, int width);
  // The row's peak and that of every block of kMaximaBlock.
  RowPeak (*scan_row)(const float* x, int n, float* maxima);
  // weights[i] = 2^((x[i] - peak) * sharpness), rounded; sums: of those >= least, by block of kSumBlock. Writes up to
  // 15 zeros behind the end.
  void (*weigh_row)(const float* x, int n, float peak, float sharpness, float least, float* weights, double* sums);
  // The same sums for weights that are there.
  void (*sum_heavy)(const float* weights, int n, float least, double* sums);
  // Copies the weights >= least, in order; returns how many. May write 16 more.
  int (*keep_heavy)(const float* weights, int n, float least, float* heavy);
  // Splits the list in place; those below the pivot go to `below`, which has room for n + 16.
  Parts (*part_list)(float* list, int n, float pivot, float* below);
};

constexpr int kUnitRows = 24;    // most rows of an attention unit
constexpr int kReduceRows = 12;  // most of them that any instruction set works on together
// Floats of scratch that attend() and store_kv() use.
constexpr size_t attention_scratch(int head_dim) {
  return size_t(2 * kUnitRows + kReduceRows + 1) * head_dim +
         size_t(kReduceRows) * (2 * kBlockTokens + kBlockTokens / 4) +
         size_t(most_value_scales(head_dim) + 1) * kBlockTokens;
}
// Floats of scratch that the conversion of tiles uses, whose tokens are `width` numbers wide.
constexpr size_t convert_scratch(int width) { return 2 * size_t(width) * kTileTokens; }
// The first position that a row at `position` sees.
constexpr int first_seen(int position, int window) { return window && position >= window ? position - window + 1 : 0; }
// Floats of one partial result.
constexpr size_t partial_stride(int head_dim) { return size_t(head_dim) + 16; }

}  // namespace trimaran
