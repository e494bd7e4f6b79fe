// Vectors of 16 as four vectors of 4 in the compiler's portable notation: builds on any architecture, SSE2 or NEON code
// where there is such. See vec_avx512.h for what each function means.
#pragma once
#include "isa/inline.h"

namespace trimaran::generic {

typedef float Float4 __attribute__((vector_size(16)));
typedef int32_t Int4 __attribute__((vector_size(16)));
typedef uint32_t UInt4 __attribute__((vector_size(16)));
typedef int16_t Short8 __attribute__((vector_size(16)));
typedef uint16_t UShort4 __attribute__((vector_size(8)));

template <class T>
struct Four {
  T v[4];
};
using F16 = Four<Float4>;
using I16 = Four<Int4>;
using Bytes = Four<UInt4>;
struct Quad {
  Short8 even, odd;  // activations 0 and 2, 1 and 3, repeated
};

constexpr int kIntRows = 2, kIntRowsOfBoth = 2, kFloatRows = 2, kAttentionRows = 4, kAttentionSums = 4;
constexpr bool kBiasedInt8 = true;

// Applies f to each quarter.
template <class R, class F>
TRIMARAN_INLINE R each(F&& f) {
  return {f(0), f(1), f(2), f(3)};
}
#define TRIMARAN_EACH(R, expression) each<R>([&](int i) TRIMARAN_BODY { return (expression); })

TRIMARAN_INLINE Float4 splat(float x) { return Float4{x, x, x, x}; }
TRIMARAN_INLINE Int4 splat_int(int32_t x) { return Int4{x, x, x, x}; }
template <class V>
TRIMARAN_INLINE V load_as(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
// a where the mask's bits are set, else b.
TRIMARAN_INLINE Float4 choose(Int4 mask, Float4 a, Float4 b) { return Float4((mask & Int4(a)) | (~mask & Int4(b))); }
// A fused multiply-add where the processor has one; elsewhere product and sum are rounded apart, always alike.
TRIMARAN_INLINE Float4 multiply_add(Float4 a, Float4 b, Float4 c) {
#ifdef __FP_FAST_FMAF
  return Float4{__builtin_fmaf(a[0], b[0], c[0]), __builtin_fmaf(a[1], b[1], c[1]), __builtin_fmaf(a[2], b[2], c[2]),
                __builtin_fmaf(a[3], b[3], c[3])};
#else
  return a * b + c;
#endif
}

TRIMARAN_INLINE F16 set1(float x) { return TRIMARAN_EACH(F16, (void(i), splat(x))); }
TRIMARAN_INLINE F16 zero() { return set1(0.f); }
TRIMARAN_INLINE F16 load(const float* p) { return TRIMARAN_EACH(F16, load_as<Float4>(p + 4 * i)); }
TRIMARAN_INLINE void store(float* p, F16 a) { std::memcpy(p, &a, 64); }
TRIMARAN_INLINE F16 add(F16 a, F16 b) { return TRIMARAN_EACH(F16, a.v[i] + b.v[i]); }
TRIMARAN_INLINE F16 sub(F16 a, F16 b) { return TRIMARAN_EACH(F16, a.v[i] - b.v[i]); }
TRIMARAN_INLINE F16 mul(F16 a, F16 b) { return TRIMARAN_EACH(F16, a.v[i] * b.v[i]); }
TRIMARAN_INLINE F16 div(F16 a, F16 b) { return TRIMARAN_EACH(F16, a.v[i] / b.v[i]); }
TRIMARAN_INLINE F16 fma(F16 a, F16 b, F16 c) { return TRIMARAN_EACH(F16, multiply_add(a.v[i], b.v[i], c.v[i])); }
TRIMARAN_INLINE F16 max(F16 a, F16 b) { return TRIMARAN_EACH(F16, choose(Int4(a.v[i] > b.v[i]), a.v[i], b.v[i])); }
TRIMARAN_INLINE F16 min(F16 a, F16 b) { return TRIMARAN_EACH(F16, choose(Int4(a.v[i] < b.v[i]), a.v[i], b.v[i])); }
TRIMARAN_INLINE F16 sqrt(F16 a) {
  for (int i = 0; i < 16; i++) a.v[i / 4][i % 4] = __builtin_sqrtf(a.v[i / 4][i % 4]);
  return a;
}
TRIMARAN_INLINE F16 abs(F16 a) { return TRIMARAN_EACH(F16, Float4(Int4(a.v[i]) & splat_int(0x7FFFFFFF))); }
// Adding and taking away 1.5 * 2^23 leaves a whole number, rounded half to even, for |a| < 2^22.
TRIMARAN_INLINE F16 round_even(F16 a) { return TRIMARAN_EACH(F16, (a.v[i] + splat(0x1.8p23f)) - splat(0x1.8p23f)); }
TRIMARAN_INLINE F16 zero_below(F16 a, F16 x, F16 limit) {
  return TRIMARAN_EACH(F16, Float4(~Int4(x.v[i] < limit.v[i]) & Int4(a.v[i])));
}
TRIMARAN_INLINE F16 either(F16 x, F16 limit, F16 a, F16 b) {
  return TRIMARAN_EACH(F16, choose(Int4(x.v[i] >= limit.v[i]), a.v[i], b.v[i]));
}
TRIMARAN_INLINE F16 first_lanes(int n, F16 a, F16 b) {
  return TRIMARAN_EACH(F16, choose(Int4(splat_int(n - 4 * i) > Int4{0, 1, 2, 3}), a.v[i], b.v[i]));
}
TRIMARAN_INLINE bool any_at_least(F16 a, F16 b) {
  Int4 m = splat_int(0);
  for (int i = 0; i < 4; i++) m |= Int4(a.v[i] >= b.v[i]);
  return (m[0] | m[1] | m[2] | m[3]) != 0;
}

TRIMARAN_INLINE bool any_not_below(F16 a, F16 b) {
  Int4 m = splat_int(0);
  for (int i = 0; i < 4; i++) m |= ~Int4(a.v[i] < b.v[i]);
  return (m[0] | m[1] | m[2] | m[3]) != 0;
}
TRIMARAN_INLINE bool any_nan(F16 a, F16 b) {
  Int4 m = splat_int(0);
  for (int i = 0; i < 4; i++) m |= Int4(a.v[i] != a.v[i]) | Int4(b.v[i] != b.v[i]);
  return (m[0] | m[1] | m[2] | m[3]) != 0;
}

TRIMARAN_INLINE float reduce_add(F16 a) {
  const Float4 c = (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
  return (c[0] + c[2]) + (c[1] + c[3]);
}
TRIMARAN_INLINE float larger(float a, float b) { return a > b ? a : b; }
TRIMARAN_INLINE float reduce_max(F16 a) {
  const Float4 lo = choose(Int4(a.v[0] > a.v[2]), a.v[0], a.v[2]), hi = choose(Int4(a.v[1] > a.v[3]), a.v[1], a.v[3]);
  const Float4 c = choose(Int4(lo > hi), lo, hi);
  return larger(larger(c[0], c[2]), larger(c[1], c[3]));
}

TRIMARAN_INLINE uint32_t at_least(F16 a, F16 b) {
  uint32_t mask = 0;
  for (int i = 0; i < 4; i++) {
    const Int4 m = Int4(a.v[i] >= b.v[i]) & Int4{1, 2, 4, 8};
    mask |= uint32_t((m[0] | m[1]) | (m[2] | m[3])) << (4 * i);
  }
  return mask;
}
TRIMARAN_INLINE int store_selected(float* p, uint32_t mask, F16 a) {
  float lanes[16];
  store(lanes, a);
  return copy_selected(p, mask, lanes);
}

typedef double Double4 __attribute__((vector_size(32)));
using Sums = Four<Double4>;
TRIMARAN_INLINE Sums no_sums() { return TRIMARAN_EACH(Sums, (void(i), Double4{0, 0, 0, 0})); }
TRIMARAN_INLINE Sums add(Sums s, F16 a) {
  return TRIMARAN_EACH(Sums, s.v[i] + __builtin_convertvector(a.v[i], Double4));
}
TRIMARAN_INLINE double reduce_add(Sums s) {
  const Double4 d = (s.v[0] + s.v[1]) + (s.v[2] + s.v[3]);
  return (d[0] + d[1]) + (d[2] + d[3]);
}

template <int N>
TRIMARAN_INLINE F16 swap_lanes(F16 a) {
  if constexpr (N == 1) return TRIMARAN_EACH(F16, (Float4{a.v[i][1], a.v[i][0], a.v[i][3], a.v[i][2]}));
  if constexpr (N == 2) return TRIMARAN_EACH(F16, (Float4{a.v[i][2], a.v[i][3], a.v[i][0], a.v[i][1]}));
  return TRIMARAN_EACH(F16, a.v[i ^ (N / 4)]);
}

TRIMARAN_INLINE I16 set1_int(int32_t x) { return TRIMARAN_EACH(I16, (void(i), splat_int(x))); }
TRIMARAN_INLINE I16 add(I16 a, I16 b) { return TRIMARAN_EACH(I16, a.v[i] + b.v[i]); }
TRIMARAN_INLINE I16 shift_left(I16 a, int bits) { return TRIMARAN_EACH(I16, a.v[i] << bits); }
TRIMARAN_INLINE int32_t reduce_add(I16 a) {
  const Int4 c = (a.v[0] + a.v[1]) + (a.v[2] + a.v[3]);
  return (c[0] + c[1]) + (c[2] + c[3]);
}
TRIMARAN_INLINE F16 to_float(I16 a) { return TRIMARAN_EACH(F16, __builtin_convertvector(a.v[i], Float4)); }
TRIMARAN_INLINE I16 to_int(F16 a) {
  const F16 r = round_even(a);
  return TRIMARAN_EACH(I16, __builtin_convertvector(r.v[i], Int4));
}
TRIMARAN_INLINE void store_int8(int8_t* p, I16 a) {
  for (int i = 0; i < 16; i++) p[i] = int8_t(a.v[i / 4][i % 4]);
}
TRIMARAN_INLINE void store_uint8(uint8_t* p, I16 a) {
  for (int i = 0; i < 16; i++) p[i] = uint8_t(a.v[i / 4][i % 4]);
}
// x = mantissa * 2^power, 1 <= mantissa < 2, for normal x above zero.
TRIMARAN_INLINE F16 split_power(F16 x, F16& power) {
  power = TRIMARAN_EACH(F16, __builtin_convertvector((Int4(x.v[i]) >> 23) - 127, Float4));
  return TRIMARAN_EACH(F16, Float4((Int4(x.v[i]) & 0x7FFFFF) | 0x3F800000));
}
TRIMARAN_INLINE F16 scale_by_power(F16 p, F16 n) {
  const I16 e = to_int(n);
  return TRIMARAN_EACH(F16, p.v[i] * Float4((e.v[i] + 127) << 23));
}

TRIMARAN_INLINE Int4 widen(const uint8_t* p, int i) {
  return __builtin_convertvector(load_as<UShort4>(p + 8 * i), Int4);
}
// fp16: move the fields into place, then correct the exponent's bias (right for denormals too); 2^16 and above were
// infinities and NaNs and become so again.
TRIMARAN_INLINE Float4 half_to_float(Int4 h) {
  const Float4 magnitude = Float4((h & 0x7FFF) << 13) * splat(0x1p112f);
  const Int4 special = Int4(magnitude >= splat(0x1p16f)) & 0x7F800000;
  return Float4(Int4(magnitude) | special | ((h & 0x8000) << 16));
}
TRIMARAN_INLINE F16 load_half(const uint8_t* p) { return TRIMARAN_EACH(F16, half_to_float(widen(p, i))); }
TRIMARAN_INLINE Int4 e4m3_to_half(const uint8_t* p) {
  const Int4 b{p[0], p[1], p[2], p[3]};
  return (b & 0x80) << 8 | (b & 0x7F) << 7;
}
TRIMARAN_INLINE F16 load_256ths(const uint8_t* e4m3) {
  return TRIMARAN_EACH(F16, half_to_float(e4m3_to_half(e4m3 + 4 * i)));
}
TRIMARAN_INLINE F16 load(const uint16_t* bf16) {
  const auto* p = reinterpret_cast<const uint8_t*>(bf16);
  return TRIMARAN_EACH(F16, Float4(widen(p, i) << 16));
}
TRIMARAN_INLINE void store(uint16_t* bf16, F16 a) {
  for (int i = 0; i < 4; i++) {
    const UInt4 u = UInt4(a.v[i]);
    const UShort4 h = __builtin_convertvector((u + ((u >> 16) & 1) + 0x7FFF) >> 16, UShort4);
    std::memcpy(bf16 + 4 * i, &h, 8);
  }
}

TRIMARAN_INLINE Bytes load_bytes(const uint8_t* p) { return TRIMARAN_EACH(Bytes, load_as<UInt4>(p + 16 * i)); }
TRIMARAN_INLINE Bytes low_nibbles(Bytes a) { return TRIMARAN_EACH(Bytes, a.v[i] & 0x0F0F0F0F); }
TRIMARAN_INLINE Bytes high_nibbles(Bytes a) { return TRIMARAN_EACH(Bytes, (a.v[i] >> 4) & 0x0F0F0F0F); }
TRIMARAN_INLINE void store_bytes(uint8_t* p, Bytes a) { std::memcpy(p, &a, 64); }
TRIMARAN_INLINE Bytes join_low_nibbles(Bytes upper, Bytes lower) {
  return TRIMARAN_EACH(Bytes, (upper.v[i] & 0x0F0F0F0F) << 4 | (lower.v[i] & 0x0F0F0F0F));
}
TRIMARAN_INLINE Bytes join_high_nibbles(Bytes upper, Bytes lower) {
  return TRIMARAN_EACH(Bytes, (upper.v[i] & 0xF0F0F0F0) | (lower.v[i] >> 4 & 0x0F0F0F0F));
}
TRIMARAN_INLINE F16 gather(const float* p, const uint16_t* places) {
  float lanes[16];
  for (int i = 0; i < 16; i++) lanes[i] = p[places[i]];
  return load(lanes);
}
template <int S>
TRIMARAN_INLINE Bytes shift_and(Bytes a, uint32_t mask) {
  return TRIMARAN_EACH(Bytes, (S < 0 ? a.v[i] << (S < 0 ? -S : 0) : a.v[i] >> (S < 0 ? 0 : S)) & mask);
}
TRIMARAN_INLINE Bytes or_bytes(Bytes a, Bytes b) { return TRIMARAN_EACH(Bytes, a.v[i] | b.v[i]); }
TRIMARAN_INLINE Bytes look_up(const uint8_t* tables, Bytes codes) {
  uint8_t bytes[64];
  std::memcpy(bytes, &codes, 64);
  for (int i = 0; i < 64; i++) bytes[i] = tables[i / 4 % 4 * 64 + i / 16 * 16 + bytes[i]];
  std::memcpy(&codes, bytes, 64);
  return codes;
}
template <int I>
TRIMARAN_INLINE F16 tiny_e4m3(Bytes a) {
  return TRIMARAN_EACH(F16, Float4((Int4(a.v[i] << (24 - 8 * I)) >> 4) & int32_t(0x87F00000)));
}
TRIMARAN_INLINE F16 even_bf16(Bytes a) { return TRIMARAN_EACH(F16, Float4(a.v[i] << 16)); }
TRIMARAN_INLINE F16 odd_bf16(Bytes a) { return TRIMARAN_EACH(F16, Float4(a.v[i] & 0xFFFF0000)); }
template <int I>
TRIMARAN_INLINE F16 byte_to_float(Bytes a) {
  return TRIMARAN_EACH(F16, __builtin_convertvector(Int4((a.v[i] >> (8 * I)) & 255), Float4));
}

TRIMARAN_INLINE Quad load_quad(const int8_t* p) {
  return {Short8{p[0], p[2], p[0], p[2], p[0], p[2], p[0], p[2]},
          Short8{p[1], p[3], p[1], p[3], p[1], p[3], p[1], p[3]}};
}
TRIMARAN_INLINE void keep_apart(I16&) {}

// Unsigned weights times signed activations: a product is at most 255 * 127 and fits 16 bits, the sums are 32 bits
// wide.
struct Small {
  Bytes w;
  TRIMARAN_INLINE explicit Small(Bytes b) : w(b) {}
};
using Full = Small;
TRIMARAN_INLINE Int4 add_pair(Short8 product) {
  const Int4 both = Int4(product);
  return (Int4(UInt4(both) << 16) >> 16) + (both >> 16);
}
TRIMARAN_INLINE void dot4(I16& acc, const Small& w, const Quad& x) {
  for (int i = 0; i < 4; i++) {
    const Short8 even = Short8(w.w.v[i] & 0x00FF00FF), odd = Short8((w.w.v[i] >> 8) & 0x00FF00FF);
    acc.v[i] += add_pair(even * x.even) + add_pair(odd * x.odd);
  }
}

// Unsigned weights of attention times signed values; again a product fits 16 bits.
struct WeightQuad {
  Quad w;
};
TRIMARAN_INLINE WeightQuad load_weights(const uint8_t* p) {
  return {
      {Short8{p[0], p[2], p[0], p[2], p[0], p[2], p[0], p[2]}, Short8{p[1], p[3], p[1], p[3], p[1], p[3], p[1], p[3]}}};
}
TRIMARAN_INLINE void dot4(I16& acc, const WeightQuad& w, const Bytes& v) {
  for (int i = 0; i < 4; i++) {
    const Short8 even = Short8(Short8(v.v[i]) << 8) >> 8, odd = Short8(v.v[i]) >> 8;
    acc.v[i] += add_pair(even * w.w.even) + add_pair(odd * w.w.odd);
  }
}

template <class Weights>
struct Sum {
  I16 acc;
  TRIMARAN_INLINE void begin(const I16& start) { acc = start; }
  TRIMARAN_INLINE void add(const Weights& w, const Quad& x) { dot4(acc, w, x); }
  TRIMARAN_INLINE I16 end(const I16&) const { return acc; }
};

TRIMARAN_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
TRIMARAN_INLINE void prefetch_second(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace trimaran::generic
