// clang-format off
#define TRIMARAN_ISA avx512
#include "isa/vec_avx512.h"
#include "ops/table.h"
// clang-format on
