// Waits of host threads for events, asleep.
#pragma once

#include <cuda_runtime_api.h>

#include <mutex>
#include <vector>

namespace ds::cuda {

/// A thread that spins takes a core from the host work that it waits for, so a wait sleeps: on an
/// event of its own, made with cudaEventBlockingSync. Events that only order streams are without
/// it: beyond about a hundred of that kind that are recorded ahead of the GPU, the driver lets the
/// next kernel's launch wait for one of them (28 tiles of state with four each, measured).
class SleepingWaits {
 public:
  SleepingWaits() = default;
  SleepingWaits(const SleepingWaits&) = delete;
  SleepingWaits& operator=(const SleepingWaits&) = delete;
  ~SleepingWaits();
  /// The GPU is the calling thread's current one.
  void await(cudaEvent_t event);

 private:
  /// A stream that follows what is awaited, and its end.
  struct Place {
    cudaStream_t stream = nullptr;
    cudaEvent_t end = nullptr;
  };
  Place take();

  std::mutex mutex_;
  std::vector<Place> idle_;  // as many as threads have waited at once
};

}  // namespace ds::cuda
