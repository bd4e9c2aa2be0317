// Implements system.h for Linux.
#include "system.h"

#include <cerrno>
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

namespace ds::system {
namespace {

constexpr unsigned kNoReplace = 1;  // RENAME_NOREPLACE, which older headers do not define

}  // namespace

void name_thread(const char* name) { pthread_setname_np(pthread_self(), name); }

std::string library_path(void* handle, const std::string& name) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || !map || !map->l_name || !*map->l_name)
    return name;
  return map->l_name;
}

bool random_bytes(char* out, size_t count) {
  return getrandom(out, count, 0) == static_cast<ssize_t>(count);
}

int rename_exclusive(const char* from, const char* to) {
  return ::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, kNoReplace) == 0 ? 0 : errno;
}

int open_direct(const char* path, int flags, mode_t mode) {
  return ::open(path, flags | O_DIRECT, mode);
}

int nameless_flag() { return O_TMPFILE; }

int allocate_disk(int descriptor, int64_t bytes) {
  return ::fallocate(descriptor, 0, 0, bytes) == 0 ? 0 : errno;
}

double free_bytes(int descriptor) {
  struct statfs status;
  if (::fstatfs(descriptor, &status) < 0) return 0;
  const auto blocks = ::geteuid() == 0 ? status.f_bfree : status.f_bavail;
  return static_cast<double>(blocks) * static_cast<double>(status.f_bsize);
}

std::string file_system(int descriptor) {
  static constexpr std::pair<unsigned long, const char*> kNames[] = {
      {0xEF53, "ext4"},      {0x58465342, "xfs"},     {0x9123683E, "btrfs"}, {0x01021994, "tmpfs"},
      {0x858458F6, "ramfs"}, {0x794C7630, "overlay"}, {0x6969, "nfs"},       {0x65735546, "fuse"},
      {0x2FC12FC1, "zfs"},   {0xF2F52010, "f2fs"},    {0x0BD00BD0, "lustre"}};
  struct statfs status;
  if (::fstatfs(descriptor, &status) < 0) return "an unknown file system";
  const auto type = static_cast<unsigned long>(status.f_type) & 0xFFFFFFFFUL;
  for (const auto& [number, name] : kNames) {
    if (number == type) return name;
  }
  return "file system " + std::to_string(type);
}

void prepare_pinned(void* data, size_t bytes) {
  madvise(data, bytes, MADV_HUGEPAGE);
  // fork() would copy pages at once that a disk transfer has pinned.
  madvise(data, bytes, MADV_DONTFORK);
}

int stream_socket(int family) {
  return ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

int accept_stream(int listener) {
  return ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
}

int send_flags() { return MSG_NOSIGNAL; }

bool open_pipe(int (&ends)[2]) { return ::pipe2(ends, O_NONBLOCK | O_CLOEXEC) == 0; }

}  // namespace ds::system
