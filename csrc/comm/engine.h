// Moving the data of one group's collectives: one engine per group, chosen by the device.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "../core/device.h"
#include "../core/dtype.h"

namespace ds::comm {

enum class Kind : int32_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  all_to_all,
  send,
  receive,
  barrier
};
constexpr int kKinds = 9;
/// As JavaScript calls them, in the order of Kind.
constexpr const char* kKindNames[kKinds] = {"allReduce", "reduceScatter", "allGather",
                                            "broadcast", "reduce",        "allToAll",
                                            "send",      "recv",          "barrier"};

enum class ReduceOp : int32_t { sum, average, minimum, maximum, product };
constexpr int kReduceOps = 5;

/// One collective on one rank. Memory is contiguous; `count` is in elements, n is the group's size:
///   all_reduce               input count, output count; may be the same memory
///   reduce_scatter           input n x count, output count; output may be slot `rank` of the input
///   all_gather               input count, output n x count; input may be slot `rank` of the output
///   broadcast                input count (read on root), output count; may be the same memory
///   reduce                   input count, output count (written on root); may be the same memory
///   all_to_all               input n x count, output n x count; distinct memory
///   send, receive            input or output count, with `peer`
/// reduce_scatter and all_gather may have several `rows`, which lie behind each other in input and
/// in output: each is exchanged as if it were alone, so that ranks share out an inner dim of a
/// tensor. With more than one, the memory of input and output is distinct. `peer` is the root or
/// the other side, as a rank of the group.
struct Collective {
  Kind kind = Kind::barrier;
  ReduceOp op = ReduceOp::sum;
  DType dtype = DType::f32;
  const void* input = nullptr;
  void* output = nullptr;
  int64_t count = 0;  // of a row
  int64_t rows = 1;
  int32_t peer = 0;
  std::string purpose;  // what it carries, the same on every rank; may be empty
};

/// A collective under way.
class Completion {
 public:
  virtual ~Completion() = default;
  /// Whether its memory is free again and its output complete. Any thread.
  virtual bool done() = 0;
  /// Whether it is known to be done. May lag behind, but never waits for a device or its driver:
  /// for the thread that must be able to end a collective which holds those up.
  virtual bool ended() const = 0;
  /// Later work of `stream` starts after it. May block where streams run at once; returns with
  /// done() still false when the engine was aborted, as synchronize().
  virtual void order(Stream& stream) = 0;
  /// Blocks the calling thread until done; of an aborted engine, until it no longer uses the
  /// memory.
  virtual void synchronize() = 0;
  /// Why it cannot finish; empty while it can. Any thread.
  virtual std::string fault() = 0;
};

/// Told of a collective that begins.
using Begun = std::function<void(const std::shared_ptr<Completion>&)>;

class Engine {
 public:
  virtual ~Engine() = default;
  /// Starts after everything enqueued on `stream` so far; one engine's collectives run in order.
  /// `tag` is the same on every rank exactly when the ranks issue the same collective. `begun` is
  /// called once, before anything that may wait for other ranks: who watches over the collective
  /// can end such a wait. Of a call that throws after it, the fault says why.
  virtual void start(const Collective& call, Stream& stream, uint64_t tag, const Begun& begun) = 0;
  /// Ends everything under way, on every thread that waits for it, and returns before it has ended.
  /// Any thread, without waiting for a device or its driver; idempotent.
  virtual void interrupt() noexcept = 0;
};

}  // namespace ds::comm
