// Streams and events for waiting threads.
#include "sleeping_waits.h"

#include "cuda_error.h"

namespace ds::cuda {

namespace {

constexpr const char* kOp = "synchronize";

}  // namespace

SleepingWaits::~SleepingWaits() {
  for (const Place& place : idle_) {
    cudaEventDestroy(place.end);
    cudaStreamDestroy(place.stream);
  }
}

void SleepingWaits::await(cudaEvent_t event) {
  const Place place = take();
  // After a failed wait the device is lost, so the place is not reused.
  DS_CUDA(cudaStreamWaitEvent(place.stream, event, cudaEventWaitDefault), kOp);
  DS_CUDA(cudaEventRecord(place.end, place.stream), kOp);
  DS_CUDA(cudaEventSynchronize(place.end), kOp);
  const std::lock_guard lock(mutex_);
  idle_.push_back(place);
}

SleepingWaits::Place SleepingWaits::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      const Place place = idle_.back();
      idle_.pop_back();
      return place;
    }
  }
  constexpr unsigned kFlags = cudaEventDisableTiming | cudaEventBlockingSync;
  Place place;
  DS_CUDA(cudaStreamCreateWithFlags(&place.stream, cudaStreamNonBlocking), kOp);
  if (const cudaError_t status = cudaEventCreateWithFlags(&place.end, kFlags);
      status != cudaSuccess) {
    cudaStreamDestroy(place.stream);
    fail(status, "cudaEventCreateWithFlags", kOp);
  }
  return place;
}

}  // namespace ds::cuda
