// Memory for rows that are ready for a linear layer.
#pragma once
#include "kernels.h"
#include "memory.h"

namespace trimaran {

// How many rows, and how wide: as integers (two bytes a value: a wide row takes both) and as floats; 0: none.
struct ActivationShape {
  int rows, quantised_k, float_k;
};

inline size_t activation_bytes(const ActivationShape& s) {
  return Arena::padded(size_t(s.rows) * s.quantised_k * 2) +
         Arena::padded(size_t(s.rows) * s.quantised_k / kGroup * sizeof(GroupTerms)) +
         Arena::padded(size_t(s.rows) * s.float_k * sizeof(float));
}

inline Activations plan_activations(Arena& arena, const ActivationShape& s) {
  Activations a{};
  a.q_stride = 2 * size_t(s.quantised_k), a.group_stride = s.quantised_k / kGroup, a.f32_stride = s.float_k;
  if (s.quantised_k) a.q = arena.take<int8_t>(s.rows * a.q_stride);
  if (s.quantised_k) a.groups = arena.take<GroupTerms>(s.rows * a.group_stride);
  if (s.float_k) a.f32 = arena.take<float>(s.rows * a.f32_stride);
  return a;
}

}  // namespace trimaran
