// Checks, numbers and releases collectives.
#include "process_group.h"

#include <algorithm>

#include "fold.h"

namespace ds::comm {
namespace {

constexpr const char* kOps[kReduceOps] = {"sum", "avg", "min", "max", "prod"};

bool reduces(Kind kind) {
  return kind == Kind::all_reduce || kind == Kind::reduce_scatter || kind == Kind::reduce;
}
bool point_to_point(Kind kind) { return kind == Kind::send || kind == Kind::receive; }
bool in_rows(Kind kind) { return kind == Kind::reduce_scatter || kind == Kind::all_gather; }
bool rooted(Kind kind) { return kind == Kind::broadcast || kind == Kind::reduce; }

/// Returns the description of a collective that must be equal on all ranks.
std::string signature_of(const Collective& call) {
  if (call.kind == Kind::barrier) return "barrier";
  std::string out = point_to_point(call.kind) ? "send/recv" : name_of(call.kind);
  if (reduces(call.kind)) out.append(" ").append(kOps[static_cast<int>(call.op)]);
  out.append(" ").append(ds::name_of(call.dtype)).append(" x ").append(std::to_string(call.count));
  if (call.rows != 1) out.append(" in ").append(std::to_string(call.rows)).append(" rows");
  if (rooted(call.kind)) out.append(", root ").append(std::to_string(call.peer));
  if (!call.purpose.empty()) out.append(" (").append(call.purpose).append(")");
  return out;
}

/// Hashes its arguments by FNV-1a with a final mix. Two different collectives get the same tag with
/// a probability of 2^-64.
uint64_t tag_of(const std::string& channel, uint64_t sequence, const std::string& signature) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&](std::string_view bytes) {
    for (unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3u;
  };
  add(channel);
  add({reinterpret_cast<const char*>(&sequence), sizeof(sequence)});
  add(signature);
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
  return hash ^ (hash >> 31);
}

/// The completion of an error record, which is sent instead of a collective.
class NothingToDo : public Completion {
 public:
  bool done() override { return true; }
  bool ended() const override { return true; }
  void order(Stream&) override {}
  void synchronize() override {}
  std::string fault() override { return ""; }
};

}  // namespace

const char* name_of(Kind kind) { return kKindNames[static_cast<int>(kind)]; }

ProcessGroup::ProcessGroup(Members members, Device& device, std::shared_ptr<Engine> engine,
                           std::shared_ptr<Watchdog> watchdog, std::shared_ptr<Failure> failure)
    : members_(std::move(members)),
      device_(device),
      engine_(std::move(engine)),
      watchdog_(std::move(watchdog)),
      failure_(std::move(failure)) {
  const uint32_t channel = watchdog_->define({members_.name, members_.ranks});
  own_ = &sequences_.try_emplace(members_.name, Sequence{channel, members_.name}).first->second;
  watchdog_->guard(engine_);
}

ProcessGroup::~ProcessGroup() {
  engine_->interrupt();
  drain();  // an engine may still use the memory of an interrupted collective
}

void ProcessGroup::check(const Collective& call) const {
  const char* name = name_of(call.kind);
  if (reduces(call.kind)) require_foldable(name, call.op, call.dtype);
  if (call.rows != 1 && !in_rows(call.kind)) {
    throw Error("DS_ARGUMENT", name, "one row", text(call.rows));
  }
  const bool peered = rooted(call.kind) || point_to_point(call.kind);
  if (peered && (call.peer < 0 || call.peer >= size())) {
    throw Error("DS_ARGUMENT", name, text("a rank of the group, 0 to ", size() - 1),
                text(call.peer));
  }
  if (point_to_point(call.kind) && call.peer == rank()) {
    throw Error("DS_ARGUMENT", name, "another rank of the group", "this rank itself",
                "Copy the tensor instead.");
  }
}

ProcessGroup::Sequence& ProcessGroup::sequence_of(const Collective& call) {
  if (!point_to_point(call.kind)) return *own_;
  return call.kind == Kind::send ? sequence_between(rank(), call.peer)
                                 : sequence_between(call.peer, rank());
}

/// Each direction between two ranks is a separate channel, created at its first use.
ProcessGroup::Sequence& ProcessGroup::sequence_between(int from, int to) {
  const int sender = members_.ranks[static_cast<size_t>(from)];
  const int receiver = members_.ranks[static_cast<size_t>(to)];
  const std::string name = text(members_.name, ", rank ", sender, " to rank ", receiver);
  const auto [at, added] = sequences_.try_emplace(name, Sequence{0, name});
  if (added) at->second.channel = watchdog_->define({name, {sender, receiver}});
  return at->second;
}

void ProcessGroup::give_up(const std::string& error) {
  if (failure_->raised()) return;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    sequence_between(rank(), peer);
    sequence_between(peer, rank());
  }
  const auto completion = std::make_shared<NothingToDo>();
  for (auto& [name, sequence] : sequences_) {
    watchdog_->watch(sequence.channel, sequence.next++, text_of_error(error), completion);
  }
  watchdog_->flush();
}

uint64_t ProcessGroup::start(const Collective& call, Stream& stream, const std::string& label,
                             Memory memory) {
  failure_->check();
  check(call);
  land();
  Sequence& sequence = sequence_of(call);
  const std::string signature = signature_of(call);
  const uint64_t number = sequence.next++;
  const uint64_t tag = tag_of(sequence.name, number, signature);
  const std::string described = signature + " | " + label;
  // Adds the entry before the start, because from then on the memory must not be freed.
  flights_.push_back({++tickets_, nullptr, std::move(memory)});
  Flight& flight = flights_.back();
  try {
    engine_->start(call, stream, tag, [&](const std::shared_ptr<Completion>& completion) {
      flight.completion = completion;
      watchdog_->watch(sequence.channel, number, described, completion);
    });
  } catch (...) {
    flights_.pop_back();
    throw;
  }
  return tickets_;
}

/// Releases the memory of finished collectives, oldest first.
void ProcessGroup::land() {
  while (!flights_.empty() && flights_.front().completion->done()) flights_.pop_front();
}

ProcessGroup::Flight* ProcessGroup::find(uint64_t ticket) {
  const auto older = [](const Flight& f, uint64_t wanted) { return f.ticket < wanted; };
  const auto at = std::lower_bound(flights_.begin(), flights_.end(), ticket, older);
  return at != flights_.end() && at->ticket == ticket ? &*at : nullptr;
}

void ProcessGroup::wait(uint64_t ticket, Stream& stream) {
  failure_->check();
  if (Flight* flight = find(ticket)) {
    flight->completion->order(stream);
    failure_->check();
    flight->memory.clear();
  }
  land();
}

void ProcessGroup::synchronize(uint64_t ticket) {
  failure_->check();
  if (Flight* flight = find(ticket)) flight->completion->synchronize();
  failure_->check();
  land();
}

bool ProcessGroup::done(uint64_t ticket) {
  failure_->check();
  Flight* flight = find(ticket);
  return !flight || flight->completion->done();
}

void ProcessGroup::drain() noexcept {
  try {
    for (const Flight& flight : flights_) flight.completion->synchronize();
  } catch (const Error&) {
    // The device has failed and cannot be waited for.
  }
  flights_.clear();
}

}  // namespace ds::comm
