// The task queue: two threads per environment. One thread-safe function delivers results.
#include "task.h"

#include "../core/start_threads.h"

namespace ds::addon {
namespace {

constexpr unsigned kThreads = 2;  // enough: most tasks wait for a device or a disk

void require_ok(napi_status status) {
  if (status != napi_ok)
    throw Error("DS_INTERNAL", "task", "a working JavaScript environment", text(status));
}

}  // namespace

TaskQueue::TaskQueue(napi_env env) : env_(env) {
  const napi_value name = to_js(env, std::string("ds_native task"));
  require_ok(napi_create_threadsafe_function(env, nullptr, nullptr, name, 0, 1, nullptr, nullptr,
                                             this, deliver, &delivery_));
  require_ok(napi_unref_threadsafe_function(env, delivery_));
  try {
    threads_ =
        start_threads(kThreads, "addon", "a thread for work beside JavaScript", [this] { work(); });
  } catch (const std::exception&) {
    close();
    throw;
  }
}

napi_value TaskQueue::start(std::unique_ptr<AnyTask> task) {
  napi_value promise;
  require_ok(napi_create_promise(env_, &task->deferred, &promise));
  if (tasks_.empty()) napi_ref_threadsafe_function(env_, delivery_);
  AnyTask* started = task.get();
  tasks_.emplace(started, std::move(task));
  {
    std::lock_guard lock(mutex_);
    waiting_.push_back(started);
  }
  available_.notify_one();
  return promise;
}

void TaskQueue::close() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
    waiting_.clear();
  }
  available_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  if (delivery_) napi_release_threadsafe_function(delivery_, napi_tsfn_abort);
  delivery_ = nullptr;
  tasks_.clear();
}

void TaskQueue::work() {
  while (true) {
    AnyTask* task;
    {
      std::unique_lock lock(mutex_);
      available_.wait(lock, [this] { return closing_ || !waiting_.empty(); });
      if (closing_) return;
      task = waiting_.front();
      waiting_.pop_front();
    }
    task->run();
    // The delivery queue is unlimited, so this does not block. If it fails, the environment is
    // ending, and the function must not be used again.
    if (napi_call_threadsafe_function(delivery_, task, napi_tsfn_blocking) != napi_ok) return;
  }
}

/// Runs on the JavaScript thread. `env` is null if the environment ended before the delivery.
void TaskQueue::deliver(napi_env env, napi_value, void* context, void* data) {
  if (env) static_cast<TaskQueue*>(context)->settle(static_cast<AnyTask*>(data));
}

void TaskQueue::settle(AnyTask* finished) {
  const auto found = tasks_.find(finished);
  const std::unique_ptr<AnyTask> task = std::move(found->second);
  tasks_.erase(found);
  if (tasks_.empty()) napi_unref_threadsafe_function(env_, delivery_);
  napi_handle_scope scope = nullptr;
  if (napi_open_handle_scope(env_, &scope) != napi_ok) return;
  const auto reject = [&](const Error& error) {
    if (const napi_value value = error_value(env_, error)) {
      napi_reject_deferred(env_, task->deferred, value);
    }
  };
  try {
    if (const napi_value value = task->result(env_)) {
      napi_resolve_deferred(env_, task->deferred, value);
    }
  } catch (const Error& error) {
    reject(error);
  } catch (const std::exception& error) {
    reject(unforeseen("task", error));
  }
  napi_close_handle_scope(env_, scope);
}

TaskQueue& task_queue(Addon& addon) {
  if (!addon.tasks) {
    addon.tasks = std::make_shared<TaskQueue>(addon.env);
    // Hooks run in reverse order, so this hook runs before the hook of the thread-safe function.
    const auto close = [](void* queue) { static_cast<TaskQueue*>(queue)->close(); };
    napi_add_env_cleanup_hook(addon.env, close, addon.tasks.get());
  }
  return *addon.tasks;
}

}  // namespace ds::addon
