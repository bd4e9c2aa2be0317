// A shared library that is opened at run time and closed by its destructor.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace ds {

/// Describes a library to open: the first of `candidates` (names or paths) that loads.
struct LibraryRequest {
  std::string noun;                     // for messages, e.g. "cuBLASLt"
  std::vector<std::string> candidates;  // in order of preference
  std::string hint;                     // the fix that an error suggests if no candidate loads
};

/// An open library, closed on destruction. Its functions must not be called after that. Its symbols
/// stay private (RTLD_LOCAL).
class DynamicLibrary {
 public:
  /// Opens the library. Throws DS_LIBRARY with the loader's reason for each candidate.
  static DynamicLibrary open(const LibraryRequest& request);

  /// Returns the folder, without a trailing slash, of the shared object or program that contains
  /// `address`. A module uses it to find libraries next to itself. Throws DS_LIBRARY.
  static std::string folder_of(const void* address);

  /// Returns the function `name`. Throws DS_LIBRARY if this version of the library lacks it.
  template <class Function>
  Function symbol(const char* name) const {
    return reinterpret_cast<Function>(address_of(name));
  }

  /// Returns the file that the loader opened.
  const std::string& path() const { return path_; }

 private:
  struct Close {
    void operator()(void* handle) const;
  };

  DynamicLibrary(void* handle, std::string path);
  void* address_of(const char* name) const;

  std::unique_ptr<void, Close> handle_;
  std::string path_;
};

}  // namespace ds
