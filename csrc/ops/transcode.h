// Pages from one format to another: what they hold, widened to floats, is written as attention writes keys and values.
namespace trimaran::TRIMARAN_ISA {

// Tiles of heads {K | V | scales of K | scales of V}. What has the same format on both sides is copied.
inline void convert_heads(KvFormat from, HeadScale from_scale, const uint8_t* tiles, KvFormat to, HeadScale to_scale,
                          uint8_t* out, int count, int d, float* scratch) {
  float *keys = scratch, *values = keys + size_t(kTileTokens) * d;
  const int k_from = kv_code_bytes(keys_of(from), d), v_from = kv_code_bytes(values_of(from), d);
  const int k_to = kv_code_bytes(keys_of(to), d), v_to = kv_code_bytes(values_of(to), d);
  const int k_scales_from = key_scale_bytes(keys_of(from), d), k_scales_to = key_scale_bytes(keys_of(to), d);
  for (int t = 0; t < count; t++) {
    with_pages(from, d, [&](auto pages) TRIMARAN_BODY { pages.widen_tile(tiles, d, keys, values, from_scale); });
    with_pages(to, d, [&](auto pages) TRIMARAN_BODY {
      for (int i = 0; i < kTileTokens; i++) pages.store_token(out, i, d, keys + i * d, values + i * d, to_scale);
    });
    const auto copy = [&](int at_from, int at_to, int bytes) TRIMARAN_BODY {
      std::memcpy(out + at_to * kTileTokens, tiles + at_from * kTileTokens, size_t(bytes) * kTileTokens);
    };
    if (keys_of(from) == keys_of(to)) {
      copy(0, 0, k_from);
      copy(k_from + v_from, k_to + v_to, k_scales_from);
    }
    if (values_of(from) == values_of(to)) {
      copy(k_from, k_to, v_from);
      copy(k_from + v_from + k_scales_from, k_to + v_to + k_scales_to, value_scale_bytes(values_of(from), d));
    }
    tiles += size_t(kTileTokens) * kv_token_bytes(from, d);
    out += size_t(kTileTokens) * kv_token_bytes(to, d);
  }
}

// A part of a token of latent attention.
TRIMARAN_INLINE void convert_part(KvFormat from, const uint8_t* part, KvFormat to, uint8_t* out, int n,
                                  float* scratch) {
  if (from == to) {
    std::memcpy(out, part, part_bytes(to, n));
    return;
  }
  load_part(from, part, n, scratch);
  turn_part(from, scratch, n);
  store_part(to, scratch, n, out);
}

// Tokens of latent attention, `scratch` being of one.
inline void convert_latents(KvFormat from, const uint8_t* tokens, KvFormat to, uint8_t* out, int count, int latent,
                            int rope, float* scratch) {
  const int rope_from = part_bytes(latent_of(from), latent), rope_to = part_bytes(latent_of(to), latent);
  for (int t = 0; t < count; t++) {
    convert_part(latent_of(from), tokens, latent_of(to), out, latent, scratch);
    convert_part(rope_of(from), tokens + rope_from, rope_of(to), out + rope_to, rope, scratch);
    tokens += latent_token_bytes(from, latent, rope), out += latent_token_bytes(to, latent, rope);
  }
}

// Tiles of an indexer's keys, of which there are two formats: see ops/select.h.
inline void convert_index_keys(KvFormat from, const uint8_t* tiles, KvFormat to, uint8_t* out, int count, int dim,
                               float* scratch) {
  const size_t exact = size_t(kTileTokens) * dim * sizeof(float), coarse = size_t(kTileTokens) * (dim + 4);
  if ((from == KvFormat::kFp32) == (to == KvFormat::kFp32)) {
    std::memcpy(out, tiles, count * (from == KvFormat::kFp32 ? exact : coarse));
    return;
  }
  for (int t = 0; t < count; t++) {
    if (to == KvFormat::kFp32) {
      const F16 scales = mul(load(reinterpret_cast<const float*>(tiles + dim * kTileTokens)), set1(256.f));
      for (int i = 0; i < dim; i++) {
        store(reinterpret_cast<float*>(out) + i * kTileTokens, mul(load_256ths(tiles + i * kTileTokens), scales));
      }
    } else {
      for (int token = 0; token < kTileTokens; token++) {
        for (int i = 0; i < dim; i++) scratch[i] = reinterpret_cast<const float*>(tiles)[i * kTileTokens + token];
        store_index_key(to, scratch, dim, out, token);
      }
    }
    tiles += from == KvFormat::kFp32 ? exact : coarse;
    out += to == KvFormat::kFp32 ? exact : coarse;
  }
}

}  // namespace trimaran::TRIMARAN_ISA
