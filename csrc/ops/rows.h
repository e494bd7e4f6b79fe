// Row-wise kernels: RMSNorm, quantisation of activations, gated units, add.
namespace trimaran::TRIMARAN_ISA {

inline float inverse_rms(const float* x, int width, float eps) {
  F16 sum = zero();
  for (int i = 0; i < width; i += 16) {  // the padding of a row that once overflowed may hold NaN
    const F16 v = first_lanes(smaller(16, width - i), load(x + i), zero());
    sum = fma(v, v, sum);
  }
  return 1.f / __builtin_sqrtf(reduce_add(sum) / float(width) + eps);
}

// weight * (x - mean) / sqrt(variance + eps) + bias. y may be x; its padding becomes that of weight and bias.
inline void layer_norm(const float* x, const float* weight, const float* bias, float eps, float* y, int width) {
  F16 sum = zero(), squares = zero();
  for (int i = 0; i < width; i += 16) sum = add(sum, first_lanes(smaller(16, width - i), load(x + i), zero()));
  const F16 mean = set1(reduce_add(sum) / float(width));
  for (int i = 0; i < width; i += 16) {
    const F16 v = first_lanes(smaller(16, width - i), sub(load(x + i), mean), zero());
    squares = fma(v, v, squares);
    store(y + i, v);
  }
  const F16 r = set1(1.f / __builtin_sqrtf(reduce_add(squares) / float(width) + eps));
  for (int i = 0; i < width; i += 16) store(y + i, fma(mul(load(y + i), r), load(weight + i), load(bias + i)));
}

constexpr float kTiny = 1e-30f;  // 127 / absmax must stay finite; what is smaller is as good as zero
constexpr float kLargest = 0x1.fffffep127f;

// What rounding scaled values to q left, in 256ths.
TRIMARAN_INLINE F16 left_over(F16 scaled, I16 q) {
  const F16 left = mul(sub(scaled, to_float(q)), set1(256.f));
  return max(set1(-127.f), min(set1(127.f), left));
}

// The largest magnitude of 32 values.
TRIMARAN_INLINE float largest(F16 a, F16 b) { return reduce_max(max(abs(a), abs(b))); }

// Quantises 32 values: scale = absmax / 127, q = round half to even (x * (127 / absmax)). Wide: to 15 bits, and the
// scale is a 256th of that. `rounded`: gets what the integers stand for, if not null.
template <bool Wide>
TRIMARAN_INLINE void quantise_group(F16 a, F16 b, float absmax, int8_t* q, GroupTerms* g, float* rounded) {
  if (any_nan(a, b) || absmax > kLargest) {  // no integers stand for such a group: its products shall be NaN
    for (int i = 0; i < (Wide ? 64 : 32); i += 16) store_int8(q + i, set1_int(0));
    *g = {__builtin_nanf(""), __builtin_nanf(""), 0, 0};
    if (rounded) store(rounded, set1(g->scale)), store(rounded + 16, set1(g->scale));
    return;
  }
  const bool some = absmax > kTiny;
  const F16 inverse = set1(some ? 127.f / absmax : 0.f);
  a = mul(a, inverse), b = mul(b, inverse);
  const I16 qa = to_int(a), qb = to_int(b);
  store_int8(q, qa);
  store_int8(q + 16, qb);
  int32_t sum = reduce_add(add(qa, qb));
  float scale = some ? absmax / 127.f : 0.f;
  if constexpr (Wide) {
    const I16 la = to_int(left_over(a, qa)), lb = to_int(left_over(b, qb));
    store_int8(q + 32, la);
    store_int8(q + 48, lb);
    sum = 256 * sum + reduce_add(add(la, lb));
    scale *= 1.f / 256;
    if (rounded) {
      store(rounded, mul(to_float(add(shift_left(qa, 8), la)), set1(scale)));
      store(rounded + 16, mul(to_float(add(shift_left(qb, 8), lb)), set1(scale)));
    }
  } else if (rounded) {
    store(rounded, mul(to_float(qa), set1(scale)));
    store(rounded + 16, mul(to_float(qb), set1(scale)));
  }
  *g = {scale, scale * float(sum), -128 * sum, Wide};
}

// The largest magnitude; more than kLargest if one of the numbers is not finite.
TRIMARAN_INLINE float largest(const float* x, int d) {
  F16 top = zero();
  bool nan = false;
  for (int i = 0; i < d; i += 16) {
    const F16 v = load(x + i);
    nan |= any_nan(v, v);
    top = max(top, abs(v));
  }
  return nan ? __builtin_inff() : reduce_max(top);
}

// A head or latent rounded to int8 as a whole.
struct Rounded {
  float scale;  // absmax / 127; NaN if not finite
  int32_t sum;  // of the integers
  bool finite;
};

// q = round half to even (x * (127 / absmax)). `q` may be where `x` is.
TRIMARAN_INLINE Rounded round_vector(const float* x, int d, int8_t* q) {
  const float absmax = largest(x, d);
  const bool finite = absmax <= kLargest, some = finite && absmax > kTiny;
  const F16 inverse = set1(some ? 127.f / absmax : 0.f);
  I16 sum = set1_int(0);
  for (int i = 0; i < d; i += 16) {
    const I16 n = some ? to_int(mul(load(x + i), inverse)) : set1_int(0);
    store_int8(q + i, n);
    sum = add(sum, n);
  }
  return {finite ? (some ? absmax / 127.f : 0.f) : __builtin_nanf(""), reduce_add(sum), finite};
}

TRIMARAN_INLINE bool is_finite(const float* x, int d) { return largest(x, d) <= kLargest; }

TRIMARAN_INLINE float clip(float x, float most) { return x > most ? most : x < -most ? -most : x; }

// q = round half to even (x * inverse) within -127 .. 127. `q` may be where `x` is.
TRIMARAN_INLINE void clip_vector(const float* x, int d, float inverse, int8_t* q) {
  const F16 times = set1(inverse), most = set1(127.f), least = set1(-127.f);
  for (int i = 0; i < d; i += 16) store_int8(q + i, to_int(max(least, min(most, mul(load(x + i), times)))));
}

// A row, normalised if there is a norm, 32 values at a time.
class PreparedRow {
 public:
  TRIMARAN_INLINE PreparedRow(const Prepare& p, int row)
      : x_(p.x + size_t(p.gather ? p.gather[row] : row) * p.x_stride),
        norm_(p.norm),
        r_(set1(p.norm ? inverse_rms(x_, p.width, p.eps) : 1.f)) {}

  TRIMARAN_INLINE void get(int k, F16& a, F16& b) const {
    a = load(x_ + k), b = load(x_ + k + 16);
    if (norm_) a = mul(mul(a, r_), load(norm_ + k)), b = mul(mul(b, r_), load(norm_ + k + 16));
  }

 private:
  const float *x_, *norm_;
  F16 r_;
};

// Quantises a row. Of a wide one the coarser groups alone keep what rounding leaves: outliers make most of the error,
// and they lie in few groups, often the same ones in all rows.
TRIMARAN_INLINE void quantise_row(const Prepare& p, const PreparedRow& row, int8_t* q, GroupTerms* g, float* rounded) {
  const int groups = p.k / kGroup;
  F16 a, b;
  float squares = 0;
  for (int i = 0; i < groups && p.wide; i++) {
    row.get(i * kGroup, a, b);
    const float absmax = largest(a, b);
    squares += absmax * absmax;
  }
  const float least = 0.5f * (squares / float(groups));
  for (int i = 0; i < groups; i++, q += p.wide ? 2 * kGroup : kGroup) {
    row.get(i * kGroup, a, b);
    const float absmax = largest(a, b);
    if (p.wide && absmax * absmax >= least) {
      quantise_group<true>(a, b, absmax, q, g + i, rounded);
    } else {
      quantise_group<false>(a, b, absmax, q, g + i, rounded);
      if (p.wide) store_int8(q + 32, set1_int(0)), store_int8(q + 48, set1_int(0));
    }
    if (rounded) rounded += kGroup;
  }
}

inline void prepare(const Prepare& p, int first, int end) {
  for (int i = first; i < end; i++) {
    const PreparedRow row(p, i);
    float* f = p.f32 + size_t(i) * p.f32_stride;
    if (p.q) {
      quantise_row(p, row, p.q + size_t(i) * p.q_stride, p.groups + size_t(i) * p.group_stride, p.both ? f : nullptr);
      continue;
    }
    for (int k = 0; k < p.k; k += kGroup) {
      F16 a, b;
      row.get(k, a, b);
      store(f + k, a), store(f + k + 16, b);
    }
  }
}

template <F16 (*Activation)(F16)>
inline void glu_rows(const float* gate_up, float* out, int width) {
  int i = 0;
  for (; i + 16 <= width; i += 16) store(out + i, mul(Activation(load(gate_up + i)), load(gate_up + width + i)));
  if (i < width) {
    float gate[16] = {}, up[16] = {}, result[16];
    for (int j = 0; i + j < width; j++) gate[j] = gate_up[i + j], up[j] = gate_up[width + i + j];
    store(result, mul(Activation(load(gate)), load(up)));
    for (int j = 0; i + j < width; j++) out[i + j] = result[j];
  }
}

template <F16 (*Activation)(F16)>
inline void map_rows(const float* x, float* out, int width) {
  for (int i = 0; i < width; i += 16) store(out + i, Activation(load(x + i)));
}

inline void add_rows(const float* a, const float* b, float* out, int width) {
  for (int i = 0; i < width; i += 16) store(out + i, add(load(a + i), load(b + i)));
}

}  // namespace trimaran::TRIMARAN_ISA
