// In place of libstdc++'s header for glibc, which reads macros that musl does not have.
#pragma once
#define __NO_CTYPE 1
#undef _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT
