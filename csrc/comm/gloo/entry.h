// The C functions of libds_gloo.so, through which the core connects a group over Gloo.
#pragma once

#include "../transport.h"

namespace ds::comm {

/// Changes with Transport or Rendezvous, so that a stale library is refused.
constexpr int kGlooInterface = 1;

}  // namespace ds::comm

#define DS_GLOO_EXPORT extern "C" __attribute__((visibility("default")))

DS_GLOO_EXPORT int ds_gloo_interface();
/// The caller owns the transport. Throws DS_COMM when a peer does not connect in time.
DS_GLOO_EXPORT ds::comm::Transport* ds_gloo_connect(const ds::comm::Rendezvous& request);
