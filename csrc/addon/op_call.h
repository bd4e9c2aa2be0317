// Decodes an op's arguments from the argument block and runs it, without JavaScript objects.
#pragma once

#include "entry.h"

namespace ds::addon {

/// Runs the op in the argument block. The block's last two words are the stream and the op's
/// number; as arguments of the call they would take a tenth of its time. Checks each view: its
/// buffer is live, on the stream's device, and contains all elements.
DS_ENTRY void run(Addon& addon);

/// Enqueues the CPU body of an op on `stream`, as a host function over pinned or CPU memory. Its
/// memory stays alive: releasing pinned memory waits for the device. A later call reports a
/// failure.
DS_ENTRY void run_on_host(Addon& addon, OpNumber op, Handle<StreamRef> stream);

/// Decodes an op once and runs it `count` times. Returns host microseconds per run: the native cost
/// of an op, for `bench host`.
DS_ENTRY double time_op(Addon& addon, OpNumber op, Handle<StreamRef> stream, RunCount count);

}  // namespace ds::addon
