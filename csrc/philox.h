// Philox4x64-10 (Salmon et al. 2011): random numbers as a function of a key and a counter.
#pragma once
#include <cstdint>

namespace trimaran {

// A number in [0, 1): the first that numpy.random.Philox(key=key, counter=position) gives.
inline double uniform(uint64_t key, uint64_t position) {
  uint64_t c[4] = {position + 1, position + 1 == 0, 0, 0}, k[2] = {key, 0};  // it counts before it draws
  for (int round = 0; round < 10; round++) {
    const auto a = static_cast<unsigned __int128>(0xD2E7470EE14C6C93) * c[0];
    const auto b = static_cast<unsigned __int128>(0xCA5A826395121157) * c[2];
    const uint64_t next[4] = {uint64_t(b >> 64) ^ c[1] ^ k[0], uint64_t(b), uint64_t(a >> 64) ^ c[3] ^ k[1],
                              uint64_t(a)};
    for (int i = 0; i < 4; i++) c[i] = next[i];
    k[0] += 0x9E3779B97F4A7C15, k[1] += 0xBB67AE8584CAA73B;
  }
  return double(c[0] >> 11) * 0x1p-53;
}

}  // namespace trimaran
