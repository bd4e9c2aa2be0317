// A counter in GPU memory per stream, from which persistent kernels take units of work.
#pragma once

#include <cuda_runtime_api.h>

namespace ds::cuda {

/// Kernels of a stream share a counter, because they run in order. Each kernel resets it to 0.
class StreamCounters {
 public:
  StreamCounters() = default;
  ~StreamCounters();
  StreamCounters(const StreamCounters&) = delete;
  StreamCounters& operator=(const StreamCounters&) = delete;

  /// Returns the counter of a stream of the current device, or null if all counters are in use.
  unsigned* of(cudaStream_t stream);
  /// Frees the counter of a stream without pending work.
  void forget(cudaStream_t stream);

 private:
  static constexpr int kCounters = 64, kStride = 32;  // 128 bytes apart, on separate cache lines
  unsigned* memory_ = nullptr;
  cudaStream_t owners_[kCounters] = {};
};

}  // namespace ds::cuda
