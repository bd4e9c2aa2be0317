// Moves the data of one group's collectives: one engine per group, selected by the device.
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
/// The names in JavaScript, in the order of Kind.
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
/// reduce_scatter and all_gather may have several contiguous `rows` in input and output. Each row
/// is exchanged as a separate collective, which shards an inner dim of a tensor. With several rows,
/// the memory of input and output is distinct. `peer` is the root or the other side, as a rank of
/// the group.
struct Collective {
  Kind kind = Kind::barrier;
  ReduceOp op = ReduceOp::sum;
  DType dtype = DType::f32;
  const void* input = nullptr;
  void* output = nullptr;
  int64_t count = 0;  // of a row
  int64_t rows = 1;
  int32_t peer = 0;
  std::string purpose;  // description of the data, the same on every rank; may be empty
};

/// A collective under way.
class Completion {
 public:
  virtual ~Completion() = default;
  /// Returns whether its memory is free again and its output complete. Any thread.
  virtual bool done() = 0;
  /// Returns whether it is known to be done. May lag, but never waits for a device or its driver.
  /// The thread that ends a blocked collective uses it.
  virtual bool ended() const = 0;
  /// Orders later work of `stream` after it. May block if streams run at once. Returns with done()
  /// false if the engine was aborted, as synchronize() does.
  virtual void order(Stream& stream) = 0;
  /// Blocks the calling thread until done. After an abort of the engine it blocks until the engine
  /// no longer uses the memory.
  virtual void synchronize() = 0;
  /// Returns the reason why it cannot finish, or an empty text. Any thread.
  virtual std::string fault() = 0;
};

/// Receives a collective that begins.
using Begun = std::function<void(const std::shared_ptr<Completion>&)>;

class Engine {
 public:
  virtual ~Engine() = default;
  /// Starts after everything enqueued on `stream` so far; one engine's collectives run in order.
  /// `tag` is the same on every rank exactly if the ranks issue the same collective. The engine
  /// calls `begun` once, before any wait for other ranks, so the watchdog can end such a wait. If
  /// the call throws later, the fault has the reason.
  virtual void start(const Collective& call, Stream& stream, uint64_t tag, const Begun& begun) = 0;
  /// Aborts everything in flight and releases every waiting thread. Returns before the end of the
  /// abort. Any thread, without waiting for a device or its driver; idempotent.
  virtual void interrupt() noexcept = 0;
};

}  // namespace ds::comm
