// Integer dot products on AVX2 alone: two instructions that multiply and an addition. See vec_avx512.h.
#pragma once
#include "isa/vec_avx2.h"

namespace trimaran::TRIMARAN_ISA {

constexpr int kIntRows = 4, kIntRowsOfBoth = 1;
constexpr bool kBiasedInt8 = false;  // dot4 recovers the sign itself: see below

TRIMARAN_INLINE void keep_apart(I16& a) { asm("" : "+x"(a.lo), "+x"(a.hi)); }

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
// Written as assembly for the same reason as in vec_avx512.h: the intrinsics' accumulators would be spilled.
TRIMARAN_INLINE void dot_half(__m256i& acc, __m256i u, __m256i s) {
  __m256i t;
  asm volatile(
      "vpmaddubsw %3, %2, %1\n\t"
      "vpmaddwd %4, %1, %1\n\t"
      "vpaddd %1, %0, %0"
      : "+x"(acc), "=&x"(t)
      : "x"(u), "x"(s), "x"(_mm256_set1_epi16(1)));
}
TRIMARAN_INLINE void dot_half_signed(__m256i& acc, __m256i magnitude, __m256i sign, __m256i x) {
  __m256i t;
  asm volatile(
      "vpsignb %3, %4, %1\n\t"
      "vpmaddubsw %1, %2, %1\n\t"
      "vpmaddwd %5, %1, %1\n\t"
      "vpaddd %1, %0, %0"
      : "+x"(acc), "=&x"(t)
      : "x"(magnitude), "x"(sign), "x"(x), "x"(_mm256_set1_epi16(1)));
}
TRIMARAN_INLINE void dot4(I16& acc, const Small& w, Quad x) {
  dot_half(acc.lo, w.w.lo, x);
  dot_half(acc.hi, w.w.hi, x);
}
TRIMARAN_INLINE void dot4(I16& acc, const Full& w, Quad x) {
  dot_half_signed(acc.lo, w.magnitude.lo, w.sign.lo, x);
  dot_half_signed(acc.hi, w.magnitude.hi, w.sign.hi, x);
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

#include "isa/sum.h"

namespace trimaran::TRIMARAN_ISA {

// A group of 32 has eight pairs for each 16-bit lane: at most 8 * 2 * 15 * 127 < 2^15, so they are widened at its end.
template <>
struct Sum<Small> {
  I16 pairs;
  TRIMARAN_INLINE void begin(I16) {
    pairs = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    keep_apart(pairs);
  }
  TRIMARAN_INLINE static void add_half(__m256i& acc, __m256i u, __m256i s) {
    __m256i t;
    asm volatile(
        "vpmaddubsw %3, %2, %1\n\t"
        "vpaddw %1, %0, %0"
        : "+x"(acc), "=&x"(t)
        : "x"(u), "x"(s));
  }
  TRIMARAN_INLINE void add(const Small& w, Quad x) {
    add_half(pairs.lo, w.w.lo, x);
    add_half(pairs.hi, w.w.hi, x);
  }
  TRIMARAN_INLINE I16 end(I16 start) const {
    const __m256i ones = _mm256_set1_epi16(1);
    return {_mm256_add_epi32(start.lo, _mm256_madd_epi16(pairs.lo, ones)),
            _mm256_add_epi32(start.hi, _mm256_madd_epi16(pairs.hi, ones))};
  }
};

}  // namespace trimaran::TRIMARAN_ISA
