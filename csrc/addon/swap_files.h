// Memory on disk for JavaScript: transfers in the order of a stream.
#pragma once

#include <string>

#include "entry.h"

namespace ds::addon {

/// Creates a nameless file of `bytes` in `folder`. Errors call it `label` and name `purpose` as the
/// use of its space. `tuning` is float64: bytes of a block, requests in flight, threads for
/// checksums; then triples (handle, offset, bytes) of the memory that transfers use. Throws DS_IO.
DS_ENTRY double open_swap_file(Addon& addon, std::string folder, std::string label,
                               std::string purpose, SwapBytes bytes, Doubles tuning);

/// Starts a transfer between the file and host memory when `stream` reaches it; the stream does not
/// wait for it. The memory stays alive until the transfer is over. Throws DS_BOUNDS for bytes
/// behind the end of the file. See io::SwapFile::start.
DS_ENTRY void start_swap(Addon& addon, Handle<SwapFileRef> file, bool writes, ByteCount offset,
                         Handle<Buffer> buffer, SwapBytes buffer_offset, SwapBytes bytes,
                         Handle<StreamRef> stream);

/// Later work of `stream` runs after all transfers of this memory. If streams run at once, this
/// call throws a failure (DS_IO). Otherwise the next call that checks throws it, and all later
/// calls fail too.
DS_ENTRY void wait_swap(Addon& addon, Handle<SwapFileRef> file, Handle<Buffer> buffer,
                        SwapBytes buffer_offset, SwapBytes bytes, Handle<StreamRef> stream);

struct SwapFileInfo;
/// Returns the file system's mode and the bytes moved so far.
DS_ENTRY Object<SwapFileInfo> swap_file_info(Addon& addon, Handle<SwapFileRef> file);

DS_ENTRY void release_swap_file(Addon& addon, Handle<SwapFileRef> file);

}  // namespace ds::addon
