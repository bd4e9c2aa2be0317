// An open file and its path, and the errors of file operations.
#pragma once

#include <cstdint>
#include <string>

#include "../core/error.h"

namespace ds::io {

/// Returns a DS_IO error for `operation` on `path`, with the expected state and the system's text
/// for `code` (an errno). Common causes get a hint: disk full, no permission, no such folder, file
/// too large.
Error io_error(const char* operation, const std::string& path, std::string expected, int code);

/// Renames `from` atomically, or returns false if `to` exists. On a file system without this
/// operation (NFS), it may replace an empty folder that appears at the same moment. Throws DS_IO.
bool rename_exclusive(const std::string& from, const std::string& to);

/// Locks an open file exclusively (flock) without waiting. Returns false if another open file holds
/// the lock. The kernel releases the lock when the last copy of the descriptor is closed, also if
/// the process is killed. Throws DS_IO if the file system has no locks.
bool try_lock(int descriptor);

/// Alignment of O_DIRECT transfers that all file systems accept.
constexpr size_t kDirectAlignment = 4096;

/// Owns a file descriptor.
class File {
 public:
  /// Opens a file, or a folder for sync(). Throws DS_IO.
  static File open_for_reading(const std::string& path);
  /// Duplicates the descriptor of an open file, so that its owner may close it. Reads through both
  /// descriptors become blocking. Throws DS_IO.
  static File duplicate_of(int descriptor, const std::string& path);
  /// Opens or creates a file. `truncate` empties an existing file. Throws DS_IO.
  static File open_for_writing(const std::string& path, bool truncate);

  /// Creates a file without a name in `folder`, for reading and writing. Other processes cannot
  /// open it, and its space is freed when the process ends in any way. Errors call it `label`.
  /// `direct` requests O_DIRECT and returns whether the file system supports it. If so, offsets,
  /// sizes and addresses must be multiples of kDirectAlignment. Throws DS_IO.
  static File nameless_in(const std::string& folder, const std::string& label, bool& direct);

  File(File&& other) noexcept;
  File& operator=(File&&) = delete;
  ~File();

  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  int64_t size() const;
  /// Allocates `bytes` of disk space. Throws DS_IO with `purpose` and the free space.
  void preallocate(int64_t bytes, const std::string& purpose);
  /// Returns the name of the file system ("ext4", "tmpfs"), or its number.
  std::string file_system() const;

  /// Blocks until the contents of a file, or the entries of a folder, are on disk. Throws DS_IO.
  void sync();
  /// Closes the file and throws DS_IO for a deferred write that failed. The destructor cannot
  /// report it.
  void close();

 private:
  File(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_;
};

}  // namespace ds::io
