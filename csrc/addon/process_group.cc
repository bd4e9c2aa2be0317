// Handles of stores, jobs and groups. Blocking calls run as tasks, collectives start on the
// JavaScript thread.
#include "process_group.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "../comm/job.h"
#include "../comm/sha256.h"
#include "../comm/store_server.h"
#include "../cpu/cpu_device.h"
#include "devices.h"
#include "offers.h"
#include "task.h"

namespace ds::addon {

/// `job` is set by the task that joins, before its promise resolves.
struct JobRef {
  std::shared_ptr<comm::Cancellation> cancellation = std::make_shared<comm::Cancellation>();
  std::shared_ptr<comm::Job> job;
  /// Number of other environments that have an offer of the job and have not released it.
  std::shared_ptr<std::atomic<int>> guests = std::make_shared<std::atomic<int>>(0);
};

/// `group` is set by the task that opens it, before its promise resolves.
struct GroupRef {
  std::shared_ptr<JobRef> job;
  std::atomic<std::shared_ptr<comm::ProcessGroup>> group;
};

/// Open objects of one environment. Destroyed in this order: groups, jobs, stores.
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
    task_queue(addon);  // its hook must be registered before this one, which then runs first
    addon.communication = std::make_shared<Communication>();
    napi_add_env_cleanup_hook(
        addon.env, [](void* open) { close(static_cast<Communication*>(open)); },
        addon.communication.get());
  }
  return *addon.communication;
}

const std::shared_ptr<comm::Job>& job_of(Addon& addon, double handle) {
  const std::shared_ptr<JobRef>& ref = communication(addon).jobs.get(handle);
  if (!ref->job) throw Error("DS_INTERNAL", "job", "a joined job", "a job that was not joined");
  return ref->job;
}

comm::ProcessGroup& group_of(Addon& addon, double handle) {
  const std::shared_ptr<comm::ProcessGroup> group =
      communication(addon).groups.get(handle)->group.load();
  if (group) return *group;  // its handle keeps it
  throw Error("DS_COMM", "process group", "an open process group",
              "a process group that was not opened");
}

/// Throws DS_ARGUMENT for NaN and negative values; limits the value to a century.
comm::Milliseconds milliseconds_of(double timeout) {
  if (!(timeout >= 0))
    throw Error("DS_ARGUMENT", "timeout", "0 or more milliseconds", text(timeout));
  return comm::Milliseconds(static_cast<int64_t>(std::min(timeout, 3.2e12)));
}

/// Runs a request to the store on a task thread. The job lives until the answer.
template <class Body>
auto ask(Addon& addon, double handle, Body body) {
  return start_task(
      addon, [job = job_of(addon, handle), body = std::move(body)] { return body(job->store()); });
}

/// Interval at which leave_job checks whether other environments have released the job.
constexpr comm::Milliseconds kGuestLook{5};

// --- the argument block -----------------------------------------------------------------------

constexpr size_t kWords = 10;

struct Operand {
  std::shared_ptr<Buffer> buffer;
  char* data = nullptr;
  size_t bytes = 0;
};

Operand operand(Addon& addon, comm::ProcessGroup& group, const double* words, size_t elements,
                DType dtype) {
  Operand out;
  if (words[0] == 0) {
    if (elements == 0) return out;
    throw Error("DS_ARGUMENT", "collective", "a tensor", "none");
  }
  out.buffer = addon.buffers.get(words[0]);
  const bool cpu = &group.device() == &cpu::cpu_device();
  const bool pinned = out.buffer->placement() == Placement::pinned;
  if (!(cpu ? pinned || &out.buffer->device() == &group.device()
            : !pinned && &out.buffer->device() == &group.device())) {
    throw Error("DS_DEVICE", "collective", text("memory of ", group.device().info().name),
                "memory of another device", "Move the tensor to the group's device first.");
  }
  out.bytes = elements * size_of(dtype);
  const double begin = words[1] * static_cast<double>(size_of(dtype));
  const double end = begin + static_cast<double>(out.bytes);
  const bool whole = words[1] == std::trunc(words[1]);
  if (!(whole && begin >= 0 && end <= static_cast<double>(out.buffer->bytes()))) {
    throw Error("DS_BOUNDS", "collective", text("a range inside ", out.buffer->bytes(), " bytes"),
                text(out.bytes, " bytes at ", begin));
  }
  out.data = static_cast<char*>(out.buffer->data()) + static_cast<size_t>(begin);
  return out;
}

struct Sizes {
  int64_t input, output;  // in counts
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

/// Returns the elements per rank and row: whole, and small enough that the bytes of all ranks are
/// an exact double.
int64_t count_of(const comm::Collective& call, double count, int ranks) {
  const double all =
      count * ranks * static_cast<double>(call.rows) * static_cast<double>(size_of(call.dtype));
  if (count >= 0 && all <= 0x1p53 && count == std::trunc(count)) return static_cast<int64_t>(count);
  throw Error("DS_ARGUMENT", comm::name_of(call.kind), "a whole number of elements", text(count));
}

/// Checks that input and output do not overlap, or that one is its slot in the other (see
/// comm/engine.h).
void require_legal_overlap(const comm::ProcessGroup& group, const comm::Collective& call,
                           const Operand& input, const Operand& output) {
  const comm::Kind kind = call.kind;
  const bool apart = !input.data || !output.data || input.bytes == 0 || output.bytes == 0 ||
                     input.data + input.bytes <= output.data ||
                     output.data + output.bytes <= input.data;
  if (apart) return;
  const size_t rank = static_cast<size_t>(group.rank());
  const bool same = input.data == output.data && input.bytes == output.bytes;
  const bool legal =
      call.rows > 1                        ? same && group.size() == 1
      : kind == comm::Kind::all_gather     ? input.data == output.data + rank * input.bytes
      : kind == comm::Kind::reduce_scatter ? output.data == input.data + rank * output.bytes
      : kind == comm::Kind::all_to_all     ? same && group.size() == 1
                                           : same;
  if (legal) return;
  throw Error("DS_ARGUMENT", comm::name_of(kind),
              "an output in the range of the input, or without overlap",
              "ranges that overlap in part");
}

}  // namespace

// --- stores -----------------------------------------------------------------------------------

double start_store(Addon& addon, std::string host, int32_t port, std::string secret) {
  auto server = std::make_shared<comm::StoreServer>(host, static_cast<uint16_t>(port), secret);
  return communication(addon).stores.add(std::move(server));
}

double store_port(Addon& addon, double store) {
  return communication(addon).stores.get(store)->port();
}

void stop_store(Addon& addon, double store) { communication(addon).stores.take(store); }

Promise<void> store_set(Addon& addon, double job, std::string key, std::string value) {
  return ask(addon, job, [=](comm::StoreClient& store) { store.set(key, value); });
}

Promise<std::string> store_get(Addon& addon, double job, std::string key, double timeout) {
  const comm::Milliseconds patience = milliseconds_of(timeout);
  return ask(addon, job, [=](comm::StoreClient& store) { return store.get(key, patience); });
}

Promise<double> store_add(Addon& addon, double job, std::string key, double step) {
  const int64_t whole = integer_of("store", step);
  return ask(addon, job,
             [=](comm::StoreClient& store) { return static_cast<double>(store.add(key, whole)); });
}

Promise<std::string> store_compare_set(Addon& addon, double job, std::string key,
                                       std::string expected, std::string desired) {
  return ask(addon, job,
             [=](comm::StoreClient& store) { return store.compare_set(key, expected, desired); });
}

Promise<bool> store_delete(Addon& addon, double job, std::string key) {
  return ask(addon, job, [=](comm::StoreClient& store) { return store.remove(key); });
}

Promise<std::string> store_keys(Addon& addon, double job, std::string prefix) {
  return ask(addon, job, [=](comm::StoreClient& store) {
    std::string lines;
    for (const std::string& key : store.keys(prefix)) lines += key + '\n';
    return lines;
  });
}

Promise<double> store_waiters(Addon& addon, double job, std::string key) {
  return ask(addon, job,
             [=](comm::StoreClient& store) { return static_cast<double>(store.waiters(key)); });
}

// --- jobs and groups --------------------------------------------------------------------------

Promise<double> join_job(Addon& addon, std::string host, int32_t port, std::string secret,
                         Integers place, double timeout) {
  if (place.size != 2 * sizeof(int32_t)) {
    throw Error("DS_ARGUMENT", "joinJob", "[rank, size]", "another length");
  }
  const auto* words = static_cast<const int32_t*>(place.data);
  const comm::Job::Member member{{std::move(host), static_cast<uint16_t>(port), std::move(secret)},
                                 words[0],
                                 words[1],
                                 milliseconds_of(timeout)};
  auto ref = std::make_shared<JobRef>();
  Communication& open = communication(addon);
  const double handle = open.jobs.add(ref);
  open.open_jobs.emplace_back(handle, ref);
  return start_task(addon, [ref, member, handle, failure = addon.failure] {
    const auto report = [failure, open = ref->cancellation](const Error& error) {
      open->unless_cancelled([&] { failure->set(error); });
    };
    ref->job = std::make_shared<comm::Job>(member, report, ref->cancellation);
    return handle;
  });
}

double offer_job(Addon& addon, double job) {
  const auto guests = communication(addon).jobs.get(job)->guests;
  auto* guest = new JobRef;
  guest->job = job_of(addon, job);
  ++*guests;
  return offers<JobRef>().add(std::shared_ptr<JobRef>(guest, [guests](JobRef* done) {
    delete done;
    --*guests;
  }));
}

/// Not in open_jobs: the end of this environment must not cancel the job of another one.
double take_job(Addon& addon, double offer) {
  return communication(addon).jobs.add(offers<JobRef>().take(offer));
}

void withdraw_job(Addon&, double offer) { offers<JobRef>().withdraw(offer); }

void check_job(Addon& addon, double job) { job_of(addon, job)->failure()->check(); }

Promise<void> leave_job(Addon& addon, double job) {
  Communication& open = communication(addon);
  const std::shared_ptr<comm::Job> leaving = job_of(addon, job);
  const std::shared_ptr<JobRef> ref = open.jobs.get(job);
  for (const auto& [handle, entry] : open.open_groups) {
    if (entry->job != ref) continue;
    if (const std::shared_ptr<comm::ProcessGroup> group = entry->group.load()) group->drain();
  }
  return start_task(addon, [leaving, guests = ref->guests] {
    const auto deadline = comm::Clock::now() + leaving->timeout();
    while (*guests > 0 && !leaving->failure()->raised() && comm::Clock::now() < deadline) {
      std::this_thread::sleep_for(kGuestLook);
    }
    leaving->meet_at_the_end();
  });
}

void close_job(Addon& addon, double job) {
  Communication& open = communication(addon);
  const std::shared_ptr<JobRef> ref = open.jobs.take(job);
  open.close_groups(ref.get());
  std::erase_if(open.open_jobs, [&](const auto& entry) { return entry.second == ref; });
  // Ends its threads here, or with the pending requests, which are cancelled now. Reports of ranks
  // that leave later must not reach the closed job.
  ref->cancellation->cancel();
  ref->job.reset();
  addon.failure->forget("DS_COMM");
}

Promise<double> open_group(Addon& addon, double job, double device_stream, std::string name,
                           Integers ranks, int32_t rank) {
  Communication& open = communication(addon);
  const std::shared_ptr<comm::Job> joined = job_of(addon, job);
  const auto* list = static_cast<const int32_t*>(ranks.data);
  const size_t count = ranks.size / sizeof(int32_t);
  comm::ProcessGroup::Members members{std::move(name), {list, list + count}, rank};
  auto ref = std::make_shared<GroupRef>();
  ref->job = open.jobs.get(job);
  Device& device = addon.streams.get(device_stream)->device;
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

double start_collective(Addon& addon, double group, double stream, std::string purpose,
                        std::string label) {
  comm::ProcessGroup& members = group_of(addon, group);
  if (addon.argument_count < kWords) {
    throw Error("DS_INTERNAL", "collective", "a longer argument block", text(addon.argument_count));
  }
  const double* words = addon.arguments;
  comm::Collective call;
  const auto choice = [&](int word, int count) {
    const double value = words[word];
    if (value >= 0 && value < count) return static_cast<int>(value);
    throw Error("DS_ARGUMENT", "collective", text("a number below ", count), text(value));
  };
  call.kind = static_cast<comm::Kind>(choice(0, comm::kKinds));
  call.op = static_cast<comm::ReduceOp>(choice(1, comm::kReduceOps));
  call.dtype = static_cast<DType>(choice(2, kDTypes));
  if (!(words[9] >= 1 && words[9] <= 0x1p31 && words[9] == std::trunc(words[9]))) {
    throw Error("DS_ARGUMENT", comm::name_of(call.kind), "a whole number of rows, 1 or more",
                text(words[9]));
  }
  call.rows = static_cast<int64_t>(words[9]);
  call.count = count_of(call, words[3], members.size());
  if (!(words[4] >= 0 && words[4] < members.size())) {
    throw Error("DS_ARGUMENT", comm::name_of(call.kind),
                text("a rank of the group, 0 to ", members.size() - 1), text(words[4]));
  }
  call.peer = static_cast<int32_t>(words[4]);
  call.purpose = std::move(purpose);
  const Sizes sizes = sizes_of(call.kind, members.size());
  const auto elements = [&](int64_t n) { return static_cast<size_t>(n * call.count * call.rows); };
  Operand input = operand(addon, members, words + 5, elements(sizes.input), call.dtype);
  Operand output = operand(addon, members, words + 7, elements(sizes.output), call.dtype);
  require_legal_overlap(members, call, input, output);
  call.input = input.data;
  call.output = output.data;
  Stream& at = addon.streams.get(stream)->stream;
  comm::Memory memory{std::move(input.buffer), std::move(output.buffer)};
  return static_cast<double>(members.start(call, at, label, std::move(memory)));
}

void give_up_collective(Addon& addon, double group, std::string error) {
  group_of(addon, group).give_up(error);
}

void wait_collective(Addon& addon, double group, double ticket, double stream) {
  group_of(addon, group).wait(static_cast<uint64_t>(ticket), addon.streams.get(stream)->stream);
}

void synchronize_collective(Addon& addon, double group, double ticket) {
  group_of(addon, group).synchronize(static_cast<uint64_t>(ticket));
}

bool collective_done(Addon& addon, double group, double ticket) {
  return group_of(addon, group).done(static_cast<uint64_t>(ticket));
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
