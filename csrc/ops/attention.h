// Attention over paged keys and values, and appending to the pages.
//
//   page  [layer][kv head][tile of 16 tokens]{ K [head_dim][16 tokens] | V [16 tokens][head_dim] }
//
// K has the tokens across the lanes: a tile's 16 scores come out as one vector, without horizontal sums. Tokens are
// taken in blocks of 128 at absolute positions; each block is reduced on its own to (m, l, O) = (largest score, sum of
// weights, weighted values) and the blocks are merged in ascending order, whoever computed them. So prefill, decode and
// any split over threads make the same bits. Only values of visible tokens are read: what else a page holds is old.
namespace trimaran::TRIMARAN_ISA {

template <class T>
struct Tile {
  const T* k;
  const T* v;
};

template <class T>
TRIMARAN_INLINE T* tile_at(const KvLayer& kv, const int32_t* pages, int kv_head, int tile) {
  return reinterpret_cast<T*>(kv.base + size_t(pages[tile / kv.tiles_per_page]) * kv.page_bytes +
                              kv_head * kv.head_bytes + size_t(tile % kv.tiles_per_page) * kv.tile_bytes);
}

// Rotates the first rope_dims of x, pairs (i, i + rope_dims / 2); products and sums are rounded one by one.
TRIMARAN_INLINE void rope(const Attention& a, const float* x, int position, float* y) {
  const int half = a.rope_dims / 2;
  const float *c = a.cos + size_t(position) * half, *s = a.sin + size_t(position) * half;
  for (int i = 0; i < half; i++) {
    y[i] = x[i] * c[i] - x[i + half] * s[i];
    y[i + half] = x[i + half] * c[i] + x[i] * s[i];
  }
  for (int i = a.rope_dims; i < a.head_dim; i++) y[i] = x[i];
}

template <class T>
inline void store_kv_as(const Attention& a, int row, int position, int kv_head, const int32_t* pages) {
  const int d = a.head_dim, token = position % kTileTokens;
  const float* k = a.qkv + row * a.qkv_stride + size_t(a.heads + kv_head) * d;
  float* rotated = a.scratch;
  rope(a, k, position, rotated);
  T* tile = tile_at<T>(a.kv, pages, kv_head, position / kTileTokens);
  for (int i = 0; i < d; i += 16) {
    T lanes[16];
    store(lanes, load(rotated + i));
    for (int j = 0; j < 16; j++) tile[(i + j) * kTileTokens + token] = lanes[j];
  }
  const float* v = k + size_t(a.kv_heads) * d;
  T* value = tile + size_t(d) * kTileTokens + size_t(token) * d;
  for (int i = 0; i < d; i += 16) store(value + i, load(v + i));
}

// scores [R][kBlockTokens] of R queries (transposed: q [d][R]) against N tiles.
template <class T, int R, int N>
TRIMARAN_INLINE void score_tiles(const Tile<T>* tiles, const float* q, int head_dim, float* scores) {
  F16 s[R * N];
  unroll<R * N>(TRIMARAN_UNROLL(i) { s[i] = zero(); });
  for (int d = 0; d < head_dim; d++) {
    F16 k[N];
    unroll<N>(TRIMARAN_UNROLL(t) { k[t] = load(tiles[t].k + d * kTileTokens); });
    unroll<R>(TRIMARAN_UNROLL(r) {
      const F16 x = set1(q[d * R + r]);
      unroll<N>(TRIMARAN_UNROLL(t) { s[r * N + t] = fma(k[t], x, s[r * N + t]); });
    });
  }
  unroll<R>(TRIMARAN_UNROLL(r) {
    unroll<N>(TRIMARAN_UNROLL(t) { store(scores + r * kBlockTokens + t * kTileTokens, s[r * N + t]); });
  });
}

// One row's scores become weights 2^(s - m); returns the largest score and the sum. Invisible tokens get weight 0.
TRIMARAN_INLINE void softmax_row(float* s, int tiles, int visible, float& largest, float& sum) {
  const F16 never = set1(-__builtin_inff());
  F16 top = never;
  for (int t = 0; t < tiles; t++) {
    const int n = bigger(0, smaller(kTileTokens, visible - t * kTileTokens));
    const F16 v = first_lanes(n, load(s + t * kTileTokens), never);
    store(s + t * kTileTokens, v);
    top = max(top, v);
  }
  largest = reduce_max(top);
  const F16 m = set1(largest);
  F16 total = zero();
  for (int t = 0; t < tiles; t++) {
    const F16 w = exp2(sub(load(s + t * kTileTokens), m));
    store(s + t * kTileTokens, w);
    total = add(total, w);
  }
  sum = reduce_add(total);
}

// o [R][head_dim], dimensions d .. d + 16 N: weights [R][kBlockTokens] times the values of `tokens` tokens.
template <class T, int R, int N>
TRIMARAN_INLINE void weigh_values(const Tile<T>* tiles, int tokens, const int* visible, const float* weights,
                                  int head_dim, int d, float* o) {
  F16 sum[R * N];
  unroll<R * N>(TRIMARAN_UNROLL(i) { sum[i] = zero(); });
  for (int first = 0; first < tokens; first += kTileTokens, tiles++, weights += kTileTokens) {
    const T* v = tiles->v + d;
    const int n = smaller(kTileTokens, tokens - first);
    const int all = bigger(0, smaller(n, visible[0] - first));
    int t = 0;
    for (; t < all; t++, v += head_dim) {
      F16 x[N];
      unroll<N>(TRIMARAN_UNROLL(i) { x[i] = load(v + i * 16); });
      unroll<R>(TRIMARAN_UNROLL(r) {
        const F16 w = set1(weights[r * kBlockTokens + t]);
        unroll<N>(TRIMARAN_UNROLL(i) { sum[r * N + i] = fma(w, x[i], sum[r * N + i]); });
      });
    }
    for (; t < n; t++, v += head_dim) {  // a value that a row must not see may be infinite: 0 * inf is NaN
      F16 x[N];
      unroll<N>(TRIMARAN_UNROLL(i) { x[i] = load(v + i * 16); });
      unroll<R>(TRIMARAN_UNROLL(r) {
        if (first + t < visible[r]) {
          const F16 w = set1(weights[r * kBlockTokens + t]);
          unroll<N>(TRIMARAN_UNROLL(i) { sum[r * N + i] = fma(w, x[i], sum[r * N + i]); });
        }
      });
    }
  }
  unroll<R>(
      TRIMARAN_UNROLL(r) { unroll<N>(TRIMARAN_UNROLL(i) { store(o + r * head_dim + d + i * 16, sum[r * N + i]); }); });
}

// Merges block (mb, lb, ob) into the state (m, l, o); the first block becomes the state.
TRIMARAN_INLINE void merge_block(float& m, float& l, float* o, float mb, float lb, const float* ob, int head_dim) {
  if (l == 0.f) {
    m = mb, l = lb;
    for (int i = 0; i < head_dim; i += 16) store(o + i, load(ob + i));
    return;
  }
  const float top = m > mb ? m : mb;
  const float keep = exp2(m - top), take = exp2(mb - top);
  m = top;
  l = lb * take + l * keep;
  const F16 k = set1(keep), t = set1(take);
  for (int i = 0; i < head_dim; i += 16) store(o + i, fma(load(ob + i), t, mul(load(o + i), k)));
}

TRIMARAN_INLINE void write_head(const Attention& a, int row, int head, const float* o, float l) {
  float* out = a.out + row * a.out_stride + size_t(head) * a.head_dim;
  const F16 total = set1(l);
  for (int i = 0; i < a.head_dim; i += 16) store(out + i, div(load(o + i), total));
}

// A unit's rows as numbers: token within the step's rows of the sequence, and query head.
struct RowOf {
  int token, head;
  TRIMARAN_INLINE RowOf(const Attention& a, const AttentionUnit& u, int r) {
    const int group = a.heads / a.kv_heads, row = u.row + r;
    token = row / group;
    head = u.kv_head * group + row % group;
  }
};

template <class T, int R>
inline void attend_rows(const Attention& a, const AttentionUnit& u) {
  constexpr int kTiles = kBlockTokens / kTileTokens;
  constexpr int kAtOnce = kAttentionSums / R >= 4 ? 4 : kAttentionSums / R >= 2 ? 2 : 1;
  const SequenceRows& seq = a.sequences[u.sequence];
  const int d = a.head_dim, tile_elements = d * kTileTokens;
  if (u.store) store_kv_as<T>(a, seq.first_row, seq.context, u.kv_head, seq.pages);

  float* scores = a.scratch;             // [R][kBlockTokens]
  float* q = scores + R * kBlockTokens;  // [d][R]
  float* block = q + R * d;              // [R][d]
  float* state = block + R * d;          // [R][d]
  float* rotated = state + R * d;        // [d]
  float m[R], l[R];
  int seen[R];  // tokens that a row sees
  for (int r = 0; r < R; r++) {
    m[r] = l[r] = 0.f, seen[r] = 0;
    if (r >= u.rows) {
      for (int i = 0; i < d; i++) q[i * R + r] = 0.f;
      continue;
    }
    const RowOf at(a, u, r);
    seen[r] = seq.context + at.token + 1;
    rope(a, a.qkv + (seq.first_row + at.token) * a.qkv_stride + size_t(at.head) * d, seq.context + at.token, rotated);
    for (int i = 0; i < d; i++) q[i * R + r] = rotated[i] * a.scale;
  }
  const int last = seen[u.rows - 1];  // rows are in token order

  for (int b = u.block; b < u.block + u.blocks; b++) {
    const int first = b * kBlockTokens, tokens = smaller(kBlockTokens, last - first);
    const int tiles = (tokens + kTileTokens - 1) / kTileTokens;
    Tile<T> at[kTiles];
    for (int t = 0; t < tiles; t++) {
      at[t].k = tile_at<T>(a.kv, seq.pages, u.kv_head, first / kTileTokens + t);
      at[t].v = at[t].k + tile_elements;
    }
    int t = 0;
    for (; t + kAtOnce <= tiles; t += kAtOnce) score_tiles<T, R, kAtOnce>(at + t, q, d, scores + t * kTileTokens);
    for (; t < tiles; t++) score_tiles<T, R, 1>(at + t, q, d, scores + t * kTileTokens);
    float mb[R] = {}, lb[R] = {};
    int visible[R];  // tokens of the block that a row sees
    for (int r = 0; r < R; r++) visible[r] = seen[r] - first;
    for (int r = 0; r < R; r++) {
      if (seen[r] > first) {
        softmax_row(scores + r * kBlockTokens, tiles, seen[r] - first, mb[r], lb[r]);
      } else {
        std::memset(scores + r * kBlockTokens, 0, size_t(tiles) * kTileTokens * sizeof(float));
      }
    }
    int i = 0;
    for (; i + 16 * kAtOnce <= d; i += 16 * kAtOnce)
      weigh_values<T, R, kAtOnce>(at, tokens, visible, scores, d, i, block);
    for (; i < d; i += 16) weigh_values<T, R, 1>(at, tokens, visible, scores, d, i, block);
    for (int r = 0; r < u.rows; r++) {
      if (u.partial >= 0) {
        float* p = a.partials + size_t(u.partial + int64_t(b) * u.rows + r) * partial_stride(d);
        for (int j = 0; j < d; j += 16) store(p + j, load(block + r * d + j));
        p[d] = mb[r], p[d + 1] = lb[r];
      } else if (seen[r] > first) {
        merge_block(m[r], l[r], state + r * d, mb[r], lb[r], block + r * d, d);
      }
    }
  }
  if (u.partial >= 0) return;
  for (int r = 0; r < u.rows; r++) {
    const RowOf at(a, u, r);
    write_head(a, seq.first_row + at.token, at.head, state + r * d, l[r]);
  }
}

// Merges the partial results of a unit's rows over all their blocks; the last to finish one of the units calls it.
inline void merge_partials(const Attention& a, const AttentionUnit& u) {
  const int d = a.head_dim;
  float* state = a.scratch;
  for (int r = 0; r < u.rows; r++) {
    float m = 0.f, l = 0.f;
    for (int b = 0; b < u.total_blocks; b++) {
      const float* p = a.partials + size_t(u.partial + int64_t(b) * u.rows + r) * partial_stride(d);
      if (p[d + 1] != 0.f) merge_block(m, l, state, p[d], p[d + 1], p, d);
    }
    const RowOf at(a, u, r);
    write_head(a, a.sequences[u.sequence].first_row + at.token, at.head, state, l);
  }
}

template <class T>
inline void attend_as(const Attention& a, const AttentionUnit& u) {
  if (u.rows == 1) return attend_rows<T, 1>(a, u);
  if (u.rows == 2) return attend_rows<T, 2>(a, u);
  if (u.rows == 3) return attend_rows<T, 3>(a, u);
  if (kAttentionRows == 4 || u.rows == 4) return attend_rows<T, 4>(a, u);
  if constexpr (kAttentionRows > 4) {
    if (u.rows <= 6) return attend_rows<T, 6>(a, u);
    if (u.rows <= 8) return attend_rows<T, 8>(a, u);
    attend_rows<T, 12>(a, u);
  }
}

inline void attend(const Attention& a, const AttentionUnit& u) {
  a.kv.format == KvFormat::kFp32 ? attend_as<float>(a, u) : attend_as<uint16_t>(a, u);
}

inline void store_kv(const Attention& a, int row, int position, int kv_head, const int32_t* pages) {
  a.kv.format == KvFormat::kFp32 ? store_kv_as<float>(a, row, position, kv_head, pages)
                                 : store_kv_as<uint16_t>(a, row, position, kv_head, pages);
}

}  // namespace trimaran::TRIMARAN_ISA
