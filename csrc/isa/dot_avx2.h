// Integer dot products on AVX2 alone: two instructions that multiply and an addition. See vec_avx512.h.
#pragma once
#include "isa/vec_avx2.h"

namespace trimaran::TRIMARAN_ISA {

constexpr bool kBiasedInt8 = false;  // dot4 recovers the sign itself: see below

TRIMARAN_INLINE void keep_apart(I16&) {}

// vpmaddubsw adds pairs of products in 16 bits and saturates. Weights of 0..15 stay far below. For the others the sign
// moves from the weight to the activation: |q| <= 128 as unsigned, |x| <= 127, so a pair is at most 2 * 128 * 127 <
// 2^15.
struct Small {
  Bytes w;
  TRIMARAN_INLINE explicit Small(Bytes b) : w(b) {}
};
struct Full {
  Bytes sign, magnitude;
  TRIMARAN_INLINE explicit Full(Bytes b) {
    const __m256i flip = _mm256_set1_epi8(char(0x80));
    sign = {_mm256_xor_si256(b.lo, flip), _mm256_xor_si256(b.hi, flip)};
    magnitude = {_mm256_abs_epi8(sign.lo), _mm256_abs_epi8(sign.hi)};
  }
};
TRIMARAN_INLINE void dot_half(__m256i& acc, __m256i u, __m256i s) {
  acc = _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1)));
}
TRIMARAN_INLINE void dot4(I16& acc, const Small& w, Quad x) {
  dot_half(acc.lo, w.w.lo, x);
  dot_half(acc.hi, w.w.hi, x);
}
TRIMARAN_INLINE void dot4(I16& acc, const Full& w, Quad x) {
  dot_half(acc.lo, w.magnitude.lo, _mm256_sign_epi8(x, w.sign.lo));
  dot_half(acc.hi, w.magnitude.hi, _mm256_sign_epi8(x, w.sign.hi));
}

// Weights of attention, 0..255: the seven low bits and the high bit apart, so that no pair of products saturates.
struct WeightQuad {
  __m256i low, high;
};
TRIMARAN_INLINE WeightQuad load_weights(const uint8_t* p) {
  const Quad w = load_quad(reinterpret_cast<const int8_t*>(p));
  const __m256i high = _mm256_set1_epi8(char(0x80));
  return {_mm256_andnot_si256(high, w), _mm256_and_si256(high, w)};
}
TRIMARAN_INLINE void dot4(I16& acc, const WeightQuad& w, Bytes v) {
  dot_half(acc.lo, w.low, v.lo);
  dot_half(acc.hi, w.low, v.hi);
  dot_half(acc.lo, w.high, v.lo);
  dot_half(acc.hi, w.high, v.hi);
}

}  // namespace trimaran::TRIMARAN_ISA
