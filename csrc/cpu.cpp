#include "cpu.h"

#include <stdexcept>

#ifdef TRIMARAN_X86
#include <cpuid.h>
#endif

namespace trimaran {

namespace avx512 {
extern const Kernels kTable;
}
namespace avx_vnni {
extern const Kernels kTable;
}
namespace avx2 {
extern const Kernels kTable;
}
namespace generic {
extern const Kernels kTable;
}

namespace {

#ifdef TRIMARAN_AVX_VNNI
// Not among the names that older compilers' __builtin_cpu_supports knows: leaf 7, subleaf 1, EAX bit 4. Whether the
// system keeps 256-bit registers is part of its answer for "avx2".
bool has_avx_vnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 4 & 1);
}
#endif

#ifdef TRIMARAN_X86
// AMD's family of this processor, 0 on others: leaf 1, EAX bits 8 to 11 and, where these are all set, 20 to 27 more.
int amd_family() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid(0, &eax, &ebx, &ecx, &edx) || ebx != signature_AMD_ebx || !__get_cpuid(1, &eax, &ebx, &ecx, &edx)) {
    return 0;
  }
  const int family = eax >> 8 & 15;
  return family < 15 ? family : family + int(eax >> 20 & 255);
}
#endif

}  // namespace

bool fetches_to_first_cache() {
#ifdef TRIMARAN_X86
  static const bool first = amd_family() == 26;
  return first;
#else
  return true;
#endif
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
#ifdef TRIMARAN_AVX_VNNI
    if (avx2_base && has_avx_vnni()) list.push_back(&avx_vnni::kTable);
#endif
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
