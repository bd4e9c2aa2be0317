// StreamCounters: the first use allocates the memory.
#include "stream_counters.h"

#include "cuda_error.h"

namespace ds::cuda {

StreamCounters::~StreamCounters() {
  if (memory_) cudaFree(memory_);
}

unsigned* StreamCounters::of(cudaStream_t stream) {
  int free = -1;
  for (int i = 0; i < kCounters; ++i) {
    if (owners_[i] == stream) return memory_ + i * kStride;
    if (free < 0 && owners_[i] == nullptr) free = i;
  }
  if (free < 0) return nullptr;
  if (!memory_) {
    constexpr size_t kBytes = sizeof(unsigned) * kCounters * kStride;
    DS_CUDA(cudaMalloc(reinterpret_cast<void**>(&memory_), kBytes), "counter");
    DS_CUDA(cudaMemset(memory_, 0, kBytes), "counter");
    DS_CUDA(cudaDeviceSynchronize(), "counter");
  }
  owners_[free] = stream;
  return memory_ + free * kStride;
}

void StreamCounters::forget(cudaStream_t stream) {
  for (cudaStream_t& owner : owners_)
    if (owner == stream) owner = nullptr;
}

}  // namespace ds::cuda
