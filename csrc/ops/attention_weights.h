// From scores to weights in 8 bits: how attention over pages of integers gathers values. A row's weights, each times
// the scale of its value, become steps of a 255th of the largest in the block.
//
// In passes over all rows, so that one row's sums over lanes need not wait for another's. What is not visible has a
// weight of 2^-126, which is nothing beside the largest weight, 1.
namespace trimaran::TRIMARAN_ISA {

constexpr float kMiddleCode = -7.5f;  // what int4 codes of values are to be moved by

struct Rounding {  // of a row's weights
  float step;
  float offset;  // what to add to a sum whose values are q + 7.5
};

// Each row's largest score, which `out` gets; scores that are not visible become -inf.
template <int R>
TRIMARAN_INLINE void find_largest(const Block& b, float* scores, Reduced& out) {
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
}

// f(tile) of a row's visible tokens, 0 of the others, to `to`; returns the largest.
template <class F>
TRIMARAN_INLINE float scale_row(const Block& b, int r, float* to, F&& f) {
  F16 top = zero();
  for (int t = b.first_tile; t < b.tiles; t++) {
    F16 scaled = f(t);
    if (t * kTileTokens < b.hidden[r] || b.visible[r] < (t + 1) * kTileTokens) {
      scaled = visible_lanes(b, r, t, scaled, zero());
    }
    store(to + t * kTileTokens, scaled);
    top = max(top, scaled);
  }
  return reduce_max(top);
}

// Scores become scaled(tile, weight) of weights 2^(s - m), whose sums `out` gets; `most` gets the largest that is
// stored. done(r) after each row.
template <int R, class F, class G>
TRIMARAN_INLINE void weigh_scores(const Block& b, float* scores, Reduced& out, float* most, F&& scaled, G&& done) {
  for (int r = 0; r < R; r++) {
    float* s = scores + r * kBlockTokens;
    const F16 m = set1(out.m[r]);
    F16 total = zero();
    most[r] = scale_row(b, r, s, [&](int t) TRIMARAN_BODY {
      const F16 w = exp2_coarse(sub(load(s + t * kTileTokens), m));
      total = add(total, w);
      return scaled(t, w);
    });
    out.l[r] = reduce_add(total);
    done(r);
  }
}

// Scaled weights [R][kBlockTokens], of which `most` are the largest, in 8 bits.
template <int R, bool Moved>
TRIMARAN_INLINE void round_weights(const Block& b, const float* scaled, const float* most, uint8_t* weights,
                                   Rounding* rounding) {
  for (int r = 0; r < R; r++) {
    const bool some = most[r] > kTiny;
    const F16 steps = set1(some ? 255.f / most[r] : 0.f);
    I16 sum = set1_int(0);
    for (int t = b.first_tile; t < b.tiles; t++) {
      const int at = r * kBlockTokens + t * kTileTokens;
      const I16 n = to_int(mul(load(scaled + at), steps));
      store_uint8(weights + at, n);
      if constexpr (Moved) sum = add(sum, n);
    }
    rounding[r].step = some ? most[r] / 255.f : 0.f;
    rounding[r].offset = Moved ? kMiddleCode * float(reduce_add(sum)) : 0.f;
  }
}

}  // namespace trimaran::TRIMARAN_ISA
