// The C API of libds_gloo.so. The core uses it to pass a group's connections to Gloo.
#pragma once

#include "../transport.h"

namespace ds::comm {

/// Changes with Transport or the functions below, so that a stale library is rejected.
constexpr int kGlooInterface = 2;

}  // namespace ds::comm

#define DS_GLOO_EXPORT extern "C" __attribute__((visibility("default")))

DS_GLOO_EXPORT int ds_gloo_interface();
/// `connections` holds a connected socket per rank of the group; Gloo copies them. The entry of
/// `rank`, the caller, is not read. The caller owns the transport. Throws DS_COMM, DS_LIMIT.
DS_GLOO_EXPORT ds::comm::Transport* ds_gloo_open(int rank, const std::vector<int>& connections);
