// Attention over keys and values of heads: caches, plans and the op.
#include <stdexcept>
#include <utility>

#include "cpu.h"
#include "program.h"

namespace trimaran {

namespace {

// Whether attention over both caches is cut alike.
template <class Cache>
bool same_shape(const Cache& a, const Cache& b) {
  return a.group == b.group && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim;
}

}  // namespace

int Program::add_heads_cache(int group, int layers, int kv_heads, int head_dim, const std::vector<int>& wide) {
  PagePart part{PagePart::kHeads, layers, kv_heads, head_dim, 0, int(heads_.size()), std::vector<bool>(layers)};
  for (int layer : wide) part.wide[layer] = true;
  Group& g = groups_[group];
  HeadsCache cache{group, {}, kv_heads, head_dim, {}};
  for (int i = 0; i < layers; i++) {
    const KvFormat format = part.format_of(i, options_.kv_format);
    cache.layers.push_back({format, g.page_bytes});
    g.page_bytes += layer_bytes(part, format);
  }
  g.parts.push_back(std::move(part));
  heads_.push_back(std::move(cache));
  return int(heads_.size()) - 1;
}

void Program::set_scales(int cache, KvFormat format, const float* scales) {
  HeadsCache& c = heads_[cache];
  c.scales[format == KvFormat::kInt8Static].assign(scales, scales + 2 * c.layers.size() * c.kv_heads);
}

const float* Program::HeadsCache::scales_of(KvFormat format, int layer) const {
  const auto& all = scales[format == KvFormat::kInt8Static];
  if (!is_static(format)) return nullptr;
  if (all.empty()) throw std::invalid_argument("a static format has no scales");
  return all.data() + size_t(layer) * kv_heads;
}

HeadScale Program::HeadsCache::scale_of(KvFormat format, int layer, int head) const {
  const float* s = scales_of(format, layer);
  return s ? HeadScale{s[head], s[layers.size() * kv_heads + head]} : HeadScale{};
}

void Program::plan(AttentionOp& op) {
  heads_[op.cache].scales_of(heads_[op.cache].layers[op.layer].format, op.layer);  // throws where there are none
  op.plan = int(plans_.size());
  for (const Op& other : ops_) {  // layers of one shape share a plan
    const auto* b = std::get_if<AttentionOp>(&other);
    if (b && b->heads == op.heads && b->causal == op.causal && takes_rows(*b) == takes_rows(op) &&
        same_shape(heads_[b->cache], heads_[op.cache])) {
      op.plan = b->plan;
    }
  }
  if (op.plan == int(plans_.size())) {
    const HeadsCache& cache = heads_[op.cache];
    const AttentionShape shape{op.heads,    cache.kv_heads, cache.head_dim, window_of(op),
                               cache.group, op.causal,      takes_rows(op)};
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
  Attention a{};
  a.group = cache.group;
  const HeadsCache::Layer& layer = cache.layers[op.layer];
  a.kv.format = layer.format;
  a.kv.tile_bytes = size_t(kTileTokens) * kv_token_bytes(layer.format, cache.head_dim);
  a.kv.tiles_per_page = options_.limits.page_size / kTileTokens;
  a.kv.first_head = slices(cache.group, layer.offset, a.kv.tile_bytes * a.kv.tiles_per_page);
  a.kv.head_bytes = a.kv.first_head.bytes << a.kv.first_head.bundle_bits;
  a.kv.key_scales = cache.scales_of(layer.format, op.layer);
  if (a.kv.key_scales) a.kv.value_scales = a.kv.key_scales + cache.layers.size() * cache.kv_heads;
  a.qkv = qkv.data, a.qkv_stride = qkv.stride, a.out = out.data, a.out_stride = out.stride;
  a.heads = op.heads, a.kv_heads = cache.kv_heads, a.head_dim = cache.head_dim;
  a.window = window_of(op), a.causal = op.causal;
  a.scale = op.scale * 1.44269504f;  // log2(e): weights are powers of two
  const auto norm = [&](const HeadNormOp& n, const std::vector<float>& inverse) {
    return HeadNorm{n.weight < 0 ? nullptr : vectors_[n.weight], n.eps, n.whole ? inverse.data() : nullptr};
  };
  a.q_norm = norm(op.q_norm, q_inverse_), a.k_norm = norm(op.k_norm, k_inverse_);
  a.rope = rotation(op.rope);
  a.query_scale = rope.query_scale.empty() ? nullptr : rope.query_scale.data();
  a.sequences = plans_[op.plan].sequences().data();
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
  ReadAhead ahead;
  ahead.to_first_cache = fetches_to_first_cache();
  ahead.end = units.data() + team_.end_of_queue(m, int(units.size()));
  a.ahead = &ahead;
  team_.share(m, int(units.size()), 1, [&](int i, int) {
    kernels_.attend(a, units[i]);
    if (units[i].partial >= 0 && plan.last_of_group(units[i])) kernels_.merge(a, units[i]);
  });
}

}  // namespace trimaran
