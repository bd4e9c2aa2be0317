// Waits of host threads for events that sleep instead of spinning.
#pragma once

#include <cuda_runtime_api.h>

#include <mutex>
#include <vector>

namespace ds::cuda {

/// A spinning thread takes a core from the host work that it waits for, so each wait sleeps on its
/// own event with cudaEventBlockingSync. Events that only order streams do not have this flag. If
/// about a hundred of such events are recorded ahead of the GPU, the driver makes the next launch
/// wait for one of them (measured: 28 tiles of state with four events each).
class SleepingWaits {
 public:
  SleepingWaits() = default;
  SleepingWaits(const SleepingWaits&) = delete;
  SleepingWaits& operator=(const SleepingWaits&) = delete;
  ~SleepingWaits();
  /// The GPU must be the current device of the calling thread.
  void await(cudaEvent_t event);

 private:
  /// A stream that waits for the given event, and the event that the thread sleeps on.
  struct Place {
    cudaStream_t stream = nullptr;
    cudaEvent_t end = nullptr;
  };
  Place take();

  std::mutex mutex_;
  std::vector<Place> idle_;  // as many as threads have waited at once
};

}  // namespace ds::cuda
