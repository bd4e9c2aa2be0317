// The interface of a device: memory, streams, events, graphs and ops. Each back end has a subclass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "../ops/op_list.h"
#include "error.h"

namespace ds {

/// A queue of work on one device, which runs in order. The CPU runs work before the call returns.
class Stream {
 public:
  virtual ~Stream() = default;
};

/// A point in the order of a stream. Recording it again moves it.
class Event {
 public:
  virtual ~Event() = default;
};

/// Work recorded from a stream. One call replays it, in the memory that the recording allocated.
class Graph {
 public:
  virtual ~Graph() = default;
};

/// Memory of one device, in bytes. `reserved` counts memory of the pool, in use or cached. `cap`
/// limits it.
struct MemoryStats {
  size_t in_use = 0, peak_in_use = 0, reserved = 0, peak_reserved = 0, cap = 0, total = 0;
  uint64_t allocations = 0;
};

struct DeviceInfo {
  std::string name, detail;  // "NVIDIA H200", "compute capability 9.0, driver 13.0, runtime 13.0"
  size_t total_bytes = 0;
};

/// Priority of a stream's work. A GPU does not interrupt work that it has begun. It runs copies of
/// equal priority stream by stream, so a stream without pauses blocks the others.
enum class Urgency {
  kBulk,     // large, and nothing waits for its first bytes: optimizer state to and from the host
  kUsual,    // compute waits for the parts in turn
  kAwaited,  // compute reads it next, so it overtakes bulk copies: gathered weights
  kFirst,    // small, and all other work waits for it: the tokens of a batch
};
constexpr int kUrgencies = 4;

/// A device of a back end. Only the JavaScript thread uses a GPU; any thread may use the CPU.
/// Methods throw ds::Error.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceInfo info() const = 0;

  /// Returns uninitialized device memory, 256-byte aligned, for work of `stream` from now on.
  /// `bytes` may be 0. Throws DS_OUT_OF_MEMORY if the cap or the device is exhausted even without
  /// cached memory.
  virtual void* allocate(size_t bytes, Stream& stream) = 0;
  /// Returns memory to the pool once `stream` has passed this point.
  virtual void release(void* data, size_t bytes, Stream& stream) = 0;
  /// Returns page-locked host memory, zero-filled, of `bytes` rounded up to pages.
  virtual void* allocate_pinned(size_t bytes) = 0;
  virtual void release_pinned(void* data, size_t bytes) = 0;
  virtual MemoryStats memory() const = 0;
  virtual void reset_peaks() = 0;
  /// Sets an upper limit on reserved bytes; 0 removes it.
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
  /// Waits for every stream of the device, including host calls.
  virtual void synchronize_all() = 0;
  /// Returns milliseconds between two recorded, timed and finished events.
  virtual double elapsed_ms(Event& start, Event& end) = 0;

  /// Enqueues a copy; either side may be device memory or pinned host memory. Pageable host memory
  /// is legal but makes the call synchronous.
  virtual void copy(void* dst, const void* src, size_t bytes, Stream& stream) = 0;
  /// Runs `task` on a host thread once `stream` reaches it; the stream waits for it. `task` must
  /// not call into a device and must not throw.
  virtual void launch_host(Stream& stream, std::function<void()> task) = 0;

  /// Selects matrix algorithms by a fixed rule instead of by timing, so that separate processes
  /// agree bit for bit. A device with fixed algorithms ignores it.
  virtual void set_deterministic_algorithms(bool) {}
  /// Returns the matrix algorithms that this device selected by timing, as lines of text. Another
  /// process may pass them to learn_algorithms() instead of timing again. Empty for a device with
  /// fixed algorithms.
  virtual std::string timed_algorithms() { return {}; }
  virtual void learn_algorithms(const std::string&) {}

  /// Returns true if work can be recorded. If not, the methods below throw DS_DEVICE.
  virtual bool supports_graphs() const { return false; }
  /// Makes the compute stream allocate from the memory of graphs, until leave_graph_memory(). While
  /// a graph exists, only recordings reuse memory released there. A recording cannot grow this
  /// memory, so the same work must run once in this mode before it is recorded.
  virtual void enter_graph_memory() { refuse_graphs(); }
  virtual void leave_graph_memory() { refuse_graphs(); }
  /// Records work that is enqueued on the compute stream, without running it, until end_capture().
  /// The caller must not wait for the stream before that.
  virtual void begin_capture() { refuse_graphs(); }
  /// Returns the recorded work. If the flag is false, discards the work and returns null. Throws
  /// DS_CUDA if some of the work cannot be recorded.
  virtual std::unique_ptr<Graph> end_capture(bool) { refuse_graphs(); }
  virtual void launch(Graph&, Stream&) { refuse_graphs(); }

  /// Runs one op. `args` points to the op's struct (see op_list.h) and is not retained.
  virtual void run(OpId op, const void* args, Stream& stream) = 0;

 private:
  [[noreturn]] static void refuse_graphs() {
    throw Error("DS_DEVICE", "graph", "a device with graph recording", "a device without it");
  }
};

}  // namespace ds
