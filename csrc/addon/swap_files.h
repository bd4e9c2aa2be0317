// Memory on disk for JavaScript: transfers in the order of a stream.
#pragma once

#include <string>

#include "convert.h"

namespace ds::addon {

/// Makes a nameless file of `bytes` in `folder`, which errors call `label` and whose space is for
/// `purpose`. `tuning` is float64: bytes of a block, requests under way, threads for checksums;
/// then triples (handle, offset, bytes) of the memory that transfers use. Throws DS_IO.
double open_swap_file(Addon& addon, std::string folder, std::string label, std::string purpose,
                      double bytes, Doubles tuning);

/// Starts a transfer between the file and host memory when `stream` reaches it; the stream does not
/// wait for it. See io::SwapFile::start.
void start_swap(Addon& addon, double file, bool writes, double offset, double buffer,
                double buffer_offset, double bytes, double stream);

/// Later work of `stream` finds no transfer of this memory under way. A failure (DS_IO) is thrown
/// here where streams run at once, else by the next call that looks; then every later one fails,
/// too.
void wait_swap(Addon& addon, double file, double buffer, double buffer_offset, double bytes,
               double stream);

struct SwapFileInfo;
/// How it is served, and what has moved so far.
Object<SwapFileInfo> swap_file_info(Addon& addon, double file);

void release_swap_file(Addon& addon, double file);

}  // namespace ds::addon
