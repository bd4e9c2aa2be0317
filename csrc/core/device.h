// A device: memory, streams, events and the table of ops it can run. One subclass per back end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "../ops/op_list.h"
#include "error.h"

namespace ds {

/// An ordered queue of work on one device. The CPU's stream runs everything before it returns.
class Stream {
 public:
  virtual ~Stream() = default;
};

/// A point in a stream. Recording again moves it.
class Event {
 public:
  virtual ~Event() = default;
};

/// Recorded work of a stream, which runs again with one call. It reads and writes the memory that
/// it was recorded with.
class Graph {
 public:
  virtual ~Graph() = default;
};

/// Bytes of one device's memory. `reserved` is what the pool holds, in use or cached for reuse.
struct MemoryStats {
  size_t in_use = 0, peak_in_use = 0, reserved = 0, peak_reserved = 0, cap = 0, total = 0;
  uint64_t allocations = 0;
};

struct DeviceInfo {
  std::string name, detail;  // "NVIDIA H200", "compute capability 9.0, driver 13.0, runtime 13.0"
  size_t total_bytes = 0;
};

/// Whose work begins first where that of several streams could. A GPU finishes what it has begun,
/// and takes copies of one urgency stream by stream: those of one that never pauses hold up all
/// others.
enum class Urgency {
  kBulk,     // Much, and nobody waits for its first part: state on its way to an update and back.
  kUsual,    // What compute waits for, piece by piece.
  kAwaited,  // What compute reads next, whose copies pass what is bulk: weights that are gathered.
  kFirst,    // Little, and all else waits for it: the tokens of a batch.
};
constexpr int kUrgencies = 4;

/// A GPU is used on one thread, JavaScript's; the CPU on any. Methods throw ds::Error.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceInfo info() const = 0;

  /// Stream-ordered device memory, 256-byte aligned; contents are undefined. `bytes` may be 0.
  /// Throws DS_OUT_OF_MEMORY when the cap or the device is exhausted even after trimming caches.
  virtual void* allocate(size_t bytes, Stream& stream) = 0;
  /// Returns memory once `stream` has passed this point.
  virtual void release(void* data, size_t bytes, Stream& stream) = 0;
  /// Page-locked host memory of exactly `bytes` (rounded up to pages), zero-filled.
  virtual void* allocate_pinned(size_t bytes) = 0;
  virtual void release_pinned(void* data, size_t bytes) = 0;
  virtual MemoryStats memory() const = 0;
  virtual void reset_peaks() = 0;
  /// An upper limit on reserved bytes; 0 removes it.
  virtual void set_cap(size_t bytes) = 0;
  virtual void trim() = 0;

  virtual std::unique_ptr<Stream> create_stream(Urgency urgency) = 0;
  virtual std::unique_ptr<Event> create_event(bool timed) = 0;
  virtual Stream& compute_stream() = 0;
  virtual void record(Event& event, Stream& stream) = 0;
  virtual void wait(Stream& stream, Event& event) = 0;
  virtual bool done(Event& event) = 0;
  virtual void synchronize(Event& event) = 0;
  virtual void synchronize(Stream& stream) = 0;
  /// Waits for every stream of the device, host calls included.
  virtual void synchronize_all() = 0;
  /// Milliseconds between two recorded, timed and finished events.
  virtual double elapsed_ms(Event& start, Event& end) = 0;

  /// Enqueues a copy; either side may be device memory or pinned host memory. Pageable host memory
  /// is legal but makes the call synchronous.
  virtual void copy(void* dst, const void* src, size_t bytes, Stream& stream) = 0;
  /// Runs `task` on a host thread once `stream` reaches it; the stream waits for it. `task` must
  /// not call into a device and must not throw.
  virtual void launch_host(Stream& stream, std::function<void()> task) = 0;

  /// Chooses matrix algorithms by a fixed rule instead of by timing, so that separate processes
  /// agree bit for bit. A device whose algorithms are fixed anyway ignores it.
  virtual void set_deterministic_algorithms(bool) {}

  /// Whether work can be recorded. The rest of these throw DS_DEVICE where it cannot.
  virtual bool supports_graphs() const { return false; }
  /// Until leave_graph_memory(), what the compute stream allocates is memory of graphs: released,
  /// it is given to work that is recorded later, and to nothing else, for as long as there is a
  /// graph. What is recorded must find its memory there, so that the same work runs in it once
  /// before.
  virtual void enter_graph_memory() { refuse_graphs(); }
  virtual void leave_graph_memory() { refuse_graphs(); }
  /// Records, and does not run, what is enqueued on the compute stream up to end_capture(). Nothing
  /// may wait for the stream meanwhile.
  virtual void begin_capture() { refuse_graphs(); }
  /// The work recorded; null, with nothing kept, where the flag, whether to keep it, is false.
  /// Throws DS_CUDA when something was enqueued that cannot be recorded.
  virtual std::unique_ptr<Graph> end_capture(bool) { refuse_graphs(); }
  virtual void launch(Graph&, Stream&) { refuse_graphs(); }

  /// Runs one op. `args` points to the op's struct (see op_list.h), which is not kept.
  virtual void run(OpId op, const void* args, Stream& stream) = 0;

 private:
  [[noreturn]] static void refuse_graphs() {
    throw Error("DS_DEVICE", "graph", "a device that records work", "one that does not");
  }
};

}  // namespace ds
