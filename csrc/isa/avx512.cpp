// clang-format off
#include "isa/vec_avx512.h"
#define TRIMARAN_ISA avx512
#include "ops/table.h"
// clang-format on
