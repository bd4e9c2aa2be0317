// One counter in GPU memory for each stream. Persistent kernels take numbers of work from it.
#pragma once

#include <cuda_runtime_api.h>

namespace ds::cuda {

/// Kernels of one stream run one after the other, so they share a counter. Each leaves 0.
class StreamCounters {
 public:
  StreamCounters() = default;
  ~StreamCounters();
  StreamCounters(const StreamCounters&) = delete;
  StreamCounters& operator=(const StreamCounters&) = delete;

  /// Returns the counter of a stream of the current device, or null if too many streams have one.
  unsigned* of(cudaStream_t stream);
  /// Frees the counter of a stream without work.
  void forget(cudaStream_t stream);

 private:
  static constexpr int kCounters = 64, kStride = 32;  // 128 bytes apart: a cache line each
  unsigned* memory_ = nullptr;
  cudaStream_t owners_[kCounters] = {};
};

}  // namespace ds::cuda
