// clang-format off
#include "isa/vec_generic.h"
#define TRIMARAN_ISA generic
#include "ops/table.h"
// clang-format on
