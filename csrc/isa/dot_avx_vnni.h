// Integer dot products on AVX-VNNI: vpdpbusd on vectors of 256 bits. See vec_avx512.h.
#pragma once
#include "isa/vec_avx2.h"

namespace trimaran::TRIMARAN_ISA {

constexpr int kIntRows = 6, kIntRowsOfBoth = 2;
constexpr bool kBiasedInt8 = true;

TRIMARAN_INLINE void keep_apart(I16& a) { asm("" : "+x"(a.lo), "+x"(a.hi)); }

struct Small {
  Bytes w;
  TRIMARAN_INLINE explicit Small(Bytes b) : w(b) {}
};
struct Full {
  Bytes w;
  TRIMARAN_INLINE explicit Full(Bytes b) : w(b) {}
};
// {vex}: assemblers prefer the AVX-512 form of the same name.
template <class Weights>
TRIMARAN_INLINE void dot4(I16& acc, const Weights& w, Quad x) {
  asm volatile("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc.lo) : "x"(w.w.lo), "x"(x));
  asm volatile("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc.hi) : "x"(w.w.hi), "x"(x));
}

struct WeightQuad {
  Quad w;
};
TRIMARAN_INLINE WeightQuad load_weights(const uint8_t* p) { return {load_quad(reinterpret_cast<const int8_t*>(p))}; }
TRIMARAN_INLINE void dot4(I16& acc, const WeightQuad& w, Bytes v) {
  asm volatile("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc.lo) : "x"(w.w), "x"(v.lo));
  asm volatile("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc.hi) : "x"(w.w), "x"(v.hi));
}

}  // namespace trimaran::TRIMARAN_ISA

#include "isa/sum.h"
