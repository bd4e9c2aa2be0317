// System calls that differ between Linux and macOS. Implemented by system_linux.cc and
// system_macos.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <sys/types.h>

namespace ds::system {

/// Sets the calling thread's name for debuggers. Linux keeps 15 bytes.
void name_thread(const char* name);

/// Returns the path of a library that the loader opened as `name`, or `name` if it is unknown.
std::string library_path(void* handle, const std::string& name);

/// Fills `out` with random bytes of the kernel. Returns false on failure.
bool random_bytes(char* out, size_t count);

/// Renames a file unless `to` exists. Returns 0 or an errno: EINVAL, ENOSYS or EOPNOTSUPP if the
/// file system does not support it.
int rename_exclusive(const char* from, const char* to);

/// Opens a file for transfers that bypass the page cache. Returns -1 with errno on failure.
int open_direct(const char* path, int flags, mode_t mode);

/// Returns the flag of open(2) that creates a file without a name, or -1 if the system has none.
int nameless_flag();

/// Allocates disk space for a file. Returns 0 or an errno: EOPNOTSUPP if the file system does not
/// support it.
int allocate_disk(int descriptor, int64_t bytes);

/// Returns the free bytes of a file's file system, or 0 if unknown. For root, includes reserved
/// blocks.
double free_bytes(int descriptor);

/// Returns the name of a file's file system ("ext4", "apfs"), or its number.
std::string file_system(int descriptor);

/// Prepares host memory for fast transfers: huge pages, and no copies in child processes.
void prepare_pinned(void* data, size_t bytes);

/// Creates a non-blocking stream socket that child programs do not inherit. Returns -1 with errno
/// on failure.
int stream_socket(int family);
/// Accepts a connection as such a socket. Returns -1 with errno on failure.
int accept_stream(int listener);
/// Returns the flags of send(2) that turn SIGPIPE into an error.
int send_flags();

/// Creates a pipe with non-blocking ends. Returns false with errno on failure.
bool open_pipe(int (&ends)[2]);

}  // namespace ds::system
