// Implements system.h for macOS.
#include "system.h"

#include <cerrno>
#include <fcntl.h>
#include <mach/vm_inherit.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/param.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

namespace ds::system {
namespace {

constexpr size_t kMostEntropy = 256;  // the limit of one call of getentropy()

/// Makes a descriptor non-blocking and closes it in child programs. macOS cannot create it so.
bool prepare_descriptor(int descriptor) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  return flags >= 0 && ::fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) == 0 &&
         ::fcntl(descriptor, F_SETFD, FD_CLOEXEC) == 0;
}

int prepare_socket(int socket) {
  if (socket < 0) return -1;
  const int on = 1;
  const bool ready =
      prepare_descriptor(socket) &&
      ::setsockopt(socket, SOL_SOCKET, SO_NOSIGPIPE, &on, static_cast<socklen_t>(sizeof(on))) == 0;
  if (ready) return socket;
  const int code = errno;
  ::close(socket);
  errno = code;
  return -1;
}

}  // namespace

void name_thread(const char* name) { pthread_setname_np(name); }

std::string library_path(void*, const std::string& name) { return name; }

bool random_bytes(char* out, size_t count) {
  for (size_t at = 0; at < count; at += kMostEntropy) {
    const size_t bytes = count - at < kMostEntropy ? count - at : kMostEntropy;
    if (::getentropy(out + at, bytes) != 0) return false;
  }
  return true;
}

int rename_exclusive(const char* from, const char* to) {
  if (::renamex_np(from, to, RENAME_EXCL) == 0) return 0;
  return errno == ENOTSUP ? EOPNOTSUPP : errno;
}

int open_direct(const char* path, int flags, mode_t mode) {
  const int descriptor = ::open(path, flags, mode);
  if (descriptor < 0 || ::fcntl(descriptor, F_NOCACHE, 1) == 0) return descriptor;
  const int code = errno;
  ::close(descriptor);
  errno = code;
  return -1;
}

int nameless_flag() { return -1; }

int allocate_disk(int descriptor, int64_t bytes) {
  fstore_t store{};
  store.fst_flags = F_ALLOCATEALL;
  store.fst_posmode = F_PEOFPOSMODE;
  store.fst_length = bytes;
  if (::fcntl(descriptor, F_PREALLOCATE, &store) < 0) return errno == ENOTSUP ? EOPNOTSUPP : errno;
  return ::ftruncate(descriptor, bytes) == 0 ? 0 : errno;
}

double free_bytes(int descriptor) {
  struct statfs status;
  if (::fstatfs(descriptor, &status) < 0) return 0;
  const auto blocks = ::geteuid() == 0 ? status.f_bfree : status.f_bavail;
  return static_cast<double>(blocks) * static_cast<double>(status.f_bsize);
}

std::string file_system(int descriptor) {
  struct statfs status;
  return ::fstatfs(descriptor, &status) < 0 ? "an unknown file system" : status.f_fstypename;
}

void prepare_pinned(void* data, size_t bytes) { ::minherit(data, bytes, VM_INHERIT_NONE); }

int stream_socket(int family) { return prepare_socket(::socket(family, SOCK_STREAM, 0)); }

int accept_stream(int listener) { return prepare_socket(::accept(listener, nullptr, nullptr)); }

int send_flags() { return 0; }  // SO_NOSIGPIPE is already set for the socket

bool open_pipe(int (&ends)[2]) {
  if (::pipe(ends) != 0) return false;
  if (prepare_descriptor(ends[0]) && prepare_descriptor(ends[1])) return true;
  const int code = errno;
  for (const int end : ends) ::close(end);
  errno = code;
  return false;
}

}  // namespace ds::system
