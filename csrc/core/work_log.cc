// One list under a lock: lines are few, a transfer or a collective each.
#include "work_log.h"

#include <atomic>
#include <chrono>
#include <mutex>

#include "error.h"

namespace ds {
namespace {

std::atomic<bool> g_kept{false};
std::mutex g_mutex;
std::string g_lines;

}  // namespace

int64_t WorkLog::now() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

void WorkLog::keep(bool on) {
  std::lock_guard lock(g_mutex);
  g_lines.clear();
  g_kept.store(on, std::memory_order_relaxed);
}

bool WorkLog::kept() { return g_kept.load(std::memory_order_relaxed); }

void WorkLog::add(const char* kind, const std::string& name, uint64_t bytes, int64_t began) {
  const std::string line = text(kind, ' ', began, ' ', now(), ' ', bytes, ' ', name, '\n');
  std::lock_guard lock(g_mutex);
  if (kept()) g_lines += line;
}

std::string WorkLog::take() {
  std::lock_guard lock(g_mutex);
  std::string lines;
  lines.swap(g_lines);
  return lines;
}

}  // namespace ds
