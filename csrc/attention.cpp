// Attention over keys and values of heads: caches, plans and the op.
#include <utility>

#include "program.h"

namespace trimaran {

namespace {

// Whether attention over both caches is cut alike.
template <class Cache>
bool same_shape(const Cache& a, const Cache& b) {
  return a.group == b.group && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim;
}

}  // namespace

int Program::add_heads_cache(int group, int layers, int kv_heads, int head_dim) {
  const PagePart part{PagePart::kHeads, layers, kv_heads, head_dim, 0};
  const size_t bytes = layer_bytes(part, options_.kv_format);
  Group& g = groups_[group];
  heads_.push_back({group, g.page_bytes, layers, kv_heads, head_dim, bytes});
  g.parts.push_back(part);
  g.page_bytes += layers * bytes;
  return int(heads_.size()) - 1;
}

void Program::plan(AttentionOp& op) {
  op.plan = int(plans_.size());
  for (const Op& other : ops_) {  // layers of one shape share a plan
    const auto* b = std::get_if<AttentionOp>(&other);
    if (b && b->heads == op.heads && same_shape(heads_[b->cache], heads_[op.cache])) {
      op.plan = b->plan;
    }
  }
  if (op.plan == int(plans_.size())) {
    const HeadsCache& cache = heads_[op.cache];
    const AttentionShape shape{op.heads, cache.kv_heads, cache.head_dim, window_of(op), cache.group};
    plans_.emplace_back(shape, options_.limits.page_size, options_.share_prefixes, team_.size());
  }
  for (auto [norm, inverse] : {std::pair(&op.q_norm, &q_inverse_), std::pair(&op.k_norm, &k_inverse_)}) {
    if (norm->whole) inverse->resize(options_.limits.max_rows);
  }
}

Attention Program::attention_for(const AttentionOp& op, const Team::Member& m) const {
  const Buffer &qkv = buffers_[op.qkv], &out = buffers_[op.out];
  const Rope& rope = ropes_[op.rope];
  const HeadsCache& cache = heads_[op.cache];
  const Group& group = groups_[cache.group];
  Attention a{};
  a.group = cache.group;
  a.kv.format = options_.kv_format;
  a.kv.tile_bytes = size_t(kTileTokens) * kv_token_bytes(options_.kv_format, cache.head_dim);
  a.kv.tiles_per_page = options_.limits.page_size / kTileTokens;
  a.kv.head_bytes = a.kv.tile_bytes * a.kv.tiles_per_page;
  a.kv.page_bytes = group.page_bytes;
  a.kv.base = group.pages.data() + cache.offset + cache.layer_bytes * op.layer;
  a.qkv = qkv.data, a.qkv_stride = qkv.stride, a.out = out.data, a.out_stride = out.stride;
  a.heads = op.heads, a.kv_heads = cache.kv_heads, a.head_dim = cache.head_dim;
  a.window = window_of(op);
  a.scale = op.scale * 1.44269504f;  // log2(e): weights are powers of two
  const auto norm = [&](const HeadNormOp& n, const std::vector<float>& inverse) {
    return HeadNorm{n.weight < 0 ? nullptr : vectors_[n.weight], n.eps, n.whole ? inverse.data() : nullptr};
  };
  a.q_norm = norm(op.q_norm, q_inverse_), a.k_norm = norm(op.k_norm, k_inverse_);
  a.rope = rotation(op.rope);
  a.query_scale = rope.query_scale.empty() ? nullptr : rope.query_scale.data();
  a.sequences = step_.sequences().data();
  a.scratch = workers_[m.id].attention;
  return a;
}

void Program::find_inverse_rms(const AttentionOp& op, Team::Member& m) {
  const HeadsCache& cache = heads_[op.cache];
  share_rows(m, step_.rows(), [&](int first, int end) {
    const int q_width = op.heads * cache.head_dim, k_width = cache.kv_heads * cache.head_dim;
    for (int r = first; r < end; r++) {
      const float* q = row_of(op.qkv, r);
      if (op.q_norm.whole) q_inverse_[r] = kernels_.inverse_rms(q, q_width, op.q_norm.eps);
      if (op.k_norm.whole) k_inverse_[r] = kernels_.inverse_rms(q + q_width, k_width, op.k_norm.eps);
    }
  });
}

void Program::run_op(const AttentionOp& op, Team::Member& m) {
  if (op.q_norm.whole || op.k_norm.whole) find_inverse_rms(op, m);
  AttentionPlan& plan = plans_[op.plan];
  Attention a = attention_for(op, m);
  a.partials = plan.partials(), a.parts = plan.parts().data();
  const auto& stores = plan.stores();
  team_.share(m, int(stores.size()), kTileTokens, [&](int first, int end) {
    for (int i = first; i < end; i++) {
      const SequenceRows& s = step_.sequences()[stores[i].sequence];
      const int position = s.context + stores[i].row - s.first_row;
      for (int h = 0; h < a.kv_heads; h++) kernels_.store_kv(a, stores[i].row, position, h, s.pages[a.group]);
    }
  });
  const auto& units = plan.units();
  team_.share(m, int(units.size()), 1, [&](int i, int end) {
    a.next = size_t(end) < units.size() ? &units[end] : nullptr;
    kernels_.attend(a, units[i]);
    if (units[i].partial >= 0 && plan.last_of_group(units[i])) kernels_.merge(a, units[i]);
  });
}

}  // namespace trimaran
