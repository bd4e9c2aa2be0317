// Passes objects between JavaScript environments: one offers an object, another takes it once.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "../core/error.h"

namespace ds::addon {

/// Open offers of one process, by number. Handles belong to one environment, so a worker thread
/// takes an object of its parent by the number of an offer. Then both environments own the object.
/// Thread-safe.
template <class T>
class Offers {
 public:
  double add(std::shared_ptr<T> object) {
    std::lock_guard lock(mutex_);
    open_.emplace(++last_, std::move(object));
    return static_cast<double>(last_);
  }

  /// Returns the object. Throws DS_RELEASED if the offer was taken or withdrawn.
  std::shared_ptr<T> take(uint64_t offer) {
    std::lock_guard lock(mutex_);
    const auto found = open_.find(offer);
    if (found == open_.end()) {
      throw Error("DS_RELEASED", "offer", "an offer that no thread has taken", text(offer));
    }
    std::shared_ptr<T> object = std::move(found->second);
    open_.erase(found);
    return object;
  }

  /// Removes an offer. Does nothing if it was taken.
  void withdraw(uint64_t offer) {
    std::lock_guard lock(mutex_);
    open_.erase(offer);
  }

 private:
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<T>> open_;
  uint64_t last_ = 0;
};

/// Returns the process's offers of T. Never destroyed, because threads may end after main().
template <class T>
Offers<T>& offers() {
  static auto* all = new Offers<T>();
  return *all;
}

}  // namespace ds::addon
