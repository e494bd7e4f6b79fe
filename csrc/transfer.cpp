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

// Converts one layer's keys and values; moves `page` and `out` behind them.
void Program::convert_heads(const PagePart& p, int layer, const uint8_t*& page, KvFormat to, uint8_t*& out,
                            float* scratch) const {
  const HeadsCache& cache = heads_[p.cache];
  const KvFormat held = p.format_of(layer, options_.kv_format), given = p.format_of(layer, to);
  const size_t page_bytes = layer_bytes(p, held), out_bytes = layer_bytes(p, given);
  if (held == given) std::memcpy(out, page, page_bytes);
  for (int head = 0; held != given && head < p.kv_heads; head++) {
    kernels_.convert_heads(held, cache.scale_of(held, layer, head), page + page_bytes / p.kv_heads * head, given,
                           cache.scale_of(given, layer, head), out + out_bytes / p.kv_heads * head,
                           options_.limits.page_size / kTileTokens, p.width, scratch);
  }
  page += page_bytes, out += out_bytes;
}

void Program::convert_page(int group, const uint8_t* page, KvFormat to, uint8_t* out, float* scratch) const {
  const KvFormat from = options_.kv_format;
  const int tiles = options_.limits.page_size / kTileTokens;
  for (const PagePart& p : groups_[group].parts) {
    switch (p.kind) {
      case PagePart::kHeads:
        for (int layer = 0; layer < p.layers; layer++) convert_heads(p, layer, page, to, out, scratch);
        continue;
      case PagePart::kLatents:
        kernels_.convert_latents(from, page, to, out, p.layers * options_.limits.page_size, p.width, p.rope, scratch);
        break;
      case PagePart::kIndexKeys:
        kernels_.convert_index_keys(from, page, to, out, p.layers * tiles, p.width, scratch);
        break;
    }
    page += p.layers * layer_bytes(p, from), out += p.layers * layer_bytes(p, to);
  }
}

void Program::export_pages(int group, const std::vector<int32_t>& pages, KvFormat to, uint8_t* out) {
  check_running(false);
  const size_t held = page_bytes(group, options_.kv_format), given = page_bytes(group, to);
  team_.run([&](Team::Member& m) {
    team_.share(m, int(pages.size()), 1, [&](int i, int) {
      const uint8_t* page = groups_[group].pages.data() + pages[i] * held;
      if (to == options_.kv_format) {
        std::memcpy(out + i * given, page, given);
      } else {
        convert_page(group, page, to, out + i * given, workers_[m.id].attention);
      }
    });
  });
}

void Program::import_pages(int group, const std::vector<int32_t>& pages, const uint8_t* data) {
  check_running(false);
  const size_t held = page_bytes(group, options_.kv_format);
  team_.run([&](Team::Member& m) {
    team_.share(m, int(pages.size()), 1,
                [&](int i, int) { std::memcpy(groups_[group].pages.data() + pages[i] * held, data + i * held, held); });
  });
}

}  // namespace trimaran
