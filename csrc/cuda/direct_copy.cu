// copy_directly(): words of 16 bytes where both addresses allow it, else bytes.
#include <algorithm>
#include <cstdint>

#include "cuda_error.h"
#include "direct_copy.h"

namespace ds::cuda {

namespace {

constexpr int kThreads = 256;
/// Enough loads on their way to hide PCIe's latency, few enough to leave compute its place.
constexpr size_t kMostBlocks = 8;

template <class Word>
__global__ void __launch_bounds__(kThreads)
    direct_copy_kernel(Word* dst, const Word* src, size_t count) {
  const size_t stride = static_cast<size_t>(gridDim.x) * kThreads;
  for (size_t i = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += stride)
    dst[i] = src[i];
}

template <class Word>
void launch(void* dst, const void* src, size_t bytes, cudaStream_t stream) {
  const size_t count = bytes / sizeof(Word);
  const size_t blocks = std::min((count + kThreads - 1) / kThreads, kMostBlocks);
  direct_copy_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<Word*>(dst), static_cast<const Word*>(src), count);
}

}  // namespace

void copy_directly(void* dst, const void* src, size_t bytes, cudaStream_t stream) {
  const auto places = reinterpret_cast<uintptr_t>(dst) | reinterpret_cast<uintptr_t>(src) | bytes;
  if (places % sizeof(uint4) == 0) launch<uint4>(dst, src, bytes, stream);
  else if (places % sizeof(uint32_t) == 0) launch<uint32_t>(dst, src, bytes, stream);
  else launch<uint8_t>(dst, src, bytes, stream);
  DS_CUDA(cudaGetLastError(), "copy");
}

}  // namespace ds::cuda
