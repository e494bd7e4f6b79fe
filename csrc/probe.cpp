// What this machine can do at best: read bandwidth for a footprint, and peak multiply-adds. The benchmarks divide by
// it. A module of its own (trimaran._probe), so that nothing of it is ever loaded to serve.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

enum class Isa { generic, avx2, avx512 };

Isa best_isa() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni"))
    return Isa::avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
#endif
  return Isa::generic;
}

// --- Reading: a thread walks four streams of its share at once, prefetching ahead, which suits 4 KB pages too. ---

constexpr size_t kLine = 64, kAhead = 1536;

uint64_t read_generic(const char* base, size_t bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes; i += kLine) {
    const auto* words = reinterpret_cast<const uint64_t*>(base + i);
    for (int k = 0; k < 8; ++k) sum ^= words[k];
  }
  return sum;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) uint64_t read_avx2(const char* base, size_t bytes) {
  const size_t stream = bytes / 4 / kLine * kLine;
  __m256i sum = _mm256_setzero_si256();
  for (size_t i = 0; i < stream; i += kLine)
    for (int s = 0; s < 4; ++s) {
      const char* at = base + s * stream + i;
      _mm_prefetch(at + kAhead, _MM_HINT_T0);
      sum = _mm256_xor_si256(sum, _mm256_xor_si256(_mm256_load_si256(reinterpret_cast<const __m256i*>(at)),
                                                   _mm256_load_si256(reinterpret_cast<const __m256i*>(at + 32))));
    }
  return static_cast<uint64_t>(_mm256_extract_epi64(sum, 0));
}

__attribute__((target("avx512f"))) uint64_t read_avx512(const char* base, size_t bytes) {
  const size_t stream = bytes / 4 / kLine * kLine;
  __m512i sum[4] = {};
  for (size_t i = 0; i < stream; i += kLine)
    for (int s = 0; s < 4; ++s) {
      const char* at = base + s * stream + i;
      _mm_prefetch(at + kAhead, _MM_HINT_T0);
      sum[s] = _mm512_xor_si512(sum[s], _mm512_load_si512(at));
    }
  return static_cast<uint64_t>(
      _mm512_reduce_add_epi64(_mm512_xor_si512(_mm512_xor_si512(sum[0], sum[1]), _mm512_xor_si512(sum[2], sum[3]))));
}
#endif

uint64_t read_all(Isa isa, const char* base, size_t bytes) {
#if defined(__x86_64__)
  if (isa == Isa::avx512) return read_avx512(base, bytes);
  if (isa == Isa::avx2) return read_avx2(base, bytes);
#endif
  (void)isa;
  return read_generic(base, bytes);
}

// --- Multiplying: independent chains that never leave the registers. Each returns operations done (a multiply-add is
// two). ---

constexpr int kChains = 12;  // enough to hide a latency of 4-5 cycles on two ports

double fma_generic(int rounds) {
  float acc[64] = {};
  for (int r = 0; r < rounds; ++r)
    for (float& a : acc) a = a * 0.999f + 1.0f;
  volatile float keep = acc[rounds & 63];
  (void)keep;
  return 2.0 * 64 * rounds;
}

double dot_generic(int rounds) {
  int32_t acc[64] = {};
  int8_t x = static_cast<int8_t>(rounds | 1);
  for (int r = 0; r < rounds; ++r)
    for (int32_t& a : acc) a += x * static_cast<int8_t>(r);
  volatile int32_t keep = acc[rounds & 63];
  (void)keep;
  return 2.0 * 64 * rounds;
}

#if defined(__x86_64__)
// One chain a register, 4 to 15, fed from register 0; written as assembly, for compilers keep an array of them in
// memory.
#define TRIMARAN_CHAIN(OP, R, N) OP " %%" R "0, %%" R "0, %%" R N "\n\t"
// clang-format off
#define TRIMARAN_CHAINS(OP, R)                                                            \
  TRIMARAN_CHAIN(OP, R, "4") TRIMARAN_CHAIN(OP, R, "5") TRIMARAN_CHAIN(OP, R, "6")        \
  TRIMARAN_CHAIN(OP, R, "7") TRIMARAN_CHAIN(OP, R, "8") TRIMARAN_CHAIN(OP, R, "9")        \
  TRIMARAN_CHAIN(OP, R, "10") TRIMARAN_CHAIN(OP, R, "11") TRIMARAN_CHAIN(OP, R, "12")     \
  TRIMARAN_CHAIN(OP, R, "13") TRIMARAN_CHAIN(OP, R, "14") TRIMARAN_CHAIN(OP, R, "15")
// clang-format on
#define TRIMARAN_CHAIN_LOOP(OP, R)            \
  asm volatile("vzeroall" ::: TRIMARAN_USED); \
  for (int r = 0; r < rounds; ++r) asm volatile(TRIMARAN_CHAINS(OP, R)::: TRIMARAN_USED)
#define TRIMARAN_USED \
  "xmm0", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"

__attribute__((target("avx2,fma"))) double fma_avx2(int rounds) {
  TRIMARAN_CHAIN_LOOP("vfmadd231ps", "ymm");
  return 2.0 * 8 * kChains * rounds;
}

__attribute__((target("avx2"))) double dot_avx2(int rounds) {  // vpmaddubsw alone: the ceiling of AVX2 without VNNI
  TRIMARAN_CHAIN_LOOP("vpmaddubsw", "ymm");
  return 2.0 * 32 * kChains * rounds;
}

__attribute__((target("avx512f"))) double fma_avx512(int rounds) {
  TRIMARAN_CHAIN_LOOP("vfmadd231ps", "zmm");
  return 2.0 * 16 * kChains * rounds;
}

__attribute__((target("avx512f,avx512vnni"))) double dot_avx512(int rounds) {
  TRIMARAN_CHAIN_LOOP("vpdpbusd", "zmm");
  return 2.0 * 64 * kChains * rounds;
}
#endif

double multiply(Isa isa, bool int8, int rounds) {
#if defined(__x86_64__)
  if (isa == Isa::avx512) return int8 ? dot_avx512(rounds) : fma_avx512(rounds);
  if (isa == Isa::avx2) return int8 ? dot_avx2(rounds) : fma_avx2(rounds);
#endif
  (void)isa;
  return int8 ? dot_generic(rounds) : fma_generic(rounds);
}

// --- Threads: all start a pass together; a pass lasts until the last one is through. ---

std::vector<double> timed_passes(int threads, int passes, const std::function<void(int)>& work) {
  std::atomic<int> arrived{0};
  auto meet = [&](int round) {
    arrived.fetch_add(1);
    while (arrived.load(std::memory_order_acquire) < threads * round) {
#if defined(__x86_64__)
      _mm_pause();
#endif
    }
  };
  std::vector<double> seconds(passes);
  auto body = [&](int id) {
    int round = 0;
    for (int p = -1; p < passes; ++p) {  // pass -1 warms up
      meet(++round);
      auto start = Clock::now();
      work(id);
      meet(++round);
      if (id == 0 && p >= 0) seconds[p] = since(start);
    }
  };
  std::vector<std::thread> team;
  for (int id = 1; id < threads; ++id) team.emplace_back(body, id);
  body(0);
  for (auto& member : team) member.join();
  return seconds;
}

std::atomic<uint64_t> g_sink;  // keeps what was read alive

void check(int threads, int passes) {
  if (threads < 1 || threads > 256 || passes < 1)
    throw std::invalid_argument("threads must be 1..256 and passes at least 1");
}

std::vector<double> read_seconds(size_t bytes, int threads, int passes) {
  check(threads, passes);
  constexpr size_t kHuge = size_t{2} << 20;
  const size_t share = (bytes / threads + 4 * kLine - 1) / (4 * kLine) * (4 * kLine), total = share * threads + kAhead;
  char* memory = static_cast<char*>(::operator new(total, std::align_val_t{kHuge}));
  madvise(memory, total, MADV_HUGEPAGE);
  for (size_t i = 0; i < total; i += 4096) memory[i] = static_cast<char>(i >> 12);
  const Isa isa = best_isa();
  auto seconds = timed_passes(threads, passes, [&](int id) { g_sink ^= read_all(isa, memory + id * share, share); });
  ::operator delete(memory, std::align_val_t{kHuge});
  return seconds;
}

std::vector<double> multiply_rate(bool int8, int threads, int passes) {
  check(threads, passes);
  const Isa isa = best_isa();
  constexpr int kRounds = 2'000'000;
  std::atomic<double> done{0};
  auto seconds = timed_passes(threads, passes, [&](int) { done = multiply(isa, int8, kRounds); });
  std::vector<double> rates;
  for (double s : seconds) rates.push_back(done * threads / s);
  return rates;
}

}  // namespace

NB_MODULE(_probe, m) {
  namespace nb = nanobind;
  m.doc() = "Measures what this machine can do at best.";
  m.def("read_seconds", &read_seconds, nb::arg("footprint"), nb::arg("threads"), nb::arg("passes"),
        nb::call_guard<nb::gil_scoped_release>(),
        "Seconds of each pass that reads `footprint` bytes, split over `threads`.");
  m.def("multiply_rate", &multiply_rate, nb::arg("int8"), nb::arg("threads"), nb::arg("passes"),
        nb::call_guard<nb::gil_scoped_release>(),
        "Operations a second of each pass (a multiply-add is two): int8 dot products, or float32 FMA.");
  m.def("isa", [] {
    switch (best_isa()) {
      case Isa::avx512:
        return "avx512vnni";
      case Isa::avx2:
        return "avx2";
      default:
        return "generic";
    }
  });
}
