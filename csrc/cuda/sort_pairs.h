// A stable sort of 32-bit keys with the positions that they bring along.
#pragma once

#include "cuda_context.h"

namespace ds::cuda {

/// At most `most` keys and positions (fewer than 2^31) in scratch, and room to sort them. `keys`
/// and `positions` are the current ones: fill them, call sort(), read them, fill them anew; a sort
/// by several words begins with the lowest.
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
