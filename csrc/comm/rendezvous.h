// Lets the ranks of a new group find each other.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace ds::comm {

/// The group and its part of the job's store. Its functions may be called only during the call that
/// received it.
struct Rendezvous {
  int rank, size;          // of the group
  std::string local_host;  // the address of this machine that the other ranks can reach
  int64_t timeout_ms;      // of connecting
  std::function<void(const std::string& key, const std::string& value)> set;
  std::function<std::string(const std::string& key)> get;  // waits; throws DS_COMM
  /// Throws DS_COMM once the job has failed or was closed. Waiting code calls it repeatedly.
  std::function<void()> check;
};

}  // namespace ds::comm
