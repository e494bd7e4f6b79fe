// Latent attention and its indexer: what the kernels are told, and how their work is cut up.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"
#include "step.h"

namespace trimaran {

// A matrix for each head.
struct HeadLinear {
  const Matrix* w;  // the first head's; the others follow it
  const float* x;
  size_t x_stride;
  int share;  // of a head in x; its first w->k numbers are read
  float* out;
  size_t out_stride;
  int rows;
};

// Where one layer's tokens lie: page -> token, a row for latents, a tile of 16 for keys of an indexer.
struct TokenLayer {
  KvFormat format;
  PageSlices pages;
  size_t token_bytes;
  int page_size;
};

struct LatentAttention {
  TokenLayer kv;  // a token is {latent | rope}, either with its scales
  int group;
  const float *q_latent, *q, *rows;  // `rows`: latents and key parts of the step
  size_t q_latent_stride, q_stride, rows_stride;
  float* out;
  size_t out_stride;
  int heads, latent;
  int share;    // of a head in q; its last rope.dims numbers are read
  float scale;  // of the scores, log2(e) included
  Rotation rope;
  const float* norm;
  float eps;
  const float* selected;  // positions by row, ascending; null: a row sees all
  size_t selected_stride;
  int most;  // positions of a row, with a selection
  const SequenceRows* sequences;
  float* partials;  // (O, m, l) of single blocks, for rows whose blocks are shared among threads
  float* scratch;   // latent_scratch() floats
};

// Some (token, head) rows of one sequence, numbered token * heads + head, against some of their blocks. With a
// selection they are of one token, and a block is 128 entries of its list; else it is 128 positions.
struct LatentUnit {
  int sequence;
  int row, rows;
  int block, blocks, total_blocks;
  int64_t partial;  // index of the first partial of these rows (block 0), or -1: finish here
};

struct SelectTokens {
  TokenLayer keys;  // tiles {[dim][16 tokens] | 16 scales, in e4m3}
  int group;
  const float *q, *k, *weights;
  size_t q_stride, k_stride, weights_stride;
  int heads, dim, top_k;
  Rotation rope;
  const float *norm, *norm_bias;
  float eps;
  const SequenceRows* sequences;
  float* out;
  size_t out_stride;
  float* scratch;  // select_scratch() floats
};

constexpr int kLatentRows = 64;  // most rows of a unit

// Floats of scratch that the latent kernels use.
constexpr size_t latent_scratch(int latent, int rope) {
  const size_t width = latent + rope;
  return (kLatentRows + kBlockTokens) * width + kLatentRows * size_t(latent) + kLatentRows * size_t(kBlockTokens);
}
constexpr int kSelectTiles = 2;  // of keys that are scored together
constexpr size_t select_scratch(int heads, int dim) {
  return size_t(heads) * dim + size_t(kSelectTiles) * kTileTokens * dim + heads + kTileTokens;
}

// Latent attention of one shape, cut for the team anew in every step.
class LatentPlan {
 public:
  // top_k: most tokens that a row sees; 0: all of its past.
  LatentPlan(int heads, int latent, int top_k, int threads)
      : heads_(heads), latent_(latent), top_k_(top_k), threads_(threads), partials_(partials_for(threads)) {}

  void cut(const Step& step);

  bool fits(int heads, int latent, int top_k) const { return heads == heads_ && latent == latent_ && top_k == top_k_; }
  const std::vector<LatentUnit>& units() const { return units_; }
  // Rows whose partial results are merged once all units are done.
  struct Merge {
    LatentUnit unit;  // with all blocks
    int row;
  };
  const std::vector<Merge>& merges() const { return merges_; }
  float* partials() { return reinterpret_cast<float*>(partials_.data()); }

 private:
  void add_rows(int sequence, int first, int rows, int last_seen);
  void split();

  int heads_, latent_, top_k_, threads_;
  HugeMemory partials_;
  std::vector<LatentUnit> units_;
  std::vector<Merge> merges_;
};

// Scores of an indexer: rows that must choose, some at a time so that their scores fit a bounded memory.
class SelectPlan {
 public:
  explicit SelectPlan(int top_k) : top_k_(top_k) {}

  void cut(const Step& step);

  int top_k() const { return top_k_; }
  struct Row {
    int sequence, row, position;  // row within the step
  };
  const std::vector<Row>& rows() const { return rows_; }
  int rows_at_once() const { return rows_at_once_; }
  int pieces() const { return pieces_; }  // of a row's tokens
  float* scores(int row) { return scores_.data() + size_t(row) * stride_; }

  static constexpr int kPiece = 1024;  // tokens

 private:
  int top_k_, rows_at_once_ = 0, pieces_ = 0;
  size_t stride_ = 0;
  std::vector<Row> rows_;
  std::vector<float> scores_;
};

}  // namespace trimaran
