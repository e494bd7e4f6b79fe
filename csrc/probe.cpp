// What this machine can do at best: read bandwidth for a footprint, peak multiply-adds, and how fast threads meet. The
// benchmarks divide by it. A module of its own (trimaran._probe), so that nothing of it is ever loaded to serve.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "team.h"

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

// --- Reading. What is fastest differs between machines, caches and memory: one stream a thread that prefetches far
// ahead, or two that prefetch near. Passes take turns, so that the best of them is the best way. Both suit 4 KB pages
// too, where the hardware's own prefetchers stop at the end of each page. ---

constexpr size_t kLine = 64, kFar = 7168, kNear = 512;

uint64_t read_generic(const char* base, size_t bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes; i += kLine) {
    const auto* words = reinterpret_cast<const uint64_t*>(base + i);
    for (int k = 0; k < 8; ++k) sum ^= words[k];
  }
  return sum;
}

#if defined(__x86_64__)
template <int kStreams, size_t kAhead>
__attribute__((target("avx2"))) uint64_t read_avx2(const char* base, size_t bytes) {
  const size_t stream = bytes / kStreams;
  __m256i sum[kStreams] = {};
  for (size_t i = 0; i < stream; i += kLine)
    for (int s = 0; s < kStreams; ++s) {
      const char* at = base + s * stream + i;
      _mm_prefetch(at + kAhead, _MM_HINT_T0);
      const auto* halves = reinterpret_cast<const __m256i*>(at);
      sum[s] = _mm256_xor_si256(sum[s], _mm256_xor_si256(_mm256_load_si256(halves), _mm256_load_si256(halves + 1)));
    }
  for (int s = 1; s < kStreams; ++s) sum[0] = _mm256_xor_si256(sum[0], sum[s]);
  return static_cast<uint64_t>(_mm256_extract_epi64(sum[0], 0));
}

template <int kStreams, size_t kAhead>
__attribute__((target("avx512f"))) uint64_t read_avx512(const char* base, size_t bytes) {
  const size_t stream = bytes / kStreams;
  __m512i sum[kStreams] = {};
  for (size_t i = 0; i < stream; i += kLine)
    for (int s = 0; s < kStreams; ++s) {
      const char* at = base + s * stream + i;
      _mm_prefetch(at + kAhead, _MM_HINT_T0);
      sum[s] = _mm512_xor_si512(sum[s], _mm512_load_si512(at));
    }
  for (int s = 1; s < kStreams; ++s) sum[0] = _mm512_xor_si512(sum[0], sum[s]);
  return static_cast<uint64_t>(_mm512_reduce_add_epi64(sum[0]));
}
#endif

uint64_t read_all(Isa isa, bool far, const char* base, size_t bytes) {
#if defined(__x86_64__)
  if (isa == Isa::avx512) return far ? read_avx512<1, kFar>(base, bytes) : read_avx512<2, kNear>(base, bytes);
  if (isa == Isa::avx2) return far ? read_avx2<1, kFar>(base, bytes) : read_avx2<2, kNear>(base, bytes);
#endif
  (void)isa, (void)far;
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

std::vector<double> timed_passes(int threads, int passes, const std::function<void(int, int)>& work) {
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
      work(id, p);
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
  constexpr size_t kUnit = 2 * kLine, kLeast = size_t{16} << 20;  // a pass reads at least so much: caches are fast
  const size_t share = (bytes / threads + kUnit - 1) / kUnit * kUnit, total = share * threads + kFar;
  const int repeats = static_cast<int>(std::max<size_t>(1, kLeast / std::max(bytes, kUnit)));
  char* memory = static_cast<char*>(::operator new(total, std::align_val_t{kHuge}));
  madvise(memory, total, MADV_HUGEPAGE);
  for (size_t i = 0; i < total; i += 4096) memory[i] = static_cast<char>(i >> 12);
  const Isa isa = best_isa();
  auto seconds = timed_passes(threads, passes, [&](int id, int pass) {
    uint64_t sum = 0;
    for (int r = 0; r < repeats; ++r) sum ^= read_all(isa, pass % 2 == 0, memory + id * share, share);
    g_sink ^= sum;
  });
  ::operator delete(memory, std::align_val_t{kHuge});
  for (double& s : seconds) s /= repeats;
  return seconds;
}

std::vector<double> multiply_rate(bool int8, int threads, int passes) {
  check(threads, passes);
  const Isa isa = best_isa();
  constexpr int kRounds = 2'000'000;
  std::atomic<double> done{0};
  auto seconds = timed_passes(threads, passes, [&](int, int) { done = multiply(isa, int8, kRounds); });
  std::vector<double> rates;
  for (double s : seconds) rates.push_back(done * threads / s);
  return rates;
}

// Seconds of one job of the executor's thread team: of `stages` stages in which every member waits for all the others.
std::vector<double> team_seconds(int threads, int stages, int passes) {
  check(threads, passes);
  constexpr int kJobs = 100;  // in a row, so that members are awake as they are while tokens are made
  trimaran::Team team(threads);
  std::atomic<int64_t> arrived{0};
  int64_t met = 0;  // arrivals before the job that runs
  std::vector<double> seconds;
  for (int p = -1; p < passes; ++p) {
    auto start = Clock::now();
    for (int j = 0; j < kJobs; ++j, met += int64_t{threads} * stages)
      team.run([&](trimaran::Team::Member& m) {
        for (int s = 1; s <= stages; ++s)
          team.share(m, threads, 1, [&](int, int) {  // a ticket for each, since nobody can end one alone
            arrived.fetch_add(1, std::memory_order_acq_rel);
            const int64_t all = met + int64_t{threads} * s;
            for (trimaran::Backoff b; arrived.load(std::memory_order_acquire) < all;) b.wait();
          });
      });
    if (p >= 0) seconds.push_back(since(start) / kJobs);
  }
  return seconds;
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
  m.def("team_seconds", &team_seconds, nb::arg("threads"), nb::arg("stages"), nb::arg("passes"),
        nb::call_guard<nb::gil_scoped_release>(),
        "Seconds of a job of the executor's thread team in each pass, of `stages` stages in which all meet.");
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
