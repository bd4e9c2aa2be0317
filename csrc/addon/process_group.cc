// Handles of stores, jobs and process groups. Blocking calls run as tasks. Collectives start on the
// JavaScript thread.
#include "process_group.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <thread>

#include "../comm/job.h"
#include "../comm/sha256.h"
#include "../comm/store_server.h"
#include "../cpu/cpu_device.h"
#include "devices.h"
#include "offers.h"
#include "task.h"

namespace ds::addon {

/// A shared_ptr that threads set and read. libc++ of macOS lacks std::atomic<std::shared_ptr>.
template <class T>
class SharedPointer {
 public:
  std::shared_ptr<T> load() const {
    std::lock_guard lock(mutex_);
    return pointer_;
  }
  void store(std::shared_ptr<T> pointer) {
    std::lock_guard lock(mutex_);
    pointer_.swap(pointer);  // the old object is destroyed after the unlock
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<T> pointer_;
};

/// A job. The task that joins it sets `job` before its promise resolves.
struct JobRef {
  std::shared_ptr<comm::Cancellation> cancellation = std::make_shared<comm::Cancellation>();
  SharedPointer<comm::Job> job;
  /// Number of other environments that were offered the job and have not released it.
  std::shared_ptr<std::atomic<int>> guests = std::make_shared<std::atomic<int>>(0);
};

/// A group. The task that opens it sets `group` before its promise resolves.
struct GroupRef {
  std::shared_ptr<JobRef> job;
  SharedPointer<comm::ProcessGroup> group;
};

/// Open objects of one environment. The destructor closes groups, then jobs, then stores.
struct Communication {
  HandleTable<comm::StoreServer> stores{"store", "Do not use it after it was stopped."};
  HandleTable<JobRef> jobs{"job", "Do not use process groups after destroy()."};
  HandleTable<GroupRef> groups{"process group", "Do not use process groups after destroy()."};
  std::vector<std::pair<double, std::shared_ptr<JobRef>>> open_jobs;
  std::vector<std::pair<double, std::shared_ptr<GroupRef>>> open_groups;

  void close_groups(const JobRef* job) {
    std::erase_if(open_groups, [&](const auto& entry) {
      const bool ours = entry.second->job.get() == job;
      if (ours) groups.take(entry.first);
      return ours;
    });
  }
};

namespace {

/// Ends blocking calls of this environment, so that its task threads can be joined.
void close(Communication* open) {
  for (const auto& [handle, job] : open->open_jobs) {
    job->cancellation->cancel();
    open->close_groups(job.get());
    open->jobs.take(handle);
  }
  open->open_jobs.clear();
}

Communication& communication(Addon& addon) {
  if (!addon.communication) {
    task_queue(addon);  // registers its hook first, because hooks run in reverse order
    addon.communication = std::make_shared<Communication>();
    napi_add_env_cleanup_hook(
        addon.env, [](void* open) { close(static_cast<Communication*>(open)); },
        addon.communication.get());
  }
  return *addon.communication;
}

std::shared_ptr<comm::Job> job_of(const Handle<JobRef>& handle) {
  if (std::shared_ptr<comm::Job> job = handle->job.load()) return job;
  throw Error("DS_COMM", "job", "a joined job",
              "one that is still joining, or that failed to join");
}

comm::ProcessGroup& group_of(const Handle<GroupRef>& handle) {
  const std::shared_ptr<comm::ProcessGroup> group = handle->group.load();
  if (group) return *group;  // its handle keeps it alive
  throw Error("DS_COMM", "process group", "an open process group",
              "one that is still opening, or that failed to open");
}

/// Converts to whole milliseconds, at most a century.
comm::Milliseconds milliseconds_of(Timeout timeout) {
  return comm::Milliseconds(static_cast<int64_t>(std::min(timeout.milliseconds, 3.2e12)));
}

/// Runs a request to the store as a task. The task keeps the job alive.
template <class Body>
auto ask(Addon& addon, const Handle<JobRef>& job, Body body) {
  return start_task(addon,
                    [job = job_of(job), body = std::move(body)] { return body(job->store()); });
}

/// How often leave_job checks whether other environments have released the job.
constexpr comm::Milliseconds kGuestPoll{5};

// --- the argument block -----------------------------------------------------------------------

constexpr size_t kWords = 10;

struct Operand {
  std::shared_ptr<Buffer> buffer;
  char* data = nullptr;
  size_t bytes = 0;
};

Operand operand(Addon& addon, comm::ProcessGroup& group, const double* words, size_t elements,
                DType dtype, Place place) {
  Operand out;
  if (words[0] == 0) {
    if (elements == 0) return out;
    refuse("DS_ARGUMENT", place, "a tensor", "none");
  }
  out.buffer = Handle<Buffer>::of(addon.buffers, words[0], place).share();
  const bool cpu = &group.device() == &cpu::cpu_device();
  const bool pinned = out.buffer->placement() == Placement::pinned;
  if (!(cpu ? pinned || &out.buffer->device() == &group.device()
            : !pinned && &out.buffer->device() == &group.device())) {
    refuse("DS_DEVICE", place, text("memory of ", group.device().info().name),
           text("memory of ", out.buffer->device().info().name),
           "Move the tensor to the group's device first.");
  }
  out.bytes = elements * size_of(dtype);
  const double begin = words[1] * static_cast<double>(size_of(dtype));
  const double end = begin + static_cast<double>(out.bytes);
  const bool whole = words[1] == std::trunc(words[1]);
  if (!(whole && begin >= 0 && end <= static_cast<double>(out.buffer->bytes()))) {
    refuse("DS_BOUNDS", place, text("a range inside ", out.buffer->bytes(), " bytes"),
           text(out.bytes, " bytes at ", number_text(begin)));
  }
  out.data = static_cast<char*>(out.buffer->data()) + static_cast<size_t>(begin);
  return out;
}

struct Sizes {
  int64_t input, output;  // in elements per rank
};

Sizes sizes_of(comm::Kind kind, int64_t n) {
  switch (kind) {
    case comm::Kind::all_reduce:
    case comm::Kind::broadcast:
    case comm::Kind::reduce: return {1, 1};
    case comm::Kind::reduce_scatter: return {n, 1};
    case comm::Kind::all_gather: return {1, n};
    case comm::Kind::all_to_all: return {n, n};
    case comm::Kind::send: return {1, 0};
    case comm::Kind::receive: return {0, 1};
    default: return {0, 0};
  }
}

/// Returns the elements per rank and row as an integer. Throws if it is not whole, or if a double
/// cannot hold the bytes of all ranks.
int64_t count_of(const comm::Collective& call, double count, int ranks) {
  const double all =
      count * ranks * static_cast<double>(call.rows) * static_cast<double>(size_of(call.dtype));
  if (count >= 0 && all <= 0x1p53 && count == std::trunc(count)) return static_cast<int64_t>(count);
  refuse("DS_ARGUMENT", {comm::name_of(call.kind), "count"}, "a whole number of elements",
         number_text(count));
}

/// Checks that input and output do not overlap, except for the in-place layouts of comm/engine.h.
void require_legal_overlap(const comm::ProcessGroup& group, const comm::Collective& call,
                           const Operand& input, const Operand& output) {
  const comm::Kind kind = call.kind;
  const bool is_disjoint = !input.data || !output.data || input.bytes == 0 || output.bytes == 0 ||
                           input.data + input.bytes <= output.data ||
                           output.data + output.bytes <= input.data;
  if (is_disjoint) return;
  const size_t rank = static_cast<size_t>(group.rank());
  const bool same = input.data == output.data && input.bytes == output.bytes;
  const bool legal =
      call.rows > 1                        ? same && group.size() == 1
      : kind == comm::Kind::all_gather     ? input.data == output.data + rank * input.bytes
      : kind == comm::Kind::reduce_scatter ? output.data == input.data + rank * output.bytes
      : kind == comm::Kind::all_to_all     ? same && group.size() == 1
                                           : same;
  if (legal) return;
  throw Error(
      "DS_ARGUMENT", comm::name_of(kind),
      "ranges without overlap, or in place (all_gather, reduce_scatter: at the chunk of this rank)",
      "ranges that overlap in part");
}

}  // namespace

template <>
HandleTable<comm::StoreServer>& table_of(Addon& addon) {
  return communication(addon).stores;
}
template <>
HandleTable<JobRef>& table_of(Addon& addon) {
  return communication(addon).jobs;
}
template <>
HandleTable<GroupRef>& table_of(Addon& addon) {
  return communication(addon).groups;
}

// --- stores -----------------------------------------------------------------------------------

double start_store(Addon& addon, std::string host, Port port, std::string secret) {
  auto server = std::make_shared<comm::StoreServer>(host, port, secret);
  return communication(addon).stores.add(std::move(server));
}

double store_port(Addon&, Handle<comm::StoreServer> store) { return store->port(); }

void stop_store(Addon&, Handle<comm::StoreServer> store) { store.take(); }

Promise<void> store_set(Addon& addon, Handle<JobRef> job, std::string key, std::string value) {
  return ask(addon, job, [=](comm::StoreClient& store) { store.set(key, value); });
}

Promise<std::string> store_get(Addon& addon, Handle<JobRef> job, std::string key, Timeout timeout) {
  const comm::Milliseconds patience = milliseconds_of(timeout);
  return ask(addon, job, [=](comm::StoreClient& store) { return store.get(key, patience); });
}

Promise<double> store_add(Addon& addon, Handle<JobRef> job, std::string key, Step step) {
  return ask(addon, job,
             [=](comm::StoreClient& store) { return static_cast<double>(store.add(key, step)); });
}

Promise<std::string> store_compare_set(Addon& addon, Handle<JobRef> job, std::string key,
                                       std::string expected, std::string desired) {
  return ask(addon, job,
             [=](comm::StoreClient& store) { return store.compare_set(key, expected, desired); });
}

Promise<bool> store_delete(Addon& addon, Handle<JobRef> job, std::string key) {
  return ask(addon, job, [=](comm::StoreClient& store) { return store.remove(key); });
}

Promise<std::string> store_keys(Addon& addon, Handle<JobRef> job, std::string prefix) {
  return ask(addon, job, [=](comm::StoreClient& store) {
    std::string lines;
    for (const std::string& key : store.keys(prefix)) lines += key + '\n';
    return lines;
  });
}

Promise<double> store_waiters(Addon& addon, Handle<JobRef> job, std::string key) {
  return ask(addon, job,
             [=](comm::StoreClient& store) { return static_cast<double>(store.waiters(key)); });
}

// --- jobs and groups --------------------------------------------------------------------------

Promise<double> join_job(Addon& addon, std::string host, Port port, std::string secret,
                         Integers place, Timeout timeout) {
  if (place.count != 2 || place[0] < 0 || place[0] >= place[1]) {
    refuse("DS_ARGUMENT", {"joinJob", "place"}, "[rank, size] with a rank below the size",
           place.count == 2 ? text('[', place[0], ", ", place[1], ']')
                            : text(place.count, " numbers"));
  }
  const comm::Job::Member member{
      {std::move(host), port, std::move(secret)}, place[0], place[1], milliseconds_of(timeout)};
  auto ref = std::make_shared<JobRef>();
  Communication& open = communication(addon);
  const double handle = open.jobs.add(ref);
  open.open_jobs.emplace_back(handle, ref);
  return start_task(addon, [ref, member, handle, failure = addon.failure] {
    const auto report = [failure, open = ref->cancellation](const Error& error) {
      open->unless_cancelled([&] { failure->set(error); });
    };
    ref->job.store(std::make_shared<comm::Job>(member, report, ref->cancellation));
    return handle;
  });
}

double offer_job(Addon&, Handle<JobRef> job) {
  const auto guests = job->guests;
  auto* guest = new JobRef;
  guest->job.store(job_of(job));
  ++*guests;
  return offers<JobRef>().add(std::shared_ptr<JobRef>(guest, [guests](JobRef* done) {
    delete done;
    --*guests;
  }));
}

/// The job does not enter open_jobs, because the end of this environment must not cancel it.
double take_job(Addon& addon, OfferNumber offer) {
  return communication(addon).jobs.add(offers<JobRef>().take(offer));
}

void withdraw_job(Addon&, OfferNumber offer) { offers<JobRef>().withdraw(offer); }

void check_job(Addon&, Handle<JobRef> job) { job_of(job)->failure()->check(); }

Promise<void> leave_job(Addon& addon, Handle<JobRef> job) {
  Communication& open = communication(addon);
  const std::shared_ptr<comm::Job> leaving = job_of(job);
  const std::shared_ptr<JobRef> ref = job.share();
  for (const auto& [handle, entry] : open.open_groups) {
    if (entry->job != ref) continue;
    if (const std::shared_ptr<comm::ProcessGroup> group = entry->group.load()) group->drain();
  }
  return start_task(addon, [leaving, guests = ref->guests] {
    const auto deadline = comm::Clock::now() + leaving->timeout();
    while (*guests > 0 && !leaving->failure()->raised() && comm::Clock::now() < deadline) {
      std::this_thread::sleep_for(kGuestPoll);
    }
    leaving->meet_at_the_end();
  });
}

void close_job(Addon& addon, Handle<JobRef> job) {
  Communication& open = communication(addon);
  const std::shared_ptr<JobRef> ref = job.take();
  open.close_groups(ref.get());
  std::erase_if(open.open_jobs, [&](const auto& entry) { return entry.second == ref; });
  // Cancels pending requests. The job's threads end here, or with these requests. Ranks that leave
  // later must not report to the closed job.
  ref->cancellation->cancel();
  ref->job.store(nullptr);
  addon.failure->forget("DS_COMM");
}

Promise<double> open_group(Addon& addon, Handle<JobRef> job, Handle<StreamRef> device_stream,
                           std::string name, Integers ranks, RankNumber rank) {
  Communication& open = communication(addon);
  const std::shared_ptr<comm::Job> joined = job_of(job);
  const int32_t* const end = ranks.data + ranks.count;
  const int32_t* const outside = std::find_if(
      ranks.data, end, [&](int32_t member) { return member < 0 || member >= joined->size(); });
  if (outside != end || ranks.count < 2) {
    refuse("DS_ARGUMENT", {"openGroup", "ranks"}, text("two or more ranks below ", joined->size()),
           outside != end ? text("rank ", *outside) : text(ranks.count, " ranks"));
  }
  if (rank >= static_cast<int64_t>(ranks.count)) {
    refuse("DS_ARGUMENT", {"openGroup", "rank"}, text("an index below ", ranks.count),
           text(rank.value));
  }
  comm::ProcessGroup::Members members{std::move(name), {ranks.data, end}, rank};
  auto ref = std::make_shared<GroupRef>();
  ref->job = job.share();
  Device& device = device_stream->device;
  const double handle = open.groups.add(ref);
  open.open_groups.emplace_back(handle, ref);
  return start_task(addon, [joined, ref, &device, handle, members = std::move(members)] {
    const auto open = [&](const comm::Rendezvous& rendezvous) {
      return open_engine(rendezvous, device);
    };
    ref->group.store(joined->open_group(members, device, open));
    return handle;
  });
}

double start_collective(Addon& addon, Handle<GroupRef> group, Handle<StreamRef> stream,
                        std::string purpose, std::string label) {
  comm::ProcessGroup& members = group_of(group);
  if (addon.argument_count < kWords) {
    throw Error("DS_INTERNAL", "collective", text("an argument block of ", kWords, " words"),
                text(addon.argument_count));
  }
  const double* words = addon.arguments;
  comm::Collective call;
  call.kind = static_cast<comm::Kind>(
      int{Whole<int, 0, comm::kKinds - 1>::of(words[0], {"startCollective", "kind"})});
  const char* const name = comm::name_of(call.kind);
  call.op = static_cast<comm::ReduceOp>(
      int{Whole<int, 0, comm::kReduceOps - 1>::of(words[1], {name, "op"})});
  call.dtype = static_cast<DType>(int{Whole<int, 0, kDTypes - 1>::of(words[2], {name, "dtype"})});
  call.rows = Whole<int64_t, 1, INT32_MAX>::of(words[9], {name, "rows"});
  call.count = count_of(call, words[3], members.size());
  call.peer = RankNumber::of(words[4], {name, "peer"});
  if (call.peer >= members.size()) {
    refuse("DS_ARGUMENT", {name, "peer"}, text("a rank of the group, 0 to ", members.size() - 1),
           text(call.peer));
  }
  call.purpose = std::move(purpose);
  const Sizes sizes = sizes_of(call.kind, members.size());
  const auto elements = [&](int64_t n) { return static_cast<size_t>(n * call.count * call.rows); };
  Operand input =
      operand(addon, members, words + 5, elements(sizes.input), call.dtype, {name, "input"});
  Operand output =
      operand(addon, members, words + 7, elements(sizes.output), call.dtype, {name, "output"});
  require_legal_overlap(members, call, input, output);
  call.input = input.data;
  call.output = output.data;
  require_same_device(members.device(), *stream, {name, "stream"});
  comm::Memory memory{std::move(input.buffer), std::move(output.buffer)};
  return static_cast<double>(members.start(call, stream->stream, label, std::move(memory)));
}

void give_up_collective(Addon&, Handle<GroupRef> group, std::string error) {
  group_of(group).give_up(error);
}

void wait_collective(Addon&, Handle<GroupRef> group, Ticket ticket, Handle<StreamRef> stream) {
  comm::ProcessGroup& members = group_of(group);
  require_same_device(members.device(), *stream, {"waitCollective", "stream"});
  members.wait(ticket, stream->stream);
}

void synchronize_collective(Addon&, Handle<GroupRef> group, Ticket ticket) {
  group_of(group).synchronize(ticket);
}

bool collective_done(Addon&, Handle<GroupRef> group, Ticket ticket) {
  return group_of(group).done(ticket);
}

std::string hmac_sha256(Addon&, Bytes key, Bytes data) {
  const std::string_view secret(static_cast<const char*>(key.data), key.size);
  const std::string_view message(static_cast<const char*>(data.data), data.size);
  std::string out;
  for (uint8_t byte : comm::hmac_sha256(secret, message)) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

}  // namespace ds::addon
