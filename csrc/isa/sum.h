// A vector of dot products where an accumulator holds 32-bit integers. Included once dot4 of the set is declared.
#pragma once

namespace trimaran::TRIMARAN_ISA {

// A vector of dot products in the making: end(start) after begin(start) and add()s is start + all that was added.
template <class Weights>
struct Sum {
  I16 acc;
  TRIMARAN_INLINE void begin(I16 start) {
    acc = start;
    keep_apart(acc);
  }
  TRIMARAN_INLINE void add(const Weights& w, Quad x) { dot4(acc, w, x); }
  TRIMARAN_INLINE I16 end(I16) const { return acc; }
};

}  // namespace trimaran::TRIMARAN_ISA
