// Latent attention: every head's query against one row a token, whose first part is also what is gathered.
//
// A block's tokens are widened to floats once, for all rows of the unit; where a format turns what it rounds, queries
// and outputs are turned and tokens left as they are. As in ops/attention.h each block is reduced on its own and the
// blocks are merged in ascending order, so that any cut makes the same bits.
namespace trimaran::TRIMARAN_ISA {

constexpr int kLatentDots = kAttentionSums >= 16 ? 4 : 2;    // rows, and tokens, whose products are summed together
constexpr int kLatentGroup = 8;                              // tokens that stay near while all rows pass by
constexpr int kLatentSums = kAttentionSums >= 24 ? 6 : 2;    // rows that gather together,
constexpr int kLatentChunks = kAttentionSums >= 24 ? 4 : 2;  // and so many times 16 of their dimensions

// A thread's scratch, cut up (latent_scratch() floats).
struct LatentScratch {
  float* queries;  // [kLatentRows][latent + rope]
  float* tokens;   // [kBlockTokens][latent + rope]
  float* state;    // [kLatentRows][latent]: what the blocks so far gathered
  float* scores;   // [kLatentRows][kBlockTokens]
  TRIMARAN_INLINE LatentScratch(float* p, int latent, int width)
      : queries(p),
        tokens(queries + kLatentRows * width),
        state(tokens + kBlockTokens * width),
        scores(state + kLatentRows * latent) {}
};

// Scores of R rows and N tokens.
template <int R, int N>
TRIMARAN_INLINE void score_latents(const float* q, int width, const float* const* tokens, float* scores) {
  F16 s[R * N];
  unroll<R * N>(TRIMARAN_UNROLL(i) { s[i] = zero(); });
  for (int i = 0; i < width; i += 16) {
    F16 k[N];
    unroll<N>(TRIMARAN_UNROLL(j) { k[j] = load(tokens[j] + i); });
    unroll<R>(TRIMARAN_UNROLL(r) {
      const F16 x = load(q + r * width + i);
      unroll<N>(TRIMARAN_UNROLL(j) { s[r * N + j] = fma(k[j], x, s[r * N + j]); });
    });
  }
  unroll<R>(TRIMARAN_UNROLL(r) {
    unroll<N>(TRIMARAN_UNROLL(j) { scores[r * kBlockTokens + j] = reduce_add(s[r * N + j]); });
  });
}

// One row's scores become weights 2^(s - m), those of tokens that it does not see 0.
TRIMARAN_INLINE void weigh_scores(float* s, int visible, float& largest, float& sum) {
  const F16 never = set1(-__builtin_inff());
  F16 top = never, total = zero();
  for (int t = 0; t < visible; t += 16) {
    const F16 v = first_lanes(smaller(16, visible - t), load(s + t), never);
    store(s + t, v);
    top = max(top, v);
  }
  largest = reduce_max(top);
  const F16 m = set1(largest);
  for (int t = 0; t < visible; t += 16) {
    const F16 w = exp2(sub(load(s + t), m));
    store(s + t, w);
    total = add(total, w);
  }
  sum = reduce_add(total);
}

// Weights of R rows times dimensions i .. i + 16 N of the tokens they see; emit(row, dimension, sum).
template <int R, int N, class Emit>
TRIMARAN_INLINE void gather_latents(const float* weights, const float* const* tokens, const int* visible, int i,
                                    Emit&& emit) {
  F16 sum[R * N];
  unroll<R * N>(TRIMARAN_UNROLL(j) { sum[j] = zero(); });
  const int all = visible[0];
  for (int t = 0; t < visible[R - 1]; t++) {
    F16 v[N];
    unroll<N>(TRIMARAN_UNROLL(j) { v[j] = load(tokens[t] + i + j * 16); });
    unroll<R>(TRIMARAN_UNROLL(r) {
      if (t < all || t < visible[r]) {  // what a row must not see may be infinite: 0 * inf is NaN
        const F16 w = set1(weights[r * kBlockTokens + t]);
        unroll<N>(TRIMARAN_UNROLL(j) { sum[r * N + j] = fma(w, v[j], sum[r * N + j]); });
      }
    });
  }
  unroll<R>(TRIMARAN_UNROLL(r) { unroll<N>(TRIMARAN_UNROLL(j) { emit(r, i + j * 16, sum[r * N + j]); }); });
}

// What merging a block does to a row: its state times `keep` plus the block times `take`.
struct Merging {
  float keep, take;
};
TRIMARAN_INLINE Merging merge_block(float& m, float& l, float block_m, float block_l) {
  const float top = m > block_m ? m : block_m;
  const Merging merging = {exp2(m - top), exp2(block_m - top)};
  m = top;
  l = block_l * merging.take + l * merging.keep;
  return merging;
}
TRIMARAN_INLINE void merge_into(float* state, F16 block, const Merging& merging) {
  store(state, fma(block, set1(merging.take), mul(load(state), set1(merging.keep))));
}

TRIMARAN_INLINE void write_latents(const LatentAttention& a, int row, int head, const float* state, float l) {
  float* out = a.out + row * a.out_stride + size_t(head) * a.latent;
  const F16 total = set1(l);
  for (int i = 0; i < a.latent; i += 16) store(out + i, div(load(state + i), total));
  turn_part(latent_of(a.kv.format), out, a.latent);
}

inline void attend_latents(const LatentAttention& a, const LatentUnit& u) {
  const SequenceRows& seq = a.sequences[u.sequence];
  const int32_t* pages = seq.pages[a.group];
  const int n = a.latent, width = n + a.rope.dims;
  const LatentScratch scratch(a.scratch, n, width);
  const int first_token = u.row / a.heads;
  const float* list = a.selected ? a.selected + (seq.first_row + first_token) * a.selected_stride : nullptr;

  int seen[kLatentRows];  // entries of the list, or tokens, that a row sees; ascending
  const F16 scale = set1(a.scale);
  for (int r = 0; r < u.rows; r++) {
    const int token = (u.row + r) / a.heads, head = (u.row + r) % a.heads, position = seq.context + token;
    seen[r] = list ? smaller(a.most, position + 1) : position + 1;
    const float* latent = a.q_latent + (seq.first_row + token) * a.q_latent_stride + size_t(head) * n;
    const float* rest = a.q + (seq.first_row + token) * a.q_stride + size_t(head + 1) * a.share - a.rope.dims;
    float* q = scratch.queries + size_t(r) * width;
    for (int i = 0; i < n; i += 16) store(q + i, mul(load(latent + i), scale));
    rotate(a.rope, rest, position, q + n);
    for (int i = n; i < width; i += 16) store(q + i, mul(load(q + i), scale));
    turn_part(latent_of(a.kv.format), q, n);
    turn_part(rope_of(a.kv.format), q + n, a.rope.dims);
  }
  float m[kLatentRows], l[kLatentRows];
  for (int r = 0; r < u.rows; r++) m[r] = -__builtin_inff(), l[r] = 0;
  if (u.partial < 0) std::memset(scratch.state, 0, size_t(u.rows) * n * sizeof(float));

  int from = 0;  // the first row that sees the block
  for (int b = u.block; b < u.block + u.blocks; b++) {
    const int first = b * kBlockTokens, count = smaller(kBlockTokens, seen[u.rows - 1] - first);
    while (seen[from] <= first) from++;
    const float* tokens[kBlockTokens + kLatentDots];
    for (int t = 0; t < count; t++) {
      const int position = list ? int(list[first + t]) : first + t;
      tokens[t] = load_token(a, token_at(a.kv, pages, position), scratch.tokens + size_t(t) * width);
    }
    for (int t = count; t % kLatentDots; t++) tokens[t] = tokens[count - 1];
    for (int group = 0; group < count; group += kLatentGroup) {
      for_row_tiles<kLatentDots>(u.rows - from, [&](int skipped, auto rows) TRIMARAN_BODY {
        const int row = from + skipped;
        for (int t = group; t < smaller(count, group + kLatentGroup); t += kLatentDots) {
          score_latents<rows, kLatentDots>(scratch.queries + size_t(row) * width, width, tokens + t,
                                           scratch.scores + row * kBlockTokens + t);
        }
      });
    }
    int visible[kLatentRows];
    float block_m[kLatentRows], block_l[kLatentRows];
    Merging merging[kLatentRows];
    for (int r = from; r < u.rows; r++) {
      visible[r] = smaller(kBlockTokens, seen[r] - first);
      weigh_scores(scratch.scores + r * kBlockTokens, visible[r], block_m[r], block_l[r]);
      if (u.partial < 0) merging[r] = merge_block(m[r], l[r], block_m[r], block_l[r]);
    }
    float* partial = u.partial < 0 ? nullptr : a.partials + size_t(u.partial + int64_t(b) * u.rows) * partial_stride(n);
    for (int r = from; partial && r < u.rows; r++) {
      partial[r * partial_stride(n) + n] = block_m[r], partial[r * partial_stride(n) + n + 1] = block_l[r];
    }
    const auto gather = [&](int i, auto chunks) TRIMARAN_BODY {
      for_row_tiles<kLatentSums>(u.rows - from, [&](int skipped, auto rows) TRIMARAN_BODY {
        const int row = from + skipped;
        gather_latents<rows, chunks>(scratch.scores + row * kBlockTokens, tokens, visible + row, i,
                                     [&](int r, int at, F16 sum) TRIMARAN_BODY {
                                       r += row;
                                       if (partial) {
                                         store(partial + r * partial_stride(n) + at, sum);
                                       } else {
                                         merge_into(scratch.state + size_t(r) * n + at, sum, merging[r]);
                                       }
                                     });
      });
    };
    int i = 0;
    for (; i + 16 * kLatentChunks <= n; i += 16 * kLatentChunks) {
      gather(i, std::integral_constant<int, kLatentChunks>{});
    }
    for (; i < n; i += 16) gather(i, std::integral_constant<int, 1>{});
  }
  for (int r = 0; u.partial < 0 && r < u.rows; r++) {
    const int token = (u.row + r) / a.heads, head = (u.row + r) % a.heads;
    write_latents(a, seq.first_row + token, head, scratch.state + size_t(r) * n, l[r]);
  }
}

// Merges the partial results of a unit's row over all blocks that it sees.
inline void merge_latents(const LatentAttention& a, const LatentUnit& u, int r) {
  const SequenceRows& seq = a.sequences[u.sequence];
  const int n = a.latent, token = (u.row + r) / a.heads, head = (u.row + r) % a.heads;
  const int position = seq.context + token, seen = a.selected ? smaller(a.most, position + 1) : position + 1;
  float* state = a.scratch;
  std::memset(state, 0, size_t(n) * sizeof(float));
  float m = -__builtin_inff(), l = 0;
  for (int b = 0; b * kBlockTokens < seen; b++) {
    const float* p = a.partials + size_t(u.partial + int64_t(b) * u.rows + r) * partial_stride(n);
    const Merging merging = merge_block(m, l, p[n], p[n + 1]);
    for (int i = 0; i < n; i += 16) merge_into(state + i, load(p + i), merging);
  }
  write_latents(a, seq.first_row + token, head, state, l);
}

}  // namespace trimaran::TRIMARAN_ISA
