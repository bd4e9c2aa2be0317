// The C interface of libds_gloo.so, which passes a group's connections to Gloo.
#pragma once

#include "../transport.h"

namespace ds::comm {

/// Increase it if Transport or the functions below change, so that an older library is rejected.
constexpr int kGlooInterface = 2;

}  // namespace ds::comm

#define DS_GLOO_EXPORT extern "C" __attribute__((visibility("default")))

/// Returns kGlooInterface of the library. Compare it before any other call.
DS_GLOO_EXPORT int ds_gloo_interface();
/// Opens a transport that the caller owns. `connections` has a connected socket per rank of the
/// group, which Gloo duplicates. The socket of `rank`, the caller, is not used. Throws DS_COMM and
/// DS_LIMIT.
DS_GLOO_EXPORT ds::comm::Transport* ds_gloo_open(int rank, const std::vector<int>& connections);
