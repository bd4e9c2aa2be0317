// File I/O for JavaScript: promises over the file engine.
#pragma once

#include <string>

#include "entry.h"

namespace ds::addon {

/// A range of a live buffer that the CPU can reach.
struct HostRange {
  std::shared_ptr<Buffer> owner;
  char* data;
  size_t bytes;
};

/// Throws DS_BOUNDS, and DS_DEVICE for memory of a GPU.
HostRange host_range(const Handle<Buffer>& buffer, size_t offset, size_t bytes, Place place);
/// The same for the three words (handle, offset, bytes) at `at` of an array. `Count` is the kind of
/// offset and bytes. Throws DS_RELEASED and DS_ARGUMENT too.
template <class Count>
HostRange host_range(Addon& addon, const Doubles& words, size_t at, Place place) {
  const Handle<Buffer> buffer = Handle<Buffer>::of(addon.buffers, words[at], place);
  return host_range(buffer, Count::of(words[at + 1], place), Count::of(words[at + 2], place),
                    place);
}

/// Writes `head`, then the buffer ranges of `segments` (float64 triples: handle, offset, bytes),
/// one after another from byte `offset` of the file; offset 0 creates or empties it. The buffers
/// must be host memory and stay unchanged until the promise settles. Resolves with `crc` extended
/// by everything written (CRC-32C). Rejects with DS_IO.
DS_ENTRY Promise<double> write_file(Addon& addon, std::string path, ByteCount offset, Bytes head,
                                    Doubles segments, Checksum crc);

/// Reads `bytes` at `offset` of the open file `descriptor` into host memory. The caller may close
/// it meanwhile; errors name `path`. Rejects with DS_IO, also when the file ends before.
DS_ENTRY Promise<void> read_file(Addon& addon, Descriptor descriptor, std::string path,
                                 ByteCount offset, ByteCount bytes, Handle<Buffer> buffer,
                                 ByteCount buffer_offset);

/// Resolves with the CRC-32C of the whole of the open file `descriptor`, see read_file.
DS_ENTRY Promise<double> checksum_file(Addon& addon, Descriptor descriptor, std::string path);

/// Resolves when a file's contents, or a folder's entries, are on disk.
DS_ENTRY Promise<void> sync_path(Addon& addon, std::string path);

/// Renames unless the new name exists: resolves with false if it does. See io::rename_exclusive.
DS_ENTRY Promise<bool> rename_exclusive(Addon& addon, std::string from, std::string to);

/// Resolves with whether the lock of the open file was free and is now this one's. See
/// io::try_lock.
DS_ENTRY Promise<bool> lock_file(Addon& addon, Descriptor descriptor);

/// "io_uring" or "threads".
DS_ENTRY std::string file_engine_name(Addon& addon);
DS_ENTRY void set_file_engine(Addon& addon, std::string name);

}  // namespace ds::addon
