// What every instruction set's kernels share: forced inlining and loops whose index is a constant, so that arrays of
// accumulators always become registers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#define TRIMARAN_INLINE __attribute__((always_inline)) inline
#define TRIMARAN_BODY __attribute__((always_inline))

// What memory held before must be loaded again: else GCC keeps weights that a branch may need, and spills sums for
// them.
static TRIMARAN_INLINE void reload() { asm volatile("" ::: "memory"); }

// Where no instruction packs the selected lanes of a vector.
static TRIMARAN_INLINE int copy_selected(float* p, uint32_t mask, const float* lanes) {
  int n = 0;
  for (; mask; mask &= mask - 1) p[n++] = lanes[__builtin_ctz(mask)];
  return n;
}
