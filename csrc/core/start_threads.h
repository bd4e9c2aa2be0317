// Threads that the system may refuse.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace ds {

/// Starts a thread that runs `body`. Throws DS_LIMIT with the place and the expected text `wanted`
/// if the system refuses it.
std::thread start_thread(const char* place, const std::string& wanted, std::function<void()> body);

/// Starts up to `count` threads, as many as the system grants. Throws DS_LIMIT if it grants no
/// thread.
std::vector<std::thread> start_threads(unsigned count, const char* place, const std::string& wanted,
                                       const std::function<void()>& body);

}  // namespace ds
