// Which instruction sets this build has and this processor can run.
#pragma once
#include <string>
#include <vector>

#include "kernels.h"

namespace trimaran {

// The usable kernel tables, best first; "generic" is always the last.
const std::vector<const Kernels*>& usable_kernels();

// The table of that name; throws std::invalid_argument that lists the choices.
const Kernels& find_kernels(const std::string& isa);

}  // namespace trimaran
