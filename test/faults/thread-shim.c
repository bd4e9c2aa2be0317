/* Threads that the system refuses: preloaded into a process, no more than DS_FAULT_THREADS can be
 * made from the moment on when the file DS_FAULT_ARMED exists. With DS_FAULT_MEMORY it is memory that
 * is refused, once, where the thread after those is made. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

typedef int (*Create)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);

extern void* __libc_malloc(size_t);

static int made = 0;
static __thread int is_out __attribute__((tls_model("initial-exec"))) = 0;

void* malloc(size_t bytes) {
  if (!is_out) return __libc_malloc(bytes);
  is_out = 0;
  errno = ENOMEM;
  return NULL;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* how, void* (*body)(void*), void* with) {
  const char* armed = getenv("DS_FAULT_ARMED");
  const char* most = getenv("DS_FAULT_THREADS");
  const int counts = armed && most && access(armed, F_OK) == 0;
  const int is_memory = getenv("DS_FAULT_MEMORY") != NULL;
  if (counts && !is_memory && made >= atoi(most)) return EAGAIN;
  const int result = ((Create)dlsym(RTLD_NEXT, "pthread_create"))(thread, how, body, with);
  if (counts) is_out = ++made == atoi(most) && is_memory;
  return result;
}
