// An open file with its path, and the errors of file operations.
#pragma once

#include <cstdint>
#include <string>

#include "../core/error.h"

namespace ds::io {

/// Returns DS_IO for `operation` on `path`: the expected state, the system's text for `code` (an
/// errno), and a fix for common cases (disk full, no permission, no such folder, file too large).
Error io_error(const char* operation, const std::string& path, std::string expected, int code);

/// Renames `from` unless `to` exists, atomically; returns false if it exists. A file system without
/// this operation (NFS) may replace an empty folder that appears at the same moment. Throws DS_IO.
bool rename_exclusive(const std::string& from, const std::string& to);

/// Takes the exclusive lock (flock) of an open file without waiting; returns false if another open
/// file has it. The kernel releases it when the last copy of the descriptor is closed, however the
/// process ends. Throws DS_IO if the file system has no locks.
bool try_lock(int descriptor);

/// Alignment that satisfies direct transfers on every file system.
constexpr size_t kDirectAlignment = 4096;

/// Owns a file descriptor.
class File {
 public:
  /// Throws DS_IO. Folders can be opened too, for sync().
  static File open_for_reading(const std::string& path);
  /// Returns another descriptor of an open file, which the owner may close. Reads of both wait for
  /// their bytes from now on. Throws DS_IO.
  static File duplicate_of(int descriptor, const std::string& path);
  /// Creates the file if it is missing; `truncate` empties an existing one.
  static File open_for_writing(const std::string& path, bool truncate);

  /// Opens a file for reading and writing in `folder` without a name: no other process opens it,
  /// and its space is free when the process ends, however it ends. Errors call it `label`. `direct`
  /// requests O_DIRECT transfers and returns whether the file system supports them. With O_DIRECT,
  /// offsets, sizes and addresses are multiples of kDirectAlignment. Throws DS_IO.
  static File nameless_in(const std::string& folder, const std::string& label, bool& direct);

  File(File&& other) noexcept;
  File& operator=(File&&) = delete;
  ~File();

  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  int64_t size() const;
  /// Allocates `bytes` of disk for the file now. Throws DS_IO with `purpose` and the free space.
  void preallocate(int64_t bytes, const std::string& purpose);
  /// Returns "ext4", "tmpfs", ..., or a number for other file systems.
  std::string file_system() const;

  /// Returns when the contents (of a folder: its entries) are on disk.
  void sync();
  /// Reports errors of deferred writes, which the destructor cannot.
  void close();

 private:
  File(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_;
};

}  // namespace ds::io
