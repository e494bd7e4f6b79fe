#include "latent.h"

#include <algorithm>
#include <stdexcept>

#include "program.h"

namespace trimaran {

// ---- how the work is cut up --------------------------------------------------------------------------------------

// Rows that share the tokens they read, in equal units.
void LatentPlan::add_rows(int sequence, int first, int rows, int last_seen) {
  const int tiles = (rows + kLatentRows - 1) / kLatentRows, last = first + rows;
  for (int t = 0, row = first; t < tiles; t++) {
    const int n = (last - row + tiles - t - 1) / (tiles - t);
    const int seen = last_seen - (last - 1) / heads_ + (row + n - 1) / heads_;  // by the unit's last row
    const int blocks = (seen + kBlockTokens - 1) / kBlockTokens;
    units_.push_back({sequence, row, n, 0, blocks, blocks, -1});
    row += n;
  }
}

// The blocks of rows that are shared out are merged in a stage of its own.
void LatentPlan::split() {
  share_out_blocks(units_, threads_, latent_, [&](LatentUnit& u, int) {
    for (int r = 0; r < u.rows; r++) merges_.push_back({u, r});
  });
}

void LatentPlan::cut(const Step& step) {
  units_.clear();
  merges_.clear();
  const auto& sequences = step.sequences();
  for (size_t i = 0; i < sequences.size(); i++) {
    const SequenceRows& s = sequences[i];
    if (top_k_ == 0) {
      add_rows(int(i), 0, s.rows * heads_, s.context + s.rows);
      continue;
    }
    for (int t = 0; t < s.rows; t++) add_rows(int(i), t * heads_, heads_, std::min(top_k_, s.context + t + 1));
  }
  std::stable_sort(units_.begin(), units_.end(), [](const LatentUnit& a, const LatentUnit& b) {
    return int64_t(a.rows) * a.blocks > int64_t(b.rows) * b.blocks;  // the long ones go first
  });
  split();
}

void SelectPlan::cut(const Step& step) {
  constexpr size_t kMostScores = size_t(8) << 20;
  rows_.clear();
  int longest = 0;
  const auto& sequences = step.sequences();
  for (size_t i = 0; i < sequences.size(); i++) {
    const SequenceRows& s = sequences[i];
    for (int r = 0; r < s.rows; r++) rows_.push_back({int(i), s.first_row + r, s.context + r});
    longest = std::max(longest, s.context + s.rows);
  }
  if (longest <= top_k_) longest = 0;  // nothing is scored
  pieces_ = (longest + kPiece - 1) / kPiece;
  stride_ = round_up(longest, kTileTokens);
  rows_at_once_ = int(std::min(rows_.size(), std::max(size_t(1), kMostScores / std::max(stride_, size_t(1)))));
  scores_.resize(std::max(scores_.size(), rows_at_once_ * stride_));
}

// ---- building ----------------------------------------------------------------------------------------------------

int Program::add_latent_cache(int group, int layers, int latent, int rope) {
  if (is_static(options_.kv_format)) throw std::invalid_argument("pages of latents have no static format");
  return add_token_cache(group, {PagePart::kLatents, layers, 1, latent, rope});
}

int Program::add_index_cache(int group, int layers, int dim) {
  return add_token_cache(group, {PagePart::kIndexKeys, layers, 1, dim, 0});
}

int Program::add_token_cache(int group, const PagePart& part) {
  const size_t bytes = layer_bytes(part, options_.kv_format);
  Group& g = groups_[group];
  tokens_.push_back({group, g.page_bytes, part.layers, bytes / options_.limits.page_size});
  g.parts.push_back(part);
  g.page_bytes += part.layers * bytes;
  token_scratch_ = std::max(token_scratch_, convert_scratch(part.width + part.rope));
  return int(tokens_.size()) - 1;
}

void Program::plan(LatentOp& op) {
  const int rank = op.latent, most = op.selected >= 0 ? buffers_[op.selected].width : 0;
  const auto found = std::find_if(latent_plans_.begin(), latent_plans_.end(),
                                  [&](const LatentPlan& p) { return p.fits(op.heads, rank, most); });
  op.plan = int(found - latent_plans_.begin());
  if (found == latent_plans_.end()) latent_plans_.emplace_back(op.heads, rank, most, team_.size());
  token_scratch_ = std::max(token_scratch_, latent_scratch(rank, ropes_[op.rope].dims));
}

void Program::plan(SelectOp& op) {
  const int most = buffers_[op.out].width;
  const auto found =
      std::find_if(select_plans_.begin(), select_plans_.end(), [&](const SelectPlan& p) { return p.top_k() == most; });
  op.plan = int(found - select_plans_.begin());
  if (found == select_plans_.end()) select_plans_.emplace_back(most);
  token_scratch_ = std::max(token_scratch_, select_scratch(op.heads, buffers_[op.k].width));
}

// ---- running -----------------------------------------------------------------------------------------------------

TokenLayer Program::token_layer(int cache, int layer) const {
  const TokenCache& c = tokens_[cache];
  const size_t layer_bytes = options_.limits.page_size * c.token_bytes;
  return {options_.kv_format, slices(c.group, c.offset + layer * layer_bytes, layer_bytes), c.token_bytes,
          options_.limits.page_size};
}

Rotation Program::rotation(int rope) const {
  return {ropes_[rope].dims, ropes_[rope].cos.data(), ropes_[rope].sin.data()};
}

void Program::run_op(const HeadLinearOp& op, Team::Member& m) {
  constexpr int kBlockRows = 128;  // rows that stay in a core's cache while all strips pass by
  const ExpertStack& stack = stacks_[op.weights];
  const Buffer &x = buffers_[op.x], &out = buffers_[op.out];
  const int rows = rows_of(op.x), strips = stack.experts * stack.one.strips;
  if (rows == 0) return;
  HeadLinear job{};
  job.w = &stack.one;
  job.x = x.data, job.x_stride = x.stride, job.share = x.width / stack.experts;
  job.out = out.data, job.out_stride = out.stride;
  const int blocks = (rows + kBlockRows - 1) / kBlockRows;
  const int grain = units_per_ticket(stack.one.strip_bytes * size_t(rows / blocks), blocks * strips);
  team_.share(m, blocks * strips, grain, [&](int first, int end) {
    while (first < end) {
      const int block = first / strips, strip = first % strips, count = std::min(end - first, strips - strip);
      const int row = int(int64_t(rows) * block / blocks), end_row = int(int64_t(rows) * (block + 1) / blocks);
      HeadLinear part = job;
      part.x += row * job.x_stride, part.out += row * job.out_stride, part.rows = end_row - row;
      kernels_.head_linear(part, strip, strip + count);
      first += count;
    }
  });
}

void Program::run_op(const LatentOp& op, Team::Member& m) {
  LatentPlan& plan = latent_plans_[op.plan];
  const Buffer &q_latent = buffers_[op.q_latent], &q = buffers_[op.q], &kv = buffers_[op.kv], &out = buffers_[op.out];
  LatentAttention a{};
  a.kv = token_layer(op.cache, op.layer), a.group = tokens_[op.cache].group;
  a.q_latent = q_latent.data, a.q_latent_stride = q_latent.stride, a.q = q.data, a.q_stride = q.stride;
  a.rows = kv.data, a.rows_stride = kv.stride, a.out = out.data, a.out_stride = out.stride;
  a.heads = op.heads, a.latent = op.latent, a.share = q.width / op.heads;
  a.scale = op.scale * 1.44269504f;  // log2(e): weights are powers of two
  a.rope = rotation(op.rope), a.norm = vectors_[op.norm], a.eps = op.eps;
  if (op.selected >= 0) {
    const Buffer& selected = buffers_[op.selected];
    a.selected = selected.data, a.selected_stride = selected.stride, a.most = selected.width;
  }
  a.sequences = step_.sequences().data();
  a.partials = plan.partials(), a.scratch = workers_[m.id].attention;
  share_tokens(m, [&](const SequenceRows& s, int row) {
    kernels_.store_latent(a, row, s.context + row - s.first_row, s.pages[a.group]);
  });
  const auto& units = plan.units();
  team_.share(m, int(units.size()), 1, [&](int i, int) { kernels_.attend_latents(a, units[i]); });
  const auto& merges = plan.merges();
  team_.share(m, int(merges.size()), 4, [&](int i, int end) {
    for (; i < end; i++) kernels_.merge_latents(a, merges[i].unit, merges[i].row);
  });
}

void Program::run_op(const SelectOp& op, Team::Member& m) {
  SelectPlan& plan = select_plans_[op.plan];
  const Buffer &q = buffers_[op.q], &k = buffers_[op.k], &weights = buffers_[op.weights], &out = buffers_[op.out];
  SelectTokens a{};
  a.keys = token_layer(op.cache, op.layer), a.group = tokens_[op.cache].group;
  a.q = q.data, a.q_stride = q.stride, a.k = k.data, a.k_stride = k.stride;
  a.weights = weights.data, a.weights_stride = weights.stride;
  a.heads = op.heads, a.dim = k.width, a.top_k = out.width;
  a.rope = rotation(op.rope), a.norm = vectors_[op.norm], a.norm_bias = vectors_[op.norm_bias], a.eps = op.eps;
  a.sequences = step_.sequences().data(), a.out = out.data, a.out_stride = out.stride;
  a.scratch = workers_[m.id].attention;
  share_tokens(m, [&](const SequenceRows& s, int row) {
    kernels_.store_key(a, row, s.context + row - s.first_row, s.pages[a.group]);
  });
  const int pieces = plan.pieces(), all = int(plan.rows().size());
  for (int first = 0; first < all; first += plan.rows_at_once()) {
    const int rows = std::min(plan.rows_at_once(), all - first);
    team_.share(m, rows * pieces, 1, [&](int i, int) {
      const SelectPlan::Row& row = plan.rows()[first + i / pieces];
      const int begin = i % pieces * SelectPlan::kPiece, end = std::min(row.position + 1, begin + SelectPlan::kPiece);
      if (row.position < a.top_k || begin >= end) return;
      kernels_.score_tokens(a, row.sequence, row.row, begin, end, plan.scores(i / pieces));
    });
    team_.share(m, rows, 1, [&](int i, int) {
      const SelectPlan::Row& row = plan.rows()[first + i];
      kernels_.choose_tokens(plan.scores(i), row.position + 1, a.top_k, row_of(op.out, row.row));
    });
  }
}

// work(sequence, row) for every row of the step.
template <class Work>
void Program::share_tokens(Team::Member& m, Work&& work) {
  const auto& sequences = step_.sequences();
  team_.share(m, step_.rows(), kTileTokens, [&](int row, int end) {
    size_t i = std::upper_bound(sequences.begin(), sequences.end(), row,
                                [](int r, const SequenceRows& s) { return r < s.first_row; }) -
               sequences.begin() - 1;
    for (; row < end; row++) {
      if (row == sequences[i].first_row + sequences[i].rows) i++;
      work(sequences[i], row);
    }
  });
}

}  // namespace trimaran
