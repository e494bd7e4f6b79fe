// Attention over paged keys and values, in the rows and blocks of a unit.
//
// Tokens are taken in blocks of 128 at absolute positions; each block is reduced on its own to (m, l, O) = (largest
// score, sum of weights, weighted values) and the blocks are merged in ascending order, whoever computed them. So
// prefill, decode and any split over threads make the same bits. Only what is visible counts: what else a page holds is
// old.
namespace trimaran::TRIMARAN_ISA {

TRIMARAN_INLINE void write_head(const Attention& a, int row, int head, const float* o, float l) {
  float* out = a.out + row * a.out_stride + size_t(head) * a.head_dim;
  const F16 total = set1(l);
  for (int i = 0; i < a.head_dim; i += 16) store(out + i, div(load(o + i), total));
  if (a.kv.value_scales) {
    const F16 scale = set1(a.kv.value_scales[head / (a.heads / a.kv_heads)] * code_unit(a.kv.format));
    for (int i = 0; i < a.head_dim; i += 16) store(out + i, mul(load(out + i), scale));
  }
  if (turns_values(a.kv.format)) hadamard(out, a.head_dim, hadamard_width(values_of(a.kv.format), a.head_dim));
}

// Merges up to 16 rows' blocks (mb, lb, ob) into their states (m, l, o). No block yet: m = -inf, l = 0, o = 0.
template <class F>
TRIMARAN_INLINE void merge_rows(int rows, float* m, float* l, float* o, const float* mb, const float* lb, int d,
                                F&& block_of) {
  float keep[16], take[16], sum[16];
  const F16 before = load(m), now = load(mb), top = max(before, now);
  const F16 k = exp2(sub(before, top)), t = exp2(sub(now, top));
  store(keep, k);
  store(take, t);
  store(sum, fma(load(lb), t, mul(load(l), k)));
  store(m, first_lanes(rows, top, before));
  store(l, first_lanes(rows, load(sum), load(l)));
  for (int r = 0; r < rows; r++, o += d) {
    const float* ob = block_of(r);
    const F16 old = set1(keep[r]), added = set1(take[r]);
    for (int i = 0; i < d; i += 16) store(o + i, fma(load(ob + i), added, mul(load(o + i), old)));
  }
}

// A unit's row: row of the step and of the result, query head, position, and the first position behind what it sees.
struct UnitRow {
  int row, out, head, position, end;
};

// The last position that the row at `position` sees.
TRIMARAN_INLINE int last_seen(const Attention& a, const SequenceRows& s, int position) {
  return a.causal ? position : s.context + s.rows - 1;
}

TRIMARAN_INLINE void find_rows(const Attention& a, const AttentionUnit& u, UnitRow* rows) {
  const int group = a.heads / a.kv_heads;
  for (const UnitPart* p = a.parts + u.part; p < a.parts + u.part + u.parts; p++) {
    const SequenceRows& s = a.sequences[p->sequence];
    for (int r = p->row; r < p->row + p->rows; r++) {
      const int position = s.context + r / group;
      *rows++ = {s.first_row + r / group, s.out_row + r / group, u.kv_head * group + r % group, position,
                 last_seen(a, s, position) + 1};
    }
  }
}

// Position of a part's first row, and the last that its rows see.
struct Positions {
  int first, last;
  TRIMARAN_INLINE Positions(const Attention& a, const UnitPart& p) {
    const SequenceRows& s = a.sequences[p.sequence];
    const int group = a.heads / a.kv_heads;
    first = s.context + p.row / group, last = last_seen(a, s, s.context + (p.row + p.rows - 1) / group);
  }
};

TRIMARAN_INLINE Place before_first(const AttentionUnit& u) { return {u.block - 1, u.part, u.parts, 0, 0}; }

// Goes on to the next place of a unit where there is something to read, through the blocks in ascending order and
// through all parts before the next block; false at the unit's end.
TRIMARAN_INLINE bool advance(const Attention& a, const AttentionUnit& u, Place& p) {
  const int end = u.part + u.parts;
  do {
    p.part += p.parts, p.row += p.rows;
    if (p.part == end) {
      p.part = u.part, p.row = 0;
      if (++p.block == u.block + u.blocks) return false;
    }
    p.parts = 1, p.rows = a.parts[p.part].rows;
    for (; p.part + p.parts < end && a.parts[p.part + p.parts].shared > p.block; p.parts++) {
      p.rows += a.parts[p.part + p.parts].rows;
    }
  } while (Positions(a, a.parts[p.part]).last < p.block * kBlockTokens);
  return true;
}

// The tiles of a place's block that its rows see; returns the number of the last + 1, and of the first by `first`.
TRIMARAN_INLINE int find_tiles(const Attention& a, const AttentionUnit& u, const Place& p, const uint8_t** tiles,
                               int& first) {
  const UnitPart& part = a.parts[p.part];
  const Positions at(a, part);
  const int from = first_seen(at.first, a.window);
  first = bigger(0, from / kTileTokens - p.block * kBlockTiles);
  return find_tiles(a.kv, a.sequences[part.sequence].pages[a.group], u.kv_head, p.block, from, at.last + 1, tiles);
}

// The next tile that the thread will read after those that it was told of; null when there is none.
TRIMARAN_INLINE const uint8_t* take_tile(const Attention& a, ReadAhead& ahead) {
  while (ahead.first == ahead.count) {
    if (ahead.unit == ahead.end) return nullptr;
    if (advance(a, *ahead.unit, ahead.place)) {
      ahead.count = find_tiles(a, *ahead.unit, ahead.place, ahead.tiles, ahead.first);
    } else if (++ahead.unit != ahead.end) {
      ahead.place = before_first(*ahead.unit);
    }
  }
  return ahead.tiles[ahead.first++];
}

// The unit is begun: if it is not the one that was thought to come next, what was fetched is of no use.
TRIMARAN_INLINE void begin_reading(const AttentionUnit& u, ReadAhead& ahead) {
  if (ahead.next != &u) {
    ahead.unit = &u, ahead.place = before_first(u);
    ahead.first = ahead.count = ahead.fetched = 0;
    if (ahead.end <= &u) ahead.end = &u + 1;
  }
  ahead.next = &u + 1;
}

// `tiles` tiles are about to be read: says what is to be fetched meanwhile.
TRIMARAN_INLINE void look_ahead(const Attention& a, int tiles, Block& b) {
  ReadAhead& ahead = *a.ahead;
  for (; ahead.fetched < tiles; ahead.fetched++) take_tile(a, ahead);  // too late for these
  ahead.fetched -= tiles;
  b.coming_tiles = 0, b.to_first_cache = ahead.to_first_cache;
  for (; ahead.fetched < kBlockTiles; ahead.fetched++) {
    const uint8_t* tile = take_tile(a, ahead);
    if (!tile) return;
    b.coming[b.coming_tiles++] = tile;
  }
}

// Appends the keys and values of those parts whose newest token lies in the unit's blocks.
template <class Pages>
TRIMARAN_INLINE void store_new(const Attention& a, const AttentionUnit& u, float* head) {
  for (int p = u.part; p < u.part + u.parts; p++) {
    const SequenceRows& s = a.sequences[a.parts[p].sequence];
    const int block = s.context / kBlockTokens;
    if (a.parts[p].store && block >= u.block && block < u.block + u.blocks) {
      Pages::store_kv(a, s.first_row, s.context, u.kv_head, s.pages[a.group], head);
    }
  }
}

template <class Pages>
inline void attend_unit(const Attention& a, const AttentionUnit& u) {
  const int d = a.head_dim;
  Scratch scratch(a.scratch, d);
  begin_reading(u, *a.ahead);
  store_new<Pages>(a, u, scratch.head);

  UnitRow rows[kUnitRows];
  find_rows(a, u, rows);
  for (int r = 0; r < u.rows; r++) {  // other threads have written them
    const float* query = a.qkv + rows[r].row * a.qkv_stride + size_t(rows[r].head) * d;
    for (int i = 0; i < d; i += 16) prefetch(query + i);
  }
  typename Pages::Terms terms[kUnitRows];
  int begin[kUnitRows], end[kUnitRows];  // positions that a row sees, both ascending in a part
  for (int r = 0; r < u.rows; r++) {
    const auto [row, out, head, position, seen] = rows[r];
    begin[r] = first_seen(position, a.window), end[r] = seen;
    turn_head(a, a.q_norm, a.qkv + row * a.qkv_stride + size_t(head) * d, row, head, position, scratch.head);
    if (a.query_scale) {
      const F16 scale = set1(a.query_scale[position]);
      for (int i = 0; i < d; i += 16) store(scratch.head + i, mul(load(scratch.head + i), scale));
    }
    terms[r] = Pages::take_query(a, scratch.head, scratch.queries, r, score_scale(a, u.kv_head));
  }
  float m[kUnitRows + 16], l[kUnitRows + 16] = {};  // as many more as a vector loads too many
  for (float& x : m) x = -__builtin_inff();
  if (u.partial < 0) std::memset(scratch.state, 0, size_t(u.rows) * d * sizeof(float));

  for (Place place = before_first(u); advance(a, u, place);) {
    Block block;
    int first_tile;
    const int tiles = find_tiles(a, u, place, block.tile, first_tile);
    look_ahead(a, tiles - first_tile, block);
    Pages::begin_block(block, first_tile, tiles, d, scratch);
    const int first = place.block * kBlockTokens;
    int from = place.row, until = place.row + place.rows;  // the rows that see the block
    while (end[from] <= first) from++;
    while (begin[until - 1] >= first + kBlockTokens) until--;
    for_row_tiles<Pages::kRows>(until - from, [&](int skipped, auto rows) TRIMARAN_BODY {
      const int row = from + skipped;
      int hidden[rows], visible[rows];
      for (int r = 0; r < rows; r++) {
        hidden[r] = bigger(0, begin[row + r] - first), visible[r] = smaller(kBlockTokens, end[row + r] - first);
      }
      block.hidden = hidden, block.visible = visible;
      block.first_tile = hidden[0] / kTileTokens;
      block.tiles = (visible[rows - 1] + kTileTokens - 1) / kTileTokens;
      Reduced reduced{};
      reduced.o = scratch.block;
      Pages::template reduce<rows>(block, d, scratch.queries, terms, row, scratch, reduced);
      block.coming_tiles = 0;
      if (u.partial < 0) {
        merge_rows(rows, m + row, l + row, scratch.state + row * d, reduced.m, reduced.l, d,
                   [&](int r) { return reduced.o + r * d; });
        return;
      }
      for (int r = 0; r < rows; r++) {
        float* p = a.partials +
                   size_t(u.partial + int64_t(place.block - u.first_block) * u.rows + row + r) * partial_stride(d);
        for (int i = 0; i < d; i += 16) store(p + i, load(reduced.o + r * d + i));
        p[d] = reduced.m[r], p[d + 1] = reduced.l[r];
      }
    });
  }
  if (u.partial >= 0) return;
  for (int r = 0; r < u.rows; r++) write_head(a, rows[r].out, rows[r].head, scratch.state + r * d, l[r]);
}

// Merges the partial results of a unit's rows over all their blocks; the last to finish one of the units calls it.
inline void merge_partials(const Attention& a, const AttentionUnit& u) {
  const int d = a.head_dim;
  float* state = a.scratch;
  UnitRow rows[kUnitRows];
  find_rows(a, u, rows);
  for (int r = 0; r < u.rows; r++) {
    float m[16], l[16] = {}, mb[16] = {}, lb[16] = {};
    m[0] = -__builtin_inff();
    std::memset(state, 0, size_t(d) * sizeof(float));
    const int last = (rows[r].end - 1) / kBlockTokens;
    for (int b = first_seen(rows[r].position, a.window) / kBlockTokens; b <= last; b++) {
      const float* p = a.partials + size_t(u.partial + int64_t(b - u.first_block) * u.rows + r) * partial_stride(d);
      mb[0] = p[d], lb[0] = p[d + 1];
      merge_rows(1, m, l, state, mb, lb, d, [&](int) { return p; });
    }
    write_head(a, rows[r].out, rows[r].head, state, l[0]);
  }
}

// f(pages of the format), for heads of d dimensions.
template <class F>
TRIMARAN_INLINE void with_pages(KvFormat format, int d, F&& f) {
  using enum KvFormat;
  switch (format) {
    case kFp32:
      return f(FloatPages<float>());
    case kBf16:
      return f(FloatPages<uint16_t>());
    case kFp8:
      return f(FloatPages<E4m3>());
    case kInt8:
      return f(IntPages<kInt8, kInt8>());
    case kInt4:
      if (d > kWideHead) return f(IntPages<kInt4, kInt4, false, true>());
      return f(IntPages<kInt4, kInt4>());
    case kInt8Int4:
      if (d > kWideHead) return f(IntPages<kInt8, kInt4, false, true>());
      return f(IntPages<kInt8, kInt4>());
    case kFp8Static:
      return f(FloatPages<E4m3, true>());
    case kInt8Static:
      return f(IntPages<kInt8, kInt8, true>());
  }
}

inline void attend(const Attention& a, const AttentionUnit& u) {
  with_pages(a.kv.format, a.head_dim, [&](auto pages) TRIMARAN_BODY { attend_unit<decltype(pages)>(a, u); });
}

inline void store_kv(const Attention& a, int row, int position, int kv_head, const int32_t* pages) {
  float* rotated = Scratch(a.scratch, a.head_dim).head;
  with_pages(a.kv.format, a.head_dim,
             [&](auto of) TRIMARAN_BODY { of.store_kv(a, row, position, kv_head, pages, rotated); });
}

}  // namespace trimaran::TRIMARAN_ISA
