// Starts threads. If the system refuses one (limit, memory), the error is DS_LIMIT.
#include "start_threads.h"

#include <exception>
#include <utility>

#include "error.h"

namespace ds {

std::thread start_thread(const char* place, const std::string& wanted, std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::exception& error) {
    throw Error("DS_LIMIT", place, wanted, text("none: ", error.what()),
                "Raise the limit on processes and threads (ulimit -u), or the memory limit.");
  }
}

std::vector<std::thread> start_threads(unsigned count, const char* place, const std::string& wanted,
                                       const std::function<void()>& body) {
  std::vector<std::thread> threads;
  threads.reserve(count);
  try {
    while (threads.size() < count) threads.push_back(start_thread(place, wanted, body));
  } catch (const std::exception&) {
    // Returns the threads so far: destroying a running std::thread would end the process.
    if (threads.empty()) throw;
  }
  return threads;
}

}  // namespace ds
