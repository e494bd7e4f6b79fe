// Where keys and values lie, and what attention of any page format is made of.
//
//   page  [layer][kv head][tile of 16 tokens]{ K | V | scales }
//
// K has the tokens across the lanes: a tile's 16 scores come out as one vector, without horizontal sums.
namespace trimaran::TRIMARAN_ISA {

constexpr int kBlockTiles = kBlockTokens / kTileTokens;

TRIMARAN_INLINE uint8_t* tile_at(const KvLayer& kv, const int32_t* pages, int kv_head, int tile) {
  return kv.base + size_t(pages[tile / kv.tiles_per_page]) * kv.page_bytes + kv_head * kv.head_bytes +
         size_t(tile % kv.tiles_per_page) * kv.tile_bytes;
}

// The tiles of a block that hold the first `tokens` tokens of a sequence; returns how many there are.
TRIMARAN_INLINE int find_tiles(const KvLayer& kv, const int32_t* pages, int kv_head, int block, int tokens,
                               const uint8_t** tiles) {
  const int first = block * kBlockTiles;
  const int count = smaller(kBlockTiles, (tokens + kTileTokens - 1) / kTileTokens - first);
  pages += first / kv.tiles_per_page;
  int in_page = first % kv.tiles_per_page;
  for (int t = 0; t < count; t++) {
    tiles[t] = kv.base + size_t(*pages) * kv.page_bytes + kv_head * kv.head_bytes + in_page * kv.tile_bytes;
    if (++in_page == kv.tiles_per_page) in_page = 0, pages++;
  }
  return count;
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
  uint8_t* weights;  // [kReduceRows][kBlockTokens]
  float* head;       // [head_dim]
  TRIMARAN_INLINE Scratch(float* p, int d)
      : queries(p),
        state(queries + kUnitRows * d),
        block(state + kUnitRows * d),
        scores(block + kReduceRows * d),
        weights(reinterpret_cast<uint8_t*>(scores + kReduceRows * kBlockTokens)),
        head(scores + kReduceRows * (kBlockTokens + kBlockTokens / 4)) {}
};

// One block of tokens, as some rows of a unit see it.
struct Block {
  const uint8_t* tile[kBlockTiles];
  int tiles;                         // that hold tokens which the last of the rows sees
  const uint8_t* next[kBlockTiles];  // what this thread will read after the block, to be fetched meanwhile
  int next_tiles;
  const int* visible;  // [rows] tokens of the block that a row sees, at least 1, ascending
};

// What a block comes to for each row: largest score, sum of weights 2^(score - largest), weighted values.
struct Reduced {
  float m[16], l[16];
  float* o;  // [rows][head_dim]
};

}  // namespace trimaran::TRIMARAN_ISA
