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
  for (const PagePart& p : groups_[group].parts) bytes += p.layers * layer_bytes(p, format);
  return bytes;
}

void Program::convert_page(int group, const uint8_t* page, KvFormat to, uint8_t* out, float* scratch) const {
  const KvFormat from = options_.kv_format;
  const int tiles = options_.limits.page_size / kTileTokens;
  for (const PagePart& p : groups_[group].parts) {
    switch (p.kind) {
      case PagePart::kHeads:
        kernels_.convert_heads(from, page, to, out, p.layers * p.kv_heads * tiles, p.width, scratch);
        break;
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
