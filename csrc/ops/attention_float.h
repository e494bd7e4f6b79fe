// Attention over pages of fp32, bf16 or fp8 (e4m3): K [head_dim][16 tokens], V [16 tokens][head_dim]; in fp8 then 16
// scales of K and 16 of V. As in pages of integers, a key or value that is not finite gives its key the scale NaN.
// Static fp8 has no scales: numbers beyond the largest are clipped, and a key or value that is not finite makes the
// first number of its key the NaN of e4m3, which reads as a 256th of 480.
namespace trimaran::TRIMARAN_ISA {

TRIMARAN_INLINE F16 load(const E4m3* p) { return load_256ths(&p->bits); }

template <class T, bool Static = false>
struct FloatPages {
  static constexpr int kRows = kAttentionRows;  // that are reduced together
  struct Terms {};                              // of a query, beside its numbers

  static void store_kv(const Attention& a, int row, int position, int kv_head, const int32_t* pages, float* rotated) {
    turn_head(a, a.k_norm, key_of(a, row, kv_head), row, kv_head, position, rotated);
    store_token(tile_at(a.kv, pages, kv_head, position / kTileTokens), position % kTileTokens, a.head_dim, rotated,
                value_of(a, row, kv_head), head_scale(a.kv, kv_head));
  }

  // Writes a token's key and value [d] into its tile.
  static void store_token(uint8_t* tile, int token, int d, float* k, const float* v, HeadScale scale) {
    T* key = reinterpret_cast<T*>(tile);
    T* value = key + size_t(d) * kTileTokens + size_t(token) * d;
    if constexpr (Static) {
      const bool finite = is_finite(k, d) && is_finite(v, d);
      const float k_inverse = 1.f / scale.key, v_inverse = 1.f / scale.value;
      for (int i = 0; i < d; i++) {
        key[i * kTileTokens + token] = {finite ? to_e4m3(clip(k[i] * k_inverse, kLargestE4m3)) : kNanE4m3};
        value[i] = {finite ? to_e4m3(clip(v[i] * v_inverse, kLargestE4m3)) : uint8_t(0)};
      }
    } else if constexpr (kScaled) {
      const Scaled k_scale(k, d), v_scale(v, d);
      for (int i = 0; i < d; i++) {
        key[i * kTileTokens + token] = {k_scale.round(k[i])};
        value[i] = {v_scale.round(v[i])};
      }
      float* scales = reinterpret_cast<float*>(key + 2 * size_t(d) * kTileTokens);
      scales[token] = k_scale.finite && v_scale.finite ? k_scale.scale : __builtin_nanf("");
      scales[kTileTokens + token] = v_scale.scale;
      return;
    } else {
      for (int i = 0; i < d; i += 16) {
        T lanes[16];
        store(lanes, load(k + i));
        for (int j = 0; j < 16; j++) key[(i + j) * kTileTokens + token] = lanes[j];
      }
      for (int i = 0; i < d; i += 16) store(value + i, load(v + i));
    }
  }

  // A tile's keys and values, [16 tokens][d] each.
  static void widen_tile(const uint8_t* tile, int d, float* keys, float* values, HeadScale scale) {
    const T *k = reinterpret_cast<const T*>(tile), *v = k + size_t(d) * kTileTokens;
    F16 k_scale = set1(1.f), v_scale = k_scale;
    if constexpr (kScaled) k_scale = load(scales_of(tile, d));
    if constexpr (Static) {
      k_scale = add(set1(scale.key * 256.f), marked(tile));
      v_scale = set1(scale.value * 256.f);
    }
    for (int i = 0; i < d; i++) {
      float lanes[kTileTokens];
      store(lanes, mul(load(k + i * kTileTokens), k_scale));
      for (int t = 0; t < kTileTokens; t++) keys[t * d + i] = lanes[t];
    }
    for (int t = 0; t < kTileTokens; t++, v += d, values += d) {
      if constexpr (kScaled) v_scale = set1(scales_of(tile, d)[kTileTokens + t]);
      for (int i = 0; i < d; i += 16) store(values + i, mul(load(v + i), v_scale));
    }
  }

  TRIMARAN_INLINE static Terms take_query(const Attention& a, const float* rotated, float* queries, int row,
                                          float score_scale) {
    const F16 scale = set1(score_scale);
    for (int i = 0; i < a.head_dim; i += 16) store(queries + row * a.head_dim + i, mul(load(rotated + i), scale));
    return {};
  }

  TRIMARAN_INLINE static void begin_block(const Block&, int, int, int, Scratch&) {}

  template <int R>
  static void reduce(const Block& b, int d, const float* queries, const Terms*, int first_row, Scratch& scratch,
                     Reduced& out) {
    constexpr int kAtOnce = kAttentionSums / R >= 4 ? 4 : kAttentionSums / R >= 2 ? 2 : 1;
    const float* q = queries + first_row * d;
    Fetch fetch(b, tile_bytes(d));
    int t = b.first_tile;
    for (; t + kAtOnce <= b.tiles; t += kAtOnce) score<R, kAtOnce>(b, t, q, d, scratch.scores, fetch);
    for (; t < b.tiles; t++) score<R, 1>(b, t, q, d, scratch.scores, fetch);
    for (int r = 0; r < R; r++) {
      softmax(scratch.scores + r * kBlockTokens, b, d, r, out.m[r], out.l[r]);
      fetch.until(kScoreParts + kSoftmaxParts * (r + 1) / R);
    }
    int i = 0;
    for (; i + 16 * kAtOnce <= d; i += 16 * kAtOnce) weigh<R, kAtOnce>(b, scratch.scores, d, i, out.o, fetch);
    for (; i < d; i += 16) weigh<R, 1>(b, scratch.scores, d, i, out.o, fetch);
    fetch.until(Fetch::kParts);
  }

 private:
  static constexpr bool kScaled = sizeof(T) == 1 && !Static;
  // What is fetched during the first two of three passes over a block.
  static constexpr int kScoreParts = Fetch::kParts * 3 / 8, kSoftmaxParts = Fetch::kParts / 8;
  static constexpr int kGatherParts = Fetch::kParts - kScoreParts - kSoftmaxParts;

  TRIMARAN_INLINE static int tile_bytes(int d) {
    constexpr KvFormat format = sizeof(T) == 4   ? KvFormat::kFp32
                                : sizeof(T) == 2 ? KvFormat::kBf16
                                : Static         ? KvFormat::kFp8Static
                                                 : KvFormat::kFp8;
    return kTileTokens * kv_token_bytes(format, d);
  }

  // NaN for the keys of a tile that were not finite, else 0.
  TRIMARAN_INLINE static F16 marked(const uint8_t* tile) {
    return nan_where_positive(sub(load(reinterpret_cast<const T*>(tile)), set1(kLargestE4m3 / 256.f)));
  }

  TRIMARAN_INLINE static const float* scales_of(const uint8_t* tile, int d) {
    return reinterpret_cast<const float*>(tile + 2 * d * kTileTokens * sizeof(T));
  }

  // Scores [R][kBlockTokens] of R queries against N tiles from tile t on.
  template <int R, int N>
  TRIMARAN_INLINE static void score(const Block& b, int t, const float* q, int d, float* scores, Fetch& fetch) {
    const uint8_t* const* tiles = b.tile + t;
    F16 s[R * N];
    unroll<R * N>(TRIMARAN_UNROLL(i) { s[i] = zero(); });
    for (int i = 0; i < d; i++) {
      if (i % 16 == 0) fetch.until(kScoreParts * (t * d + i * N) / (kBlockTiles * d));
      F16 k[N];
      unroll<N>(TRIMARAN_UNROLL(j) { k[j] = load(reinterpret_cast<const T*>(tiles[j]) + i * kTileTokens); });
      unroll<R>(TRIMARAN_UNROLL(r) {
        const F16 x = set1(q[r * d + i]);
        unroll<N>(TRIMARAN_UNROLL(j) { s[r * N + j] = fma(k[j], x, s[r * N + j]); });
      });
    }
    unroll<N>(TRIMARAN_UNROLL(j) {
      F16 scale;
      if constexpr (kScaled) scale = load(scales_of(tiles[j], d));
      if constexpr (Static) scale = marked(tiles[j]);
      unroll<R>(TRIMARAN_UNROLL(r) {
        if constexpr (Static) s[r * N + j] = add(s[r * N + j], scale);
        if constexpr (kScaled) s[r * N + j] = mul(s[r * N + j], scale);
        store(scores + r * kBlockTokens + (t + j) * kTileTokens, s[r * N + j]);
      });
    });
  }

  // One row's scores become weights 2^(s - m), in fp8 times the scale of the value; returns the largest score and the
  // sum of 2^(s - m). Invisible tokens get weight 0.
  TRIMARAN_INLINE static void softmax(float* s, const Block& b, int d, int r, float& largest, float& sum) {
    const F16 never = set1(-__builtin_inff());
    F16 top = never;
    for (int t = b.first_tile; t < b.tiles; t++) {
      const F16 v = visible_lanes(b, r, t, load(s + t * kTileTokens), never);
      store(s + t * kTileTokens, v);
      top = max(top, v);
    }
    largest = reduce_max(top);
    const F16 m = set1(largest);
    F16 total = zero();
    for (int t = b.first_tile; t < b.tiles; t++) {
      F16 w = exp2(sub(load(s + t * kTileTokens), m));
      total = add(total, w);
      if constexpr (kScaled) w = mul(w, load(scales_of(b.tile[t], d) + kTileTokens));
      store(s + t * kTileTokens, w);
    }
    sum = reduce_add(total);
  }

  // Weights [R][kBlockTokens] times the values of the visible tokens, dimensions i .. i + 16 N.
  template <int R, int N>
  TRIMARAN_INLINE static void weigh(const Block& b, const float* weights, int d, int i, float* o, Fetch& fetch) {
    const int tokens = b.visible[R - 1];
    F16 sum[R * N];
    unroll<R * N>(TRIMARAN_UNROLL(j) { sum[j] = zero(); });
    for (int first = b.first_tile * kTileTokens; first < tokens; first += kTileTokens) {
      fetch.until(kScoreParts + kSoftmaxParts + kGatherParts * (i + 16 * N * first / kBlockTokens) / d);
      const T* v = reinterpret_cast<const T*>(b.tile[first / kTileTokens]) + d * kTileTokens + i;
      const int n = smaller(kTileTokens, tokens - first);
      const int all = b.hidden[R - 1] <= first ? smaller(n, b.visible[0] - first) : 0;
      for (int t = 0; t < n; t++, v += d) {
        F16 x[N];
        unroll<N>(TRIMARAN_UNROLL(j) { x[j] = load(v + j * 16); });
        unroll<R>(TRIMARAN_UNROLL(r) {
          // A value that a row must not see may be infinite: 0 * inf is NaN.
          if (t < all || (first + t < b.visible[r] && first + t >= b.hidden[r])) {
            const F16 w = set1(weights[r * kBlockTokens + first + t]);
            unroll<N>(TRIMARAN_UNROLL(j) { sum[r * N + j] = fma(w, x[j], sum[r * N + j]); });
          }
        });
      }
    }
    unroll<R>(TRIMARAN_UNROLL(r) { unroll<N>(TRIMARAN_UNROLL(j) { store(o + r * d + i + j * 16, sum[r * N + j]); }); });
  }
};

}  // namespace trimaran::TRIMARAN_ISA
