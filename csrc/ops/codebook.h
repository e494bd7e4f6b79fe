// Weights that are codes for a column's own levels: looked up, then multiplied as int8 (see pack.h).
namespace trimaran::TRIMARAN_ISA {

constexpr int kTables = kStrip * 16, kHeader = kTables + kStrip * 2;  // bytes: of levels; of scales too

// The codes of quad Q of 16 columns.
struct FourBits {
  static constexpr int kBytes = 512;
  template <int Q>
  TRIMARAN_INLINE static Bytes quad(const uint8_t* p) {
    const Bytes both = load_bytes(p + Q % 4 * 128);
    return Q < 4 ? low_nibbles(both) : high_nibbles(both);
  }
};
struct ThreeBits {
  static constexpr int kBytes = 384;
  template <int Q>
  TRIMARAN_INLINE static Bytes quad(const uint8_t* p) {
    const Bytes low = shift_and<2 * (Q % 4)>(load_bytes(p + Q / 4 * 128), 0x03030303);
    return or_bytes(low, shift_and<Q - 2>(load_bytes(p + 256), 0x04040404));
  }
};

// For few rows: looked up in registers.
template <class Codes>
struct CodebookBlock {
  struct Place {
    const uint8_t *codes, *header;
  };
  using Weights = Full;
  static constexpr int kScales = kTables, kMinima = 0;
  TRIMARAN_INLINE static void next(Place& p) { p.codes += Codes::kBytes; }
  TRIMARAN_INLINE static void prefetch_ahead(const Place& p) {
    unroll<Codes::kBytes / 64>(TRIMARAN_UNROLL(i) { prefetch(p.codes + kPrefetchAhead + i * 64); });
  }
  static constexpr int kLines = 0;
  TRIMARAN_INLINE static void prefetch_line(const Place&, int, int) {}
  TRIMARAN_INLINE static Place half(const Place& p, int h) { return {p.codes + h * 64, p.header + h * (kTables / 2)}; }
  TRIMARAN_INLINE static const uint8_t* terms(const Place& p) { return p.header; }
  TRIMARAN_INLINE static int32_t start(const GroupTerms& g) { return Int8Block::start(g); }
  template <int V, class F>
  TRIMARAN_INLINE static void for_quads(const Place& p, F&& f) {
    unroll<8>(TRIMARAN_UNROLL(i) {
      const Bytes a = look_up(p.header, Codes::template quad<i>(p.codes));
      if constexpr (V == 1) {
        f(i, Full(a));
      } else {
        f(i, Full(a), Full(look_up(p.header + kTables / 2, Codes::template quad<i>(p.codes + 64))));
      }
    });
  }
};

// For many rows: looked up once, to scratch memory; while that is multiplied, the next strip comes in.
struct ExpandedBlock : Int8Block {
  struct Place {
    const uint8_t *bytes, *coming;
  };
  TRIMARAN_INLINE static void next(Place& p) { p.bytes += kBytes, p.coming += FourBits::kBytes; }
  TRIMARAN_INLINE static void prefetch_ahead(const Place& p) {
    unroll<kLines>(TRIMARAN_UNROLL(i) { prefetch_line(p, 0, i); });
  }
  static constexpr int kLines = FourBits::kBytes / 64;
  TRIMARAN_INLINE static void prefetch_line(const Place& p, int, int i) { prefetch_second(p.coming + i * 64); }
  TRIMARAN_INLINE static Place half(const Place& p, int h) { return {p.bytes + h * 64, p.coming}; }
  TRIMARAN_INLINE static const uint8_t* terms(const Place& p) { return p.bytes; }
  template <int V, class F>
  TRIMARAN_INLINE static void for_quads(const Place& p, F&& f) {
    Int8Block::for_quads<V>(p.bytes, f);
  }
};

template <class Codes>
inline void expand_strip(const uint8_t* strip, int blocks, uint8_t* to) {
  const uint8_t* codes = strip + kHeader;
  const Bytes scales = load_bytes(strip + kTables);
  for (int b = 0; b < blocks; b++, codes += Codes::kBytes, to += Int8Block::kBytes) {
    unroll<8>(TRIMARAN_UNROLL(i) {
      store_bytes(to + i * 128, look_up(strip, Codes::template quad<i>(codes)));
      store_bytes(to + i * 128 + 64, look_up(strip + kTables / 2, Codes::template quad<i>(codes + 64)));
    });
    store_bytes(to + Int8Block::kScales, scales);
  }
}

// To [k][32] floats, for float activations.
template <class Codes>
inline void dequantise_levels(const uint8_t* strip, int blocks, float* to) {
  const uint8_t* codes = strip + kHeader;
  for (int b = 0; b < blocks; b++, codes += Codes::kBytes, to += kGroup * kStrip) {
    for (int half = 0; half < 2; half++) {
      const F16 scale = load_half(strip + kTables + half * 32);
      unroll<8>(TRIMARAN_UNROLL(i) {
        const Bytes w = look_up(strip + half * (kTables / 2), Codes::template quad<i>(codes + half * 64));
        unroll<4>(TRIMARAN_UNROLL(j) {
          store(to + (i * 4 + j) * kStrip + half * 16, mul(sub(byte_to_float<j>(w), set1(128.f)), scale));
        });
      });
    }
  }
}

constexpr int kRowsInRegisters = 4;  // up to here looking up in every tile is quicker than writing it down
constexpr int kLookUpRows = 2;       // of a tile that looks up

template <class Codes>
inline void codebook_strip(const Linear& op, int strip) {
  const uint8_t* p = op.w->data + strip * op.w->strip_bytes;
  const int blocks = op.w->k / kGroup;
  if (!op.a.q) {
    dequantise_levels<Codes>(p, blocks, reinterpret_cast<float*>(op.scratch));
    float_strip<Fp32Pair>(op, strip, op.scratch, false);
  } else if (op.rows <= kRowsInRegisters) {
    int_strip<CodebookBlock<Codes>, kLookUpRows>(op, strip, {p + kHeader, p});
  } else {
    expand_strip<Codes>(p, blocks, op.scratch);
    int_strip<ExpandedBlock>(op, strip, {op.scratch, p + op.w->strip_bytes});
  }
}

inline void four_bit_strip(const Linear& op, int strip) { codebook_strip<FourBits>(op, strip); }
inline void three_bit_strip(const Linear& op, int strip) { codebook_strip<ThreeBits>(op, strip); }

}  // namespace trimaran::TRIMARAN_ISA
