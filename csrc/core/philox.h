// Philox4x32-10, a counter-based random number generator with the same results on CPU and GPU.
// Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC'11).
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define DS_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define DS_HOST_DEVICE inline
#endif

namespace ds {

/// A block of four random words.
struct Philox4 {
  uint32_t v[4];
};

/// Returns block `counter` of the stream (seed, offset), four 32-bit words. Element i of a tensor
/// uses word i % 4 of block i / 4, for any number of threads. Each call of an op uses a new
/// `offset`, so that two calls never share a block.
DS_HOST_DEVICE Philox4 philox(uint64_t seed, uint64_t offset, uint64_t counter) {
  uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32);
  uint32_t c2 = static_cast<uint32_t>(offset), c3 = static_cast<uint32_t>(offset >> 32);
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// Converts a 32-bit word to a float in [0, 1) with 24 random bits. Exact on all back ends.
DS_HOST_DEVICE float unit_float(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

}  // namespace ds
