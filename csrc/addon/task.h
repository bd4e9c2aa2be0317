// Runs work on a native thread and resolves a promise with its result.
#pragma once

#include <node_api.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "convert.h"

namespace ds::addon {

/// An asynchronous call. The JavaScript thread creates, resolves and destroys it. A task thread
/// calls run().
class AnyTask {
 public:
  virtual ~AnyTask() = default;
  virtual void run() noexcept = 0;
  /// Returns the value that resolves the promise, or throws the failure of run().
  virtual napi_value result(napi_env env) = 0;

  napi_deferred deferred = nullptr;
};

/// A task that runs `body` once; `body` must not use JavaScript. Objects captured by `body`, such
/// as buffers, live until the promise is settled.
template <class T>
class Task final : public AnyTask {
 public:
  explicit Task(std::function<T()> body) : body_(std::move(body)) {}

  void run() noexcept override {
    try {
      if constexpr (std::is_void_v<T>) {
        body_();
      } else {
        value_ = body_();
      }
    } catch (...) {
      failure_ =
          std::current_exception();  // Formatting the error needs memory, which may be exhausted.
    }
  }

  napi_value result(napi_env env) override {
    if (failure_) std::rethrow_exception(failure_);
    if constexpr (std::is_void_v<T>) {
      napi_value nothing = nullptr;
      napi_get_undefined(env, &nothing);
      return nothing;
    } else {
      return to_js(env, value_);
    }
  }

 private:
  using Value = std::conditional_t<std::is_void_v<T>, char, T>;

  std::function<T()> body_;
  Value value_{};
  std::exception_ptr failure_;
};

/// The tasks of one environment, and their threads. A pending task keeps the event loop alive.
///
/// The environment may end at any time (process exit, a terminated worker). Its cleanup hook then
/// calls close(), which joins the threads before the thread-safe function is destroyed. So a native
/// thread never calls into an ended environment. Pending promises stay pending.
class TaskQueue {
 public:
  explicit TaskQueue(napi_env env);
  ~TaskQueue() { close(); }
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  /// Returns the task's promise. A free thread runs the task.
  napi_value start(std::unique_ptr<AnyTask> task);
  /// Drops waiting tasks and waits for running ones. May be called twice. JavaScript thread only.
  void close();

 private:
  void work();
  void settle(AnyTask* finished);
  static void deliver(napi_env env, napi_value, void* context, void* data);

  napi_env env_;
  napi_threadsafe_function delivery_ = nullptr;
  std::unordered_map<AnyTask*, std::unique_ptr<AnyTask>> tasks_;  // JavaScript thread only

  std::mutex mutex_;
  std::condition_variable available_;
  std::deque<AnyTask*> waiting_;
  bool closing_ = false;
  std::vector<std::thread> threads_;
};

/// Returns the environment's queue, and creates it on the first call.
TaskQueue& task_queue(Addon& addon);

/// Runs `T body()` on a native thread. T is void or a type that to_js converts.
template <class Body>
auto start_task(Addon& addon, Body body) {
  using T = decltype(body());
  return Promise<T>{task_queue(addon).start(std::make_unique<Task<T>>(std::move(body)))};
}

}  // namespace ds::addon
