/* Memory that runs out: preloaded into a process whose RANK is DS_FAULT_RANK, malloc gives nothing
 * to threads called DS_FAULT_THREAD as long as the file DS_FAULT_ARMED exists. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

extern void* __libc_malloc(size_t);

static int is_out(void) {
  char name[16] = "";
  const char* thread = getenv("DS_FAULT_THREAD");
  const char* armed = getenv("DS_FAULT_ARMED");
  const char* culprit = getenv("DS_FAULT_RANK");
  const char* rank = getenv("RANK");
  if (!thread || !armed || !culprit || !rank || strcmp(rank, culprit) != 0) return 0;
  prctl(PR_GET_NAME, name);
  return strcmp(name, thread) == 0 && access(armed, F_OK) == 0;
}

void* malloc(size_t bytes) {
  if (!is_out()) return __libc_malloc(bytes);
  errno = ENOMEM;
  return NULL;
}
