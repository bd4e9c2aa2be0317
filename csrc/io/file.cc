// Opens, syncs and closes files. Errors have the path, the operation and the system's reason.
#include "file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "../core/system.h"

namespace ds::io {
namespace {

const char* cure_for(int code) {
  switch (code) {
    case ENOSPC:
    case EDQUOT: return "Free space on this file system, or choose a folder on another one.";
    case EFBIG: return "The file exceeds a limit: see `ulimit -f` and the file system's maximum.";
    case EACCES:
    case EPERM: return "Check who owns the file and its folder, and their permissions.";
    case EROFS: return "The file system is mounted read-only: choose another folder.";
    case ENOENT:
    case ENOTDIR: return "Check the path: a folder in it does not exist.";
    case EMFILE:
    case ENFILE: return "Too many files are open: raise `ulimit -n`.";
    case EIO: return "The disk or network file system failed: see the system log.";
    default: return "";
  }
}

/// Renames on file systems that always replace (NFS, some FUSE). A file gets its new name by
/// link(2), which never replaces. A folder uses rename(2), which replaces an empty folder only.
/// Returns 0 or an errno.
int rename_without_flag(const char* from, const char* to) {
  struct stat status;
  if (::lstat(to, &status) == 0) return EEXIST;
  if (::lstat(from, &status) < 0) return errno;
  if (S_ISDIR(status.st_mode)) return ::rename(from, to) == 0 ? 0 : errno;
  if (::link(from, to) < 0) return errno;
  return ::unlink(from) == 0 ? 0 : errno;
}

/// Opens a file. A new file has mode 0666 minus the umask.
int open_file(const std::string& path, int flags, const char* purpose) {
  int descriptor;
  do {
    descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  } while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) throw io_error("open", path, purpose, errno);
  return descriptor;
}

}  // namespace

Error io_error(const char* operation, const std::string& path, std::string expected, int code) {
  return Error("DS_IO", text(operation, " ", path), std::move(expected),
               text(std::strerror(code), " (errno ", code, ")"), cure_for(code));
}

bool rename_exclusive(const std::string& from, const std::string& to) {
  int code = system::rename_exclusive(from.c_str(), to.c_str());
  if (code == EINVAL || code == ENOSYS || code == EOPNOTSUPP) {
    code = rename_without_flag(from.c_str(), to.c_str());
  }
  if (code == 0) return true;
  if (code == EEXIST || code == ENOTEMPTY || code == ENOTDIR) {
    struct stat status;
    if (::lstat(to.c_str(), &status) == 0) return false;
  }
  throw io_error("rename", from, text("no file named ", to), code);
}

bool try_lock(int descriptor) {
  int result;
  do {
    result = ::flock(descriptor, LOCK_EX | LOCK_NB);
  } while (result < 0 && errno == EINTR);
  if (result == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  throw io_error("flock", text("descriptor ", descriptor), "a file system with locks", errno);
}

File File::open_for_reading(const std::string& path) {
  return File(path, open_file(path, O_RDONLY, "a readable file"));
}

File File::duplicate_of(int descriptor, const std::string& path) {
  File file(path, ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (file.descriptor_ < 0) throw io_error("open", path, "an open file", errno);
  // open() needs O_NONBLOCK, because it would block if the path is a pipe. Reads must block,
  // because the engine does not handle EAGAIN.
  const int flags = ::fcntl(file.descriptor_, F_GETFL);
  const bool waits = flags >= 0 && ::fcntl(file.descriptor_, F_SETFL, flags & ~O_NONBLOCK) == 0;
  if (!waits) throw io_error("open", path, "a file with blocking reads", errno);
  return file;
}

File File::open_for_writing(const std::string& path, bool truncate) {
  const int flags = O_WRONLY | O_CREAT | (truncate ? O_TRUNC : 0);
  return File(path, open_file(path, flags, "a writable file"));
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

int64_t File::size() const {
  struct stat status;
  if (::fstat(descriptor_, &status) < 0) throw io_error("stat", path_, "its size", errno);
  return status.st_size;
}

void File::sync() {
  int result;
  do {
    result = ::fsync(descriptor_);
  } while (result < 0 && errno == EINTR);
  if (result < 0) throw io_error("fsync", path_, "its contents on disk", errno);
}

void File::close() {
  // On Linux, an interrupted close() has freed the descriptor. A second close() could close another
  // file.
  const int result = ::close(std::exchange(descriptor_, -1));
  if (result < 0 && errno != EINTR) throw io_error("close", path_, "a clean close", errno);
}

}  // namespace ds::io
