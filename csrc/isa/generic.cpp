// clang-format off
#define TRIMARAN_ISA generic
#include "isa/vec_generic.h"
#include "ops/table.h"
// clang-format on
