// The interface that moves the data of a group's collectives. The device selects the engine.
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
/// The JavaScript names, in the order of Kind.
constexpr const char* kKindNames[kKinds] = {"allReduce", "reduceScatter", "allGather",
                                            "broadcast", "reduce",        "allToAll",
                                            "send",      "recv",          "barrier"};

enum class ReduceOp : int32_t { sum, average, minimum, maximum, product };
constexpr int kReduceOps = 5;

/// One collective on one rank. Memory is contiguous, `count` is in elements, n is the group's size:
///   all_reduce               input count, output count; may be the same memory
///   reduce_scatter           input n x count, output count; output may be slot `rank` of the input
///   all_gather               input count, output n x count; input may be slot `rank` of the output
///   broadcast                input count (read on root), output count; may be the same memory
///   reduce                   input count, output count (written on root); may be the same memory
///   all_to_all               input n x count, output n x count; distinct memory
///   send, receive            input or output count, with `peer`
/// reduce_scatter and all_gather may have several contiguous `rows` in input and output, to shard
/// an inner dim of a tensor. Each row is exchanged like a collective of its own. With several rows,
/// input and output must not share memory. `peer` is the root or the other side, as a rank of the
/// group.
struct Collective {
  Kind kind = Kind::barrier;
  ReduceOp op = ReduceOp::sum;
  DType dtype = DType::f32;
  const void* input = nullptr;
  void* output = nullptr;
  int64_t count = 0;  // elements of one row
  int64_t rows = 1;
  int32_t peer = 0;
  std::string purpose;  // describes the data, equal on all ranks; may be empty
};

/// A collective that was started.
class Completion {
 public:
  virtual ~Completion() = default;
  /// Returns true if the output is complete and the memory is free again. Thread-safe.
  virtual bool done() = 0;
  /// Returns true if the collective is known to be done. The answer may be late, but the call never
  /// waits for a device or its driver. The watchdog uses it.
  virtual bool ended() const = 0;
  /// Makes later work of `stream` wait for the collective. Blocks if streams run at once. If the
  /// engine was aborted, returns with done() false.
  virtual void order(Stream& stream) = 0;
  /// Blocks the calling thread until the collective is done. After an abort, blocks until the
  /// engine no longer uses the memory, and returns with done() false.
  virtual void synchronize() = 0;
  /// Returns why the collective cannot finish, or "". Thread-safe.
  virtual std::string fault() = 0;
};

/// Called with a collective when it begins.
using Begun = std::function<void(const std::shared_ptr<Completion>&)>;

class Engine {
 public:
  virtual ~Engine() = default;
  /// Starts a collective after all work enqueued on `stream` so far. Collectives of one engine run
  /// in order. `tag` is equal on two ranks exactly if they issue the same collective. The engine
  /// calls `begun` once, before it waits for other ranks, so that the watchdog can end such a wait.
  /// A failure after that call is reported by fault().
  virtual void start(const Collective& call, Stream& stream, uint64_t tag, const Begun& begun) = 0;
  /// Aborts all collectives and wakes all waiting threads. Returns before the abort has ended, and
  /// never waits for a device or its driver. Thread-safe; may be called again.
  virtual void interrupt() noexcept = 0;
};

}  // namespace ds::comm
