// Makes host threads sleep while they wait for an event.
#pragma once

#include <cuda_runtime_api.h>

#include <mutex>
#include <vector>

namespace ds::cuda {

/// A spinning thread takes a core from the host work that it waits for. So a wait sleeps on an
/// event of its own with cudaEventBlockingSync. Events that only order streams must not have this
/// flag: with about a hundred of them recorded ahead of the GPU, the driver makes the next launch
/// wait (measured with 28 tiles of state, four events each).
class SleepingWaits {
 public:
  SleepingWaits() = default;
  SleepingWaits(const SleepingWaits&) = delete;
  SleepingWaits& operator=(const SleepingWaits&) = delete;
  ~SleepingWaits();
  /// Blocks until `event` has happened. The GPU must be the current device of the calling thread.
  void await(cudaEvent_t event);

 private:
  /// A stream that waits for the event, and the event on which the thread sleeps.
  struct Waiter {
    cudaStream_t stream = nullptr;
    cudaEvent_t done = nullptr;
  };
  Waiter take();

  std::mutex mutex_;
  std::vector<Waiter> idle_;  // as many as threads have waited at once
};

}  // namespace ds::cuda
