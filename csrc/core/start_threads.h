// Starts threads, with an error if the system refuses them.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace ds {

/// Starts a thread that runs `body`. If the system refuses it, throws DS_LIMIT with the operation
/// `place` and the expected text `wanted`.
std::thread start_thread(const char* place, const std::string& wanted, std::function<void()> body);

/// Starts `count` threads, or fewer if the system refuses some. Throws DS_LIMIT if it refuses all.
std::vector<std::thread> start_threads(unsigned count, const char* place, const std::string& wanted,
                                       const std::function<void()>& body);

}  // namespace ds
