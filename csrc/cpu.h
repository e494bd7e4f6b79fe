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

// Whether attention is quicker where pages that it reads next are fetched to the first cache: so it is on AMD's family
// 26 (Zen 5, by a tenth), but not on family 25 (Zen 4, where the second cache takes more lines at once: 1.08 to 1.2
// times as fast).
bool fetches_to_first_cache();

}  // namespace trimaran
