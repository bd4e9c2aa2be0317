// Choosing the process's engine, and waiting for a batch.
#include "file_engine.h"

#include <condition_variable>
#include <mutex>
#include <optional>

namespace ds::io {

FileEngine& file_engine() {
  static FileEngine* engine = [] {
    std::unique_ptr<FileEngine> made = make_uring_engine();
    if (!made) made = make_thread_engine(4);
    return made.release();
  }();
  return *engine;
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
    // Notified under the lock: the waiter destroys the state as soon as it sees `done`.
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
