// clang-format off
#define TRIMARAN_ISA avx2
#include "isa/dot_avx2.h"
#include "ops/table.h"
// clang-format on
