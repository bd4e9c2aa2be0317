// Copies between a GPU and page-locked memory by a kernel instead of a copy engine.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace ds::cuda {

/// Copies of up to this size always use the kernel: an engine is no faster for them.
constexpr size_t kFewBytes = size_t{256} << 10;

/// Returns whether copy_directly() reaches PCIe's rate.
bool in_wide_words(const void* dst, const void* src, size_t bytes);

/// Copies `bytes` in the order of `stream`. Both addresses are the device's. A copy engine
/// processes streams one after the other and ignores priorities. So a copy that compute waits for
/// would start after all bulk copies that are already enqueued.
///
///     measured on an H200                            engine    kernel
///     a few bytes, 4.8 GB of copies enqueued before   89 ms    0.14 ms
///     weights of a block, while state streams         25 ms       2 ms
void copy_directly(void* dst, const void* src, size_t bytes, cudaStream_t stream);

}  // namespace ds::cuda
