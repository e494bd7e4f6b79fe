// clang-format off
#include "isa/vec_avx2.h"
#define TRIMARAN_ISA avx2
#include "ops/table.h"
// clang-format on
