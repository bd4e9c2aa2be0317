// Connects all ranks of a group, with a token that authenticates each connection.
#pragma once

#include <vector>

#include "rendezvous.h"
#include "socket.h"

namespace ds::comm {

/// Returns one connected socket per rank of the group; the caller's own is invalid. Each rank puts
/// a token into the job's store and listens on `local_host` until the mesh is complete. Connections
/// without the token are closed and do not delay the ranks. Blocks. Throws DS_COMM.
std::vector<Socket> connect_mesh(const Rendezvous& rendezvous);

}  // namespace ds::comm
