// The limit of shared memory per thread block.
#pragma once

#include <cstddef>

namespace ds::cuda {

/// Bytes that a block may request on all GPUs from compute capability 8.0 on. It is the limit of
/// 8.6, 8.9 and 12.x; 8.0 allows 163 KiB.
constexpr size_t kSharedMemoryOfAll = 99 * 1024;

}  // namespace ds::cuda
