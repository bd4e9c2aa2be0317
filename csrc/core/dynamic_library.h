// A shared library opened at run time: RAII over dlopen. Errors name the files that were tried.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace ds {

/// Opens the first of `candidates` (plain names or paths) that loads.
struct LibraryRequest {
  std::string noun;                     // for messages, e.g. "cuBLASLt"
  std::vector<std::string> candidates;  // in order of preference
  std::string hint;                     // fix for the user if none of them loads
};

/// An open library, closed on destruction. Pointers from it must not be used after that. Its
/// symbols stay private (RTLD_LOCAL).
class DynamicLibrary {
 public:
  /// Throws DS_LIBRARY with every candidate and the loader's reason.
  static DynamicLibrary open(const LibraryRequest& request);

  /// Returns the folder of the shared object or program that contains `address`, without a trailing
  /// slash. A module finds libraries in its own folder with it. Throws DS_LIBRARY.
  static std::string folder_of(const void* address);

  /// Returns the function `name`. Throws DS_LIBRARY if the library lacks it (too old or too new).
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
