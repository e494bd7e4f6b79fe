// Linear layers: strips of 32 output columns for all rows, then the epilogue.
//
// A tile is R rows x 32 columns. The sequence of float operations that makes one value is the same in every tile size
// and on every path, so a row's bits do not depend on how many rows come with it.
namespace trimaran::TRIMARAN_ISA {

constexpr int kPrefetchAhead = 6912;  // bytes; the hardware alone sees about 3 KB ahead of an int4 loop

// ---- formats: where the quads of a block of 32 inputs x 32 columns lie ------------------------------------------

// A block in one piece.
template <int Bytes>
struct WholeBlock {
  using Place = const uint8_t*;
  static constexpr int kBytes = Bytes;
  TRIMARAN_INLINE static void next(Place& p) { p += Bytes; }
  TRIMARAN_INLINE static void prefetch_ahead(Place p) {
    unroll<Bytes / 64>(TRIMARAN_UNROLL(i) { prefetch(p + kPrefetchAhead + i * 64); });
  }
  static constexpr int kLines = Bytes / 64;
  TRIMARAN_INLINE static void prefetch_line(Place p, int ahead, int line) { prefetch_second(p + ahead + line * 64); }
  TRIMARAN_INLINE static Place half(Place p, int h) { return p + h * 64; }  // quads of the second 16 columns
  TRIMARAN_INLINE static const uint8_t* terms(Place p) { return p; }
};

struct Int8Block : WholeBlock<1088> {
  using Weights = Full;
  static constexpr int kScales = 1024, kMinima = 0;
  TRIMARAN_INLINE static int32_t start(const GroupTerms& g) { return kBiasedInt8 ? g.correct128 : 0; }
  // f(i, weights of one vector of 16 columns or of both) for each quad i.
  template <int V, class F>
  TRIMARAN_INLINE static void for_quads(const uint8_t* p, F&& f) {
    unroll<8>(TRIMARAN_UNROLL(i) {
      if constexpr (V == 1) {
        f(i, Full(load_bytes(p + i * 128)));
      } else {
        f(i, Full(load_bytes(p + i * 128)), Full(load_bytes(p + i * 128 + 64)));
      }
    });
  }
};

template <bool Minima>
struct NibbleBlock : WholeBlock<Minima ? 640 : 576> {  // int4 (zero point 8) or int4z (a minimum per group)
  using Weights = Small;
  static constexpr int kScales = 512, kMinima = Minima ? 576 : 0;
  TRIMARAN_INLINE static int32_t start(const GroupTerms& g) { return Minima ? 0 : g.correct8(); }
  template <int V, class F>
  TRIMARAN_INLINE static void for_quads(const uint8_t* p, F&& f) {
    unroll<4>(TRIMARAN_UNROLL(i) {
      constexpr auto upper = std::integral_constant<int, i + 4>{};
      const Bytes a = load_bytes(p + i * 128);
      if constexpr (V == 1) {
        f(i, Small(low_nibbles(a)));
        f(upper, Small(high_nibbles(a)));
      } else {
        const Bytes b = load_bytes(p + i * 128 + 64);
        f(i, Small(low_nibbles(a)), Small(low_nibbles(b)));
        f(upper, Small(high_nibbles(a)), Small(high_nibbles(b)));
      }
    });
  }
};

// ---- tiles: y [R][32] = rows times one strip ---------------------------------------------------------------------

// What a tile of several fetches meanwhile: of each block of the next strip, so many bytes further on, these lines. So
// memory brings a strip while another is multiplied, and not all of it during the first tile.
struct Coming {
  int bytes, first, end;
};

// R rows x V vectors of 16 columns (the strip's first or second, or both) of quantised weights times int8 activations.
// Per group: an exact integer dot product, then y = fma(dot * activation scale, weight scale, y) and, with minima,
// y = fma(minimum, scaled sum, y). Wide rows go through a group twice where one of them has 15 bits there: 256 * (dot
// of the high bytes) + (dot of the low bytes), exact in 32 bits.
template <class Block, int R, int V, bool Wide>
TRIMARAN_INLINE void int_tile(typename Block::Place p, int blocks, int half, const int8_t* q, size_t q_stride,
                              const GroupTerms* groups, size_t group_stride, bool stream, const Coming& coming,
                              float* y) {
  F16 f[R * V];
  unroll<R * V>(TRIMARAN_UNROLL(i) { f[i] = zero(); });
  for (int b = 0; b < blocks; b++, Block::next(p), q += Wide ? 2 * kGroup : kGroup, groups++) {
    if (stream) Block::prefetch_ahead(p);
    for (int i = coming.first; i < coming.end; i++) Block::prefetch_line(p, coming.bytes, i);
    I16 d[R * V];  // what the sums start from, then the dot products
    unroll<R>(TRIMARAN_UNROLL(r) {
      const I16 start = set1_int(Wide ? 0 : Block::start(groups[r * group_stride]));
      unroll<V>(TRIMARAN_UNROLL(v) { d[r * V + v] = start; });
    });
    const auto add_dots = [&](const int8_t* from) TRIMARAN_BODY {
      Sum<typename Block::Weights> sums[R * V];
      unroll<R * V>(TRIMARAN_UNROLL(i) { sums[i].begin(d[i]); });
      Block::template for_quads<V>(Block::half(p, half), [&](auto i, const auto&... w) TRIMARAN_BODY {
        unroll<R>(TRIMARAN_UNROLL(r) {
          const Quad x = load_quad(from + r * q_stride + 4 * i);
          enumerate([&](auto v, const auto& columns) TRIMARAN_BODY { sums[r * V + v].add(columns, x); }, w...);
        });
      });
      unroll<R * V>(TRIMARAN_UNROLL(i) { d[i] = sums[i].end(d[i]); });
    };
    add_dots(q);
    if constexpr (Wide) {
      int32_t wide = 0;
      unroll<R>(TRIMARAN_UNROLL(r) { wide |= groups[r * group_stride].wide; });
      if (wide) {
        unroll<R>(TRIMARAN_UNROLL(r) {
          const int bits = 8 * groups[r * group_stride].wide;
          unroll<V>(TRIMARAN_UNROLL(v) { d[r * V + v] = shift_left(d[r * V + v], bits); });
        });
        reload();
        add_dots(q + kGroup);
      }
      unroll<R>(TRIMARAN_UNROLL(r) {
        const I16 start = set1_int(Block::start(groups[r * group_stride]));
        unroll<V>(TRIMARAN_UNROLL(v) { d[r * V + v] = add(d[r * V + v], start); });
      });
    }
    const uint8_t* terms = Block::terms(p) + half * 32;
    unroll<V>(TRIMARAN_UNROLL(v) {
      const F16 scale = load_half(terms + Block::kScales + v * 32);
      unroll<R>(TRIMARAN_UNROLL(r) {
        const F16 s = set1(groups[r * group_stride].scale);
        f[r * V + v] = fma(mul(to_float(d[r * V + v]), s), scale, f[r * V + v]);
      });
      if constexpr (Block::kMinima != 0) {
        const F16 minimum = load_half(terms + Block::kMinima + v * 32);
        unroll<R>(TRIMARAN_UNROLL(r) {
          f[r * V + v] = fma(minimum, set1(groups[r * group_stride].scaled_sum), f[r * V + v]);
        });
      }
    });
  }
  unroll<R>(
      TRIMARAN_UNROLL(r) { unroll<V>(TRIMARAN_UNROLL(v) { store(y + r * kStrip + (half + v) * 16, f[r * V + v]); }); });
}

// Two inputs x 32 columns as four vectors: {input 0, input 1} x {columns 0-15, 16-31}.
struct Bf16Pair {
  static constexpr int kBytes = 128;
  TRIMARAN_INLINE static void get(const uint8_t* p, F16 (&w)[4]) {
    const Bytes a = load_bytes(p), b = load_bytes(p + 64);
    w[0] = even_bf16(a), w[1] = even_bf16(b), w[2] = odd_bf16(a), w[3] = odd_bf16(b);
  }
};
struct Fp32Pair {
  static constexpr int kBytes = 256;
  TRIMARAN_INLINE static void get(const uint8_t* p, F16 (&w)[4]) {
    const auto* f = reinterpret_cast<const float*>(p);
    w[0] = load(f), w[1] = load(f + 16), w[2] = load(f + 32), w[3] = load(f + 48);
  }
};

// Float weights times float activations: y = fma(w, x, y), inputs in ascending order.
template <class Pair, int R>
TRIMARAN_INLINE void float_tile(const uint8_t* p, int k, const float* x, size_t x_stride, bool stream, float* y) {
  F16 f[2 * R];
  unroll<2 * R>(TRIMARAN_UNROLL(i) { f[i] = zero(); });
  for (int i = 0; i < k; i += 2, p += Pair::kBytes, x += 2) {
    if (stream) {
      unroll<Pair::kBytes / 64>(TRIMARAN_UNROLL(j) { prefetch(p + kPrefetchAhead + j * 64); });
    }
    F16 w[4];
    Pair::get(p, w);
    unroll<R>(TRIMARAN_UNROLL(r) {
      const F16 even = set1(x[r * x_stride]), odd = set1(x[r * x_stride + 1]);
      f[2 * r] = fma(w[0], even, f[2 * r]);
      f[2 * r + 1] = fma(w[1], even, f[2 * r + 1]);
      f[2 * r] = fma(w[2], odd, f[2 * r]);
      f[2 * r + 1] = fma(w[3], odd, f[2 * r + 1]);
    });
  }
  unroll<2 * R>(TRIMARAN_UNROLL(i) { store(y + i * 16, f[i]); });
}

// ---- dequantising a strip to [k][32] floats, for float activations -----------------------------------------------

template <class Block, int Zero>
inline void dequantise_strip(const uint8_t* p, int blocks, float* to) {
  for (int b = 0; b < blocks; b++, p += Block::kBytes, to += kGroup * kStrip) {
    unroll<2>(TRIMARAN_UNROLL(half) {
      const F16 scale = load_half(p + Block::kScales + half * 32);
      const F16 minimum = Block::kMinima ? load_half(p + Block::kMinima + half * 32) : zero();
      for (int quad = 0; quad < 8; quad++) {
        Bytes w = load_bytes(p + (Zero == 128 ? quad : quad % 4) * 128 + half * 64);
        if (Zero != 128) w = quad < 4 ? low_nibbles(w) : high_nibbles(w);
        unroll<4>(TRIMARAN_UNROLL(j) {
          const F16 q = sub(byte_to_float<j>(w), set1(float(Zero)));
          store(to + (quad * 4 + j) * kStrip + half * 16, add(mul(q, scale), minimum));
        });
      }
    });
  }
}

// ---- epilogues ---------------------------------------------------------------------------------------------------

// Keeps the largest value of a row, of equal ones the lowest id (strips come in any order); `columns` of the 32 are
// real.
TRIMARAN_INLINE void track_best(Best& best, const float* y, int first_id, int columns) {
  const F16 current = set1(best.value);
  if (!any_at_least(load(y), current) && !any_at_least(load(y + 16), current)) return;
  for (int c = 0; c < columns; c++) {
    const Best found{y[c], first_id + c};
    if (found.beats(best)) best = found;
  }
}

inline void add_outliers(const Linear& op, int strip, int first_row, int rows, float* y);  // ops/outliers.h

inline void finish(const Linear& op, int strip, int first_row, int rows, float* y) {
  if (op.w->outliers) add_outliers(op, strip, first_row, rows, y);
  const float* bias = op.bias ? op.bias + strip * kStrip : nullptr;
  for (int r = 0; r < rows; r++, y += kStrip) {
    F16 a = load(y), b = load(y + 16);
    if (bias) a = add(a, load(bias)), b = add(b, load(bias + 16));
    const size_t row = size_t(first_row + r);
    const bool gated = op.epilogue == Epilogue::kSwiglu || op.epilogue == Epilogue::kGeglu;
    float* out = op.out ? op.out + row * op.out_stride + strip * (gated ? 16 : kStrip) : nullptr;
    if (gated) {
      store(out, mul(op.epilogue == Epilogue::kSwiglu ? silu(a) : gelu_tanh(a), b));
      continue;
    }
    if (op.epilogue == Epilogue::kRouted) {
      const RoutedRow& to = op.routed[row];
      float* sum = op.out + to.row * op.out_stride + strip * kStrip;
      const F16 weight = set1(to.weight);
      store(sum, fma(weight, a, load(sum))), store(sum + 16, fma(weight, b, load(sum + 16)));
      continue;
    }
    if (op.epilogue == Epilogue::kAdd) {
      const size_t from = op.residual_rows ? size_t(op.residual_rows[row]) : row;
      const float* residual = op.residual + from * op.residual_stride + strip * kStrip;
      a = add(load(residual), a), b = add(load(residual + 16), b);
    }
    if (out) store(out, a), store(out + 16, b);
    if (op.epilogue == Epilogue::kLogits) {
      store(y, a), store(y + 16, b);
      track_best(op.best[row], y, strip * kStrip, smaller(kStrip, op.w->n - strip * kStrip));
    }
  }
}

// ---- strips ------------------------------------------------------------------------------------------------------

// done(first row, rows, y) for each tile of the rows, of at most Rows.
template <class Block, bool Wide, int Rows, class F>
TRIMARAN_INLINE void for_int_tiles(const Linear& op, typename Block::Place p, bool stream, F&& done) {
  for_row_tiles<Rows>(op.rows, [&](int first, auto rows) TRIMARAN_BODY {
    constexpr int vectors = rows <= kIntRowsOfBoth ? 2 : 1;
    alignas(64) float y[rows * kStrip];
    for (int half = 0; half < 2; half += vectors) {
      Coming coming{int(op.w->strip_bytes), Block::kLines * first / op.rows, Block::kLines * (first + rows) / op.rows};
      // One tile alone does not work long enough: it fetches its own strip ahead. The first of two does both.
      if (rows == op.rows) coming.end = 0;
      const bool own = stream && first + half == 0 && 2 * rows >= op.rows;
      int_tile<Block, rows, vectors, Wide>(p, op.w->k / kGroup, half, op.a.q + first * op.a.q_stride, op.a.q_stride,
                                           op.a.groups + first * op.a.group_stride, op.a.group_stride, own, coming, y);
    }
    done(first, rows, y);
  });
}

template <class Block, bool Wide, int Rows>
inline void int_strip_of(const Linear& op, int strip, typename Block::Place p) {
  for_int_tiles<Block, Wide, Rows>(
      op, p, true, [&](int first, auto rows, float* y) TRIMARAN_BODY { finish(op, strip, first, rows, y); });
}

template <class Block, int Rows = kIntRows>
inline void int_strip(const Linear& op, int strip, typename Block::Place p) {
  op.a.wide ? int_strip_of<Block, true, Rows>(op, strip, p) : int_strip_of<Block, false, Rows>(op, strip, p);
}

template <class Pair>
inline void float_strip(const Linear& op, int strip, const uint8_t* p, bool stream) {
  for_row_tiles<kFloatRows>(op.rows, [&](int first, auto rows) TRIMARAN_BODY {
    alignas(64) float y[rows * kStrip];
    float_tile<Pair, rows>(p, op.w->k, op.a.f32 + first * op.a.f32_stride, op.a.f32_stride, stream && first == 0, y);
    finish(op, strip, first, rows, y);
  });
}

template <class Block, int Zero>
inline void dequantised_strip(const Linear& op, int strip, const uint8_t* p) {
  dequantise_strip<Block, Zero>(p, op.w->k / kGroup, reinterpret_cast<float*>(op.scratch));
  float_strip<Fp32Pair>(op, strip, op.scratch, false);
}

inline void planes_strip(const Linear& op, int strip);    // ops/planes.h
inline void four_bit_strip(const Linear& op, int strip);  // ops/codebook.h
inline void three_bit_strip(const Linear& op, int strip);
inline void fp8_strip(const Linear& op, int strip);  // ops/fp8.h

inline void linear(const Linear& op, int first_strip, int end_strip) {
  for (int s = first_strip; s < end_strip; s++) {
    const uint8_t* p = op.w->data + s * op.w->strip_bytes;
    switch (op.w->format) {
      case WeightFormat::kFp32:
        float_strip<Fp32Pair>(op, s, p, true);
        break;
      case WeightFormat::kBf16:
        float_strip<Bf16Pair>(op, s, p, true);
        break;
      case WeightFormat::kInt8:
        if (op.w->low) {
          planes_strip(op, s);
          break;
        }
        op.a.q ? int_strip<Int8Block>(op, s, p) : dequantised_strip<Int8Block, 128>(op, s, p);
        break;
      case WeightFormat::kInt4:
        op.a.q ? int_strip<NibbleBlock<false>>(op, s, p) : dequantised_strip<NibbleBlock<false>, 8>(op, s, p);
        break;
      case WeightFormat::kInt4z:
        op.a.q ? int_strip<NibbleBlock<true>>(op, s, p) : dequantised_strip<NibbleBlock<true>, 0>(op, s, p);
        break;
      case WeightFormat::kFp8:
        fp8_strip(op, s);
        break;
      case WeightFormat::kCodebook4:
        four_bit_strip(op, s);
        break;
      case WeightFormat::kCodebook3:
        three_bit_strip(op, s);
        break;
    }
  }
}

}  // namespace trimaran::TRIMARAN_ISA
