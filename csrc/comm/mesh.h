// Connections between all ranks of a group, each admitted by a token.
#pragma once

#include <vector>

#include "rendezvous.h"
#include "socket.h"

namespace ds::comm {

/// One connected socket per rank of the group, none at the caller's own place. A rank listens on
/// `local_host` until it has all of them; whoever cannot show the token that this rank put into
/// the job's store is turned away and holds up nobody. Blocks. Throws DS_COMM.
std::vector<Socket> connect_mesh(const Rendezvous& rendezvous);

}  // namespace ds::comm
