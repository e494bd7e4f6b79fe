// Pages that are given away and taken in between two steps, shared out among the team page by page.
#include <cstring>

#include "program.h"

namespace trimaran {

size_t Program::layer_bytes(const PagePart& p, KvFormat format) const {
  const size_t tokens = options_.limits.page_size;
  switch (p.kind) {
    case PagePart::kHeads:
      return tokens * p.kv_heads * kv_token_bytes(format, p.width);
    case PagePart::kLatents:
      return tokens * latent_token_bytes(format, p.width, p.rope);
    case PagePart::kIndexKeys:
      return tokens * index_token_bytes(format, p.width);
  }
  return 0;
}

size_t Program::page_bytes(int group, KvFormat format) const {
  size_t bytes = 0;
  for (const PagePart& p : groups_[group].parts) {
    for (int layer = 0; layer < p.layers; layer++) bytes += layer_bytes(p, p.format_of(layer, format));
  }
  return bytes;
}

PageSlices Program::slices(int group, size_t offset, size_t bytes) const {
  const Group& g = groups_[group];
  const int bits = bundle_bits(options_.limits.page_size);
  return {g.pages.data() + (offset << bits), bytes, g.page_bytes << bits, bits};
}

// f(part, layer, kv head, bytes of the slice as it is held, bytes in pages of format `to`) for a page's slices, in
// order.
template <class F>
void Program::for_slices(int group, KvFormat to, F&& f) const {
  for (const PagePart& p : groups_[group].parts) {
    for (int layer = 0; layer < p.layers; layer++) {
      const size_t held = layer_bytes(p, p.format_of(layer, options_.kv_format)) / p.kv_heads;
      const size_t given = layer_bytes(p, p.format_of(layer, to)) / p.kv_heads;
      for (int head = 0; head < p.kv_heads; head++) f(p, layer, head, held, given);
    }
  }
}

void Program::convert_slice(const PagePart& p, int layer, int head, const uint8_t* slice, KvFormat to, uint8_t* out,
                            float* scratch) const {
  const KvFormat held = p.format_of(layer, options_.kv_format), given = p.format_of(layer, to);
  const int tokens = options_.limits.page_size, tiles = tokens / kTileTokens;
  switch (p.kind) {
    case PagePart::kHeads: {
      const HeadsCache& cache = heads_[p.cache];
      kernels_.convert_heads(held, cache.scale_of(held, layer, head), slice, given, cache.scale_of(given, layer, head),
                             out, tiles, p.width, scratch);
      return;
    }
    case PagePart::kLatents:
      kernels_.convert_latents(held, slice, given, out, tokens, p.width, p.rope, scratch);
      return;
    case PagePart::kIndexKeys:
      kernels_.convert_index_keys(held, slice, given, out, tiles, p.width, scratch);
      return;
  }
}

void Program::export_pages(int group, const std::vector<int32_t>& pages, KvFormat to, uint8_t* out) {
  check_running(false);
  const size_t page_out = page_bytes(group, to);
  team_.run([&](Team::Member& m) {
    team_.share(m, int(pages.size()), 1, [&](int i, int) {
      uint8_t* at = out + i * page_out;
      size_t offset = 0;
      for_slices(group, to, [&](const PagePart& p, int layer, int head, size_t held, size_t given) {
        const uint8_t* slice = slices(group, offset, held).of(pages[i]);
        if (p.format_of(layer, options_.kv_format) == p.format_of(layer, to)) {
          std::memcpy(at, slice, held);
        } else {
          convert_slice(p, layer, head, slice, to, at, workers_[m.id].attention);
        }
        offset += held, at += given;
      });
    });
  });
}

void Program::import_pages(int group, const std::vector<int32_t>& pages, const uint8_t* data) {
  check_running(false);
  const KvFormat own = options_.kv_format;
  const size_t page_in = page_bytes(group, own);
  team_.run([&](Team::Member& m) {
    team_.share(m, int(pages.size()), 1, [&](int i, int) {
      size_t offset = 0;
      for_slices(group, own, [&](const PagePart&, int, int, size_t bytes, size_t) {
        std::memcpy(slices(group, offset, bytes).of(pages[i]), data + i * page_in + offset, bytes);
        offset += bytes;
      });
    });
  });
}

}  // namespace trimaran
