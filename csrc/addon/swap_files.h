// Swap files for JavaScript: transfers between disk and host memory, in stream order.
#pragma once

#include <string>

#include "entry.h"

namespace ds::addon {

/// Creates a nameless file of `bytes` in `folder`. Errors use `label` for the file and `purpose`
/// for what needs the space. `tuning` is [bytes of a block, requests in flight, threads for
/// checksums], then triples (handle, offset, bytes) of the memory that transfers use. Throws DS_IO.
DS_ENTRY double open_swap_file(Addon& addon, std::string folder, std::string label,
                               std::string purpose, SwapBytes bytes, Doubles tuning);

/// Enqueues a transfer between the file and host memory on `stream`, which starts it and does not
/// wait for it. The memory stays alive until the transfer ends. Throws DS_BOUNDS if the range
/// exceeds the file. See io::SwapFile::start.
DS_ENTRY void start_swap(Addon& addon, Handle<SwapFileRef> file, bool writes, ByteCount offset,
                         Handle<Buffer> buffer, SwapBytes buffer_offset, SwapBytes bytes,
                         Handle<StreamRef> stream);

/// Makes `stream` wait for all transfers of this memory. If streams run at once, a failed transfer
/// (DS_IO) throws here. Otherwise a later call throws it. After a failure, all calls on the file
/// fail.
DS_ENTRY void wait_swap(Addon& addon, Handle<SwapFileRef> file, Handle<Buffer> buffer,
                        SwapBytes buffer_offset, SwapBytes bytes, Handle<StreamRef> stream);

struct SwapFileInfo;
/// Returns the file system's mode and the bytes moved so far.
DS_ENTRY Object<SwapFileInfo> swap_file_info(Addon& addon, Handle<SwapFileRef> file);

DS_ENTRY void release_swap_file(Addon& addon, Handle<SwapFileRef> file);

}  // namespace ds::addon
