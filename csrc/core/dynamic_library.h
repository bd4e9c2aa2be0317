// A shared library opened at run time: RAII over dlopen, errors that name what was tried.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace ds {

/// What to open: the first of `candidates` (plain names or paths) that loads.
struct LibraryRequest {
  std::string noun;                     // for messages, e.g. "cuBLASLt"
  std::vector<std::string> candidates;  // in order of preference
  std::string hint;                     // what the user can do when none loads
};

/// An open library, closed on destruction; every pointer taken from it must be gone by then.
/// Symbols stay private to it (RTLD_LOCAL).
class DynamicLibrary {
 public:
  /// Throws DS_LIBRARY with every candidate and the loader's reason for refusing it.
  static DynamicLibrary open(const LibraryRequest& request);

  /// The folder of the shared object or program that contains `address`, without a trailing slash.
  /// Lets a module find the libraries that were installed beside it. Throws DS_LIBRARY.
  static std::string folder_of(const void* address);

  /// The function `name`. Throws DS_LIBRARY when the library lacks it (too old or too new).
  template <class Function>
  Function symbol(const char* name) const {
    return reinterpret_cast<Function>(address_of(name));
  }

  /// Where the loader found the library.
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
