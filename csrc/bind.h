// The parts of the Python module. Array types state dtype, rank and contiguity; nothing is converted.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "program.h"

namespace nb = nanobind;

namespace trimaran {

template <class T, int Rank>
using Array = nb::ndarray<const T, nb::ndim<Rank>, nb::c_contig, nb::device::cpu>;
template <class T, int Rank>
using OptionalArray = std::optional<Array<T, Rank>>;

void bind_weights(nb::module_& m);
void bind_sampler(nb::module_& m);
// What a program does once it is built.
void bind_steps(nb::class_<Program>& program);

}  // namespace trimaran
