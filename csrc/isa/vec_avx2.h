// Vectors of 16 as two halves of 8 on AVX2 with FMA and F16C. See vec_avx512.h for what each function means. Integer
// dot products are in dot_avx2.h and dot_avx_vnni.h: TRIMARAN_ISA, the namespace, is one of the two.
#pragma once
#include <immintrin.h>

#include "isa/inline.h"

namespace trimaran::TRIMARAN_ISA {

struct F16 {
  __m256 lo, hi;
};
struct I16 {
  __m256i lo, hi;
};
using Bytes = I16;
using Quad = __m256i;

constexpr int kFloatRows = 3, kAttentionRows = 6, kAttentionSums = 4;

TRIMARAN_INLINE F16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
TRIMARAN_INLINE F16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
TRIMARAN_INLINE F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
TRIMARAN_INLINE void store(float* p, F16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
TRIMARAN_INLINE F16 add(F16 a, F16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
TRIMARAN_INLINE F16 sub(F16 a, F16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
TRIMARAN_INLINE F16 mul(F16 a, F16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
TRIMARAN_INLINE F16 div(F16 a, F16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
TRIMARAN_INLINE F16 fma(F16 a, F16 b, F16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
TRIMARAN_INLINE F16 max(F16 a, F16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
TRIMARAN_INLINE F16 min(F16 a, F16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
TRIMARAN_INLINE F16 sqrt(F16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
TRIMARAN_INLINE F16 abs(F16 a) {
  const __m256 sign = _mm256_set1_ps(-0.f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
TRIMARAN_INLINE F16 round_even(F16 a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}
TRIMARAN_INLINE F16 zero_below(F16 a, F16 x, F16 limit) {
  return {_mm256_and_ps(_mm256_cmp_ps(x.lo, limit.lo, _CMP_NLT_UQ), a.lo),
          _mm256_and_ps(_mm256_cmp_ps(x.hi, limit.hi, _CMP_NLT_UQ), a.hi)};
}
TRIMARAN_INLINE F16 either(F16 x, F16 limit, F16 a, F16 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_cmp_ps(x.lo, limit.lo, _CMP_GE_OQ)),
          _mm256_blendv_ps(b.hi, a.hi, _mm256_cmp_ps(x.hi, limit.hi, _CMP_GE_OQ))};
}
TRIMARAN_INLINE F16 first_lanes(int n, F16 a, F16 b) {
  const __m256i limit = _mm256_set1_epi32(n);
  const __m256i lo = _mm256_cmpgt_epi32(limit, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  const __m256i hi = _mm256_cmpgt_epi32(limit, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15));
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(lo)), _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(hi))};
}
TRIMARAN_INLINE bool any_at_least(F16 a, F16 b) {
  const __m256 lo = _mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ), hi = _mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ);
  return _mm256_movemask_ps(_mm256_or_ps(lo, hi)) != 0;
}

TRIMARAN_INLINE bool any_not_below(F16 a, F16 b) {
  const __m256 lo = _mm256_cmp_ps(a.lo, b.lo, _CMP_NLT_UQ), hi = _mm256_cmp_ps(a.hi, b.hi, _CMP_NLT_UQ);
  return _mm256_movemask_ps(_mm256_or_ps(lo, hi)) != 0;
}
TRIMARAN_INLINE bool any_nan(F16 a, F16 b) {
  const __m256 lo = _mm256_cmp_ps(a.lo, b.lo, _CMP_UNORD_Q), hi = _mm256_cmp_ps(a.hi, b.hi, _CMP_UNORD_Q);
  return _mm256_movemask_ps(_mm256_or_ps(lo, hi)) != 0;
}

TRIMARAN_INLINE float reduce_add(F16 a) {
  const __m256 b = _mm256_add_ps(a.lo, a.hi);
  const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
TRIMARAN_INLINE float reduce_max(F16 a) {
  const __m256 b = _mm256_max_ps(a.lo, a.hi);
  const __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}

TRIMARAN_INLINE uint32_t at_least(F16 a, F16 b) {
  return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ))) |
         uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ))) << 8;
}
TRIMARAN_INLINE int store_selected(float* p, uint32_t mask, F16 a) {
  float lanes[16];
  store(lanes, a);
  return copy_selected(p, mask, lanes);
}

struct Sums {
  __m256d v[4];
};
TRIMARAN_INLINE Sums no_sums() {
  const __m256d z = _mm256_setzero_pd();
  return {{z, z, z, z}};
}
TRIMARAN_INLINE Sums add(Sums s, F16 a) {
  return {{_mm256_add_pd(s.v[0], _mm256_cvtps_pd(_mm256_castps256_ps128(a.lo))),
           _mm256_add_pd(s.v[1], _mm256_cvtps_pd(_mm256_extractf128_ps(a.lo, 1))),
           _mm256_add_pd(s.v[2], _mm256_cvtps_pd(_mm256_castps256_ps128(a.hi))),
           _mm256_add_pd(s.v[3], _mm256_cvtps_pd(_mm256_extractf128_ps(a.hi, 1)))}};
}
TRIMARAN_INLINE double reduce_add(Sums s) {
  double lanes[4];
  _mm256_storeu_pd(lanes, _mm256_add_pd(_mm256_add_pd(s.v[0], s.v[1]), _mm256_add_pd(s.v[2], s.v[3])));
  return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

template <int N>
TRIMARAN_INLINE F16 swap_lanes(F16 a) {
  if constexpr (N == 1) return {_mm256_permute_ps(a.lo, 0xB1), _mm256_permute_ps(a.hi, 0xB1)};
  if constexpr (N == 2) return {_mm256_permute_ps(a.lo, 0x4E), _mm256_permute_ps(a.hi, 0x4E)};
  if constexpr (N == 4) return {_mm256_permute2f128_ps(a.lo, a.lo, 1), _mm256_permute2f128_ps(a.hi, a.hi, 1)};
  return {a.hi, a.lo};
}

TRIMARAN_INLINE I16 set1_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
TRIMARAN_INLINE I16 add(I16 a, I16 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
TRIMARAN_INLINE I16 shift_left(I16 a, int bits) {
  const __m128i count = _mm_cvtsi32_si128(bits);
  return {_mm256_sll_epi32(a.lo, count), _mm256_sll_epi32(a.hi, count)};
}
TRIMARAN_INLINE int32_t reduce_add(I16 a) {
  const __m256i b = _mm256_add_epi32(a.lo, a.hi);
  const __m128i c = _mm_add_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
  const __m128i d = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(d, _mm_shuffle_epi32(d, 0xB1)));
}
TRIMARAN_INLINE F16 to_float(I16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
TRIMARAN_INLINE I16 to_int(F16 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
// Narrowing works within 128-bit lanes and interleaves them; the permutation puts the quarters back in order.
TRIMARAN_INLINE __m256i narrow16(I16 a, bool is_signed) {
  const __m256i p = is_signed ? _mm256_packs_epi32(a.lo, a.hi) : _mm256_packus_epi32(a.lo, a.hi);
  return _mm256_permute4x64_epi64(p, 0xD8);
}
TRIMARAN_INLINE void store_int8(int8_t* p, I16 a) {
  const __m256i h = narrow16(a, true);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi16(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
}
TRIMARAN_INLINE void store_uint8(uint8_t* p, I16 a) {
  const __m256i h = narrow16(a, true);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packus_epi16(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
}
TRIMARAN_INLINE __m256 power_of_two(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
TRIMARAN_INLINE __m256 split_half(__m256 x, __m256& power) {
  const __m256i bits = _mm256_castps_si256(x), one = _mm256_set1_epi32(0x3F800000);
  power = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(bits, 23), _mm256_set1_epi32(127)));
  return _mm256_castsi256_ps(_mm256_or_si256(_mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFF)), one));
}
// x = mantissa * 2^power, 1 <= mantissa < 2, for normal x above zero.
TRIMARAN_INLINE F16 split_power(F16 x, F16& power) { return {split_half(x.lo, power.lo), split_half(x.hi, power.hi)}; }
TRIMARAN_INLINE F16 scale_by_power(F16 p, F16 n) {
  const I16 i = to_int(n);
  return {_mm256_mul_ps(p.lo, power_of_two(i.lo)), _mm256_mul_ps(p.hi, power_of_two(i.hi))};
}

TRIMARAN_INLINE F16 load_half(const uint8_t* p) {
  const auto* h = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
}
TRIMARAN_INLINE __m256 widen_bf16(__m128i h) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
TRIMARAN_INLINE F16 load(const uint16_t* bf16) {
  const auto* h = reinterpret_cast<const __m128i*>(bf16);
  return {widen_bf16(_mm_loadu_si128(h)), widen_bf16(_mm_loadu_si128(h + 1))};
}
TRIMARAN_INLINE F16 load_256ths(const uint8_t* e4m3) {
  const __m256i h = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(e4m3)));
  const __m256i half = _mm256_and_si256(_mm256_slli_epi16(h, 7), _mm256_set1_epi16(int16_t(0xBFFF)));
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(half)), _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
}
TRIMARAN_INLINE __m256i round_bf16(__m256 a) {
  const __m256i u = _mm256_castps_si256(a), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, odd), _mm256_set1_epi32(0x7FFF)), 16);
}
TRIMARAN_INLINE void store(uint16_t* bf16, F16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(bf16), narrow16({round_bf16(a.lo), round_bf16(a.hi)}, false));
}

TRIMARAN_INLINE Bytes load_bytes(const uint8_t* p) {
  const auto* v = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
TRIMARAN_INLINE Bytes low_nibbles(Bytes a) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)};
}
TRIMARAN_INLINE Bytes high_nibbles(Bytes a) {
  return low_nibbles({_mm256_srli_epi16(a.lo, 4), _mm256_srli_epi16(a.hi, 4)});
}
TRIMARAN_INLINE void store_bytes(uint8_t* p, Bytes a) {
  auto* v = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(v, a.lo);
  _mm256_storeu_si256(v + 1, a.hi);
}
TRIMARAN_INLINE Bytes join_low_nibbles(Bytes upper, Bytes lower) {
  const Bytes u = low_nibbles(upper), l = low_nibbles(lower);
  return {_mm256_or_si256(_mm256_slli_epi16(u.lo, 4), l.lo), _mm256_or_si256(_mm256_slli_epi16(u.hi, 4), l.hi)};
}
TRIMARAN_INLINE Bytes join_high_nibbles(Bytes upper, Bytes lower) {
  const __m256i mask = _mm256_set1_epi8(15);
  const Bytes l = high_nibbles(lower);
  return {_mm256_or_si256(_mm256_andnot_si256(mask, upper.lo), l.lo),
          _mm256_or_si256(_mm256_andnot_si256(mask, upper.hi), l.hi)};
}
TRIMARAN_INLINE F16 gather(const float* p, const uint16_t* places) {
  const auto* at = reinterpret_cast<const __m128i*>(places);
  return {_mm256_i32gather_ps(p, _mm256_cvtepu16_epi32(_mm_loadu_si128(at)), 4),
          _mm256_i32gather_ps(p, _mm256_cvtepu16_epi32(_mm_loadu_si128(at + 1)), 4)};
}
template <int S>
TRIMARAN_INLINE Bytes shift_and(Bytes a, uint32_t mask) {
  const __m256i m = _mm256_set1_epi32(int32_t(mask));
  if constexpr (S < 0) {
    return {_mm256_and_si256(_mm256_slli_epi32(a.lo, -S), m), _mm256_and_si256(_mm256_slli_epi32(a.hi, -S), m)};
  } else {
    return {_mm256_and_si256(_mm256_srli_epi32(a.lo, S), m), _mm256_and_si256(_mm256_srli_epi32(a.hi, S), m)};
  }
}
TRIMARAN_INLINE Bytes or_bytes(Bytes a, Bytes b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
TRIMARAN_INLINE __m256i look_up_half(const uint8_t* tables, __m256i codes) {
  const auto column = [&](int j) TRIMARAN_BODY {
    return _mm256_shuffle_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(tables + 64 * j)), codes);
  };
  const __m256i low = _mm256_blend_epi32(column(0), column(1), 0x22);
  return _mm256_blend_epi32(low, _mm256_blend_epi32(column(2), column(3), 0x88), 0xCC);
}
TRIMARAN_INLINE Bytes look_up(const uint8_t* tables, Bytes codes) {
  return {look_up_half(tables, codes.lo), look_up_half(tables + 32, codes.hi)};
}
template <int I>
TRIMARAN_INLINE F16 tiny_e4m3(Bytes a) {
  const __m256i mask = _mm256_set1_epi32(int32_t(0x87F00000));
  const __m256i lo = _mm256_srai_epi32(_mm256_slli_epi32(a.lo, 24 - 8 * I), 4);
  const __m256i hi = _mm256_srai_epi32(_mm256_slli_epi32(a.hi, 24 - 8 * I), 4);
  return {_mm256_castsi256_ps(_mm256_and_si256(lo, mask)), _mm256_castsi256_ps(_mm256_and_si256(hi, mask))};
}
TRIMARAN_INLINE F16 even_bf16(Bytes a) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(a.lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(a.hi, 16))};
}
TRIMARAN_INLINE F16 odd_bf16(Bytes a) {
  const __m256i mask = _mm256_set1_epi32(int32_t(0xFFFF0000));
  return {_mm256_castsi256_ps(_mm256_and_si256(a.lo, mask)), _mm256_castsi256_ps(_mm256_and_si256(a.hi, mask))};
}
template <int I>
TRIMARAN_INLINE F16 byte_to_float(Bytes a) {
  const __m256i mask = _mm256_set1_epi32(255);
  return to_float(I16{_mm256_and_si256(_mm256_srli_epi32(a.lo, 8 * I), mask),
                      _mm256_and_si256(_mm256_srli_epi32(a.hi, 8 * I), mask)});
}

TRIMARAN_INLINE Quad load_quad(const int8_t* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return _mm256_set1_epi32(v);
}
TRIMARAN_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
// To the second cache, which takes more at once and has room for what comes later.
TRIMARAN_INLINE void prefetch_second(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

}  // namespace trimaran::TRIMARAN_ISA
