// Vectors of 16 on AVX-512 with VNNI.
//
// The same functions exist in vec_avx2.h (with dot_*.h) and vec_generic.h; the kernels in ops/ are written on them
// alone.
#pragma once
#include <immintrin.h>

#include "isa/inline.h"

namespace trimaran::avx512 {

using F16 = __m512;     // 16 floats
using I16 = __m512i;    // 16 int32
using Bytes = __m512i;  // 64 bytes: 4 values of each of 16 columns
using Quad = __m512i;   // 4 int8 activations, repeated for every column

// Widest tiles that fit 32 registers: rows x 2 vectors, integers and floats (int) or floats alone. Sets with fewer
// registers take more than kIntRowsOfBoth rows times one vector of a strip's two.
constexpr int kIntRows = 6, kIntRowsOfBoth = 6, kFloatRows = 12, kAttentionRows = 12, kAttentionSums = 24;
// dot4 takes int8 weights as q + 128; the accumulator then starts at -128 * sum(activations).
constexpr bool kBiasedInt8 = true;

TRIMARAN_INLINE F16 zero() { return _mm512_setzero_ps(); }
TRIMARAN_INLINE F16 set1(float x) { return _mm512_set1_ps(x); }
TRIMARAN_INLINE F16 load(const float* p) { return _mm512_loadu_ps(p); }
TRIMARAN_INLINE void store(float* p, F16 a) { _mm512_storeu_ps(p, a); }
TRIMARAN_INLINE F16 add(F16 a, F16 b) { return _mm512_add_ps(a, b); }
TRIMARAN_INLINE F16 sub(F16 a, F16 b) { return _mm512_sub_ps(a, b); }
TRIMARAN_INLINE F16 mul(F16 a, F16 b) { return _mm512_mul_ps(a, b); }
TRIMARAN_INLINE F16 div(F16 a, F16 b) { return _mm512_div_ps(a, b); }
TRIMARAN_INLINE F16 fma(F16 a, F16 b, F16 c) { return _mm512_fmadd_ps(a, b, c); }
TRIMARAN_INLINE F16 max(F16 a, F16 b) { return _mm512_max_ps(a, b); }
TRIMARAN_INLINE F16 min(F16 a, F16 b) { return _mm512_min_ps(a, b); }
TRIMARAN_INLINE F16 sqrt(F16 a) { return _mm512_sqrt_ps(a); }
TRIMARAN_INLINE F16 abs(F16 a) { return _mm512_abs_ps(a); }
TRIMARAN_INLINE F16 round_even(F16 a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// 0 where x < limit, else a.
TRIMARAN_INLINE F16 zero_below(F16 a, F16 x, F16 limit) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), a);
}
// a where x >= limit, else b.
TRIMARAN_INLINE F16 either(F16 x, F16 limit, F16 a, F16 b) {
  return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(x, limit, _CMP_GE_OQ), a);
}
// The first n lanes of a, the others from b; 0 <= n <= 16.
TRIMARAN_INLINE F16 first_lanes(int n, F16 a, F16 b) { return _mm512_mask_mov_ps(b, __mmask16((1u << n) - 1), a); }
TRIMARAN_INLINE bool any_at_least(F16 a, F16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ) != 0; }

// Whether a >= b in some lane, or one of the two is NaN.
TRIMARAN_INLINE bool any_not_below(F16 a, F16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ) != 0; }
TRIMARAN_INLINE bool any_nan(F16 a, F16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0; }

// Sums and maxima over the lanes fold halves, then quarters, and so on: the same tree on every instruction set.
TRIMARAN_INLINE __m256 fold(F16 a, bool upper) {
  return upper ? _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1)) : _mm512_castps512_ps256(a);
}
TRIMARAN_INLINE float reduce_add(F16 a) {
  const __m256 b = _mm256_add_ps(fold(a, false), fold(a, true));
  const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
TRIMARAN_INLINE float reduce_max(F16 a) {
  const __m256 b = _mm256_max_ps(fold(a, false), fold(a, true));
  const __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}

// Bit i: a >= b in lane i.
TRIMARAN_INLINE uint32_t at_least(F16 a, F16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
// Writes the lanes whose bit is set, side by side, and returns how many; may write 16 floats.
TRIMARAN_INLINE int store_selected(float* p, uint32_t mask, F16 a) {
  store(p, _mm512_maskz_compress_ps(__mmask16(mask), a));
  return __builtin_popcount(mask);
}

// Running sums of 16 floats each as doubles.
struct Sums {
  __m512d lo, hi;
};
TRIMARAN_INLINE Sums no_sums() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
TRIMARAN_INLINE Sums add(Sums s, F16 a) {
  return {_mm512_add_pd(s.lo, _mm512_cvtps_pd(fold(a, false))), _mm512_add_pd(s.hi, _mm512_cvtps_pd(fold(a, true)))};
}
TRIMARAN_INLINE double reduce_add(Sums s) { return _mm512_reduce_add_pd(_mm512_add_pd(s.lo, s.hi)); }

// Lane i from lane i ^ N.
template <int N>
TRIMARAN_INLINE F16 swap_lanes(F16 a) {
  if constexpr (N == 1) return _mm512_permute_ps(a, 0xB1);
  if constexpr (N == 2) return _mm512_permute_ps(a, 0x4E);
  return _mm512_shuffle_f32x4(a, a, N == 4 ? 0xB1 : 0x4E);
}

TRIMARAN_INLINE I16 set1_int(int32_t x) { return _mm512_set1_epi32(x); }
TRIMARAN_INLINE I16 add(I16 a, I16 b) { return _mm512_add_epi32(a, b); }
TRIMARAN_INLINE I16 shift_left(I16 a, int bits) { return _mm512_sll_epi32(a, _mm_cvtsi32_si128(bits)); }
TRIMARAN_INLINE int32_t reduce_add(I16 a) { return _mm512_reduce_add_epi32(a); }
TRIMARAN_INLINE F16 to_float(I16 a) { return _mm512_cvtepi32_ps(a); }
TRIMARAN_INLINE I16 to_int(F16 a) { return _mm512_cvtps_epi32(a); }  // round half to even
TRIMARAN_INLINE void store_int8(int8_t* p, I16 a) {                  // values within int8
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
}
TRIMARAN_INLINE void store_uint8(uint8_t* p, I16 a) {  // values within uint8
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
}
// x = mantissa * 2^power, 1 <= mantissa < 2, for normal x above zero.
TRIMARAN_INLINE F16 split_power(F16 x, F16& power) {
  power = _mm512_getexp_ps(x);
  return _mm512_getmant_ps(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_zero);
}
// p * 2^n for whole n with 2^n normal.
TRIMARAN_INLINE F16 scale_by_power(F16 p, F16 n) { return _mm512_scalef_ps(p, n); }

TRIMARAN_INLINE F16 load_half(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
TRIMARAN_INLINE F16 load(const uint16_t* bf16) {
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bf16));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
// Numbers of 8 bits, e4m3: as fp16 their bits are the 256th of the number.
TRIMARAN_INLINE F16 load_256ths(const uint8_t* e4m3) {
  const __m256i h = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(e4m3)));
  return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(h, 7), _mm256_set1_epi16(int16_t(0xBFFF))));
}
// Stores as bf16, rounded half to even.
TRIMARAN_INLINE void store(uint16_t* bf16, F16 a) {
  const I16 u = _mm512_castps_si512(a), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const I16 r = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, odd), _mm512_set1_epi32(0x7FFF)), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(bf16), _mm512_cvtepi32_epi16(r));
}

TRIMARAN_INLINE F16 gather(const float* p, const uint16_t* places) {  // of 16 numbers
  const __m256i at = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(places));
  return _mm512_i32gather_ps(_mm512_cvtepu16_epi32(at), p, 4);
}

TRIMARAN_INLINE Bytes load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
TRIMARAN_INLINE Bytes low_nibbles(Bytes a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
TRIMARAN_INLINE Bytes high_nibbles(Bytes a) { return low_nibbles(_mm512_srli_epi16(a, 4)); }
TRIMARAN_INLINE void store_bytes(uint8_t* p, Bytes a) { _mm512_storeu_si512(p, a); }
// Bytes whose upper halves are the low (or the high) nibbles of one vector, and the lower halves those of another.
TRIMARAN_INLINE Bytes join_low_nibbles(Bytes upper, Bytes lower) {
  return _mm512_ternarylogic_epi32(_mm512_set1_epi8(15), _mm512_slli_epi16(upper, 4), lower, 0xAC);
}
TRIMARAN_INLINE Bytes join_high_nibbles(Bytes upper, Bytes lower) {
  return _mm512_ternarylogic_epi32(_mm512_set1_epi8(15), upper, _mm512_srli_epi16(lower, 4), 0xAC);
}
// (a >> S) & mask in every column; S < 0 shifts to the left.
template <int S>
TRIMARAN_INLINE Bytes shift_and(Bytes a, uint32_t mask) {
  const Bytes shifted = S < 0 ? _mm512_slli_epi32(a, unsigned(-S)) : _mm512_srli_epi32(a, unsigned(S));
  return _mm512_and_si512(shifted, _mm512_set1_epi32(int32_t(mask)));
}
TRIMARAN_INLINE Bytes or_bytes(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
// Each code, 0 to 15, as its column's table has it. `tables`: 4 x [4 lanes][16], table j of lane l is of column 4 l +
// j.
TRIMARAN_INLINE Bytes look_up(const uint8_t* tables, Bytes codes) {
  constexpr uint64_t first = 0x000F000F000F000F;
  Bytes a = _mm512_maskz_shuffle_epi8(first, _mm512_loadu_si512(tables), codes);
  a = _mm512_mask_shuffle_epi8(a, first << 4, _mm512_loadu_si512(tables + 64), codes);
  a = _mm512_mask_shuffle_epi8(a, first << 8, _mm512_loadu_si512(tables + 128), codes);
  return _mm512_mask_shuffle_epi8(a, first << 12, _mm512_loadu_si512(tables + 192), codes);
}
// Byte I of every column's four, a number in e4m3, times 2^-120: its bits moved to those of a float.
template <int I>
TRIMARAN_INLINE F16 tiny_e4m3(Bytes a) {
  const Bytes sign_kept = _mm512_srai_epi32(_mm512_slli_epi32(a, 24 - 8 * I), 4);
  return _mm512_castsi512_ps(_mm512_and_si512(sign_kept, _mm512_set1_epi32(int32_t(0x87F00000))));
}
// bf16 pairs (two inputs of each of 16 columns) as two vectors of floats.
TRIMARAN_INLINE F16 even_bf16(Bytes a) { return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16)); }
TRIMARAN_INLINE F16 odd_bf16(Bytes a) {
  return _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32(int32_t(0xFFFF0000))));
}
// Byte i of every column's four, as floats.
template <int I>
TRIMARAN_INLINE F16 byte_to_float(Bytes a) {
  return to_float(_mm512_and_si512(_mm512_srli_epi32(a, 8 * I), _mm512_set1_epi32(255)));
}

TRIMARAN_INLINE Quad load_quad(const int8_t* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}
// Makes a value opaque: GCC would merge accumulators that start equal, then spill them.
TRIMARAN_INLINE void keep_apart(I16& a) { asm("" : "+v"(a)); }

// acc += sum of 4 products per column, unsigned weights times signed activations. Volatile asm keeps the order as
// written: with the intrinsic GCC 12 hoists broadcasts until it spills accumulators.
struct Small {  // weights 0..15
  Bytes w;
  TRIMARAN_INLINE explicit Small(Bytes b) : w(b) {}
};
struct Full {  // weights q + 128
  Bytes w;
  TRIMARAN_INLINE explicit Full(Bytes b) : w(b) {}
};
template <class Weights>
TRIMARAN_INLINE void dot4(I16& acc, const Weights& w, Quad x) {
  asm volatile("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(w.w), "v"(x));
}

struct WeightQuad {  // 4 uint8 weights of attention, repeated for every column
  Quad w;
};
TRIMARAN_INLINE WeightQuad load_weights(const uint8_t* p) { return {load_quad(reinterpret_cast<const int8_t*>(p))}; }
// acc += sum of 4 products per column, unsigned weights times signed values.
TRIMARAN_INLINE void dot4(I16& acc, const WeightQuad& w, Bytes v) {
  asm volatile("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(w.w), "v"(v));
}

TRIMARAN_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
// To the second cache, which takes more at once and has room for what comes later.
TRIMARAN_INLINE void prefetch_second(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

}  // namespace trimaran::avx512

#include "isa/sum.h"
