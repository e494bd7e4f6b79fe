// Attention over pages of integers, both products in integers. Keys and values are int8 or int4, each by itself.
//
//   K int8 [head_dim / 4][16 tokens][4], q + 128      V int8 [16 tokens / 4][head_dim][4 tokens]
//   K int4 [head_dim / 8][16 tokens][4]               V int4 [16 tokens / 4][head_dim / 32][16][4 tokens]
//   K | V | scales of K | scales of V
//
// A byte of int4 has two numbers of one token, so that no two tokens share one: of keys dimensions i and i + 4 of 8, of
// values i and i + 16 of 32. An int4 value is scale * (q - 7.5), with a bf16 scale: 16 levels, as many above zero as
// below. Wide heads have one for every 64 dimensions, [group][16 scales], for each of which weights are rounded anew.
// An int4 key is scale * q + minimum in groups of 32; the scales of K are then [group][16 scales | 16 minima] in bf16.
// In wide heads it is so in groups of 16, with terms of 8 bits: see int4.h. Scales of int8 are fp32.
//
// Keys and queries are rounded after a Hadamard transform (see rope.h), int4 values too; of these the outputs are
// turned back. Weights are rounded to 8 bits without a sign (see attention_weights.h). A key or value that is not
// finite gives its key the scale NaN, which makes all that sees it NaN; scales of values are finite whatever a page
// held.
//
// Static int8 has no scales, values are transformed, and weights are rounded by themselves. What is beyond the largest
// is clipped; a key or value that is not finite makes the first number of its key -128, which none is otherwise.
namespace trimaran::TRIMARAN_ISA {

template <KvFormat Keys, KvFormat Values, bool Static = false, bool Wide = false>
struct IntPages {
  static_assert(!Static || (Keys == KvFormat::kInt8 && Values == KvFormat::kInt8));
  static constexpr int kRows = kIntRows;  // that are reduced together
  struct Terms {                          // of a query, beside its integers
    float scale;                          // of the scores
    int32_t start;                        // of an accumulator whose keys are q + 128
  };

  static void store_kv(const Attention& a, int row, int position, int kv_head, const int32_t* pages, float* rotated) {
    turn_head(a, a.k_norm, key_of(a, row, kv_head), row, kv_head, position, rotated);
    store_token(tile_at(a.kv, pages, kv_head, position / kTileTokens), position % kTileTokens, a.head_dim, rotated,
                value_of(a, row, kv_head), head_scale(a.kv, kv_head));
  }

  // Writes a token's key and value [d] into its tile; overwrites the key.
  static void store_token(uint8_t* tile, int token, int d, float* k, const float* x, HeadScale scale) {
    auto* q = reinterpret_cast<int8_t*>(k);  // integers take the place of the numbers that they come from
    hadamard(k, d, hadamard_width(Keys, d));
    uint8_t* scales = values_of(tile, d) + kv_code_bytes(Values, d) * kTileTokens;
    float key_scale = 0;
    bool finite;
    if constexpr (Static) {
      finite = is_finite(k, d) && is_finite(x, d);
      clip_vector(k, d, 1.f / scale.key, q);
      if (!finite) q[0] = -128;
    } else if constexpr (Keys == KvFormat::kInt8) {
      const Rounded key = round_vector(k, d, q);
      key_scale = key.scale, finite = key.finite;
    } else if constexpr (kFine) {
      finite = round_fine_groups(k, d, q, scales, token);
    } else {
      finite = round_groups(k, d, q, reinterpret_cast<uint16_t*>(scales) + token, kTileTokens);
    }
    for (int i = 0; i < d; i += kKeyDims) {
      uint32_t quad, other;
      std::memcpy(&quad, q + i, 4);
      if (Keys == KvFormat::kInt8) {
        quad ^= 0x80808080;
      } else {
        std::memcpy(&other, q + i + 4, 4);
        quad |= other << 4;
      }
      std::memcpy(tile + i / kKeyDims * kLine + 4 * token, &quad, 4);
    }
    uint8_t* v = values_of(tile, d) + token / 4 * 4 * kv_code_bytes(Values, d) + token % 4;
    uint8_t* value_scales = scales + key_scale_bytes(Keys, d) * kTileTokens;
    if constexpr (Static) {
      std::memcpy(k, x, d * sizeof(float));
      hadamard(k, d, hadamard_width(Values, d));
      clip_vector(k, d, 1.f / scale.value, q);
      for (int i = 0; i < d; i++) v[4 * i] = uint8_t(q[i]);
      return;
    } else if constexpr (Values == KvFormat::kInt8) {
      const Rounded value = round_vector(x, d, q);
      finite = finite && value.finite;
      reinterpret_cast<float*>(value_scales)[token] = value.finite ? value.scale : 0.f;
      for (int i = 0; i < d; i++) v[4 * i] = uint8_t(q[i]);
    } else {
      std::memcpy(k, x, d * sizeof(float));
      hadamard(k, d, hadamard_width(Values, d));
      auto* scale_of = reinterpret_cast<uint16_t*>(value_scales) + token;
      for (int i = 0; i < d; i += group_width(d), scale_of += kTileTokens) {
        finite = round_value(k + i, smaller(d - i, group_width(d)), q + i, scale_of) && finite;
      }
      for (int i = 0; i < d; i += 32, v += kLine) {
        for (int j = 0; j < 16; j++) v[4 * j] = uint8_t(q[i + j] | (i + 16 < d ? q[i + 16 + j] << 4 : 0));
      }
    }
    if constexpr (Keys == KvFormat::kInt8) {
      reinterpret_cast<float*>(scales)[token] = finite ? key_scale : __builtin_nanf("");
    } else if (!finite) {
      reinterpret_cast<uint16_t*>(kFine ? fine_units(scales, d) : scales)[token] = to_bf16(__builtin_nanf(""));
    }
  }

  // A tile's keys and values, [16 tokens][d] each.
  static void widen_tile(const uint8_t* tile, int d, float* keys, float* values, HeadScale static_scale) {
    const uint8_t *key_scales = key_scales_of(tile, d), *value_scales = value_scales_of(tile, d);
    for (int t = 0; t < kTileTokens; t++, keys += d, values += d) {
      for (int i = 0; i < d; i += kKeyDims) {
        const uint8_t* codes = tile + i / kKeyDims * kLine + 4 * t;
        if constexpr (Keys == KvFormat::kInt8) {
          float scale = static_scale.key;
          if constexpr (!Static) scale = reinterpret_cast<const float*>(key_scales)[t];
          if (Static && tile[4 * t] == 0) scale = __builtin_nanf("");
          for (int j = 0; j < 4; j++) keys[i + j] = float(int(codes[j]) - 128) * scale;
        } else {
          float scale, minimum;
          if constexpr (kFine) {
            const uint8_t* term = fine_terms(key_scales, t, i);
            const auto* units = reinterpret_cast<const uint16_t*>(fine_units(key_scales, d)) + t;
            scale = float(term[0]) * from_bf16(units[0]);
            minimum = float(int(term[1]) - 128) * from_bf16(units[kTileTokens]);
          } else {
            const auto* group = reinterpret_cast<const uint16_t*>(key_scales) + i / kGroup * 2 * kTileTokens + t;
            scale = from_bf16(group[0]), minimum = from_bf16(group[kTileTokens]);
          }
          for (int j = 0; j < 4; j++) keys[i + j] = float(codes[j] & 15) * scale + minimum;
          for (int j = 0; j < 4; j++) keys[i + 4 + j] = float(codes[j] >> 4) * scale + minimum;
        }
      }
      hadamard(keys, d, hadamard_width(Keys, d));
      const uint8_t* v = values_of(tile, d) + t / 4 * 4 * kv_code_bytes(Values, d) + t % 4;
      if constexpr (Values == KvFormat::kInt8) {
        float scale = static_scale.value;
        if constexpr (!Static) scale = reinterpret_cast<const float*>(value_scales)[t];
        for (int i = 0; i < d; i++) values[i] = float(int8_t(v[4 * i])) * scale;
        if constexpr (Static) hadamard(values, d, hadamard_width(Values, d));
      } else {
        for (int i = 0; i < d; i += 32, v += kLine) {
          const int group = i / group_width(d);
          const float scale = from_bf16(reinterpret_cast<const uint16_t*>(value_scales)[group * kTileTokens + t]);
          for (int j = 0; j < 16; j++) values[i + j] = (float(v[4 * j] & 15) + kMiddleCode) * scale;
          for (int j = 0; i + 16 < d && j < 16; j++) values[i + 16 + j] = (float(v[4 * j] >> 4) + kMiddleCode) * scale;
        }
        hadamard(values, d, hadamard_width(Values, d));
      }
    }
  }

  TRIMARAN_INLINE static Terms take_query(const Attention& a, float* rotated, float* queries, int row,
                                          float score_scale) {
    const int d = a.head_dim;
    auto* q = reinterpret_cast<int8_t*>(queries) + row * d;
    hadamard(rotated, d, hadamard_width(Keys, d));
    const Rounded r = round_vector(rotated, d, q);
    if constexpr (Keys == KvFormat::kInt4) {
      float* sums = group_sums(queries, d) + row * group_count(d);
      for (int g = 0; g < group_count(d); g++) {
        int32_t sum = 0;
        for (int i = g * kKeyGroup; i < smaller(d, (g + 1) * kKeyGroup); i++) sum += q[i];
        sums[g] = float(sum);
      }
    }
    return {r.scale * score_scale, Keys == KvFormat::kInt8 && kBiasedInt8 ? -128 * r.sum : 0};
  }

  // Before the first rows of a block: what its rows need to know of the scales of its values.
  TRIMARAN_INLINE static void begin_block(const Block& b, int first_tile, int tiles, int d, Scratch& scratch) {
    for (int t = first_tile; t < tiles && !Static; t++) {
      for (int g = 0; g * group_width(d) < d; g++) {
        take_scales(load_value_scales(b.tile[t], d, g), scratch.logs + g * kBlockTokens + t * kTileTokens,
                    g == 0 ? scratch.inverses + t * kTileTokens : nullptr);
      }
    }
  }

  template <int R>
  static void reduce(const Block& b, int d, const float* queries, const Terms* terms, int first_row, Scratch& scratch,
                     Reduced& out) {
    constexpr int kAtOnce = kAttentionSums / R >= 4 ? 4 : kAttentionSums / R >= 2 ? 2 : 1;
    constexpr int kTilesAtOnce = Keys == KvFormat::kInt8 || kAtOnce == 1 ? kAtOnce : kAtOnce / 2;
    terms += first_row;
    Fetch fetch(b, tile_bytes(d));
    float offsets[R];
    int t = b.first_tile;
    for (; t + kTilesAtOnce <= b.tiles; t += kTilesAtOnce) {
      score<R, kTilesAtOnce>(b, t, queries, first_row, terms, d, scratch.logs, scratch.scores);
      fetch.until(kScoreParts * (t + kTilesAtOnce) / kBlockTiles);
    }
    for (; t < b.tiles; t++) score<R, 1>(b, t, queries, first_row, terms, d, scratch.logs, scratch.scores);
    const auto gather = [&](int i, int end, const float* factors) TRIMARAN_BODY {
      for (; i + 16 * kAtOnce <= end; i += 16 * kAtOnce) {
        weigh<R, kAtOnce>(b, scratch.weights, offsets, factors, d, i, out.o, fetch);
      }
      for (; i < end; i += 16) weigh<R, 1>(b, scratch.weights, offsets, factors, d, i, out.o, fetch);
    };
    const auto done = [&](int r) TRIMARAN_BODY { fetch.until(kScoreParts + kWeightParts * (r + 1) / R); };
    if constexpr (!kManyScales) {
      find_largest<R>(b, scratch.scores, out.m);
      find_weights<R, !Static, kMoved>(b, scratch.scores, out.m, scratch.inverses, scratch.weights, out.l, offsets,
                                       done);
      gather(0, d, nullptr);
    } else {
      float others[16] = {}, factors[16];
      for (int i = 0; i < d; i += kValueGroup) {  // a row's m and l are those of the first group
        float* most = i == 0 ? out.m : others;
        add_logs<R>(b, scratch.scores, scratch.logs + i / kValueGroup * kBlockTokens, scratch.scaled);
        find_largest<R>(b, scratch.scaled, most);
        find_weights<R, true, kMoved>(b, scratch.scaled, most, scratch.inverses, scratch.weights,
                                      i == 0 ? out.l : nullptr, offsets, done);
        store(factors, exp2(sub(load(most), load(out.m))));
        gather(i, smaller(d, i + kValueGroup), factors);
      }
    }
    fetch.until(Fetch::kParts);
  }

 private:
  static constexpr bool kFine = Wide && Keys == KvFormat::kInt4, kManyScales = Wide && Values == KvFormat::kInt4;
  static constexpr bool kMoved = Values == KvFormat::kInt4;  // codes are q + 7.5
  static constexpr int kLine = 64;                           // bytes of a vector
  // What is fetched during the first two of three passes over a block.
  static constexpr int kScoreParts = Fetch::kParts / 4, kWeightParts = Fetch::kParts * 3 / 8;
  static constexpr int kGatherParts = Fetch::kParts - kScoreParts - kWeightParts;
  static constexpr int kKeyGroup = kFine ? kFineGroup : kGroup;  // dimensions of an int4 key that share a scale
  static constexpr int kKeyDims = Keys == KvFormat::kInt8 ? 4 : 8;

  TRIMARAN_INLINE static int tile_bytes(int d) {
    constexpr KvFormat format = Static ? KvFormat::kInt8Static : Keys == Values ? Keys : KvFormat::kInt8Int4;
    return kTileTokens * kv_token_bytes(format, d);
  }

  // Dimensions of a value that share a scale.
  TRIMARAN_INLINE static int group_width(int d) { return kManyScales ? kValueGroup : d; }

  // Sums of a query's integers in each group, [rows][groups]; the integers leave so much room beside them.
  TRIMARAN_INLINE static float* group_sums(float* queries, int d) { return queries + kUnitRows * d / 2; }
  TRIMARAN_INLINE static const float* group_sums(const float* queries, int d) { return queries + kUnitRows * d / 2; }
  TRIMARAN_INLINE static int group_count(int d) { return (d + kKeyGroup - 1) / kKeyGroup; }

  TRIMARAN_INLINE static uint8_t* values_of(uint8_t* tile, int d) {
    return tile + kv_code_bytes(Keys, d) * kTileTokens;
  }
  TRIMARAN_INLINE static const uint8_t* values_of(const uint8_t* tile, int d) {
    return tile + kv_code_bytes(Keys, d) * kTileTokens;
  }
  TRIMARAN_INLINE static const uint8_t* key_scales_of(const uint8_t* tile, int d) {
    return values_of(tile, d) + kv_code_bytes(Values, d) * kTileTokens;
  }
  TRIMARAN_INLINE static const uint8_t* value_scales_of(const uint8_t* tile, int d) {
    return key_scales_of(tile, d) + key_scale_bytes(Keys, d) * kTileTokens;
  }
  TRIMARAN_INLINE static F16 load_value_scales(const uint8_t* tile, int d, int group) {
    const uint8_t* scales = value_scales_of(tile, d);
    if constexpr (Values == KvFormat::kInt8) return load(reinterpret_cast<const float*>(scales));
    return load(reinterpret_cast<const uint16_t*>(scales) + group * kTileTokens);
  }

  // Scales and minima of 16 tokens' int4 keys in group g.
  TRIMARAN_INLINE static void load_key_terms(const uint8_t* terms, int d, int g, F16& scale, F16& minimum) {
    if constexpr (kFine) {
      const Bytes both = load_bytes(fine_terms(terms, 0, g / 2 * kGroup));
      const auto* units = reinterpret_cast<const uint16_t*>(fine_units(terms, d));
      scale = g % 2 ? byte_to_float<2>(both) : byte_to_float<0>(both);
      minimum = sub(g % 2 ? byte_to_float<3>(both) : byte_to_float<1>(both), set1(128.f));
      scale = mul(scale, load(units)), minimum = mul(minimum, load(units + kTileTokens));
    } else {
      const auto* group = reinterpret_cast<const uint16_t*>(terms) + g * 2 * kTileTokens;
      scale = load(group), minimum = load(group + kTileTokens);
    }
  }

  // Scores [R][kBlockTokens] of R queries against N tiles from tile t on; where values have one scale, plus its log.
  template <int R, int N>
  TRIMARAN_INLINE static void score(const Block& b, int t, const float* queries, int first_row, const Terms* terms,
                                    int d, const float* logs, float* scores) {
    const auto* q = reinterpret_cast<const int8_t*>(queries) + first_row * d;
    const uint8_t* const* tiles = b.tile + t;
    if constexpr (Keys == KvFormat::kInt8) {
      I16 s[R * N];
      unroll<R * N>(TRIMARAN_UNROLL(i) {
        s[i] = set1_int(terms[i / N].start);
        keep_apart(s[i]);
      });
      for (int i = 0; i < d; i += kKeyDims) {
        unroll<N>(TRIMARAN_UNROLL(j) {
          const Full k(load_bytes(tiles[j] + i / kKeyDims * kLine));
          unroll<R>(TRIMARAN_UNROLL(r) { dot4(s[r * N + j], k, load_quad(q + r * d + i)); });
        });
      }
      unroll<N>(TRIMARAN_UNROLL(j) {
        float* to = scores + (t + j) * kTileTokens;
        if constexpr (Static) {
          const F16 mark = nan_where_positive(sub(set1(1.f), byte_to_float<0>(load_bytes(tiles[j]))));
          unroll<R>(TRIMARAN_UNROLL(r) {
            store(to + r * kBlockTokens, fma(to_float(s[r * N + j]), set1(terms[r].scale), mark));
          });
        } else {
          const F16 scale = load(reinterpret_cast<const float*>(key_scales_of(tiles[j], d)));
          const F16 log = kManyScales ? zero() : load(logs + (t + j) * kTileTokens);
          unroll<R>(TRIMARAN_UNROLL(r) {
            store(to + r * kBlockTokens, fma(to_float(s[r * N + j]), mul(scale, set1(terms[r].scale)), log));
          });
        }
      });
    } else {
      const int groups = group_count(d);
      const float* sums = group_sums(queries, d) + first_row * groups;
      F16 s[R * N];
      unroll<R * N>(TRIMARAN_UNROLL(i) { s[i] = zero(); });
      for (int g = 0; g < groups; g++) {
        I16 dots[R * N];
        unroll<R * N>(TRIMARAN_UNROLL(i) {
          dots[i] = set1_int(0);
          keep_apart(dots[i]);
        });
        for (int i = g * kKeyGroup; i < smaller(d, (g + 1) * kKeyGroup); i += kKeyDims) {
          unroll<N>(TRIMARAN_UNROLL(j) {
            const Bytes codes = load_bytes(tiles[j] + i / kKeyDims * kLine);
            const Small low(low_nibbles(codes)), high(high_nibbles(codes));
            unroll<R>(TRIMARAN_UNROLL(r) {
              dot4(dots[r * N + j], low, load_quad(q + r * d + i));
              dot4(dots[r * N + j], high, load_quad(q + r * d + i + 4));
            });
          });
        }
        unroll<N>(TRIMARAN_UNROLL(j) {
          F16 scale, minimum;
          load_key_terms(key_scales_of(tiles[j], d), d, g, scale, minimum);
          unroll<R>(TRIMARAN_UNROLL(r) {
            F16& sum = s[r * N + j];
            sum = fma(to_float(dots[r * N + j]), scale, fma(minimum, set1(sums[r * groups + g]), sum));
          });
        });
      }
      unroll<N>(TRIMARAN_UNROLL(j) {
        const F16 log = kManyScales ? zero() : load(logs + (t + j) * kTileTokens);
        unroll<R>(TRIMARAN_UNROLL(r) {
          store(scores + r * kBlockTokens + (t + j) * kTileTokens, fma(s[r * N + j], set1(terms[r].scale), log));
        });
      });
    }
  }

  // N vectors of 4 tokens' values each, dimensions i .. i + 16 N.
  template <int N>
  TRIMARAN_INLINE static void load_values(const uint8_t* quad, int i, Bytes* x) {
    if constexpr (Values == KvFormat::kInt8) {
      unroll<N>(TRIMARAN_UNROLL(j) { x[j] = load_bytes(quad + i * 4 + j * kLine); });
    } else if constexpr (N == 1) {
      const Bytes codes = load_bytes(quad + i / 32 * kLine);
      x[0] = i % 32 ? high_nibbles(codes) : low_nibbles(codes);
    } else {
      unroll<N / 2>(TRIMARAN_UNROLL(j) {
        const Bytes codes = load_bytes(quad + (i / 32 + j) * kLine);
        x[2 * j] = low_nibbles(codes), x[2 * j + 1] = high_nibbles(codes);
      });
    }
  }

  // Weights [R][kBlockTokens] times values, dimensions i .. i + 16 N. Meanwhile the rest of what is next comes.
  template <int R, int N>
  TRIMARAN_INLINE static void weigh(const Block& b, const uint8_t* weights, const float* offsets, const float* factors,
                                    int d, int i, float* o, Fetch& fetch) {
    I16 sum[R * N];
    unroll<R * N>(TRIMARAN_UNROLL(j) {
      sum[j] = set1_int(0);
      keep_apart(sum[j]);
    });
    weights += b.first_tile * kTileTokens;
    for (int t = b.first_tile; t < b.tiles; t++) {
      fetch.until(kScoreParts + kWeightParts + kGatherParts * (i + 16 * N * t / kBlockTiles) / d);
      const uint8_t* v = values_of(b.tile[t], d);
#pragma GCC unroll 1
      for (int quad = 0; quad < 4; quad++, v += 4 * kv_code_bytes(Values, d), weights += 4) {
        Bytes x[N];
        load_values<N>(v, i, x);
        unroll<R>(TRIMARAN_UNROLL(r) {
          const WeightQuad w = load_weights(weights + r * kBlockTokens);
          unroll<N>(TRIMARAN_UNROLL(j) { dot4(sum[r * N + j], w, x[j]); });
        });
      }
    }
    unroll<R>(TRIMARAN_UNROLL(r) {
      unroll<N>(TRIMARAN_UNROLL(j) {
        F16 total = to_float(sum[r * N + j]);
        if constexpr (kMoved) total = add(total, set1(offsets[r]));
        if constexpr (kManyScales) total = mul(total, set1(factors[r]));
        store(o + r * d + i + j * 16, total);
      });
    });
  }
};

}  // namespace trimaran::TRIMARAN_ISA
