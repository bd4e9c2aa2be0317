// Connections between all ranks of a group, each authenticated by a token.
#pragma once

#include <vector>

#include "rendezvous.h"
#include "socket.h"

namespace ds::comm {

/// Returns one connected socket per rank of the group, and an invalid one for the caller. A rank
/// listens on `local_host` until it has all of them. It closes connections without the token that
/// it put into the job's store; they do not delay the others. Blocks. Throws DS_COMM.
std::vector<Socket> connect_mesh(const Rendezvous& rendezvous);

}  // namespace ds::comm
