// Decodes an op's arguments from the shared block and runs it, with no JavaScript object touched.
#pragma once

#include "addon.h"

namespace ds::addon {

/// Runs an op with the arguments that JavaScript wrote into the block, whose last two words are the
/// stream and the op's number: as arguments of the call they would be a tenth of it. Every view is
/// checked: a live buffer, on the stream's device, with all elements inside it.
void run_op(Addon& addon);

/// Enqueues the op's CPU body on `stream`: it runs on host threads when the stream reaches it, over
/// pinned (or CPU) memory. Releasing pinned memory waits for the device, so it stays alive until
/// then. A failure is kept and reported by the next call.
void run_op_on_host(Addon& addon, int32_t op, double stream);

/// Decodes once, then runs the op `count` times in a loop and returns microseconds per run as the
/// host sees it: what an op costs below the boundary, for `bench host`.
double time_op(Addon& addon, int32_t op, double stream, int32_t count);

}  // namespace ds::addon
