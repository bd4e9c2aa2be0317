// The host queue's shared words and its thread.
#include "host_queue.h"

#include <cuda.h>

#include <chrono>
#include <new>
#include <type_traits>

#include "../core/error.h"
#include "../core/start_threads.h"
#include "cuda_error.h"
#include "pinned_memory.h"

namespace ds::cuda {
namespace {

constexpr const char* kOp = "launch_host";

/// The thread polls without a pause for kEager, then every kPause. From one task to the next a
/// stream takes about 10 us, but a gradient takes milliseconds.
constexpr auto kEager = std::chrono::microseconds(100), kPause = std::chrono::microseconds(20);

/// Functions of the driver API without an equivalent in the runtime API.
struct StreamMemory {
  decltype(&cuStreamWriteValue32) write;
  decltype(&cuStreamWaitValue32) wait;
};

template <class Function>
Function* entry_point(const char* name) {
  constexpr unsigned kSince = 12000;
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  DS_CUDA(cudaGetDriverEntryPointByVersion(name, &found, kSince, cudaEnableDefault, &result), kOp);
  if (!found) {
    throw Error("DS_CUDA", kOp, text("a driver with ", name), "none", "Update the NVIDIA driver.");
  }
  return reinterpret_cast<Function*>(found);
}

const StreamMemory& stream_memory() {
  static const StreamMemory found{
      entry_point<std::remove_pointer_t<decltype(&cuStreamWriteValue32)>>("cuStreamWriteValue32"),
      entry_point<std::remove_pointer_t<decltype(&cuStreamWaitValue32)>>("cuStreamWaitValue32")};
  return found;
}

void check_driver(CUresult status, const char* what) {
  if (status == CUDA_SUCCESS) return;
  throw Error("DS_CUDA", kOp, text(what, " to succeed"), text("driver error ", int{status}),
              "Earlier work on this GPU may have failed; see the errors before this one.");
}

CUdeviceptr address_of(const std::atomic<uint32_t>& word) {
  return reinterpret_cast<CUdeviceptr>(&word);
}

/// Returns true if `count` has reached `turn`. Both are modulo 2^32.
bool has_come(uint32_t count, uint32_t turn) { return static_cast<int32_t>(count - turn) >= 0; }

}  // namespace

/// Words of page-locked memory. Each has a cache line of its own, because one side writes it while
/// the other polls it.
struct HostQueue::Words {
  /// Number of the last task that the stream has reached.
  alignas(64) std::atomic<uint32_t> reached;
  /// Number of the last task that has run.
  alignas(64) std::atomic<uint32_t> run;
};

HostQueue::HostQueue(cudaStream_t stream)
    : stream_(stream), words_(new(allocate_pinned_pages(sizeof(Words))) Words{}) {
  static_assert(std::atomic<uint32_t>::is_always_lock_free);
  try {
    stream_memory();
    thread_ = start_thread(kOp, "a thread for host work of a stream", [this] { this->run(); });
  } catch (...) {
    release_pinned_pages(words_, sizeof(Words));
    throw;
  }
}

HostQueue::~HostQueue() {
  const bool passed = await_end();
  drop();
  thread_.join();
  // Otherwise the stream may still read the words.
  if (passed) release_pinned_pages(words_, sizeof(Words));
}

bool HostQueue::await_end() const {
  while (!dropped_) {
    const cudaError_t status = cudaStreamQuery(stream_);
    if (status == cudaSuccess) return true;
    static_cast<void>(cudaGetLastError());
    if (status != cudaErrorNotReady) return false;
    std::this_thread::sleep_for(kPause);
  }
  return false;
}

void HostQueue::drop() {
  const std::lock_guard lock(mutex_);
  dropped_ = true;
  changed_.notify_one();
}

void HostQueue::push(std::function<void()> task) {
  const StreamMemory& memory = stream_memory();
  const uint32_t turn = ++turns_;
  check_driver(
      memory.write(stream_, address_of(words_->reached), turn, CU_STREAM_WRITE_VALUE_DEFAULT),
      "cuStreamWriteValue32");
  check_driver(memory.wait(stream_, address_of(words_->run), turn, CU_STREAM_WAIT_VALUE_GEQ),
               "cuStreamWaitValue32");
  const std::lock_guard lock(mutex_);
  tasks_.push_back({turn, std::move(task)});
  changed_.notify_one();
}

void HostQueue::run() {
  for (;;) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return dropped_ || !tasks_.empty(); });
      if (dropped_) break;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    if (await_stream(task.turn)) task.body();
    words_->run.store(task.turn, std::memory_order_release);
  }
  // Ends all waits of the stream.
  words_->run.store(turns_, std::memory_order_release);
}

bool HostQueue::await_stream(uint32_t turn) const {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  while (!has_come(words_->reached.load(std::memory_order_acquire), turn)) {
    if (dropped_) return false;
    if (Clock::now() - begin > kEager) std::this_thread::sleep_for(kPause);
  }
  return true;
}

}  // namespace ds::cuda
