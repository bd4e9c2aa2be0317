// An open file with its path, and the errors of file operations.
#pragma once

#include <cstdint>
#include <string>

#include "../core/error.h"

namespace ds::io {

/// DS_IO for `operation` on `path`: what was wanted, the system's text for `code` (an errno), and a
/// cure for the common ones (disk full, no permission, no such folder, file too large).
Error io_error(const char* operation, const std::string& path, std::string expected, int code);

/// Owns a file descriptor.
class File {
 public:
  /// Throws DS_IO. Folders can be opened too, for sync().
  static File open_for_reading(const std::string& path);
  /// Creates the file where it is missing; `truncate` empties an existing one.
  static File open_for_writing(const std::string& path, bool truncate);

  File(File&& other) noexcept;
  File& operator=(File&&) = delete;
  ~File();

  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  int64_t size() const;

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
