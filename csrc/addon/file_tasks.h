// File I/O for JavaScript: promises over the file engine.
#pragma once

#include <string>

#include "convert.h"

namespace ds::addon {

/// A range of a live buffer that the CPU can reach.
struct HostRange {
  std::shared_ptr<Buffer> owner;
  char* data;
  size_t bytes;
};

/// Throws DS_RELEASED, DS_BOUNDS, and DS_DEVICE for memory of a GPU.
HostRange host_range(Addon& addon, double handle, double offset, double bytes);

/// Writes `head`, then the buffer ranges of `segments` (float64 triples: handle, offset, bytes),
/// one after another from byte `offset` of the file; offset 0 creates or empties it. The buffers
/// must be host memory and stay unchanged until the promise settles. Resolves with `crc` extended
/// by everything written (CRC-32C). Rejects with DS_IO.
Promise<double> write_file(Addon& addon, std::string path, double offset, Bytes head,
                           Doubles segments, double crc);

/// Reads `bytes` at `offset` of the open file `descriptor` into host memory. The caller may close
/// it meanwhile; errors name `path`. Rejects with DS_IO, also when the file ends before.
Promise<void> read_file(Addon& addon, int32_t descriptor, std::string path, double offset,
                        double bytes, double buffer, double buffer_offset);

/// Resolves with the CRC-32C of the whole of the open file `descriptor`, see read_file.
Promise<double> checksum_file(Addon& addon, int32_t descriptor, std::string path);

/// Resolves when a file's contents, or a folder's entries, are on disk.
Promise<void> sync_path(Addon& addon, std::string path);

/// Renames unless the new name exists: resolves with false if it does. See io::rename_exclusive.
Promise<bool> rename_exclusive(Addon& addon, std::string from, std::string to);

/// Resolves with whether the lock of the open file was free and is now this one's. See
/// io::try_lock.
Promise<bool> lock_file(Addon& addon, int32_t descriptor);

/// "io_uring" or "threads".
std::string file_engine_name(Addon& addon);
void set_file_engine(Addon& addon, std::string name);

}  // namespace ds::addon
