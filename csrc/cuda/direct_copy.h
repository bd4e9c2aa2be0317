// Copies between a GPU and page-locked memory that a kernel makes, past the copy engines.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace ds::cuda {

/// Copies of at most so many bytes are all made so: an engine is no faster with them.
constexpr size_t kFewBytes = size_t{256} << 10;

/// Whether copy_directly() reaches PCIe's rate.
bool in_wide_words(const void* dst, const void* src, size_t bytes);

/// Copies `bytes` in the order of `stream`. Both addresses are the device's. An engine takes copies
/// stream by stream, whatever their priorities: what compute waits for would come after all that
/// another stream has enqueued (measured on an H200: few bytes 89 ms behind 4.8 GB on their way,
/// where a kernel takes 0.14; the weights of a block 25 ms behind state, where it takes 2).
void copy_directly(void* dst, const void* src, size_t bytes, cudaStream_t stream);

}  // namespace ds::cuda
