// Asynchronous file I/O for JavaScript, through the file engine.
#pragma once

#include <string>

#include "entry.h"

namespace ds::addon {

/// A range of a live buffer in host memory.
struct HostRange {
  std::shared_ptr<Buffer> owner;
  char* data;
  size_t bytes;
};

/// Returns the range. Throws DS_BOUNDS, or DS_DEVICE for GPU memory.
HostRange host_range(const Handle<Buffer>& buffer, size_t offset, size_t bytes, Place place);
/// Reads a range from three elements of `words` at index `at`: handle, offset, bytes. `Count` is
/// the kind of offset and bytes. Also throws DS_RELEASED and DS_ARGUMENT.
template <class Count>
HostRange host_range(Addon& addon, const Doubles& words, size_t at, Place place) {
  const Handle<Buffer> buffer = Handle<Buffer>::of(addon.buffers, words[at], place);
  return host_range(buffer, Count::of(words[at + 1], place), Count::of(words[at + 2], place),
                    place);
}

/// Writes `head`, then buffer ranges, consecutively from byte `offset` of the file. Offset 0
/// creates or truncates the file. `segments` has float64 triples (handle, offset, bytes) in host
/// memory; the buffers must not change until the promise settles. Resolves with the CRC-32C `crc`,
/// extended by all written bytes. Rejects with DS_IO.
DS_ENTRY Promise<double> write_file(Addon& addon, std::string path, ByteCount offset, Bytes head,
                                    Doubles segments, Checksum crc);

/// Reads `bytes` at `offset` of an open file into host memory. The caller may close `descriptor`
/// before the promise settles. Errors name `path`. Rejects with DS_IO, also if the file is too
/// short.
DS_ENTRY Promise<void> read_file(Addon& addon, Descriptor descriptor, std::string path,
                                 ByteCount offset, ByteCount bytes, Handle<Buffer> buffer,
                                 ByteCount buffer_offset);

/// Resolves with the CRC-32C of a whole open file. `descriptor` and `path` as in read_file.
DS_ENTRY Promise<double> checksum_file(Addon& addon, Descriptor descriptor, std::string path);

/// Resolves when the contents of a file, or the entries of a folder, are on disk.
DS_ENTRY Promise<void> sync_path(Addon& addon, std::string path);

/// Renames a file. Resolves with false if `to` exists. See io::rename_exclusive.
DS_ENTRY Promise<bool> rename_exclusive(Addon& addon, std::string from, std::string to);

/// Locks an open file. Resolves with false if another open file holds the lock. See io::try_lock.
DS_ENTRY Promise<bool> lock_file(Addon& addon, Descriptor descriptor);

/// Returns "io_uring" or "threads".
DS_ENTRY std::string file_engine_name(Addon& addon);
DS_ENTRY void set_file_engine(Addon& addon, std::string name);

}  // namespace ds::addon
