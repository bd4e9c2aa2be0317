/* A disk that fails: preloaded, it stands before pread, pwrite and fallocate on files below
 * DS_FAULT_FOLDER, and does what DS_FAULT says from the moment the file DS_FAULT_ARMED exists. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

typedef ssize_t (*transfer)(int, void*, size_t, off_t);

static int is_ours(int descriptor) {
  const char* folder = getenv("DS_FAULT_FOLDER");
  const char* armed = getenv("DS_FAULT_ARMED");
  char link[64], path[PATH_MAX];
  if (!folder || !armed || access(armed, F_OK) != 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  return length > 0 && strncmp(path, folder, strlen(folder)) == 0;
}

static ssize_t move(const char* name, int descriptor, void* data, size_t bytes, off_t offset) {
  const char* fault = getenv("DS_FAULT");
  const transfer real = (transfer)dlsym(RTLD_NEXT, name);
  const int writes = name[1] == 'w';
  if (!fault || strncmp(fault, writes ? "write" : "read", writes ? 5 : 4) != 0 ||
      !is_ours(descriptor)) {
    return real(descriptor, data, bytes, offset);
  }
  if (strstr(fault, "-kill")) raise(SIGKILL);
  if (strstr(fault, "-end")) return 0;
  if (strstr(fault, "-short") && bytes > 4096) return real(descriptor, data, 4096, offset);
  if (strstr(fault, "-short")) return real(descriptor, data, bytes, offset);
  errno = strstr(fault, "-full") ? ENOSPC : EIO;
  return -1;
}

ssize_t pread(int descriptor, void* data, size_t bytes, off_t offset) {
  return move("pread", descriptor, data, bytes, offset);
}
ssize_t pread64(int descriptor, void* data, size_t bytes, off_t offset) {
  return move("pread64", descriptor, data, bytes, offset);
}
ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) {
  return move("pwrite", descriptor, (void*)data, bytes, offset);
}
ssize_t pwrite64(int descriptor, const void* data, size_t bytes, off_t offset) {
  return move("pwrite64", descriptor, (void*)data, bytes, offset);
}

static int allocate(const char* name, int descriptor, int mode, off_t offset, off_t bytes) {
  const char* fault = getenv("DS_FAULT");
  if (fault && strncmp(fault, "allocate", 8) == 0 && is_ours(descriptor)) {
    errno = ENOSPC;
    return -1;
  }
  return ((int (*)(int, int, off_t, off_t))dlsym(RTLD_NEXT, name))(descriptor, mode, offset, bytes);
}

int fallocate(int descriptor, int mode, off_t offset, off_t bytes) {
  return allocate("fallocate", descriptor, mode, offset, bytes);
}
int fallocate64(int descriptor, int mode, off_t offset, off_t bytes) {
  return allocate("fallocate64", descriptor, mode, offset, bytes);
}
