// Calls that Linux and macOS name differently. system_linux.cc and system_macos.cc implement them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <sys/types.h>

namespace ds::system {

/// Names the calling thread for debuggers and lists of threads. Linux keeps 15 bytes.
void name_thread(const char* name);

/// Returns the file of a library that the loader opened as `name`; `name` if it is unknown.
std::string library_path(void* handle, const std::string& name);

/// Fills `out` from the kernel's generator. Returns false if it cannot.
bool random_bytes(char* out, size_t count);

/// Renames, and never replaces. Returns 0 or an errno: EINVAL, ENOSYS or EOPNOTSUPP if the file
/// system cannot.
int rename_exclusive(const char* from, const char* to);

/// open(2) for transfers that bypass the page cache. Returns -1 with errno.
int open_direct(const char* path, int flags, mode_t mode);

/// The flag of open(2) for a file without a name in a folder; -1 if the system has none.
int nameless_flag();

/// Allocates disk for a file. Returns 0 or an errno: EOPNOTSUPP if the file system cannot.
int allocate_disk(int descriptor, int64_t bytes);

/// Free bytes of a file's file system, with reserved ones for the superuser; 0 if unknown.
double free_bytes(int descriptor);

/// Returns "ext4", "apfs", ..., or a number.
std::string file_system(int descriptor);

/// Prepares memory for fast transfers: huge pages, no copies in child processes.
void prepare_pinned(void* data, size_t bytes);

/// A stream socket that does not block and closes in child programs. Returns -1 with errno.
int stream_socket(int family);
/// accept(2) of such a socket.
int accept_stream(int listener);
/// Flags of send(2): a closed connection is an error, and no signal.
int send_flags();

/// A pipe with ends that do not block. Returns false with errno.
bool open_pipe(int (&ends)[2]);

}  // namespace ds::system
