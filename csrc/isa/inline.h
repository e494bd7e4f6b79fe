// What every instruction set's kernels share: forced inlining and loops whose index is a constant, so that arrays of
// accumulators always become registers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#define TRIMARAN_INLINE __attribute__((always_inline)) inline
#define TRIMARAN_BODY __attribute__((always_inline))
