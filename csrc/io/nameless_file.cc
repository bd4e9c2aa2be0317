// Files without a name, for data that a process keeps on disk while it runs.
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <sys/resource.h>
#include <unistd.h>
#include <utility>

#include "../core/system.h"
#include "file.h"

namespace ds::io {
namespace {

constexpr mode_t kOwnerOnly = 0600;

int open_again(const std::string& path, int flags, bool direct) {
  int descriptor;
  flags |= O_RDWR | O_CLOEXEC;
  do {
    descriptor = direct ? system::open_direct(path.c_str(), flags, kOwnerOnly)
                        : ::open(path.c_str(), flags, kOwnerOnly);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

/// Creates a file and removes its name at once, for systems without O_TMPFILE. Returns -1 with
/// errno on failure.
int open_and_unlink(const std::string& folder, bool direct) {
  std::string path = folder + "/.ds-XXXXXX";
  const int named = ::mkostemp(path.data(), O_CLOEXEC);
  if (named < 0) return -1;
  const int descriptor = direct ? open_again(path, 0, direct) : named;
  const int code = errno;
  ::unlink(path.c_str());
  if (descriptor != named) ::close(named);
  errno = code;
  return descriptor;
}

int open_nameless(const std::string& folder, bool direct) {
  const int flag = system::nameless_flag();
  if (flag < 0) return open_and_unlink(folder, direct);
  const int descriptor = open_again(folder, flag, direct);
  const bool unknown = errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT;
  return descriptor < 0 && unknown ? open_and_unlink(folder, direct) : descriptor;
}

/// Returns false if the file system accepts O_DIRECT at open() but rejects each transfer.
bool transfers_directly(int descriptor) {
  const std::unique_ptr<void, void (*)(void*)> block(
      std::aligned_alloc(kDirectAlignment, kDirectAlignment), std::free);
  if (!block) return false;
  std::memset(block.get(), 0, kDirectAlignment);
  ssize_t moved;
  do {
    moved = ::pwrite(descriptor, block.get(), kDirectAlignment, 0);
  } while (moved < 0 && errno == EINTR);
  // Other failures (a full disk) are reported when the space is needed.
  return moved >= 0 || errno != EINVAL;
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
  int descriptor = direct ? open_nameless(folder, true) : -1;
  if (descriptor >= 0 && !transfers_directly(descriptor)) {
    ::close(descriptor);
    descriptor = -1;
    errno = EINVAL;
  }
  direct = descriptor >= 0;
  if (!direct) descriptor = open_nameless(folder, false);
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
    const auto max_bytes = static_cast<double>(limit.rlim_cur);
    throw refuse(EFBIG,
                 text("files of at most ", gigabytes(max_bytes)));  // a write would raise SIGXFSZ
  }
  const double free = system::free_bytes(descriptor_);
  const std::string available = text(gigabytes(free), " free on ", file_system());
  // Checks the free space first, because a failing allocation takes all free space for a moment,
  // and other programs may need it.
  if (free < static_cast<double>(bytes)) throw refuse(ENOSPC, available);
  int code;
  do {
    code = system::allocate_disk(descriptor_, bytes);
  } while (code == EINTR);
  if (code == EOPNOTSUPP) code = ::ftruncate(descriptor_, bytes) == 0 ? 0 : errno;
  if (code == ENOSPC || code == EDQUOT) throw refuse(code, available);
  if (code) throw io_error("preallocate", path_, purpose, code);
}

std::string File::file_system() const { return system::file_system(descriptor_); }

}  // namespace ds::io
