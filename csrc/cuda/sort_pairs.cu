// A stable sort of 32-bit keys and their positions, by CUB's radix sort.
#include "sort_pairs.h"

#include <cub/device/device_radix_sort.cuh>
#include <utility>

namespace ds::cuda {

SortedPairs::SortedPairs(const char* op, int64_t most, CudaContext& ctx)
    : op_(op), stream_(ctx.stream) {
  uint32_t* const buffer = ctx.scratch_of<uint32_t>(size_t{4} * most);
  keys = buffer;
  other_keys_ = buffer + most;
  positions = buffer + 2 * most;
  other_positions_ = buffer + 3 * most;
  const cudaError_t asked =
      cub::DeviceRadixSort::SortPairs(nullptr, bytes_, keys, other_keys_, positions,
                                      other_positions_, static_cast<int32_t>(most), 0, 32, stream_);
  DS_CUDA(asked, op_);
  temporary_ = ctx.scratch(bytes_);
}

void SortedPairs::sort(int64_t n, int bits) {
  size_t bytes = bytes_;
  const cudaError_t sorted =
      cub::DeviceRadixSort::SortPairs(temporary_, bytes, keys, other_keys_, positions,
                                      other_positions_, static_cast<int32_t>(n), 0, bits, stream_);
  DS_CUDA(sorted, op_);
  std::swap(keys, other_keys_);
  std::swap(positions, other_positions_);
}

}  // namespace ds::cuda
