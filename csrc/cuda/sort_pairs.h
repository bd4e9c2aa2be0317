// A stable sort of 32-bit keys and their positions.
#pragma once

#include "cuda_context.h"

namespace ds::cuda {

/// Scratch for up to `most` (below 2^31) keys and positions. `keys` and `positions` point to the
/// current arrays: fill them, call sort(), then read them. To sort by several words, sort by the
/// lowest word first.
struct SortedPairs {
  uint32_t *keys, *positions;

  SortedPairs(const char* op, int64_t most, CudaContext& ctx);

  /// Sorts the first n pairs by the lowest `bits` bits of their keys. Equal keys keep their order.
  void sort(int64_t n, int bits);

 private:
  const char* op_;
  cudaStream_t stream_;
  uint32_t *other_keys_, *other_positions_;
  void* temporary_;
  size_t bytes_ = 0;
};

/// Returns the number of bits, at least 1, of the numbers 0 to `most`.
inline int bits_for(uint64_t most) {
  int bits = 1;
  while (bits < 64 && most >> bits) ++bits;
  return bits;
}

}  // namespace ds::cuda
