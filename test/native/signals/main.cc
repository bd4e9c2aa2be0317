// Stop signals that arrive on several threads at once count as one request; a later one ends.
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "../../../csrc/core/stop_signals.h"

namespace {

using ds::StopSignals;

constexpr int kThreads = 4;
constexpr int kTrials = 500;

std::atomic<int> g_heard{0};
std::atomic<int> g_started{0};
std::atomic<int> g_done{0};

void require(bool holds, const char* what, int trial) {
  if (holds) return;
  std::fprintf(stderr, "expected %s in trial %d\n", what, trial);
  std::exit(1);
}

void count(int) { ++g_heard; }

/// Raises a signal on its own thread in every trial. Threads with even numbers raise SIGINT.
void raise_in_trials(int thread) {
  for (int trial = 1; trial <= kTrials; ++trial) {
    while (g_started.load() < trial) sched_yield();
    raise(thread % 2 == 0 ? SIGINT : SIGTERM);
    ++g_done;
  }
}

/// Every trial watches anew, so the first arrival of each trial races with the others.
void race() {
  signal(SIGINT, count);
  signal(SIGTERM, count);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(raise_in_trials, thread);
  for (int trial = 1; trial <= kTrials; ++trial) {
    StopSignals::watch(SIGINT);
    StopSignals::watch(SIGTERM);
    g_started = trial;
    while (g_done.load() < trial * kThreads) sched_yield();
    const int noted = StopSignals::noted();
    require(noted == SIGINT || noted == SIGTERM, "one of the signals", trial);
    require(g_heard.load() == trial * kThreads, "every arrival at the previous handler", trial);
    StopSignals::unwatch(SIGINT);
    require(StopSignals::noted() == noted, "the record while a signal is watched", trial);
    StopSignals::unwatch(SIGTERM);
    require(StopSignals::noted() == 0, "no record", trial);
  }
  for (std::thread& thread : threads) thread.join();
}

/// Returns the signal that ends a process in which SIGTERM arrives twice, 0 if it lives on.
int end_after(useconds_t pause) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGTERM, count);
    StopSignals::watch(SIGTERM);
    raise(SIGTERM);
    usleep(pause);
    raise(SIGTERM);
    _exit(g_heard == 2 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return WTERMSIG(status);
  require(WEXITSTATUS(status) == 0, "two calls of the previous handler", 0);
  return 0;
}

}  // namespace

int main() {
  require(end_after(1000) == 0, "one request of two arrivals within half a second", 0);
  require(end_after(700'000) == SIGTERM, "an end by a second request", 0);
  race();
  std::printf("%d trials\n", kTrials);
  return 0;
}
