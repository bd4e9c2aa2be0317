// Watches collectives, aborts them on a thread that CUDA cannot block, and ends communicators at
// exit.
#include "nccl_communicator.h"

#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>
#include <utility>

#include "../core/error.h"
#include "cuda_error.h"

namespace ds::cuda {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kAhead = 128;
/// An abort with kAhead queued kernels takes a second. If it takes longer than this, it will not
/// end.
constexpr seconds kAbortTime{20};
constexpr milliseconds kLook{5};

/// Names the calling thread in /proc/PID/task/*/comm, to identify it in a hanging process.
void name_thread(const char* name) { pthread_setname_np(pthread_self(), name); }

/// The communicators of this process. At exit, open ones are aborted first: their kernels may wait
/// for a missing rank, and the driver's shutdown waits for the kernels. The exit handler joins
/// their threads, because they use objects that the shutdown destroys.
class Communicators {
 public:
  static Communicators& get() {
    static Communicators* all = make();
    return *all;
  }

  void add(const std::shared_ptr<NcclCommunicator>& communicator) {
    const std::lock_guard lock(mutex_);
    std::erase_if(all_, [](const auto& one) { return one.expired(); });
    all_.push_back(communicator);
  }

 private:
  /// Never destroyed. Call it after NCCL was opened, so that our exit handler runs before NCCL's.
  static Communicators* make() {
    on_exit(
        [](int status, void*) {
          if (get().interrupt_all()) return;
          // A thread is still inside NCCL or CUDA, for example on a slow machine. Further exit
          // handlers would destroy objects that it uses.
          std::fflush(nullptr);
          std::_Exit(status);
        },
        nullptr);
    return new Communicators();
  }

  /// Aborts all communicators. Returns false if one did not end in time.
  bool interrupt_all() noexcept {
    const std::lock_guard lock(mutex_);
    for (const auto& one : all_) {
      if (const auto open = one.lock()) open->interrupt();
    }
    bool ended = true;
    for (const auto& one : all_) {
      if (const auto open = one.lock()) ended = open->await_end() && ended;
    }
    return ended;
  }

  std::mutex mutex_;
  std::vector<std::weak_ptr<NcclCommunicator>> all_;
};

}  // namespace

bool CollectiveEnd::done() {
  if (ended()) return true;
  cudaSetDevice(device_);
  const cudaError_t status = cudaEventQuery(event_);
  if (status != cudaSuccess) static_cast<void>(cudaGetLastError());
  if (status == cudaErrorNotReady) return false;
  ended_.store(true, std::memory_order_release);
  return true;
}

std::shared_ptr<NcclCommunicator> NcclCommunicator::make(int device) {
  const std::shared_ptr<NcclCommunicator> made(new NcclCommunicator(device));
  made->self_ = made;
  made->run(&NcclCommunicator::abort_on_order);
  made->run(&NcclCommunicator::look_out);
  Communicators::get().add(made);
  return made;
}

nccl::Result NcclCommunicator::open(const nccl::UniqueId& id, int ranks, int rank,
                                    const std::function<bool()>& is_waiting) {
  const auto settle = [&](nccl::Result state) {
    while (state == nccl::Result::in_progress && is_waiting()) {
      if (nccl.async_error(parent_, &state) != nccl::Result::success) break;
    }
    return state;
  };
  nccl::Options of_parent;
  of_parent.blocking = 0;
  of_parent.split_share = 1;
  nccl::Result state = settle(nccl.init(&parent_, ranks, id, rank, &of_parent));
  if (state != nccl::Result::success) return state;
  nccl::Options of_child;
  of_child.blocking = 1;
  // A non-blocking split returns before it has finished. The parent's state then has the result.
  state = nccl.split(parent_, 0, rank, &child_, &of_child);
  const bool begun = state == nccl::Result::success || state == nccl::Result::in_progress;
  if (begun) state = settle(nccl::Result::in_progress);
  if (state == nccl::Result::success) comm = child_;
  return state;
}

void NcclCommunicator::run(void (NcclCommunicator::*body)()) {
  const auto count = [this](int change) {
    const std::lock_guard lock(state_mutex_);
    threads_ += change;
    changed_.notify_all();
  };
  count(1);
  try {
    std::thread([self = self_.lock(), body, count] {
      cudaSetDevice(self->device);
      ((*self).*body)();
      count(-1);
    }).detach();
  } catch (const std::exception&) {
    count(-1);
    interrupt();
    throw Error("DS_LIMIT", "newGroup", "a thread for NCCL's communicator", "none",
                "Raise the limit on processes and threads (ulimit -u), or the memory limit.");
  }
}

void NcclCommunicator::interrupt() noexcept {
  {
    const std::lock_guard lock(state_mutex_);
    if (interrupted()) return;
    interrupted_at_.store(Clock::now());
    interrupted_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
}

bool NcclCommunicator::await_end() noexcept {
  std::vector<cudaEvent_t> events;
  {
    std::unique_lock lock(state_mutex_);
    const auto ended = [this] { return threads_ == 0; };
    if (!changed_.wait_until(lock, interrupted_at_.load() + kAbortTime, ended)) return false;
    events.swap(spare_);
  }
  for (cudaEvent_t event : events) cudaEventDestroy(event);
  return true;
}

bool NcclCommunicator::over() const {
  if (!interrupted()) return false;
  if (Clock::now() - interrupted_at_.load() > kAbortTime) return true;
  const std::lock_guard lock(state_mutex_);
  return threads_ == 0;
}

void NcclCommunicator::abort_on_order() {
  name_thread("ds-abort idle");
  {
    std::unique_lock lock(state_mutex_);
    changed_.wait(lock, [this] { return interrupted(); });
  }
  name_thread("ds-abort flag");
  if (parent_) nccl.comm_abort(parent_);
  {
    name_thread("ds-abort lock");
    const std::lock_guard lock(mutex);
    name_thread("ds-abort nccl");
    if (comm) nccl.comm_abort(comm);
  }
  name_thread("ds-abort end");
  std::deque<std::shared_ptr<CollectiveEnd>> left;  // each of them keeps this communicator alive
  const std::lock_guard lock(state_mutex_);
  left.swap(under_way_);
}

void NcclCommunicator::look_out() {
  name_thread("ds-lookout idle");
  std::unique_lock lock(state_mutex_);
  while (!interrupted()) {
    changed_.wait(lock, [this] { return interrupted() || !under_way_.empty(); });
    lock.unlock();
    name_thread("ds-lookout cuda");
    const size_t left = forget_ended();
    name_thread("ds-lookout idle");
    lock.lock();
    if (left > 0) changed_.wait_for(lock, kLook, [this] { return interrupted(); });
  }
}

/// Releases collectives that have ended. Returns how many are in flight.
size_t NcclCommunicator::forget_ended() {
  while (true) {
    std::shared_ptr<CollectiveEnd> oldest;
    {
      const std::lock_guard lock(state_mutex_);
      if (under_way_.empty()) return 0;
      oldest = under_way_.front();
    }
    const bool done = oldest->done();
    const std::lock_guard lock(state_mutex_);
    if (!done) return under_way_.size();
    if (!under_way_.empty() && under_way_.front() == oldest) under_way_.pop_front();
  }
}

void NcclCommunicator::await_room() {
  const auto full = [this] {
    const std::lock_guard lock(state_mutex_);
    return under_way_.size() >= kAhead;
  };
  while (!interrupted() && full() && forget_ended() >= kAhead) {
    std::this_thread::sleep_for(microseconds(50));
  }
}

std::shared_ptr<CollectiveEnd> NcclCommunicator::make_end() {
  cudaEvent_t event = nullptr;
  {
    const std::lock_guard lock(state_mutex_);
    if (!spare_.empty()) {
      event = spare_.back();
      spare_.pop_back();
    } else {
      spare_.reserve(++events_);
    }
  }
  if (!event) DS_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "collective");
  return {new CollectiveEnd(event, device),
          [self = self_.lock()](CollectiveEnd* one) { self->give_back(one); }};
}

void NcclCommunicator::mark(const std::shared_ptr<CollectiveEnd>& end, cudaStream_t stream) {
  DS_CUDA(cudaEventRecord(end->event(), stream), "collective");
  const std::lock_guard lock(state_mutex_);
  if (interrupted()) return;
  if (under_way_.empty()) changed_.notify_all();
  under_way_.push_back(end);
}

/// Reuses the collective's event for another one. May run on any thread, also on the watchdog's, so
/// it does not destroy events.
void NcclCommunicator::give_back(CollectiveEnd* end) noexcept {
  {
    const std::lock_guard lock(state_mutex_);
    spare_.push_back(end->event());
  }
  delete end;
}

std::string NcclCommunicator::reason_of(nccl::Result result) const {
  return text(nccl.error_string(result), ": ", nccl.last_error(comm ? comm : parent_));
}

std::string NcclCommunicator::fault() {
  const std::unique_lock lock(mutex, std::try_to_lock);
  nccl::Result state = nccl::Result::success;
  if (!lock || interrupted() || nccl.async_error(comm, &state) != nccl::Result::success) return "";
  const bool succeeded = state == nccl::Result::success || state == nccl::Result::in_progress;
  return succeeded ? "" : text("NCCL: ", reason_of(state));
}

std::string NcclCommunicator::refusal_of(nccl::Result result) const {
  const bool succeeded = result == nccl::Result::success || interrupted();
  return succeeded ? "" : text("NCCL: ", reason_of(result));
}

}  // namespace ds::cuda
