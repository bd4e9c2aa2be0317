// Ranks of a new group find each other by these keys and functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace ds::comm {

/// A rank of the new group, and access to the group's keys in the job's store. The functions are
/// valid only during the call that receives them.
struct Rendezvous {
  int rank, size;          // this rank, and the number of ranks, of the group
  std::string local_host;  // an address of this machine that the other ranks can reach
  int64_t timeout_ms;      // limits the time of connecting
  std::function<void(const std::string& key, const std::string& value)> set;
  std::function<std::string(const std::string& key)> get;  // waits for the key; throws DS_COMM
  /// Throws DS_COMM if the job has failed or was closed. Call it repeatedly while waiting.
  std::function<void()> check;
};

}  // namespace ds::comm
