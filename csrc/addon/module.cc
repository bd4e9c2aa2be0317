// The native module: one row per function. The C++ signature determines the conversion of
// arguments.
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
#include "convert.h"
#include "devices.h"
#include "file_tasks.h"
#include "offers.h"
#include "op_call.h"
#include "process_group.h"
#include "swap_files.h"

namespace ds::addon {
namespace {

// --- the argument block and ops ---------------------------------------------------------------

/// Sets the block into which op arguments are written. The array must stay alive.
void set_arguments(Addon& addon, DoublesObject block) {
  const Doubles words = from_js<Doubles>(addon.env, block.value);
  napi_ref kept = nullptr;
  require_ok(napi_create_reference(addon.env, block.value, 1, &kept), "a typed array");
  if (addon.block) napi_delete_reference(addon.env, addon.block);
  addon.block = kept;
  addon.arguments = static_cast<double*>(words.data);
  addon.argument_count = words.size / sizeof(double);
}

/// Returns the interface number. lib/runtime/interface.generated.ts has the same number if it was
/// generated from the same headers.
double op_interface(Addon&) { return DS_INTERFACE_HASH; }

// --- devices and memory -----------------------------------------------------------------------

Device& device_of(Addon& addon, double number) {
  const size_t index = index_of("device", number);
  if (index >= addon.compute_streams.size() || addon.compute_streams[index] == 0) {
    throw Error("DS_DEVICE", "device", "an open device", text("device ", index));
  }
  return addon.streams.get(addon.compute_streams[index])->device;
}

/// Opens device `number` (0 CPU, 1 + i GPU i) and returns its compute stream.
double open(Addon& addon, double number) {
  const size_t index = index_of("device", number);
  Device& device = open_device(number);
  if (addon.compute_streams.size() <= index) addon.compute_streams.resize(index + 1, 0);
  if (addon.compute_streams[index] == 0) {
    addon.compute_streams[index] = addon.streams.add(
        std::shared_ptr<StreamRef>(new StreamRef{device, nullptr, device.compute_stream()}));
  }
  return addon.compute_streams[index];
}

napi_value new_object(Addon& addon) {
  napi_value out = nullptr;
  napi_create_object(addon.env, &out);
  return out;
}

Object<GpuProbe> probe(Addon& addon) {
  const GpuProbe& found = probe_gpus();
  napi_value out = new_object(addon);
  set(addon.env, out, "libraryFound", found.library_found);
  set(addon.env, out, "deviceCount", double(found.device_count));
  set(addon.env, out, "driverVersion", double(found.driver_version));
  set(addon.env, out, "runtimeVersion", double(found.runtime_version));
  set(addon.env, out, "message", found.message);
  return {out};
}

/// Returns the path of a shared library from the loader; empty if the loader does not find it.
std::string library_path(Addon&, std::string name) {
  try {
    return DynamicLibrary::open({name, {name}, ""}).path();
  } catch (const Error&) {
    return "";
  }
}

Object<DeviceInfo> device_info(Addon& addon, double number) {
  const DeviceInfo info = device_of(addon, number).info();
  napi_value out = new_object(addon);
  set(addon.env, out, "name", info.name);
  set(addon.env, out, "detail", info.detail);
  set(addon.env, out, "totalBytes", static_cast<double>(info.total_bytes));
  return {out};
}

Object<MemoryStats> memory_stats(Addon& addon, double number) {
  const MemoryStats stats = device_of(addon, number).memory();
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

void reset_peaks(Addon& addon, double number) { device_of(addon, number).reset_peaks(); }
void trim(Addon& addon, double number) { device_of(addon, number).trim(); }
void set_cap(Addon& addon, double number, double bytes) {
  device_of(addon, number).set_cap(bytes_of("setCap", bytes));
}
void synchronize_device(Addon& addon, double number) {
  device_of(addon, number).synchronize_all();
  addon.failure->rethrow();
}
void set_deterministic(Addon& addon, double number, bool on) {
  device_of(addon, number).set_deterministic_algorithms(on);
}

void set_threads(Addon&, int32_t count) {
  if (count < 1) throw Error("DS_ARGUMENT", "setThreads", "at least one thread", text(count));
  thread_pool().resize(count);
}
double get_threads(Addon&) { return thread_pool().threads(); }

/// Allocates device memory for the output of an op. The last two words of the block are the stream
/// and the bytes; the handle replaces the stream. Passing numbers as arguments and result would
/// take a third of the call's time.
void allocate(Addon& addon) {
  if (addon.argument_count < 2) throw Error("DS_INTERNAL", "allocate", "an argument block", "none");
  double* const words = addon.arguments + addon.argument_count - 2;
  StreamRef& at = *addon.streams.get(words[0]);
  const size_t size = bytes_of("allocate", words[1]);
  words[0] = addon.buffers.add(std::make_shared<Buffer>(at.device, at.stream, size));
}
double allocate_pinned(Addon& addon, double number, double bytes) {
  const size_t size = bytes_of("allocatePinned", bytes);
  return addon.buffers.add(std::make_shared<Buffer>(device_of(addon, number), size));
}
void release(Addon& addon, double handle) { addon.buffers.take(handle); }
/// Offers the same memory to another thread's environment. Returns the number of an offer, which
/// can be taken once.
double offer_buffer(Addon& addon, double handle) {
  return offers<Buffer>().add(addon.buffers.get(handle));
}
double take_buffer(Addon& addon, double offer) {
  return addon.buffers.add(offers<Buffer>().take(offer));
}
void withdraw_buffer(Addon&, double offer) { offers<Buffer>().withdraw(offer); }
void release_on(Addon& addon, double handle, double stream) {
  const std::shared_ptr<StreamRef> ref = addon.streams.get(stream);
  addon.buffers.take(handle)->release_on(std::shared_ptr<Stream>(ref, &ref->stream));
}

// --- copies -----------------------------------------------------------------------------------

char* range(const Buffer& buffer, double offset, double bytes, const char* op) {
  if (bytes_of(op, offset) + bytes_of(op, bytes) > buffer.bytes()) {
    throw Error("DS_BOUNDS", op, text("a range inside ", buffer.bytes(), " bytes"),
                text(bytes, " bytes at ", offset));
  }
  return static_cast<char*>(buffer.data()) + static_cast<size_t>(offset);
}

void copy(Addon& addon, double to, double to_offset, double from, double from_offset, double bytes,
          double stream) {
  const Buffer& dst = *addon.buffers.get(to);
  const Buffer& src = *addon.buffers.get(from);
  StreamRef& at = *addon.streams.get(stream);
  char* target = range(dst, to_offset, bytes, "copy");
  char* source = range(src, from_offset, bytes, "copy");
  const auto size = static_cast<size_t>(bytes);
  if (size) at.device.copy(target, source, size, at.stream);
}

/// Blocks until `target` holds the bytes.
void read(Addon& addon, double handle, double offset, Bytes target, double stream) {
  addon.failure->rethrow();
  const Buffer& buffer = *addon.buffers.get(handle);
  char* source = range(buffer, offset, static_cast<double>(target.size), "read");
  StreamRef& at = *addon.streams.get(stream);
  if (target.size) at.device.copy(target.data, source, target.size, at.stream);
  at.device.synchronize(at.stream);
  addon.failure->rethrow();
}

/// Blocks until the caller may change `source` again.
void write(Addon& addon, double handle, double offset, Bytes source, double stream) {
  const Buffer& buffer = *addon.buffers.get(handle);
  char* target = range(buffer, offset, static_cast<double>(source.size), "write");
  StreamRef& at = *addon.streams.get(stream);
  if (source.size) at.device.copy(target, source.data, source.size, at.stream);
  at.device.synchronize(at.stream);
}

// --- streams and events -----------------------------------------------------------------------

/// `urgency` is the number of an Urgency.
double create_stream(Addon& addon, double number, double urgency) {
  Device& device = device_of(addon, number);
  const auto level = static_cast<Urgency>(std::clamp(static_cast<int>(urgency), 0, kUrgencies - 1));
  std::unique_ptr<Stream> stream = device.create_stream(level);
  Stream& borrowed = *stream;
  return addon.streams.add(
      std::shared_ptr<StreamRef>(new StreamRef{device, std::move(stream), borrowed}));
}
void release_stream(Addon& addon, double stream) {
  std::shared_ptr<StreamRef> taken = addon.streams.take(stream);
  taken->device.synchronize_all();
}
double create_event(Addon& addon, double number, bool timed) {
  Device& device = device_of(addon, number);
  return addon.events.add(
      std::shared_ptr<EventRef>(new EventRef{device, device.create_event(timed)}));
}
void release_event(Addon& addon, double event) { addon.events.take(event); }
void record(Addon& addon, double event, double stream) {
  StreamRef& at = *addon.streams.get(stream);
  at.device.record(*addon.events.get(event)->event, at.stream);
}
void wait(Addon& addon, double stream, double event) {
  StreamRef& at = *addon.streams.get(stream);
  at.device.wait(at.stream, *addon.events.get(event)->event);
}
bool done(Addon& addon, double event) {
  addon.failure->rethrow();
  EventRef& ref = *addon.events.get(event);
  return ref.device.done(*ref.event);
}
void synchronize_event(Addon& addon, double event) {
  EventRef& ref = *addon.events.get(event);
  ref.device.synchronize(*ref.event);
  addon.failure->rethrow();
}
void synchronize_stream(Addon& addon, double stream) {
  StreamRef& at = *addon.streams.get(stream);
  at.device.synchronize(at.stream);
  addon.failure->rethrow();
}
double elapsed_ms(Addon& addon, double start, double end) {
  EventRef& first = *addon.events.get(start);
  return first.device.elapsed_ms(*first.event, *addon.events.get(end)->event);
}

// --- graphs -----------------------------------------------------------------------------------

bool supports_graphs(Addon& addon, double number) {
  return device_of(addon, number).supports_graphs();
}
void enter_graph_memory(Addon& addon, double number) {
  device_of(addon, number).enter_graph_memory();
}
void leave_graph_memory(Addon& addon, double number) {
  device_of(addon, number).leave_graph_memory();
}
void begin_capture(Addon& addon, double number) { device_of(addon, number).begin_capture(); }
/// Returns a graph's handle; 0 if `keep` is false.
double end_capture(Addon& addon, double number, bool keep) {
  Device& device = device_of(addon, number);
  std::unique_ptr<Graph> graph = device.end_capture(keep);
  if (!graph) return 0;
  return addon.graphs.add(std::shared_ptr<GraphRef>(new GraphRef{device, std::move(graph)}));
}
void launch_graph(Addon& addon, double graph, double stream) {
  GraphRef& ref = *addon.graphs.get(graph);
  ref.device.launch(*ref.graph, addon.streams.get(stream)->stream);
}
/// Waits for the device: a running graph must not be destroyed.
void release_graph(Addon& addon, double graph) {
  const std::shared_ptr<GraphRef> taken = addon.graphs.take(graph);
  taken->device.synchronize_all();
}

// --- signals ----------------------------------------------------------------------------------

/// Records the first arrival of signal `number` from now on; a later one has its default effect.
void watch_signal(Addon&, int32_t number) { StopSignals::watch(number); }
void unwatch_signal(Addon&, int32_t number) { StopSignals::unwatch(number); }
/// The first signal noted; 0 before one.
double noted_signal(Addon&) { return StopSignals::noted(); }

// --- times of work outside streams ---------------------------------------------------------------

/// Starts or stops the log of disk transfers and CPU collectives.
void keep_work(Addon&, bool on) { WorkLog::keep(on); }
/// Returns lines of "kind began ended bytes name" and clears the log; nanoseconds of hrtime.
std::string take_work(Addon&) { return WorkLog::take(); }

// --- the table --------------------------------------------------------------------------------

struct Row {
  const char* name;
  napi_callback call;
};

constexpr Row kRows[] = {
    {"opInterface", Trampoline<op_interface>::call},
    {"setArguments", Trampoline<set_arguments>::call},
    {"run", Trampoline<run_op>::call},
    {"runOnHost", Trampoline<run_op_on_host>::call},
    {"timeOp", Trampoline<time_op>::call},
    {"open", Trampoline<open>::call},
    {"probe", Trampoline<probe>::call},
    {"libraryPath", Trampoline<library_path>::call},
    {"deviceInfo", Trampoline<device_info>::call},
    {"memoryStats", Trampoline<memory_stats>::call},
    {"resetPeaks", Trampoline<reset_peaks>::call},
    {"trim", Trampoline<trim>::call},
    {"setCap", Trampoline<set_cap>::call},
    {"setDeterministic", Trampoline<set_deterministic>::call},
    {"synchronizeDevice", Trampoline<synchronize_device>::call},
    {"setThreads", Trampoline<set_threads>::call},
    {"getThreads", Trampoline<get_threads>::call},
    {"allocate", Trampoline<allocate>::call},
    {"allocatePinned", Trampoline<allocate_pinned>::call},
    {"release", Trampoline<release>::call},
    {"offerBuffer", Trampoline<offer_buffer>::call},
    {"takeBuffer", Trampoline<take_buffer>::call},
    {"withdrawBuffer", Trampoline<withdraw_buffer>::call},
    {"releaseOn", Trampoline<release_on>::call},
    {"copy", Trampoline<copy>::call},
    {"read", Trampoline<read>::call},
    {"write", Trampoline<write>::call},
    {"createStream", Trampoline<create_stream>::call},
    {"releaseStream", Trampoline<release_stream>::call},
    {"createEvent", Trampoline<create_event>::call},
    {"releaseEvent", Trampoline<release_event>::call},
    {"record", Trampoline<record>::call},
    {"wait", Trampoline<wait>::call},
    {"done", Trampoline<done>::call},
    {"synchronizeEvent", Trampoline<synchronize_event>::call},
    {"synchronizeStream", Trampoline<synchronize_stream>::call},
    {"elapsedMs", Trampoline<elapsed_ms>::call},
    {"supportsGraphs", Trampoline<supports_graphs>::call},
    {"enterGraphMemory", Trampoline<enter_graph_memory>::call},
    {"leaveGraphMemory", Trampoline<leave_graph_memory>::call},
    {"beginCapture", Trampoline<begin_capture>::call},
    {"endCapture", Trampoline<end_capture>::call},
    {"launchGraph", Trampoline<launch_graph>::call},
    {"releaseGraph", Trampoline<release_graph>::call},
    {"watchSignal", Trampoline<watch_signal>::call},
    {"unwatchSignal", Trampoline<unwatch_signal>::call},
    {"notedSignal", Trampoline<noted_signal>::call},
    {"keepWork", Trampoline<keep_work>::call},
    {"takeWork", Trampoline<take_work>::call},
    {"writeFile", Trampoline<write_file>::call},
    {"readFile", Trampoline<read_file>::call},
    {"checksumFile", Trampoline<checksum_file>::call},
    {"syncPath", Trampoline<sync_path>::call},
    {"renameExclusive", Trampoline<rename_exclusive>::call},
    {"lockFile", Trampoline<lock_file>::call},
    {"fileEngineName", Trampoline<file_engine_name>::call},
    {"setFileEngine", Trampoline<set_file_engine>::call},
    {"openSwapFile", Trampoline<open_swap_file>::call},
    {"startSwap", Trampoline<start_swap>::call},
    {"waitSwap", Trampoline<wait_swap>::call},
    {"swapFileInfo", Trampoline<swap_file_info>::call},
    {"releaseSwapFile", Trampoline<release_swap_file>::call},
    {"startStore", Trampoline<start_store>::call},
    {"storePort", Trampoline<store_port>::call},
    {"stopStore", Trampoline<stop_store>::call},
    {"joinJob", Trampoline<join_job>::call},
    {"offerJob", Trampoline<offer_job>::call},
    {"takeJob", Trampoline<take_job>::call},
    {"withdrawJob", Trampoline<withdraw_job>::call},
    {"checkJob", Trampoline<check_job>::call},
    {"leaveJob", Trampoline<leave_job>::call},
    {"closeJob", Trampoline<close_job>::call},
    {"storeSet", Trampoline<store_set>::call},
    {"storeGet", Trampoline<store_get>::call},
    {"storeAdd", Trampoline<store_add>::call},
    {"storeCompareSet", Trampoline<store_compare_set>::call},
    {"storeDelete", Trampoline<store_delete>::call},
    {"storeKeys", Trampoline<store_keys>::call},
    {"storeWaiters", Trampoline<store_waiters>::call},
    {"openGroup", Trampoline<open_group>::call},
    {"startCollective", Trampoline<start_collective>::call},
    {"giveUpCollective", Trampoline<give_up_collective>::call},
    {"waitCollective", Trampoline<wait_collective>::call},
    {"synchronizeCollective", Trampoline<synchronize_collective>::call},
    {"collectiveDone", Trampoline<collective_done>::call},
    {"hmacSha256", Trampoline<hmac_sha256>::call},
};

/// Host calls may still run when the environment ends: waits for them before their memory is freed.
void close(Addon* addon) {
  for (double stream : addon->compute_streams) {
    if (stream == 0) continue;
    try {
      addon->streams.get(stream)->device.synchronize_all();
    } catch (const Error&) {
      // The environment is ending, so the error cannot be reported.
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
