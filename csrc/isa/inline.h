// What every instruction set's kernels share: forced inlining and loops whose index is a constant, so that arrays of
// accumulators always become registers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#define TRIMARAN_INLINE __attribute__((always_inline)) inline
#define TRIMARAN_BODY __attribute__((always_inline))

// a * b + c, rounded once where the set has an instruction for it.
static TRIMARAN_INLINE float fused(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// Where no instruction packs the selected lanes of a vector.
static TRIMARAN_INLINE int copy_selected(float* p, uint32_t mask, const float* lanes) {
  int n = 0;
  for (; mask; mask &= mask - 1) p[n++] = lanes[__builtin_ctz(mask)];
  return n;
}
