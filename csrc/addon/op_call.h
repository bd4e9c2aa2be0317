// Decodes an op's arguments from the shared block and runs it, without touching JavaScript objects.
#pragma once

#include "entry.h"

namespace ds::addon {

/// Runs an op with the arguments that JavaScript wrote into the block. Its last two words are the
/// stream and the op's number: as arguments of the call they would take a tenth of its time. Every
/// view is checked: a live buffer on the stream's device that contains all elements.
DS_ENTRY void run(Addon& addon);

/// Enqueues the op's CPU body on `stream`. It runs on host threads when the stream reaches it, over
/// pinned (or CPU) memory. Releasing pinned memory waits for the device, so the memory stays alive
/// until then. The next call reports a failure.
DS_ENTRY void run_on_host(Addon& addon, OpNumber op, Handle<StreamRef> stream);

/// Decodes once, then runs the op `count` times in a loop. Returns host microseconds per run: the
/// cost of an op below the boundary, for `bench host`.
DS_ENTRY double time_op(Addon& addon, OpNumber op, Handle<StreamRef> stream, RunCount count);

}  // namespace ds::addon
