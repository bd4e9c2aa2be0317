// A stable sort of 32-bit keys with their positions.
#pragma once

#include "cuda_context.h"

namespace ds::cuda {

/// Up to `most` keys and positions (fewer than 2^31) in scratch, and memory to sort them. `keys`
/// and `positions` point to the current arrays: fill them, call sort(), read them, fill them again.
/// A sort by several words starts with the lowest word.
struct SortedPairs {
  uint32_t *keys, *positions;

  SortedPairs(const char* op, int64_t most, CudaContext& ctx);

  /// Sorts the first n by the lowest `bits` bits of their keys; equal keys stay in their order.
  void sort(int64_t n, int bits);

 private:
  const char* op_;
  cudaStream_t stream_;
  uint32_t *other_keys_, *other_positions_;
  void* temporary_;
  size_t bytes_ = 0;
};

/// The bits of the numbers 0 to `most`, at least 1.
inline int bits_for(uint64_t most) {
  int bits = 1;
  while (bits < 64 && most >> bits) ++bits;
  return bits;
}

}  // namespace ds::cuda
