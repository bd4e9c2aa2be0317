// The log: one string under a mutex. Lines are rare, one for each transfer or collective.
#include "work_log.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <new>

namespace ds {
namespace {

std::atomic<bool> g_kept{false};
std::mutex g_mutex;

/// Never destroyed: threads still add lines while the process ends.
std::string& lines() {
  static auto* all = new std::string;
  return *all;
}

}  // namespace

int64_t WorkLog::now() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

void WorkLog::keep(bool on) {
  std::lock_guard lock(g_mutex);
  lines().clear();
  g_kept.store(on, std::memory_order_relaxed);
}

bool WorkLog::kept() { return g_kept.load(std::memory_order_relaxed); }

void WorkLog::add(const char* kind, Name name, uint64_t bytes, int64_t began) noexcept {
  try {
    std::string line = kind;
    for (const int64_t number : {began, now(), static_cast<int64_t>(bytes)}) {
      line.append(1, ' ').append(std::to_string(number));
    }
    line += ' ';
    for (const std::string_view piece : name) line += piece;
    line += '\n';
    std::lock_guard lock(g_mutex);
    if (kept()) lines() += line;
  } catch (const std::bad_alloc&) {
    // Without memory, the log lacks this line.
  }
}

std::string WorkLog::take() {
  std::lock_guard lock(g_mutex);
  std::string taken;
  taken.swap(lines());
  return taken;
}

}  // namespace ds
