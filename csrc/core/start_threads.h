// Threads that the system may refuse.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace ds {

/// A thread that runs `body`. Where the system grants none it throws DS_LIMIT, which says that
/// `place` expected `wanted`.
std::thread start_thread(const char* place, const std::string& wanted, std::function<void()> body);

/// Up to `count` of them, as many as the system grants. Throws DS_LIMIT where it grants none.
std::vector<std::thread> start_threads(unsigned count, const char* place, const std::string& wanted,
                                       const std::function<void()>& body);

}  // namespace ds
