// Streams and events for waiting threads.
#include "sleeping_waits.h"

#include "cuda_error.h"

namespace ds::cuda {

namespace {

constexpr const char* kOp = "synchronize";

}  // namespace

SleepingWaits::~SleepingWaits() {
  for (const Waiter& waiter : idle_) {
    cudaEventDestroy(waiter.done);
    cudaStreamDestroy(waiter.stream);
  }
}

void SleepingWaits::await(cudaEvent_t event) {
  const Waiter waiter = take();
  // After a failed wait the device is lost, so its stream and event are not reused.
  DS_CUDA(cudaStreamWaitEvent(waiter.stream, event, cudaEventWaitDefault), kOp);
  DS_CUDA(cudaEventRecord(waiter.done, waiter.stream), kOp);
  DS_CUDA(cudaEventSynchronize(waiter.done), kOp);
  const std::lock_guard lock(mutex_);
  idle_.push_back(waiter);
}

SleepingWaits::Waiter SleepingWaits::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      const Waiter waiter = idle_.back();
      idle_.pop_back();
      return waiter;
    }
  }
  constexpr unsigned kFlags = cudaEventDisableTiming | cudaEventBlockingSync;
  Waiter waiter;
  DS_CUDA(cudaStreamCreateWithFlags(&waiter.stream, cudaStreamNonBlocking), kOp);
  if (const cudaError_t status = cudaEventCreateWithFlags(&waiter.done, kFlags);
      status != cudaSuccess) {
    cudaStreamDestroy(waiter.stream);
    fail(status, "cudaEventCreateWithFlags", kOp);
  }
  return waiter;
}

}  // namespace ds::cuda
