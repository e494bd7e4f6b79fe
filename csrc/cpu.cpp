#include "cpu.h"

#include <stdexcept>

namespace trimaran {

namespace avx512 {
extern const Kernels kTable;
}
namespace avx2 {
extern const Kernels kTable;
}
namespace generic {
extern const Kernels kTable;
}

const std::vector<const Kernels*>& usable_kernels() {
  static const std::vector<const Kernels*> usable = [] {
    std::vector<const Kernels*> list;
#ifdef TRIMARAN_X86
    // Every processor with AVX2 and FMA has F16C too, which some compilers cannot ask for.
    const bool avx2_base = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2_base && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vnni")) {
      list.push_back(&avx512::kTable);
    }
    if (avx2_base) list.push_back(&avx2::kTable);
#endif
    list.push_back(&generic::kTable);
    return list;
  }();
  return usable;
}

const Kernels& find_kernels(const std::string& isa) {
  std::string names;
  for (const Kernels* k : usable_kernels()) {
    if (isa == k->name) return *k;
    names += (names.empty() ? "" : ", ") + std::string(k->name);
  }
  throw std::invalid_argument("instruction set '" + isa + "' is not usable here; choose one of " + names);
}

}  // namespace trimaran
