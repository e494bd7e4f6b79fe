// The indexer of sparse attention: keys of its own, a score for every token, and the choice of the largest.
//
//   page  [tile of 16 tokens]{ K [dim][16 tokens] | 16 scales }    K in e4m3; fp32 beside fp32 pages, without scales
//
// Keys have the tokens across the lanes: what the heads find adds up without sums over lanes. Heads are added in
// ascending order in every cut.
namespace trimaran::TRIMARAN_ISA {

TRIMARAN_INLINE size_t key_tile_bytes(const SelectTokens& a) { return a.keys.token_bytes * kTileTokens; }
TRIMARAN_INLINE uint8_t* key_tile(const SelectTokens& a, const int32_t* pages, int tile) {
  const int tiles = a.keys.page_size / kTileTokens;
  return a.keys.pages.of(pages[tile / tiles]) + size_t(tile % tiles) * key_tile_bytes(a);
}

// Writes a token's key [n] into its tile.
TRIMARAN_INLINE void store_index_key(KvFormat format, const float* y, int n, uint8_t* tile, int token) {
  if (format == KvFormat::kFp32) {
    for (int i = 0; i < n; i++) reinterpret_cast<float*>(tile)[i * kTileTokens + token] = y[i];
    return;
  }
  const float absmax = largest(y, n);
  const bool finite = absmax <= kLargest, some = finite && absmax > kTiny;
  const float inverse = some ? kLargestE4m3 / absmax : 0.f;
  for (int i = 0; i < n; i++) tile[i * kTileTokens + token] = some ? to_e4m3(y[i] * inverse) : 0;
  const float scale = finite ? (some ? absmax / kLargestE4m3 : 0.f) : __builtin_nanf("");
  std::memcpy(tile + n * kTileTokens + token * sizeof(float), &scale, sizeof scale);
}

// Norms, rotates and appends the key of a step's row.
inline void store_key(const SelectTokens& a, int row, int position, const int32_t* pages) {
  const float* x = a.k + row * a.k_stride;
  const int n = a.dim;
  float* y = a.scratch;
  layer_norm(x, a.norm, a.norm_bias, a.eps, y, n);
  rotate(a.rope, y, position, y);
  store_index_key(a.keys.format, y, n, key_tile(a, pages, position / kTileTokens), position % kTileTokens);
}

// A tile's keys as floats [dim][16], less their scales: where they lie, or at `to`.
TRIMARAN_INLINE const float* widen_keys(const SelectTokens& a, const uint8_t* tile, float* to) {
  if (a.keys.format == KvFormat::kFp32) return reinterpret_cast<const float*>(tile);
  for (int i = 0; i < a.dim; i++) store(to + i * kTileTokens, load_256ths(tile + i * kTileTokens));
  return to;
}

// Adds R heads' weighted products with N tiles to the tiles' scores.
template <int R, int N>
TRIMARAN_INLINE void score_keys(const float* q, const float* weights, int dim, const float* const* keys,
                                F16 (&scores)[N]) {
  F16 s[R * N];
  unroll<R * N>(TRIMARAN_UNROLL(i) { s[i] = zero(); });
  for (int i = 0; i < dim; i++) {
    F16 k[N];
    unroll<N>(TRIMARAN_UNROLL(j) { k[j] = load(keys[j] + i * kTileTokens); });
    unroll<R>(TRIMARAN_UNROLL(r) {
      const F16 x = set1(q[r * dim + i]);
      unroll<N>(TRIMARAN_UNROLL(j) { s[r * N + j] = fma(k[j], x, s[r * N + j]); });
    });
  }
  unroll<R>(TRIMARAN_UNROLL(r) {
    unroll<N>(TRIMARAN_UNROLL(j) { scores[j] = fma(max(zero(), s[r * N + j]), set1(weights[r]), scores[j]); });
  });
}

// Scores of tokens [first, end) of a row's sequence; `first` begins a tile. May write up to a tile's end.
inline void score_tokens(const SelectTokens& a, int sequence, int row, int first, int end, float* scores) {
  constexpr int kRows = kAttentionSums / kSelectTiles;
  const SequenceRows& seq = a.sequences[sequence];
  const int32_t* pages = seq.pages[a.group];
  const int n = a.dim, position = seq.context + row - seq.first_row;
  float *q = a.scratch, *keys = q + size_t(a.heads) * n, *weights = keys + kSelectTiles * kTileTokens * n;
  for (int h = 0; h < a.heads; h++) {
    const float* x = a.q + row * a.q_stride + size_t(h) * n;
    for (int i = 0; i < n; i += 16) store(q + h * n + i, load(x + i));
    rotate(a.rope, x, position, q + h * n);
    weights[h] = a.weights[row * a.weights_stride + h];
  }
  const bool exact = a.keys.format == KvFormat::kFp32;
  const float scale = (exact ? 1.f : 256.f) / __builtin_sqrtf(float(a.heads) * float(n));
  for (int t = first / kTileTokens; t * kTileTokens < end; t += kSelectTiles) {
    const uint8_t* tiles[kSelectTiles];
    const float* wide[kSelectTiles];
    for (int j = 0; j < kSelectTiles; j++) {
      const int tile = (t + j) * kTileTokens < end ? t + j : t;
      tiles[j] = key_tile(a, pages, tile);
      wide[j] = widen_keys(a, tiles[j], keys + j * kTileTokens * n);
    }
    F16 sums[kSelectTiles];
    unroll<kSelectTiles>(TRIMARAN_UNROLL(j) { sums[j] = zero(); });
    for_row_tiles<kRows>(a.heads, [&](int h, auto rows) TRIMARAN_BODY {
      score_keys<rows, kSelectTiles>(q + h * n, weights + h, n, wide, sums);
    });
    for (int j = 0; j < kSelectTiles && (t + j) * kTileTokens < end; j++) {
      F16 s = mul(sums[j], set1(scale));
      if (!exact) s = mul(s, load(reinterpret_cast<const float*>(tiles[j] + n * kTileTokens)));
      store(scores + (t + j) * kTileTokens, s);
    }
  }
}

// The scores' order as that of whole numbers; NaN is least, 0 and -0 are equal.
TRIMARAN_INLINE uint32_t rank_of(float score) {
  if (score != score) return 0;
  const float x = score + 0.f;
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}

// Writes the positions of the `most` largest of n scores, ascending, the lower ones where scores are equal, then -1;
// all positions where there are no more than `most`. Overwrites the scores.
inline void choose_tokens(float* scores, int n, int most, float* out) {
  int chosen = 0;
  if (n <= most) {
    for (; chosen < n; chosen++) out[chosen] = float(chosen);
  } else {
    for (int i = 0; i < n; i++) {
      const uint32_t rank = rank_of(scores[i]);
      std::memcpy(scores + i, &rank, 4);
    }
    const auto rank_at = [&](int i) TRIMARAN_BODY {
      uint32_t rank;
      std::memcpy(&rank, scores + i, 4);
      return rank;
    };
    uint32_t least = 0;  // the rank of the last one chosen, found byte by byte
    int left = most;     // how many are chosen of those whose upper bytes are the same
    for (int shift = 24; shift >= 0; shift -= 8) {
      int count[256] = {};
      for (int i = 0; i < n; i++) {
        const uint32_t rank = rank_at(i);
        if (shift == 24 || rank >> (shift + 8) == least >> (shift + 8)) count[rank >> shift & 255]++;
      }
      uint32_t byte = 255;
      for (; left > count[byte]; byte--) left -= count[byte];
      least |= byte << shift;
    }
    for (int i = 0; i < n && chosen < most; i++) {
      const uint32_t rank = rank_at(i);
      if (rank > least || (rank == least && left-- > 0)) out[chosen++] = float(i);
    }
  }
  for (; chosen < most; chosen++) out[chosen] = -1.f;
}

}  // namespace trimaran::TRIMARAN_ISA
