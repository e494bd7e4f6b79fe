// clang-format off
#define TRIMARAN_ISA avx_vnni
#include "isa/dot_avx_vnni.h"
#include "ops/table.h"
// clang-format on
