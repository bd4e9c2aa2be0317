// The most shared memory that a thread block may request, by compute capability.
#pragma once

#include <cstddef>

namespace ds::cuda {

/// On every GPU from 8.0 on: the limit of 8.6, 8.9 and 12.x. On 8.0 it is 163 KiB.
constexpr size_t kSharedMemoryOfAll = 99 * 1024;

}  // namespace ds::cuda
