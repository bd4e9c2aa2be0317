// An open file with its path, and the errors of file operations.
#pragma once

#include <cstdint>
#include <string>

#include "../core/error.h"

namespace ds::io {

/// DS_IO for `operation` on `path`: what was wanted, the system's text for `code` (an errno), and a
/// cure for the common ones (disk full, no permission, no such folder, file too large).
Error io_error(const char* operation, const std::string& path, std::string expected, int code);

/// Renames `from` unless there is something called `to`, atomically; false where there is. A file
/// system that cannot (NFS) may replace an empty folder that appears at that very moment, and
/// nothing else. Throws DS_IO.
bool rename_exclusive(const std::string& from, const std::string& to);

/// Takes the exclusive lock (flock) of an open file without waiting; false where another open file
/// has it. The kernel drops it when the last copy of the descriptor is closed, however the process
/// ends. Throws DS_IO where the file system has no locks.
bool try_lock(int descriptor);

/// What every file system asks of direct transfers is a part of this.
constexpr size_t kDirectAlignment = 4096;

/// Owns a file descriptor.
class File {
 public:
  /// Throws DS_IO. Folders can be opened too, for sync().
  static File open_for_reading(const std::string& path);
  /// Another descriptor of an open file that its owner may close; reads of both wait for their
  /// bytes from now on. Throws DS_IO.
  static File duplicate_of(int descriptor, const std::string& path);
  /// Creates the file where it is missing; `truncate` empties an existing one.
  static File open_for_writing(const std::string& path, bool truncate);

  /// A file for reading and writing in `folder` that has no name there: nobody else opens it, and
  /// its space is free again when the process ends, however it ends. Errors call it `label`.
  /// `direct` asks for transfers that pass the system's cache by (O_DIRECT; offsets, sizes and
  /// addresses are then multiples of kDirectAlignment), and says whether the file system gives
  /// them. Throws DS_IO.
  static File nameless_in(const std::string& folder, const std::string& label, bool& direct);

  File(File&& other) noexcept;
  File& operator=(File&&) = delete;
  ~File();

  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  int64_t size() const;
  /// Gives the file `bytes` of disk now. Throws DS_IO, which says `purpose` and what is free.
  void preallocate(int64_t bytes, const std::string& purpose);
  /// "ext4", "tmpfs", ...; a number for one that has no name here.
  std::string file_system() const;

  /// Returns when the contents (of a folder: its entries) are on disk.
  void sync();
  /// Reports what a deferred write ran into, which the destructor cannot.
  void close();

 private:
  File(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_;
};

}  // namespace ds::io
