// How the ranks of a new group find each other.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace ds::comm {

/// The group and its part of the job's store; its functions may be called during the call that
/// received it only.
struct Rendezvous {
  int rank, size;          // of the group
  std::string local_host;  // the address of this machine that the others reach
  int64_t timeout_ms;      // of connecting
  std::function<void(const std::string& key, const std::string& value)> set;
  std::function<std::string(const std::string& key)> get;  // waits; throws DS_COMM
  /// Throws DS_COMM once the job has failed or was closed; called by whoever waits.
  std::function<void()> check;
};

}  // namespace ds::comm
