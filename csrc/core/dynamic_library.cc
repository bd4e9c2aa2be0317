// Implements DynamicLibrary by dlopen, dlsym and dladdr. Failures throw DS_LIBRARY.
#include "dynamic_library.h"

#include <dlfcn.h>

#include "error.h"
#include "system.h"

namespace ds {

namespace {

std::string loader_reason() {
  const char* reason = dlerror();
  return reason ? reason : "no reason given";
}

}  // namespace

void DynamicLibrary::Close::operator()(void* handle) const { dlclose(handle); }

DynamicLibrary::DynamicLibrary(void* handle, std::string path)
    : handle_(handle), path_(std::move(path)) {}

DynamicLibrary DynamicLibrary::open(const LibraryRequest& request) {
  std::string reasons;
  for (const std::string& name : request.candidates) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      return DynamicLibrary(handle, system::library_path(handle, name));
    }
    reasons += (reasons.empty() ? "" : "; ") + loader_reason();
  }
  std::string names;
  for (const std::string& name : request.candidates) names += (names.empty() ? "" : ", ") + name;
  throw Error("DS_LIBRARY", request.noun, text("one of the libraries ", names), reasons,
              request.hint);
}

std::string DynamicLibrary::folder_of(const void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0 || !info.dli_fname) {
    throw Error("DS_LIBRARY", "folder_of", "an address inside a loaded module",
                "an unknown address");
  }
  const std::string file = info.dli_fname;
  const size_t slash = file.find_last_of('/');
  return slash == std::string::npos ? "." : file.substr(0, slash);
}

void* DynamicLibrary::address_of(const char* name) const {
  dlerror();
  void* address = dlsym(handle_.get(), name);
  if (!address) {
    throw Error("DS_LIBRARY", path_, text("a library with the function ", name), loader_reason(),
                "Install a version of the library that this build supports.");
  }
  return address;
}

}  // namespace ds
