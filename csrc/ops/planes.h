// int8 weights in two planes (see pack.h): whole bytes again, with the bits of a matrix that was never split.
namespace trimaran::TRIMARAN_ISA {

struct Planes {
  const uint8_t *high, *low;
};

// For few rows: joined in registers.
struct PlanesBlock {
  using Place = Planes;
  using Weights = Full;
  static constexpr int kScales = 512, kMinima = 0, kHighBytes = 576, kLowBytes = 512;
  TRIMARAN_INLINE static void next(Planes& p) { p.high += kHighBytes, p.low += kLowBytes; }
  TRIMARAN_INLINE static void prefetch_ahead(const Planes& p) {
    fetch({p.high + kPrefetchAhead / 2, p.low + kPrefetchAhead / 2});
  }
  static constexpr int kLines = (kHighBytes + kLowBytes) / 64;
  TRIMARAN_INLINE static void prefetch_line(const Planes& p, int ahead, int i) {
    constexpr int high = kHighBytes / 64;
    prefetch_second(i < high ? p.high + ahead + i * 64 : p.low + ahead / kHighBytes * kLowBytes + (i - high) * 64);
  }
  TRIMARAN_INLINE static void fetch(const Planes& p) {
    unroll<kHighBytes / 64>(TRIMARAN_UNROLL(i) { prefetch(p.high + i * 64); });
    unroll<kLowBytes / 64>(TRIMARAN_UNROLL(i) { prefetch(p.low + i * 64); });
  }
  TRIMARAN_INLINE static Planes half(const Planes& p, int h) { return {p.high + h * 64, p.low + h * 64}; }
  TRIMARAN_INLINE static const uint8_t* terms(const Planes& p) { return p.high; }
  TRIMARAN_INLINE static int32_t start(const GroupTerms& g) { return Int8Block::start(g); }
  template <int V, class F>
  TRIMARAN_INLINE static void for_quads(const Planes& p, F&& f) {
    unroll<4>(TRIMARAN_UNROLL(i) {
      constexpr auto upper = std::integral_constant<int, i + 4>{};
      const Bytes ha = load_bytes(p.high + i * 128), la = load_bytes(p.low + i * 128);
      if constexpr (V == 1) {
        f(i, Full(join_low_nibbles(ha, la)));
        f(upper, Full(join_high_nibbles(ha, la)));
      } else {
        const Bytes hb = load_bytes(p.high + i * 128 + 64), lb = load_bytes(p.low + i * 128 + 64);
        f(i, Full(join_low_nibbles(ha, la)), Full(join_low_nibbles(hb, lb)));
        f(upper, Full(join_high_nibbles(ha, la)), Full(join_high_nibbles(hb, lb)));
      }
    });
  }
};

// For many rows: joined once in scratch memory; while they are multiplied, the next strip's planes come in.
struct JoinedBlock : Int8Block {
  struct Place {
    const uint8_t* joined;
    Planes coming;
  };
  TRIMARAN_INLINE static void next(Place& p) {
    p.joined += kBytes;
    PlanesBlock::next(p.coming);
  }
  TRIMARAN_INLINE static void prefetch_ahead(const Place& p) { PlanesBlock::fetch(p.coming); }
  static constexpr int kLines = PlanesBlock::kLines;
  TRIMARAN_INLINE static void prefetch_line(const Place& p, int, int i) { PlanesBlock::prefetch_line(p.coming, 0, i); }
  TRIMARAN_INLINE static Place half(const Place& p, int h) { return {p.joined + h * 64, p.coming}; }
  TRIMARAN_INLINE static const uint8_t* terms(const Place& p) { return p.joined; }
  template <int V, class F>
  TRIMARAN_INLINE static void for_quads(const Place& p, F&& f) {
    Int8Block::for_quads<V>(p.joined, f);
  }
};

TRIMARAN_INLINE Planes planes_of(const Matrix& w, int strip) {
  return {w.data + strip * w.strip_bytes, w.low + strip * (size_t(w.k / kGroup) * PlanesBlock::kLowBytes)};
}

inline JoinedBlock::Place join_planes(const Linear& op, int strip) {
  Planes p = planes_of(*op.w, strip);
  uint8_t* to = op.scratch;
  for (int b = 0; b < op.w->k / kGroup; b++, PlanesBlock::next(p), to += Int8Block::kBytes) {
    unroll<8>(TRIMARAN_UNROLL(i) {
      const Bytes high = load_bytes(p.high + i * 64), low = load_bytes(p.low + i * 64);
      store_bytes(to + i * 64, join_low_nibbles(high, low));
      store_bytes(to + 512 + i * 64, join_high_nibbles(high, low));
    });
    store_bytes(to + Int8Block::kScales, load_bytes(p.high + PlanesBlock::kScales));
  }
  return {op.scratch, planes_of(*op.w, strip + 1)};
}

constexpr int kRowsPerJoin = 2 * kIntRows;  // from here on writing the bytes once is quicker than joining them per tile

inline void planes_strip(const Linear& op, int strip) {
  if (op.rows <= kRowsPerJoin) {
    int_strip<PlanesBlock>(op, strip, planes_of(*op.w, strip));
  } else {
    int_strip<JoinedBlock>(op, strip, join_planes(op, strip));
  }
}

}  // namespace trimaran::TRIMARAN_ISA
