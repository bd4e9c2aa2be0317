// Every thread of csrc/comm at work at once: store, watchdogs, engines, Gloo's loop; for
// ThreadSanitizer.
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <thread>

#include "../../../csrc/core/thread_pool.h"
#include "ranks.h"

namespace ds::threads {
namespace {

using comm::Kind;
using comm::Milliseconds;

constexpr Milliseconds kLong{60000};
constexpr Milliseconds kShort{400};

bool says(const std::string& message, const char* words) {
  return message.find(words) != std::string::npos;
}

/// Many collectives under way at once, waited for out of order.
void sum(Rank& self, int rank, int size) {
  for (int round = 0; round < 4; ++round) {
    std::vector<Floats> data;
    std::vector<uint64_t> tickets;
    for (int64_t length : {0, 1, 1003, 40'000, 300'000}) {
      data.push_back(floats(length, static_cast<float>(rank + round)));
      tickets.push_back(self.start(Kind::all_reduce, data.back(), data.back(), length, "sum"));
    }
    while (!self.group().done(tickets[1])) std::this_thread::yield();
    for (size_t i = tickets.size(); i-- > 0;) {
      self.group().synchronize(tickets[i]);
      const auto expected = static_cast<float>(size * (size - 1) / 2 + size * round);
      for (float value : *data[i]) require(value == expected, "a sum");
    }
  }
}

/// Each of the other kinds once, under way together.
void move(Rank& self, int rank, int size) {
  constexpr int64_t kCount = 30'000;
  const Floats own = floats(kCount, static_cast<float>(rank)), wide = floats(size * kCount, 1);
  const Floats gathered = floats(size * kCount), scattered = floats(kCount);
  const Floats exchanged = floats(size * kCount), cast = floats(kCount, -1);
  const Floats reduced = floats(kCount);
  const std::vector<uint64_t> tickets{
      self.start(Kind::all_gather, own, gathered, kCount),
      self.start(Kind::reduce_scatter, wide, scattered, kCount),
      self.start(Kind::all_to_all, wide, exchanged, kCount),
      self.start(Kind::broadcast, own, cast, kCount),
      self.start(Kind::reduce, own, reduced, kCount),
      self.start(Kind::barrier, nullptr, nullptr, 0)};
  for (uint64_t ticket : tickets) self.group().synchronize(ticket);
  const auto total = static_cast<float>(size * (size - 1) / 2);
  require(gathered->back() == static_cast<float>(size - 1), "the last rank's share");
  require(scattered->front() == static_cast<float>(size), "the scattered sum");
  require(exchanged->back() == 1, "the last rank's part");
  require(cast->back() == 0, "rank 0's values");
  require(rank != 0 || reduced->back() == total, "the root's sum");
}

void all_kinds() {
  const Store store = open_store();
  on_ranks(store, 3, kLong, [](Rank& self, int rank) {
    sum(self, rank, 3);
    move(self, rank, 3);
    self.job().meet_at_the_end();
    require(self.failures_heard() == 0, "no failure");
  });
}

/// Everybody ends with the store's one verdict, on every thread that asks.
void another_collective() {
  const Store store = open_store();
  on_ranks(store, 2, kLong, [](Rank& self, int rank) {
    const auto call = [&] {
      const Floats data = floats(100);
      const Kind kind = rank == 0 ? Kind::all_reduce : Kind::broadcast;
      self.group().synchronize(self.start(kind, data, data, 100, "step 1"));
    };
    const std::string message = failure_of(call);
    require(says(message, "rank 1 issued") && says(message, "step 1"), message);
    require(failure_of(call) == message, "the same failure again");
    require(self.failures_heard() == 1, "one failure heard");
    self.job().meet_at_the_end();
  });
}

/// A rank that does not come: the others' watchdogs complain while their engines are in Gloo.
void missing_rank() {
  const Store store = open_store();
  std::atomic<int> ended{0};
  on_ranks(store, 3, kShort, [&](Rank& self, int rank) {
    while (rank == 2 && ended.load() < 2) std::this_thread::sleep_for(Milliseconds(5));
    if (rank == 2) return;
    const std::string message = failure_of([&] { self.all_reduce(floats(100'000)); });
    require(says(message, "rank 2 did not arrive"), message);
    ++ended;
  });
}

/// A rank that gives up in the midst of traffic, each time at another moment: its memory must not
/// go before its engine is done with it, and its connections close under the others' feet.
void rank_that_leaves() {
  constexpr int64_t kMany = 1'000'000;
  for (int trial = 0; trial < 8; ++trial) {
    const Store store = open_store();
    on_ranks(store, 3, kLong, [trial](Rank& self, int rank) {
      self.all_reduce(floats(kMany));
      if (rank == 1) {
        {
          const Floats data = floats(kMany);
          self.start(Kind::all_reduce, data, data, kMany);
        }
        std::this_thread::sleep_for(std::chrono::microseconds(1500 * trial));
        return self.close_group();
      }
      failure_of([&] {
        while (true) self.all_reduce(floats(kMany));
      });
    });
  }
}

/// A rank that has had enough, while the others are inside the next collective or come to it later:
/// all of them end long before the timeout, as does its own wait for them. A rank that still
/// receives the last collective when another one reports the end may hear of it there.
void rank_that_has_finished() {
  for (int trial = 0; trial < 4; ++trial) {
    const Store store = open_store();
    on_ranks(store, 3, kLong, [trial](Rank& self, int rank) {
      const auto last = [&] { self.all_reduce(floats(1000), "the last for all"); };
      if (rank == 1) {
        last();
      } else {
        const std::string message = failure_of([&] {
          last();
          std::this_thread::sleep_for(Milliseconds(20 * rank * trial));
          self.all_reduce(floats(100'000));
        });
        require(says(message, "rank 1 has left the job (job.destroy()) after collective 0"), message);
        require(says(message, "the last for all"), message);
      }
      self.job().meet_at_the_end();
      require(self.job().failure()->raised(), "an end by the failure");
    });
  }
}

/// The store ends while ranks wait for one another.
void store_that_closes() {
  Store store = open_store();
  std::atomic<int> waiting{0};
  std::thread closer([&] {
    while (waiting.load() < 1) std::this_thread::sleep_for(Milliseconds(5));
    std::this_thread::sleep_for(Milliseconds(50));
    store.server.reset();
  });
  on_ranks(store, 2, kShort, [&](Rank& self, int rank) {
    if (rank == 0) {
      const Floats data = floats(1);
      const uint64_t ticket = self.start(Kind::all_reduce, data, data, 1);
      ++waiting;
      failure_of([&] { self.group().synchronize(ticket); });
    }
    failure_of([&] { self.job().store().get("none", kLong); });
  });
  closer.join();
}

/// One connection used by several threads, ended by another one in the midst of a wait.
void shared_client() {
  const Store store = open_store();
  auto cancellation = std::make_shared<comm::Cancellation>();
  comm::StoreClient client(store.address, comm::Clock::now() + kLong, cancellation, kLong);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&client] {
      for (int i = 0; i < 100; ++i) client.add("sum", 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  require(client.get("sum", kLong) == "300", "300 additions");
  std::thread waiting([&] { failure_of([&] { client.get("never", kLong); }); });
  std::this_thread::sleep_for(Milliseconds(50));
  cancellation->cancel();
  waiting.join();
}

/// Callers without the secret, while ranks join and work.
void strangers() {
  const Store store = open_store();
  std::atomic<bool> ending{false};
  std::thread flood([&] {
    const comm::Address at = comm::resolve("127.0.0.1", store.address.port);
    std::vector<comm::Socket> idle;
    while (!ending.load()) {
      const comm::Clock::time_point soon = comm::Clock::now() + Milliseconds(1000);
      comm::Socket socket = comm::try_connect(at, soon);
      if (!socket.open()) continue;
      try {
        comm::send_all(socket, comm::random_bytes(1 + idle.size() % 200), soon);
      } catch (const Error&) {
        continue;  // turned away already
      }
      if (idle.size() < 200) idle.push_back(std::move(socket));
    }
  });
  on_ranks(store, 2, kLong, [](Rank& self, int rank) {
    sum(self, rank, 2);
    self.job().meet_at_the_end();
  });
  ending.store(true);
  flood.join();
}

/// Several callers of the one pool, and a change of its size between their calls.
void pool() {
  thread_pool().resize(3);
  std::vector<std::thread> callers;
  for (int t = 0; t < 3; ++t) {
    callers.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        std::vector<int> seen(1000);
        thread_pool().parallel_for(1000, 10, [&](int64_t begin, int64_t end) {
          for (int64_t at = begin; at < end; ++at) ++seen[static_cast<size_t>(at)];
        });
        for (int times : seen) require(times == 1, "every element once");
        if (t == 0 && i % 50 == 0) thread_pool().resize(2 + i % 3);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

struct Scenario {
  const char* name;
  void (*run)();
};
constexpr Scenario kScenarios[] = {
    {"every kind of collective on 3 ranks", all_kinds},
    {"a rank that issues another collective", another_collective},
    {"a rank that does not come", missing_rank},
    {"a rank that leaves in the midst of traffic", rank_that_leaves},
    {"a rank that has finished while others go on", rank_that_has_finished},
    {"a store that closes", store_that_closes},
    {"one client of the store on several threads", shared_client},
    {"strangers at the store", strangers},
    {"several callers of the thread pool", pool}};

}  // namespace
}  // namespace ds::threads

int main() {
  // As in Node, where Gloo runs: it writes to connections that have closed.
  std::signal(SIGPIPE, SIG_IGN);
  int failed = 0;
  for (const ds::threads::Scenario& scenario : ds::threads::kScenarios) {
    const auto begin = ds::comm::Clock::now();
    std::string problem;
    try {
      scenario.run();
    } catch (const std::exception& error) {
      problem = error.what();
    }
    const std::chrono::duration<double> spent = ds::comm::Clock::now() - begin;
    std::printf("%s %s (%.1f s) %s\n", problem.empty() ? "ok    " : "FAILED", scenario.name,
                spent.count(), problem.c_str());
    std::fflush(stdout);
    failed += !problem.empty();
  }
  return failed ? 1 : 0;
}
