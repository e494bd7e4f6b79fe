// From scores to weights in 8 bits: how attention over pages of integers gathers values.
//
// A token counts 2^(score - m) times its value, which is scale * integers. So integers count 2^(u - most), where u is
// score + log2(scale) and `most` the row's largest u in the block; in 255ths, rounded, these are the weights. Their sum
// without scales is what values are divided by in the end: 255 cancels, and `most` takes the place of m.
//
// In passes over all rows, so that one row's sums over lanes need not wait for another's. What is not visible has a
// weight of 2^-126, which is nothing beside the largest weight, 1.
namespace trimaran::TRIMARAN_ISA {

constexpr float kMiddleCode = -7.5f;     // what int4 codes of values are to be moved by
constexpr float kLog255 = 7.99435344f;   // log2(255)
constexpr float kLeastScale = 0x1p-60f;  // of values: smaller ones are zeros, whose logarithm must be finite

// What becomes of the scales of a tile's values: log2, which scores grow by, and the inverse, which undoes it in sums.
TRIMARAN_INLINE void take_scales(F16 scales, float* logs, float* inverses) {
  scales = max(set1(kLeastScale), scales);
  store(logs, log2(scales));
  if (inverses) store(inverses, div(set1(1.f), scales));
}

// Scores plus the logs of some scales.
template <int R>
TRIMARAN_INLINE void add_logs(const Block& b, const float* scores, const float* logs, float* to) {
  for (int r = 0; r < R; r++) {
    for (int t = b.first_tile * kTileTokens; t < b.tiles * kTileTokens; t += kTileTokens) {
      store(to + r * kBlockTokens + t, add(load(scores + r * kBlockTokens + t), load(logs + t)));
    }
  }
}

// Each row's largest score, to `most`; scores that are not visible become -inf.
template <int R>
TRIMARAN_INLINE void find_largest(const Block& b, float* scores, float* most) {
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
    most[r] = reduce_max(top);
  }
}

// Scores to weights [R][kBlockTokens]. `sums`: each row's, times `inverses` if values are scaled; null: not wanted.
// Moved: `offsets` get what to add to sums whose values are q + 7.5. done(r) after each row.
template <int R, bool Scaled, bool Moved, class F>
TRIMARAN_INLINE void find_weights(const Block& b, const float* scores, const float* most, const float* inverses,
                                  uint8_t* weights, float* sums, float* offsets, F&& done) {
  for (int r = 0; r < R; r++) {
    const float* s = scores + r * kBlockTokens;
    uint8_t* w = weights + r * kBlockTokens;
    const F16 one = set1(most[r] - kLog255);
    F16 total = zero();
    I16 codes = set1_int(0);
    const auto tile = [&](int t) TRIMARAN_BODY {
      const F16 exact = exp2_coarse(sub(load(s + t * kTileTokens), one));
      const I16 n = to_int(exact);
      store_uint8(w + t * kTileTokens, n);
      total = Scaled ? fma(exact, load(inverses + t * kTileTokens), total) : add(total, exact);
      if constexpr (Moved) codes = add(codes, n);
    };
    if (b.tiles - b.first_tile == kBlockTiles) {
      unroll<kBlockTiles>(TRIMARAN_UNROLL(t) { tile(t); });
    } else {
      for (int t = b.first_tile; t < b.tiles; t++) tile(t);
    }
    if (sums) sums[r] = reduce_add(total);
    if constexpr (Moved) offsets[r] = kMiddleCode * float(reduce_add(codes));
    done(r);
  }
}

}  // namespace trimaran::TRIMARAN_ISA
