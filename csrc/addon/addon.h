// State of one JavaScript environment: its devices, handles and argument block.
#pragma once

#include <node_api.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../core/buffer.h"
#include "handles.h"

namespace ds::grammar {
class Vocabulary;
class Grammar;
class Matcher;
}  // namespace ds::grammar

namespace ds::addon {

class TaskQueue;
struct Communication;
struct SwapFileRef;

/// A stream and its device.
struct StreamRef {
  Device& device;
  std::unique_ptr<Stream> owned;  // null for a device's compute stream
  Stream& stream;
};

/// An event and its device.
struct EventRef {
  Device& device;
  std::unique_ptr<Event> event;
};

/// A graph and its device.
struct GraphRef {
  Device& device;
  std::unique_ptr<Graph> graph;
};

/// The first failure of a host function or of the job. A later call reports it.
class AsyncFailure {
 public:
  void set(const Error& error) {
    std::lock_guard lock(mutex_);
    if (!error_) error_ = std::make_unique<Error>(error);
    raised_.store(true, std::memory_order_release);
  }
  /// Throws the failure, if there is one. Clears the failure of a host function, because later work
  /// may succeed. Keeps the failure of a job until the job is closed.
  void rethrow() {
    if (!raised_.load(std::memory_order_acquire)) return;
    std::lock_guard lock(mutex_);
    if (!error_) return;
    const Error error = *error_;
    if (error.code != "DS_COMM") clear();
    throw error;
  }
  /// Returns the error to report in place of `error`. After a failure, a device error is its
  /// consequence, so the failure is reported.
  Error cause_of(const Error& error) {
    std::lock_guard lock(mutex_);
    return error_ && error.code == "DS_CUDA" ? *error_ : error;
  }
  /// Clears a failure with this code. Called when the failed object is closed.
  void forget(ErrorCode code) {
    std::lock_guard lock(mutex_);
    if (error_ && error_->code == code) clear();
  }

 private:
  void clear() {
    error_.reset();
    raised_.store(false, std::memory_order_release);
  }

  std::mutex mutex_;
  std::unique_ptr<Error> error_;
  std::atomic<bool> raised_{false};
};

/// The addon's data of one environment, which owns it. Only its thread uses it, except `failure`.
struct Addon {
  napi_env env = nullptr;
  HandleTable<Buffer> buffers{
      "tensor",
      "Call keep() on a tensor that must outlive its scope, and do not use it after dispose()."};
  HandleTable<StreamRef> streams{"stream", "Do not use it after dispose()."};
  HandleTable<EventRef> events{"event", "Do not use it after dispose()."};
  HandleTable<GraphRef> graphs{"graph", "Do not use it after dispose()."};
  HandleTable<SwapFileRef> swap_files{"swap file", "Do not use it after dispose()."};
  HandleTable<const grammar::Vocabulary> vocabularies{"vocabulary",
                                                      "Do not use it after dispose()."};
  HandleTable<grammar::Grammar> grammars{"grammar", "Do not use it after dispose()."};
  HandleTable<grammar::Matcher> matchers{"matcher", "Do not use it after dispose()."};
  std::vector<double> compute_streams;  // handles by device number: 0 is the CPU, 1 + i is GPU i
  std::shared_ptr<AsyncFailure> failure = std::make_shared<AsyncFailure>();
  std::shared_ptr<TaskQueue> tasks;              // null until the first asynchronous call
  std::shared_ptr<Communication> communication;  // null until the first store or job
  double* arguments = nullptr;  // the block into which JavaScript writes the arguments of ops
  napi_ref block = nullptr;     // keeps the block alive
  size_t argument_count = 0;
};

}  // namespace ds::addon
