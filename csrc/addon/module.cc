// The native module: the table of entries, and entries for devices, memory, streams and graphs.
#include <node_api.h>

#include <algorithm>
#include <cstring>

#include "../core/dynamic_library.h"
#include "../core/stop_signals.h"
#include "../core/thread_pool.h"
#include "../core/work_log.h"
#include "../cpu/cpu_device.h"
#include "../ops/op_list.generated.h"
#include "addon.h"
#include "devices.h"
#include "entries.generated.h"
#include "entry.h"
#include "file_tasks.h"
#include "grammars.h"
#include "offers.h"
#include "op_call.h"
#include "process_group.h"
#include "swap_files.h"

namespace ds::addon {
namespace {

// --- the argument block and ops ---------------------------------------------------------------

/// Sets the block into which JavaScript writes the arguments of ops. Keeps the array alive.
DS_ENTRY void set_arguments(Addon& addon, DoublesObject block) {
  napi_ref kept = nullptr;
  if (napi_create_reference(addon.env, block.value, 1, &kept) != napi_ok) {
    throw Error("DS_INTERNAL", "setArguments", "a reference to the block", "none");
  }
  if (addon.block) napi_delete_reference(addon.env, addon.block);
  addon.block = kept;
  addon.arguments = block.data;
  addon.argument_count = block.count;
}

/// Returns the hash of the ops' interface. It equals the number in
/// lib/runtime/interface.generated.ts if both were generated from the same headers.
DS_ENTRY double op_interface(Addon&) { return DS_INTERFACE_HASH; }

// --- devices and memory -----------------------------------------------------------------------

/// Opens `device` (0: CPU, 1 + i: GPU i) and returns its compute stream.
DS_ENTRY double open(Addon& addon, DeviceNumber device) {
  Device& opened = open_device(device);
  std::vector<double>& streams = addon.compute_streams;
  if (streams.size() <= device) streams.resize(device + 1, 0);
  if (streams[device] == 0) {
    streams[device] = addon.streams.add(
        std::shared_ptr<StreamRef>(new StreamRef{opened, nullptr, opened.compute_stream()}));
  }
  return streams[device];
}

napi_value new_object(Addon& addon) {
  napi_value out = nullptr;
  napi_create_object(addon.env, &out);
  return out;
}

/// Sets the candidate files of the GPU back end, one per line, in order of preference. The first
/// probe opens them.
DS_ENTRY void set_gpu_libraries(Addon&, std::string files) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < files.size();) {
    const size_t end = std::min(files.find('\n', begin), files.size());
    if (end > begin) lines.push_back(files.substr(begin, end - begin));
    begin = end + 1;
  }
  addon::set_gpu_libraries(std::move(lines));
}

DS_ENTRY Object<GpuProbe> probe(Addon& addon) {
  const GpuProbe& found = probe_gpus();
  napi_value out = new_object(addon);
  set(addon.env, out, "library", found.library);
  set(addon.env, out, "deviceCount", double(found.device_count));
  set(addon.env, out, "driverVersion", double(found.driver_version));
  set(addon.env, out, "runtimeVersion", double(found.runtime_version));
  set(addon.env, out, "message", found.message);
  return {out};
}

/// Returns the path of a shared library, or "" if the loader does not find it.
DS_ENTRY std::string library_path(Addon&, std::string name) {
  try {
    return DynamicLibrary::open({name, {name}, ""}).path();
  } catch (const Error&) {
    return "";
  }
}

DS_ENTRY Object<DeviceInfo> device_info(Addon& addon, OpenDevice device) {
  const DeviceInfo info = device->info();
  napi_value out = new_object(addon);
  set(addon.env, out, "name", info.name);
  set(addon.env, out, "detail", info.detail);
  set(addon.env, out, "totalBytes", static_cast<double>(info.total_bytes));
  return {out};
}

DS_ENTRY Object<MemoryStats> memory_stats(Addon& addon, OpenDevice device) {
  const MemoryStats stats = device->memory();
  napi_value out = new_object(addon);
  set(addon.env, out, "inUse", static_cast<double>(stats.in_use));
  set(addon.env, out, "peakInUse", static_cast<double>(stats.peak_in_use));
  set(addon.env, out, "reserved", static_cast<double>(stats.reserved));
  set(addon.env, out, "peakReserved", static_cast<double>(stats.peak_reserved));
  set(addon.env, out, "cap", static_cast<double>(stats.cap));
  set(addon.env, out, "total", static_cast<double>(stats.total));
  set(addon.env, out, "allocations", static_cast<double>(stats.allocations));
  set(addon.env, out, "liveBuffers", static_cast<double>(addon.buffers.live()));
  return {out};
}

DS_ENTRY void reset_peaks(Addon&, OpenDevice device) { device->reset_peaks(); }
DS_ENTRY void trim(Addon&, OpenDevice device) { device->trim(); }
DS_ENTRY void set_cap(Addon&, OpenDevice device, ByteCount bytes) { device->set_cap(bytes); }
DS_ENTRY void synchronize_device(Addon& addon, OpenDevice device) {
  device->synchronize_all();
  addon.failure->rethrow();
}
DS_ENTRY void set_deterministic(Addon&, OpenDevice device, bool on) {
  device->set_deterministic_algorithms(on);
}

/// Returns the matrix algorithms that the device selected by timing, as text for learn_algorithms.
DS_ENTRY std::string timed_algorithms(Addon&, OpenDevice device) {
  return device->timed_algorithms();
}
DS_ENTRY void learn_algorithms(Addon&, OpenDevice device, std::string text) {
  device->learn_algorithms(text);
}

DS_ENTRY void set_threads(Addon&, ThreadCount count) { thread_pool().resize(count); }
DS_ENTRY double get_threads(Addon&) { return thread_pool().threads(); }

/// Allocates device memory for the output of an op. The last two words of the block are the stream
/// and the size in bytes. The handle overwrites the stream. Arguments and a result of the call
/// itself would take a third of its time.
DS_ENTRY void allocate(Addon& addon) {
  if (addon.argument_count < 2) throw Error("DS_INTERNAL", "allocate", "an argument block", "none");
  double* const words = addon.arguments + addon.argument_count - 2;
  const Handle<StreamRef> at =
      Handle<StreamRef>::of(addon.streams, words[0], {"allocate", "stream"});
  const size_t size = ByteCount::of(words[1], {"allocate", "bytes"});
  words[0] = addon.buffers.add(std::make_shared<Buffer>(at->device, at->stream, size));
}
DS_ENTRY double allocate_pinned(Addon& addon, OpenDevice device, ByteCount bytes) {
  return addon.buffers.add(std::make_shared<Buffer>(*device.device, bytes));
}
DS_ENTRY void release(Addon&, Handle<Buffer> buffer) { buffer.take(); }
/// Offers the memory to the environment of another thread. Returns the number of the offer, which
/// can be taken once.
DS_ENTRY double offer_buffer(Addon&, Handle<Buffer> buffer) {
  return offers<Buffer>().add(buffer.share());
}
DS_ENTRY double take_buffer(Addon& addon, OfferNumber offer) {
  return addon.buffers.add(offers<Buffer>().take(offer));
}
DS_ENTRY void withdraw_buffer(Addon&, OfferNumber offer) { offers<Buffer>().withdraw(offer); }
DS_ENTRY void release_on(Addon&, Handle<Buffer> buffer, Handle<StreamRef> stream) {
  if (buffer->placement() == Placement::device) {
    require_same_device(buffer->device(), *stream, {"releaseOn", "buffer"});
  }
  const std::shared_ptr<StreamRef> ref = stream.share();
  buffer.take()->release_on(std::shared_ptr<Stream>(ref, &ref->stream));
}

// --- copies -----------------------------------------------------------------------------------

/// Throws DS_DEVICE if the stream belongs to the CPU and the memory to a GPU.
void require_reachable(const Buffer& buffer, const StreamRef& stream, Place place) {
  const Device& cpu = cpu::cpu_device();
  const bool on_host = buffer.placement() == Placement::pinned || &buffer.device() == &cpu;
  if (!on_host && &stream.device == &cpu) require_same_device(buffer.device(), stream, place);
}

DS_ENTRY void copy(Addon&, Handle<Buffer> to, ByteCount to_offset, Handle<Buffer> from,
                   ByteCount from_offset, ByteCount bytes, Handle<StreamRef> stream) {
  require_reachable(*to, *stream, {"copy", "to"});
  require_reachable(*from, *stream, {"copy", "from"});
  char* target = range_of(*to, to_offset, bytes, {"copy", "to"});
  char* source = range_of(*from, from_offset, bytes, {"copy", "from"});
  if (bytes) stream->device.copy(target, source, bytes, stream->stream);
}

/// Copies a buffer's bytes to `target`. Blocks until they have arrived.
DS_ENTRY void read(Addon& addon, Handle<Buffer> buffer, ByteCount offset, Bytes target,
                   Handle<StreamRef> stream) {
  addon.failure->rethrow();
  require_reachable(*buffer, *stream, {"read", "buffer"});
  char* source = range_of(*buffer, offset, target.size, {"read", "target"});
  if (target.size) stream->device.copy(target.data, source, target.size, stream->stream);
  stream->device.synchronize(stream->stream);
  addon.failure->rethrow();
}

/// Copies `source` to a buffer. Blocks until the caller may change `source`.
DS_ENTRY void write(Addon&, Handle<Buffer> buffer, ByteCount offset, Bytes source,
                    Handle<StreamRef> stream) {
  require_reachable(*buffer, *stream, {"write", "buffer"});
  char* target = range_of(*buffer, offset, source.size, {"write", "source"});
  if (source.size) stream->device.copy(target, source.data, source.size, stream->stream);
  stream->device.synchronize(stream->stream);
}

// --- streams and events -----------------------------------------------------------------------

/// Creates a stream and returns its handle. `urgency` is the number of an Urgency.
DS_ENTRY double create_stream(Addon& addon, OpenDevice device, UrgencyNumber urgency) {
  std::unique_ptr<Stream> stream =
      device->create_stream(static_cast<Urgency>(static_cast<int>(urgency)));
  Stream& borrowed = *stream;
  return addon.streams.add(
      std::shared_ptr<StreamRef>(new StreamRef{*device.device, std::move(stream), borrowed}));
}
DS_ENTRY void release_stream(Addon&, Handle<StreamRef> stream) {
  stream.take()->device.synchronize_all();
}
DS_ENTRY double create_event(Addon& addon, OpenDevice device, bool timed) {
  return addon.events.add(
      std::shared_ptr<EventRef>(new EventRef{*device.device, device->create_event(timed)}));
}
DS_ENTRY void release_event(Addon&, Handle<EventRef> event) { event.take(); }
DS_ENTRY void record(Addon&, Handle<EventRef> event, Handle<StreamRef> stream) {
  require_same_device(event->device, *stream, {"record", "event"});
  stream->device.record(*event->event, stream->stream);
}
DS_ENTRY void wait(Addon&, Handle<StreamRef> stream, Handle<EventRef> event) {
  require_same_device(event->device, *stream, {"wait", "event"});
  stream->device.wait(stream->stream, *event->event);
}
DS_ENTRY bool done(Addon& addon, Handle<EventRef> event) {
  addon.failure->rethrow();
  return event->device.done(*event->event);
}
DS_ENTRY void synchronize_event(Addon& addon, Handle<EventRef> event) {
  event->device.synchronize(*event->event);
  addon.failure->rethrow();
}
DS_ENTRY void synchronize_stream(Addon& addon, Handle<StreamRef> stream) {
  stream->device.synchronize(stream->stream);
  addon.failure->rethrow();
}
DS_ENTRY double elapsed_ms(Addon&, Handle<EventRef> start, Handle<EventRef> end) {
  if (&start->device != &end->device) {
    refuse("DS_DEVICE", {"elapsedMs", "end"}, text("an event of ", start->device.info().name),
           text("one of ", end->device.info().name));
  }
  return start->device.elapsed_ms(*start->event, *end->event);
}

// --- graphs -----------------------------------------------------------------------------------

DS_ENTRY bool supports_graphs(Addon&, OpenDevice device) { return device->supports_graphs(); }
DS_ENTRY void enter_graph_memory(Addon&, OpenDevice device) { device->enter_graph_memory(); }
DS_ENTRY void leave_graph_memory(Addon&, OpenDevice device) { device->leave_graph_memory(); }
DS_ENTRY void begin_capture(Addon&, OpenDevice device) { device->begin_capture(); }
/// Returns the handle of the recorded graph, or discards it and returns 0 if `keep` is false.
DS_ENTRY double end_capture(Addon& addon, OpenDevice device, bool keep) {
  std::unique_ptr<Graph> graph = device->end_capture(keep);
  if (!graph) return 0;
  return addon.graphs.add(
      std::shared_ptr<GraphRef>(new GraphRef{*device.device, std::move(graph)}));
}
DS_ENTRY void launch_graph(Addon&, Handle<GraphRef> graph, Handle<StreamRef> stream) {
  require_same_device(graph->device, *stream, {"launchGraph", "graph"});
  graph->device.launch(*graph->graph, stream->stream);
}
/// Destroys a graph. First waits for the device, because the graph may be running.
DS_ENTRY void release_graph(Addon&, Handle<GraphRef> graph) {
  const std::shared_ptr<GraphRef> taken = graph.take();
  taken->device.synchronize_all();
}

// --- signals ----------------------------------------------------------------------------------

/// Records the first arrival of a signal. A later arrival has its default action.
DS_ENTRY void watch_signal(Addon&, SignalNumber number) { StopSignals::watch(number); }
DS_ENTRY void unwatch_signal(Addon&, SignalNumber number) { StopSignals::unwatch(number); }
/// Returns the first recorded signal, or 0.
DS_ENTRY double noted_signal(Addon&) { return StopSignals::noted(); }

// --- times of work outside streams ---------------------------------------------------------------

/// Turns the log of disk transfers and CPU collectives on or off.
DS_ENTRY void keep_work(Addon&, bool on) { WorkLog::keep(on); }
/// Returns lines of "kind began ended bytes name", times in ns of hrtime, and clears the log.
DS_ENTRY std::string take_work(Addon&) { return WorkLog::take(); }

// --- the table --------------------------------------------------------------------------------

/// Returns the table below as JSON: the names of the entries and of their arguments, with kinds and
/// bounds.
DS_ENTRY std::string entries(Addon& addon);

#define DS_NAMES(function, ...) constexpr const char* kNamesOf_##function[] = {__VA_ARGS__};
DS_ENTRIES(DS_NAMES)
#undef DS_NAMES

struct Row {
  const char* name;
  napi_callback call;
  std::string (*describe)(Addon&);
};

#define DS_ROW(function, ...)                                          \
  {kNamesOf_##function[0], Entry<function, kNamesOf_##function>::call, \
   Entry<function, kNamesOf_##function>::describe},
constexpr Row kRows[] = {DS_ENTRIES(DS_ROW)};
#undef DS_ROW

std::string entries(Addon& addon) {
  std::string out;
  for (const Row& row : kRows) out += text(out.empty() ? '[' : ',', row.describe(addon));
  return out + "]";
}

/// Waits for host functions that still run, before their memory is freed.
void close(Addon* addon) {
  for (double stream : addon->compute_streams) {
    if (stream == 0) continue;
    try {
      addon->streams.get(stream)->device.synchronize_all();
    } catch (const Error&) {
      // The environment is ending, so there is no caller to report the error to.
    }
  }
}

napi_value init(napi_env env, napi_value exports) {
  auto* addon = new Addon();
  addon->env = env;
  const auto destroy = [](napi_env, void* data, void*) { delete static_cast<Addon*>(data); };
  if (napi_set_instance_data(env, addon, destroy, nullptr) != napi_ok) {
    delete addon;
    return nullptr;
  }
  napi_add_env_cleanup_hook(
      env, [](void* data) { close(static_cast<Addon*>(data)); }, addon);
  for (const Row& row : kRows) {
    napi_value function = nullptr;
    napi_create_function(env, row.name, NAPI_AUTO_LENGTH, row.call, addon, &function);
    set(env, exports, row.name, function);
  }
  return exports;
}

}  // namespace
}  // namespace ds::addon

NAPI_MODULE_INIT() { return ds::addon::init(env, exports); }
