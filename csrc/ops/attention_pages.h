// Where keys and values lie, and what attention of any page format is made of.
//
//   [bundle of pages][layer][kv head][page][tile of 16 tokens]{ K | V | scales }
//
// K has the tokens across the lanes: a tile's 16 scores come out as one vector, without horizontal sums.
namespace trimaran::TRIMARAN_ISA {

constexpr int kBlockTiles = kBlockTokens / kTileTokens;

TRIMARAN_INLINE uint8_t* tile_at(const KvLayer& kv, const int32_t* pages, int kv_head, int tile) {
  return kv.first_head.of(pages[tile / kv.tiles_per_page]) + kv_head * kv.head_bytes +
         size_t(tile % kv.tiles_per_page) * kv.tile_bytes;
}

// The tiles of a block that hold tokens `from` .. `end` of a sequence; returns the number of the last + 1. Those before
// are not looked at: their places in `tiles` hold the first.
TRIMARAN_INLINE int find_tiles(const KvLayer& kv, const int32_t* pages, int kv_head, int block, int from, int end,
                               const uint8_t** tiles) {
  const int skipped = bigger(0, from / kTileTokens - block * kBlockTiles), first = block * kBlockTiles + skipped;
  const int count = smaller(kBlockTiles, (end + kTileTokens - 1) / kTileTokens - block * kBlockTiles);
  pages += first / kv.tiles_per_page;
  int in_page = first % kv.tiles_per_page;
  for (int t = skipped; t < count; t++) {
    tiles[t] = kv.first_head.of(*pages) + kv_head * kv.head_bytes + in_page * kv.tile_bytes;
    if (++in_page == kv.tiles_per_page) in_page = 0, pages++;
  }
  for (int t = 0; t < skipped; t++) tiles[t] = tiles[skipped];
  return count;
}

// Pages of static formats hold numbers without scales: those of keys go into the query, those of values into the
// result. What they are read back as is `code_unit` too small.
constexpr float code_unit(KvFormat f) { return f == KvFormat::kFp8Static ? 256.f : 1.f; }
TRIMARAN_INLINE HeadScale head_scale(const KvLayer& kv, int kv_head) {
  return kv.key_scales ? HeadScale{kv.key_scales[kv_head], kv.value_scales[kv_head]} : HeadScale{};
}
TRIMARAN_INLINE float score_scale(const Attention& a, int kv_head) {
  return a.kv.key_scales ? a.scale * a.kv.key_scales[kv_head] * code_unit(a.kv.format) : a.scale;
}

// NaN for the lanes above zero, else 0: what is added to the scores of keys that a static format has marked.
TRIMARAN_INLINE F16 nan_where_positive(F16 x) {
  const F16 huge = set1(kLargest);
  x = mul(mul(max(x, zero()), huge), huge);  // infinite or 0
  return sub(x, x);
}

// The key or value of a step's row, before rotation.
TRIMARAN_INLINE const float* key_of(const Attention& a, int row, int kv_head) {
  return a.qkv + row * a.qkv_stride + size_t(a.heads + kv_head) * a.head_dim;
}
TRIMARAN_INLINE const float* value_of(const Attention& a, int row, int kv_head) {
  return key_of(a, row, kv_head) + size_t(a.kv_heads) * a.head_dim;
}

// A thread's scratch, cut up (attention_scratch() floats).
struct Scratch {
  float* queries;    // [kUnitRows][head_dim], as the format wants them
  float* state;      // [kUnitRows][head_dim]: weighted values of the blocks so far
  float* block;      // [kReduceRows][head_dim]: of the running block
  float* scores;     // [kReduceRows][kBlockTokens]
  float* scaled;     // as many: scores plus the logs of the scales of some dimensions of the values
  float* logs;       // [scales of a value][kBlockTokens]: of the running block's values
  float* inverses;   // [kBlockTokens]: of the first of these scales
  uint8_t* weights;  // [kReduceRows][kBlockTokens]
  float* head;       // [head_dim]
  TRIMARAN_INLINE Scratch(float* p, int d)
      : queries(p),
        state(queries + kUnitRows * d),
        block(state + kUnitRows * d),
        scores(block + kReduceRows * d),
        scaled(scores + kReduceRows * kBlockTokens),
        logs(scaled + kReduceRows * kBlockTokens),
        inverses(logs + most_value_scales(d) * kBlockTokens),
        weights(reinterpret_cast<uint8_t*>(inverses + kBlockTokens)),
        head(inverses + kBlockTokens + kReduceRows * kBlockTokens / 4) {}
};

// One block of tokens, as some rows of a unit see it.
struct Block {
  const uint8_t* tile[kBlockTiles];
  int first_tile, tiles;               // range that holds the tokens which the rows see
  const uint8_t* coming[kBlockTiles];  // what this thread will read after the block, to be fetched meanwhile
  int coming_tiles;
  bool to_first_cache;
  const int *hidden, *visible;  // [rows] a row sees the block's tokens hidden .. visible, at least 1; both ascend
};

// Fetches what a thread will read next, piece by piece while it works on a block: so memory always has something to
// bring, and never so much that loads have to wait for a place in the queue.
class Fetch {
 public:
  static constexpr int kParts = 64;

  TRIMARAN_INLINE Fetch(const Block& b, int tile_bytes)
      : tiles_(b.coming),
        per_tile_((tile_bytes + kMostBytes - 1) / kMostBytes),
        pieces_(b.coming_tiles * per_tile_),
        to_first_cache_(b.to_first_cache),
        tile_bytes_(tile_bytes),
        bytes_((tile_bytes / per_tile_ + kLine - 1) / kLine * kLine) {}

  // Fetches what of the first `part` of kParts equal parts was not fetched yet.
  TRIMARAN_INLINE void until(int part) {
    for (const int count = pieces_ * part / kParts; fetched_ < count; fetched_++) {
      const uint8_t* tile = tiles_[fetched_ / per_tile_];
      const int from = fetched_ % per_tile_ * bytes_, end = smaller(from + bytes_, tile_bytes_);
      for (int i = from; i < end && to_first_cache_; i += kLine) prefetch(tile + i);
      for (int i = from; i < end && !to_first_cache_; i += kLine) prefetch_second(tile + i);
    }
  }

 private:
  static constexpr int kLine = 64;
  // Of a piece: a tile of 64 dimensions in int8 comes sooner in one go than in two, or together with another.
  static constexpr int kMostBytes = 36 * kLine;
  const uint8_t* const* tiles_;
  int per_tile_, pieces_, fetched_ = 0;
  bool to_first_cache_;
  int tile_bytes_, bytes_;
};

// Lanes of tile t that row r sees, the others replaced.
TRIMARAN_INLINE F16 visible_lanes(const Block& b, int r, int t, F16 x, F16 otherwise) {
  const int first = t * kTileTokens;
  x = first_lanes(bigger(0, smaller(kTileTokens, b.visible[r] - first)), x, otherwise);
  if (b.hidden[r] > first) x = first_lanes(smaller(kTileTokens, b.hidden[r] - first), otherwise, x);
  return x;
}

// What a block comes to for each row: largest score, sum of weights 2^(score - largest), weighted values.
struct Reduced {
  float m[16], l[16];
  float* o;  // [rows][head_dim]
};

}  // namespace trimaran::TRIMARAN_ISA
