// A device: memory, streams, events and its table of ops. One subclass per back end.
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

/// Recorded work of a stream that one call replays. It uses the memory of the recording.
class Graph {
 public:
  virtual ~Graph() = default;
};

/// Bytes of one device's memory. `reserved` is the pool's memory, in use or cached.
struct MemoryStats {
  size_t in_use = 0, peak_in_use = 0, reserved = 0, peak_reserved = 0, cap = 0, total = 0;
  uint64_t allocations = 0;
};

struct DeviceInfo {
  std::string name, detail;  // "NVIDIA H200", "compute capability 9.0, driver 13.0, runtime 13.0"
  size_t total_bytes = 0;
};

/// Priority of a stream's work. A GPU finishes work that it has begun. Copies of one urgency run
/// stream by stream, so a stream that never pauses blocks all others of its urgency.
enum class Urgency {
  kBulk,     // large, and no work waits for its first part: state on its way to an update and back
  kUsual,    // compute waits for it, one part after the other
  kAwaited,  // compute reads it next, and its copies overtake bulk copies: gathered weights
  kFirst,    // small, and all other work waits for it: the tokens of a batch
};
constexpr int kUrgencies = 4;

/// A GPU is used on one thread, JavaScript's; the CPU on any. Methods throw ds::Error.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceInfo info() const = 0;

  /// Returns stream-ordered device memory, 256-byte aligned and uninitialized. `bytes` may be 0.
  /// Throws DS_OUT_OF_MEMORY if the cap or the device is exhausted even after trimming caches.
  virtual void* allocate(size_t bytes, Stream& stream) = 0;
  /// Releases memory once `stream` has passed this point.
  virtual void release(void* data, size_t bytes, Stream& stream) = 0;
  /// Returns page-locked host memory of exactly `bytes` (rounded up to pages), zero-filled.
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
  /// The matrix algorithms that this device selected by timing, as lines of text; empty for a
  /// device with fixed algorithms. Another process may pass them to learn_algorithms() instead of
  /// timing again.
  virtual std::string timed_algorithms() { return {}; }
  virtual void learn_algorithms(const std::string&) {}

  /// Whether work can be recorded. If not, the methods below throw DS_DEVICE.
  virtual bool supports_graphs() const { return false; }
  /// Until leave_graph_memory(), the compute stream allocates memory of graphs. When it is
  /// released, only later recordings reuse it, as long as a graph exists. A recording must find its
  /// memory there, so the same work runs in this mode once before.
  virtual void enter_graph_memory() { refuse_graphs(); }
  virtual void leave_graph_memory() { refuse_graphs(); }
  /// Records work that is enqueued on the compute stream until end_capture(), without running it.
  /// No caller may wait for the stream before that.
  virtual void begin_capture() { refuse_graphs(); }
  /// Returns the recorded work. If the flag is false, discards it and returns null. Throws DS_CUDA
  /// if enqueued work cannot be recorded.
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
