// Files without a name, for data that a process keeps on disk while it runs: opening, space, and
// file system type.
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <unistd.h>
#include <utility>

#include "file.h"

namespace ds::io {
namespace {

constexpr mode_t kOwnerOnly = 0600;

int open_again(const std::string& path, int flags) {
  int descriptor;
  do {
    descriptor = ::open(path.c_str(), flags | O_RDWR | O_CLOEXEC, kOwnerOnly);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

/// For file systems without O_TMPFILE: creates a new name and removes it at once. Returns -1 with
/// errno.
int open_and_unlink(const std::string& folder, int flags) {
  std::string path = folder + "/.ds-XXXXXX";
  const int named = ::mkostemp(path.data(), O_CLOEXEC);
  if (named < 0) return -1;
  const int descriptor = flags ? open_again(path, flags) : named;
  const int code = errno;
  ::unlink(path.c_str());
  if (descriptor != named) ::close(named);
  errno = code;
  return descriptor;
}

int open_nameless(const std::string& folder, int flags) {
  const int descriptor = open_again(folder, O_TMPFILE | flags);
  const bool unknown = errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT;
  return descriptor < 0 && unknown ? open_and_unlink(folder, flags) : descriptor;
}

/// Some file systems open a file for direct transfers and reject every transfer.
bool transfers_directly(int descriptor) {
  const std::unique_ptr<void, void (*)(void*)> block(
      std::aligned_alloc(kDirectAlignment, kDirectAlignment), std::free);
  if (!block) return false;
  std::memset(block.get(), 0, kDirectAlignment);
  ssize_t moved;
  do {
    moved = ::pwrite(descriptor, block.get(), kDirectAlignment, 0);
  } while (moved < 0 && errno == EINTR);
  // Later code that needs the space reports other failures (a full disk).
  return moved >= 0 || errno != EINVAL;
}

double free_bytes(int descriptor) {
  struct statfs status;
  if (::fstatfs(descriptor, &status) < 0) return 0;
  // The superuser may also use reserved blocks.
  const auto blocks = ::geteuid() == 0 ? status.f_bfree : status.f_bavail;
  return static_cast<double>(blocks) * static_cast<double>(status.f_bsize);
}

std::string gigabytes(double bytes) {
  std::ostringstream out;
  out.precision(4);
  out << bytes / 1e9 << " GB";
  return out.str();
}

}  // namespace

File File::nameless_in(const std::string& folder, const std::string& label, bool& direct) {
  const std::string path = folder + "/" + label;
  int descriptor = direct ? open_nameless(folder, O_DIRECT) : -1;
  if (descriptor >= 0 && !transfers_directly(descriptor)) {
    ::close(descriptor);
    descriptor = -1;
    errno = EINVAL;
  }
  direct = descriptor >= 0;
  if (!direct) descriptor = open_nameless(folder, 0);
  if (descriptor < 0) throw io_error("create", path, "a folder that allows new files", errno);
  return File(path, descriptor);
}

void File::preallocate(int64_t bytes, const std::string& purpose) {
  const auto refuse = [&](int code, const std::string& got) {
    const Error error = io_error("preallocate", path_, purpose, code);
    return Error(error.code, error.op, error.expected, got, error.hint);
  };
  rlimit limit;
  const bool limited = ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  if (limited && static_cast<rlim_t>(bytes) > limit.rlim_cur) {
    const auto most = static_cast<double>(limit.rlim_cur);
    throw refuse(EFBIG, text("files of at most ", gigabytes(most)));  // Not by a signal that kills.
  }
  const double free = free_bytes(descriptor_);
  const std::string there = text(gigabytes(free), " free on ", file_system());
  // Checks instead of trying: before it fails, fallocate() takes all free space, which other
  // writers need.
  if (free < static_cast<double>(bytes)) throw refuse(ENOSPC, there);
  int code;
  do {
    code = ::fallocate(descriptor_, 0, 0, bytes) == 0 ? 0 : errno;
  } while (code == EINTR);
  if (code == EOPNOTSUPP) code = ::ftruncate(descriptor_, bytes) == 0 ? 0 : errno;
  if (code == ENOSPC || code == EDQUOT) throw refuse(code, there);
  if (code) throw io_error("preallocate", path_, purpose, code);
}

std::string File::file_system() const {
  static constexpr std::pair<unsigned long, const char*> kNames[] = {
      {0xEF53, "ext4"},      {0x58465342, "xfs"},     {0x9123683E, "btrfs"}, {0x01021994, "tmpfs"},
      {0x858458F6, "ramfs"}, {0x794C7630, "overlay"}, {0x6969, "nfs"},       {0x65735546, "fuse"},
      {0x2FC12FC1, "zfs"},   {0xF2F52010, "f2fs"},    {0x0BD00BD0, "lustre"}};
  struct statfs status;
  if (::fstatfs(descriptor_, &status) < 0) return "an unknown file system";
  const auto type = static_cast<unsigned long>(status.f_type) & 0xFFFFFFFFUL;
  for (const auto& [number, name] : kNames) {
    if (number == type) return name;
  }
  return text("file system ", type);
}

}  // namespace ds::io
