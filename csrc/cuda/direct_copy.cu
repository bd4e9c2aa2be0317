// copy_directly(): copies words of 16 or 4 bytes if addresses and size allow it, otherwise bytes.
#include <algorithm>
#include <cstdint>

#include "dependent_launch.cuh"
#include "direct_copy.h"

namespace ds::cuda {

namespace {

constexpr int kThreads = 1024, kWarpSize = 32;
/// Words that each thread has in flight.
constexpr int kEach = 4;
/// 128 KiB in flight hide the latency of PCIe. Compute keeps the other SMs.
constexpr size_t kMostBlocks = 2;

/// Copies `count` words. One of the pointers is page-locked host memory, as the GPU addresses it.
/// Each thread has kEach loads in flight.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    direct_copy_kernel(Word* dst, const Word* src, size_t count) {
  await_previous();
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i + (kEach - 1) * stride < count; i += kEach * stride) {
    Word words[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) words[k] = src[i + k * stride];
#pragma unroll
    for (int k = 0; k < kEach; ++k) dst[i + k * stride] = words[k];
  }
  for (; i < count; i += stride) dst[i] = src[i];
}

template <class Word>
void launch(void* dst, const void* src, size_t bytes, cudaStream_t stream, bool behind) {
  const size_t count = bytes / sizeof(Word), warps = (count + kWarpSize - 1) / kWarpSize;
  const size_t blocks = std::min((count + kThreads - 1) / kThreads, kMostBlocks);
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t how = {};
  how.gridDim = dim3(static_cast<unsigned>(blocks));
  how.blockDim = dim3(static_cast<unsigned>(std::min<size_t>(kThreads, warps * kWarpSize)));
  how.stream = stream;
  how.attrs = &early;
  how.numAttrs = behind ? 1 : 0;
  DS_CUDA(cudaLaunchKernelEx(&how, direct_copy_kernel<Word>, static_cast<Word*>(dst),
                             static_cast<const Word*>(src), count),
          "copy");
}

/// Returns a number with as many factors of 2 as both addresses and the size have in common.
uintptr_t places_of(const void* dst, const void* src, size_t bytes) {
  return reinterpret_cast<uintptr_t>(dst) | reinterpret_cast<uintptr_t>(src) | bytes;
}

}  // namespace

bool in_wide_words(const void* dst, const void* src, size_t bytes) {
  return places_of(dst, src, bytes) % sizeof(uint4) == 0;
}

void copy_directly(void* dst, const void* src, size_t bytes, cudaStream_t stream, bool behind) {
  if (bytes == 0) return;
  const uintptr_t places = places_of(dst, src, bytes);
  if (places % sizeof(uint4) == 0) launch<uint4>(dst, src, bytes, stream, behind);
  else if (places % sizeof(uint32_t) == 0) launch<uint32_t>(dst, src, bytes, stream, behind);
  else launch<uint8_t>(dst, src, bytes, stream, behind);
}

}  // namespace ds::cuda
