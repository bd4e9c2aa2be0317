// Chooses the process's engine, and waits for batches.
#include "file_engine.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>

namespace ds::io {

namespace {

EngineOptions four_threads() { return {.depth = 4}; }

/// Returns io_uring, or else threads. Never destroyed, because a batch may be in flight at exit.
FileEngine& uring_or_threads() {
  static FileEngine* engine = [] {
    std::unique_ptr<FileEngine> made = make_uring_engine();
    if (!made) made = make_thread_engine(four_threads());
    return made.release();
  }();
  return *engine;
}

FileEngine& threads() {
  static FileEngine* engine = make_thread_engine(four_threads()).release();
  return *engine;
}

std::atomic<bool> threads_wanted{false};

}  // namespace

FileEngine& file_engine() { return threads_wanted ? threads() : uring_or_threads(); }

std::unique_ptr<FileEngine> make_file_engine(const EngineOptions& options) {
  std::unique_ptr<FileEngine> made;
  if (!threads_wanted) made = make_uring_engine(options);
  return made ? std::move(made) : make_thread_engine(options);
}

void choose_file_engine(const std::string& name) {
  if (name != "io_uring" && name != "threads") {
    throw Error("DS_ARGUMENT", "file engine", "io_uring or threads", name);
  }
  if (name == "io_uring" && uring_or_threads().name() != name) {
    throw Error("DS_PLATFORM", "file engine", "a kernel with io_uring",
                "a kernel that lacks or forbids it",
                "Use \"threads\", which works everywhere. Containers often forbid io_uring.");
  }
  threads_wanted = name == "threads";
}

struct Pending::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::optional<Error> error;
};

Pending::Pending(FileEngine& engine, const std::vector<Transfer>& batch)
    : state_(std::make_unique<State>()) {
  engine.submit(batch, [state = state_.get()](const Error* error) {
    // Notifies under the lock, because the waiter destroys the state once it sees `done`.
    std::lock_guard lock(state->mutex);
    if (error) state->error = *error;
    state->done = true;
    state->changed.notify_all();
  });
}

Pending::~Pending() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->done; });
}

void Pending::wait() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->done; });
  if (state_->error) throw Error(*state_->error);
}

}  // namespace ds::io
