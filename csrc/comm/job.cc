// Joins a job, opens groups, and leaves the job.
#include "job.h"

namespace ds::comm {
namespace {

/// How long meet_at_the_end() waits for slower ranks between two checks for a failure.
constexpr Milliseconds kPatience{200};

}  // namespace

Job::Job(Member member, Failure::Listener listener, std::shared_ptr<Cancellation> cancellation)
    : member_(std::move(member)),
      cancellation_(std::move(cancellation)),
      failure_(std::make_shared<Failure>(std::move(listener))),
      client_(member_.store, Clock::now() + member_.timeout, cancellation_, member_.timeout),
      watchdog_(std::make_shared<Watchdog>(member_.store, member_.rank, member_.timeout, failure_,
                                           *cancellation_)) {}

std::shared_ptr<ProcessGroup> Job::open_group(ProcessGroup::Members members, Device& device,
                                              const OpenEngine& open) {
  failure_->check();
  const std::string prefix = text("group/", members.name, '/');
  const Clock::time_point deadline = Clock::now() + member_.timeout;
  Rendezvous rendezvous;
  rendezvous.rank = members.rank;
  rendezvous.size = static_cast<int>(members.ranks.size());
  rendezvous.local_host = client_.local_host();
  rendezvous.timeout_ms = member_.timeout.count();
  rendezvous.set = [&](const std::string& key, const std::string& value) {
    client_.set(prefix + key, value);
  };
  rendezvous.check = [&] {
    failure_->check();
    if (cancellation_->cancelled()) {
      throw Error("DS_COMM", "newGroup", text("all ranks to open ", members.name),
                  "the end of the job");
    }
  };
  // Waits in short intervals, so that the death of another rank ends the wait.
  rendezvous.get = [&](const std::string& key) {
    while (true) {
      rendezvous.check();
      if (auto found = client_.find(prefix + key, kPatience)) return *found;
      if (Clock::now() < deadline) continue;
      throw Error("DS_COMM", "newGroup", text("every rank to open ", members.name),
                  "a rank that did not open it in time",
                  "Call newGroup() on every member, in the same order.");
    }
  };
  std::shared_ptr<Engine> engine = open(rendezvous);
  return std::make_shared<ProcessGroup>(std::move(members), device, std::move(engine), watchdog_,
                                        failure_);
}

void Job::meet_at_the_end() noexcept {
  if (failure_->raised()) return;  // after a failure, the store may not answer either
  watchdog_->finish();
  try {
    const Clock::time_point deadline = Clock::now() + member_.timeout;
    bool all = client_.add(kAtTheEnd, 1) >= member_.size;
    if (all) client_.set("job/end", "1");
    while (!all && !failure_->raised() && !cancellation_->cancelled() && Clock::now() < deadline) {
      if (client_.find("job/end", kPatience)) return;
      all = client_.add(kAtTheEnd, 0) >= member_.size;  // the last ranks may have ended together
    }
  } catch (const Error&) {
    // The store is gone, so there are no ranks to wait for.
  }
}

}  // namespace ds::comm
