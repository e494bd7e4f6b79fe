// Attention over pages of int8, both products in integers.
//
//   K [head_dim / 4][16 tokens][4], q + 128 | V [16 tokens / 4][head_dim][4 tokens] | 16 scales of K | 16 scales of V
//
// Keys and queries are rounded after a Hadamard transform (see rope.h). A row's weights, each times the scale of its
// value, become 8 bits without a sign, in steps of a 255th of the largest in the block. A key or value that is not
// finite gives its key the scale NaN, which makes all that sees it NaN; scales of values are finite whatever a page
// held.
namespace trimaran::TRIMARAN_ISA {

struct Int8Pages {
  static constexpr int kRows = kIntRows;  // that are reduced together
  struct Terms {                          // of a query, beside its integers
    float scale;                          // of the scores
    int32_t start;                        // of an accumulator whose keys are q + 128
  };

  static void store_kv(const Attention& a, int row, int position, int kv_head, const int32_t* pages, float* rotated) {
    const int d = a.head_dim, token = position % kTileTokens;
    uint8_t* tile = tile_at(a.kv, pages, kv_head, position / kTileTokens);
    auto* q = reinterpret_cast<int8_t*>(rotated);  // integers take the place of the numbers that they come from
    turn_head(a, a.k_norm, key_of(a, row, kv_head), row, kv_head, position, rotated);
    hadamard(rotated, d);
    const Rounded key = round_vector(rotated, d, q);
    for (int i = 0; i < d; i += 4) {
      uint32_t quad;
      std::memcpy(&quad, q + i, 4);
      quad ^= 0x80808080;
      std::memcpy(tile + i * kTileTokens + 4 * token, &quad, 4);
    }
    const Rounded value = round_vector(value_of(a, row, kv_head), d, q);
    uint8_t* v = tile + d * kTileTokens + token / 4 * 4 * d + token % 4;
    for (int i = 0; i < d; i++) v[4 * i] = uint8_t(q[i]);
    auto* scales = reinterpret_cast<float*>(tile + 2 * d * kTileTokens);
    scales[token] = value.finite ? key.scale : __builtin_nanf("");
    scales[kTileTokens + token] = value.finite ? value.scale : 0.f;
  }

  TRIMARAN_INLINE static Terms take_query(const Attention& a, float* rotated, float* queries, int row) {
    hadamard(rotated, a.head_dim);
    const Rounded r = round_vector(rotated, a.head_dim, reinterpret_cast<int8_t*>(queries) + row * a.head_dim);
    return {r.scale * a.scale, kBiasedInt8 ? -128 * r.sum : 0};
  }

  template <int R>
  static void reduce(const Block& b, int d, const float* queries, const Terms* terms, int first_row, Scratch& scratch,
                     Reduced& out) {
    constexpr int kAtOnce = kAttentionSums / R >= 4 ? 4 : kAttentionSums / R >= 2 ? 2 : 1;
    const auto* q = reinterpret_cast<const int8_t*>(queries) + first_row * d;
    terms += first_row;
    int t = b.first_tile;
    for (; t + kAtOnce <= b.tiles; t += kAtOnce) score<R, kAtOnce>(b, t, q, terms, d, scratch.scores);
    for (; t < b.tiles; t++) score<R, 1>(b, t, q, terms, d, scratch.scores);
    for (; t < b.next_tiles; t++) {  // a block after a shorter one
      for (int i = 0; i < kv_token_bytes(KvFormat::kInt8, d) * kTileTokens; i += 64) prefetch(b.next[t] + i);
    }
    float step[R];
    softmax<R>(b, d, scratch.scores, scratch.weights, step, out);
    int i = 0;
    for (; i + 16 * kAtOnce <= d; i += 16 * kAtOnce) weigh<R, kAtOnce>(b, scratch.weights, step, d, i, out.o);
    for (; i < d; i += 16) weigh<R, 1>(b, scratch.weights, step, d, i, out.o);
  }

 private:
  TRIMARAN_INLINE static const float* scales_of(const uint8_t* tile, int d) {
    return reinterpret_cast<const float*>(tile + 2 * d * kTileTokens);
  }

  // Scores [R][kBlockTokens] of R queries against N tiles from tile t on. Meanwhile the tiles of the next block come.
  template <int R, int N>
  TRIMARAN_INLINE static void score(const Block& b, int t, const int8_t* q, const Terms* terms, int d, float* scores) {
    const uint8_t* const* tiles = b.tile + t;
    const int ahead = smaller(N, b.next_tiles - t);
    I16 s[R * N];
    unroll<R * N>(TRIMARAN_UNROLL(i) {
      s[i] = set1_int(terms[i / N].start);
      keep_apart(s[i]);
    });
    for (int i = 0; i < d; i += 4) {
      for (int j = 0; j < ahead; j++) {
        prefetch(b.next[t + j] + i * kTileTokens);
        prefetch(b.next[t + j] + (d + i) * kTileTokens);
      }
      unroll<N>(TRIMARAN_UNROLL(j) {
        const Full k(load_bytes(tiles[j] + i * kTileTokens));
        unroll<R>(TRIMARAN_UNROLL(r) { dot4(s[r * N + j], k, load_quad(q + r * d + i)); });
      });
    }
    for (int j = 0; j < ahead; j++) {
      prefetch(scales_of(b.next[t + j], d));
      prefetch(scales_of(b.next[t + j], d) + kTileTokens);
    }
    unroll<N>(TRIMARAN_UNROLL(j) {
      const F16 scale = load(scales_of(tiles[j], d));
      unroll<R>(TRIMARAN_UNROLL(r) {
        store(scores + r * kBlockTokens + (t + j) * kTileTokens,
              mul(to_float(s[r * N + j]), mul(scale, set1(terms[r].scale))));
      });
    });
  }

  // Scores become weights in 8 bits; finds each row's largest score, sum of weights 2^(s - m) and the step of its 8
  // bits. In three passes, so that one row's sums over lanes need not wait for another's. What is not visible has a
  // weight of 2^-126, which is nothing beside the largest weight, 1.
  template <int R>
  TRIMARAN_INLINE static void softmax(const Block& b, int d, float* scores, uint8_t* weights, float* step,
                                      Reduced& out) {
    const F16 never = set1(-__builtin_inff());
    for (int r = 0; r < R; r++) {
      float* s = scores + r * kBlockTokens;
      F16 top = never;
      int t = b.first_tile;
      const auto mask = [&] TRIMARAN_BODY {
        const F16 v = visible_lanes(b, r, t, load(s + t * kTileTokens), never);
        store(s + t * kTileTokens, v);
        top = max(top, v);
      };
      for (; t * kTileTokens < b.hidden[r]; t++) mask();
      for (; t < b.visible[r] / kTileTokens; t++) top = max(top, load(s + t * kTileTokens));
      for (; t < b.tiles; t++) mask();
      out.m[r] = reduce_max(top);
    }
    float most[R];
    for (int r = 0; r < R; r++) {
      float* s = scores + r * kBlockTokens;
      const F16 m = set1(out.m[r]);
      F16 total = zero(), top = zero();
      for (int t = b.first_tile; t < b.tiles; t++) {
        const F16 w = exp2_coarse(sub(load(s + t * kTileTokens), m));
        total = add(total, w);
        F16 scaled = mul(w, load(scales_of(b.tile[t], d) + kTileTokens));
        if (t * kTileTokens < b.hidden[r] || b.visible[r] < (t + 1) * kTileTokens) {
          scaled = visible_lanes(b, r, t, scaled, zero());
        }
        store(s + t * kTileTokens, scaled);
        top = max(top, scaled);
      }
      out.l[r] = reduce_add(total);
      most[r] = reduce_max(top);
    }
    for (int r = 0; r < R; r++) {
      const bool some = most[r] > kTiny;
      const F16 steps = set1(some ? 255.f / most[r] : 0.f);
      step[r] = some ? most[r] / 255.f : 0.f;
      for (int t = b.first_tile; t < b.tiles; t++) {
        const int at = r * kBlockTokens + t * kTileTokens;
        store_uint8(weights + at, to_int(mul(load(scores + at), steps)));
      }
    }
  }

  // Weights [R][kBlockTokens] times values, dimensions i .. i + 16 N.
  template <int R, int N>
  TRIMARAN_INLINE static void weigh(const Block& b, const uint8_t* weights, const float* step, int d, int i, float* o) {
    I16 sum[R * N];
    unroll<R * N>(TRIMARAN_UNROLL(j) {
      sum[j] = set1_int(0);
      keep_apart(sum[j]);
    });
    weights += b.first_tile * kTileTokens;
    for (int t = b.first_tile; t < b.tiles; t++) {
      const uint8_t* v = b.tile[t] + d * kTileTokens + i * 4;
#pragma GCC unroll 1
      for (int quad = 0; quad < 4; quad++, v += 4 * d, weights += 4) {
        Bytes x[N];
        unroll<N>(TRIMARAN_UNROLL(j) { x[j] = load_bytes(v + j * 64); });
        unroll<R>(TRIMARAN_UNROLL(r) {
          const WeightQuad w = load_weights(weights + r * kBlockTokens);
          unroll<N>(TRIMARAN_UNROLL(j) { dot4(sum[r * N + j], w, x[j]); });
        });
      }
    }
    unroll<R>(TRIMARAN_UNROLL(r) {
      unroll<N>(TRIMARAN_UNROLL(j) { store(o + r * d + i + j * 16, mul(to_float(sum[r * N + j]), set1(step[r]))); });
    });
  }
};

}  // namespace trimaran::TRIMARAN_ISA
