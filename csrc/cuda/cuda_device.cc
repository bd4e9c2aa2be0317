// CudaDevice over the CUDA runtime. Checks all calls; errors name the method.
#include "cuda_device.h"

#include <algorithm>
#include <utility>

#include "../core/error.h"
#include "cuda_error.h"
#include "direct_copy.h"
#include "gemm.h"
#include "gemm_choices.h"
#include "pinned_memory.h"
#include "probe.h"

namespace ds::cuda {

namespace {

constexpr int kOldestCapability = 80;
constexpr const char* kGraph = "graph";

/// An event that orders streams. Host threads wait by SleepingWaits instead.
class CudaEvent final : public Event {
 public:
  explicit CudaEvent(bool timed) {
    const unsigned flags = timed ? cudaEventDefault : cudaEventDisableTiming;
    DS_CUDA(cudaEventCreateWithFlags(&event_, flags), "create_event");
  }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

cudaEvent_t event_of(Event& event) { return static_cast<CudaEvent&>(event).get(); }

/// A pointer as a GPU sees it.
struct GpuPointer {
  cudaMemoryType kind;  // if cudaMemoryTypeUnregistered, only the driver's copies reach it
  void* address;        // the address that the GPU uses
};

GpuPointer gpu_pointer(const void* p) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, p) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return {cudaMemoryTypeUnregistered, nullptr};
  }
  return {attributes.type, attributes.devicePointer};
}

}  // namespace

CudaStream::CudaStream(CudaDevice& device, int priority, Urgency urgency)
    : device_(device), urgency_(urgency) {
  device_.make_current();
  int least = 0, greatest = 0;
  DS_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest), "create_stream");
  DS_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                       std::max(least - priority, greatest)),
          "create_stream");
  if (urgency_ == Urgency::kBulk) device_.count_bulk_streams(1);
}

CudaStream::~CudaStream() {
  if (urgency_ == Urgency::kBulk) device_.count_bulk_streams(-1);
  if (host_queue_ && device_.has_given_up()) host_queue_->drop();
  host_queue_.reset();
  device_.forget(stream_);
  cudaStreamDestroy(stream_);
}

HostQueue& CudaStream::host_queue() {
  if (!host_queue_) host_queue_ = std::make_unique<HostQueue>(stream_);
  return *host_queue_;
}

struct CudaDevice::HostCall {
  CudaDevice& device;
  std::function<void()> task;
  HostCall* next = nullptr;
};

CudaDevice::CudaDevice(int index) : index_(index) {
  DS_CUDA(cudaGetDeviceProperties(&properties_, index), "open");
  if (compute_capability() < kOldestCapability) {
    throw Error("DS_DEVICE", "open", "a GPU of compute capability 8.0 or newer",
                text(properties_.name, " with ", properties_.major, ".", properties_.minor),
                "Use a newer GPU, or the CPU device.");
  }
  make_current();
  code_ = running_code();
  compute_ = std::make_unique<CudaStream>(*this, 0);
  pool_ = std::make_unique<MemoryPool>(index, compute_->get());
}

CudaDevice::~CudaDevice() {
  if (cudaDeviceSynchronize() != cudaSuccess) static_cast<void>(cudaGetLastError());
  collect_host_calls();
  gemm_.reset();  // its workspaces belong to the pool, and its streams still exist
  pool_.reset();
  compute_.reset();
}

DeviceInfo CudaDevice::info() const {
  const CudaProbe versions = probe_gpus();
  return {properties_.name,
          text("compute capability ", properties_.major, ".", properties_.minor, ", ", sm_count(),
               " multiprocessors, driver CUDA ", version_text(versions.driver_version),
               ", runtime CUDA ", version_text(versions.runtime_version)),
          properties_.totalGlobalMem};
}

void CudaDevice::make_current() const {
  int current = -1;
  DS_CUDA(cudaGetDevice(&current), "make_current");
  if (current != index_) DS_CUDA(cudaSetDevice(index_), "make_current");
}

void* CudaDevice::allocate(size_t bytes, Stream& stream) {
  collect_host_calls();
  if (void* data = pool_->try_cached(bytes, stream_of(stream))) return data;
  make_current();
  return pool_->allocate(bytes, stream_of(stream));
}

void CudaDevice::release(void* data, size_t bytes, Stream& stream) {
  pool_->release(data, bytes, stream_of(stream));
}

void* CudaDevice::allocate_pinned(size_t bytes) {
  make_current();
  return allocate_pinned_pages(bytes);
}

void CudaDevice::release_pinned(void* data, size_t bytes) { release_pinned_pages(data, bytes); }

MemoryStats CudaDevice::memory() const { return pool_->stats(); }

void CudaDevice::reset_peaks() { pool_->reset_peaks(); }

void CudaDevice::set_cap(size_t bytes) {
  make_current();
  pool_->set_cap(bytes);
}

void CudaDevice::trim() {
  make_current();
  pool_->trim();
}

/// The compute and bulk streams have the lowest priority, 0. Kernels of other streams are short,
/// and other work waits for them (the update of a tile, a collective). Priorities also order
/// copies, but only if they are far apart, and then not always.
std::unique_ptr<Stream> CudaDevice::create_stream(Urgency urgency) {
  constexpr int kPriorities[kUrgencies] = {0, 3, 3, 5};
  return std::make_unique<CudaStream>(*this, kPriorities[static_cast<int>(urgency)], urgency);
}

std::unique_ptr<Event> CudaDevice::create_event(bool timed) {
  make_current();
  return std::make_unique<CudaEvent>(timed);
}

void CudaDevice::record(Event& event, Stream& stream) {
  make_current();
  DS_CUDA(cudaEventRecord(event_of(event), stream_of(stream)), "record");
}

void CudaDevice::wait(Stream& stream, Event& event) {
  make_current();
  DS_CUDA(cudaStreamWaitEvent(stream_of(stream), event_of(event), cudaEventWaitDefault), "wait");
}

bool CudaDevice::done(Event& event) {
  const cudaError_t status = cudaEventQuery(event_of(event));
  if (status == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  check(status, "cudaEventQuery", "done");
  return true;
}

void CudaDevice::require_usable() const {
  if (!given_up_.load()) return;
  throw Error("DS_CUDA", "synchronize", text("GPU ", index_, " to finish its work"),
              "a collective that did not end after NCCL aborted it",
              "End this process: it cannot use the GPU any more.");
}

void CudaDevice::synchronize(Event& event) {
  require_usable();
  if (!done(event)) {
    make_current();
    waits_.await(event_of(event));
  }
  collect_host_calls();
}

void CudaDevice::synchronize(Stream& stream) {
  require_usable();
  DS_CUDA(cudaStreamSynchronize(stream_of(stream)), "synchronize");
  collect_host_calls();
}

void CudaDevice::synchronize_all() {
  require_usable();
  make_current();
  DS_CUDA(cudaDeviceSynchronize(), "synchronize_all");
  collect_host_calls();
}

double CudaDevice::elapsed_ms(Event& start, Event& end) {
  float milliseconds = 0;
  DS_CUDA(cudaEventElapsedTime(&milliseconds, event_of(start), event_of(end)), "elapsed_ms");
  return milliseconds;
}

bool CudaDevice::should_copy_by_kernel(cudaMemoryType to, const Stream& stream) const {
  return bulk_streams_ > 0 && to == cudaMemoryTypeDevice &&
         static_cast<const CudaStream&>(stream).urgency() == Urgency::kAwaited;
}

void CudaDevice::copy(void* dst, const void* src, size_t bytes, Stream& stream) {
  if (bytes == 0) return;
  make_current();
  const cudaStream_t order = stream_of(stream);
  const GpuPointer to = gpu_pointer(dst), from = gpu_pointer(src);
  const bool crosses = (to.kind == cudaMemoryTypeHost && from.kind == cudaMemoryTypeDevice) ||
                       (to.kind == cudaMemoryTypeDevice && from.kind == cudaMemoryTypeHost);
  if (crosses && to.address && from.address &&
      (bytes <= kFewBytes || (should_copy_by_kernel(to.kind, stream) &&
                              in_wide_words(to.address, from.address, bytes)))) {
    copy_directly(to.address, from.address, bytes, order, code_.architecture >= 90);
    return;
  }
  DS_CUDA(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, order), "copy");
  const bool is_pageable =
      to.kind == cudaMemoryTypeUnregistered || from.kind == cudaMemoryTypeUnregistered;
  if (is_pageable) DS_CUDA(cudaStreamSynchronize(order), "copy");
}

void CudaDevice::run_host_call(HostCall* call) {
  call->task();
  HostCall* head = call->device.finished_.load(std::memory_order_relaxed);
  do {
    call->next = head;
  } while (!call->device.finished_.compare_exchange_weak(head, call, std::memory_order_release,
                                                         std::memory_order_relaxed));
}

void CudaDevice::collect_host_calls() {
  if (!finished_.load(std::memory_order_relaxed)) return;
  HostCall* call = finished_.exchange(nullptr, std::memory_order_acquire);
  while (call) delete std::exchange(call, call->next);
}

void CudaDevice::launch_host(Stream& stream, std::function<void()> task) {
  make_current();
  collect_host_calls();
  auto call = std::make_unique<HostCall>(HostCall{*this, std::move(task)});
  HostQueue& queue = static_cast<CudaStream&>(stream).host_queue();
  queue.push([call = call.get()] { run_host_call(call); });
  call.release();  // collect_host_calls() deletes it
}

void CudaDevice::run(OpId op, const void* args, Stream& stream) {
  make_current();
  run_op(op, args, *this, stream_of(stream));
}

namespace {

/// A graph that can be launched. While it exists, the memory of its recording stays allocated.
class CudaGraph final : public Graph {
 public:
  CudaGraph(MemoryPool& pool, cudaGraph_t recorded) : pool_(pool) {
    DS_CUDA(cudaGraphInstantiate(&exec_, recorded, 0), kGraph);
    blocks_ = pool_.keep_recorded();
  }
  ~CudaGraph() override {
    cudaGraphExecDestroy(exec_);
    pool_.release_recorded(blocks_);
  }
  cudaGraphExec_t get() const { return exec_; }

 private:
  MemoryPool& pool_;
  cudaGraphExec_t exec_ = nullptr;
  std::vector<MemoryPool::Block> blocks_;
};

}  // namespace

void CudaDevice::begin_capture() {
  make_current();
  // Relaxed: work of other threads and streams during the recording is not part of the graph.
  DS_CUDA(cudaStreamBeginCapture(compute_->get(), cudaStreamCaptureModeRelaxed), kGraph);
  captures_ = true;
  pool_->record(true);
}

std::unique_ptr<Graph> CudaDevice::end_capture(bool keep) {
  make_current();
  captures_ = false;
  cudaGraph_t recorded = nullptr;
  const cudaError_t status = cudaStreamEndCapture(compute_->get(), &recorded);
  pool_->record(false);
  if (status != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    if (!keep) return nullptr;
    fail(status, "cudaStreamEndCapture", kGraph);
  }
  const std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, decltype(&cudaGraphDestroy)> owned(
      recorded, cudaGraphDestroy);
  if (!keep || !recorded) return nullptr;
  return std::make_unique<CudaGraph>(*pool_, recorded);
}

void CudaDevice::launch(Graph& graph, Stream& stream) {
  make_current();
  DS_CUDA(cudaGraphLaunch(static_cast<CudaGraph&>(graph).get(), stream_of(stream)), kGraph);
}

Gemm& CudaDevice::gemm() {
  if (!gemm_) {
    gemm_ = std::make_unique<Gemm>(*this);
    gemm_->choices().read(learned_);
    learned_.clear();
  }
  return *gemm_;
}

std::string CudaDevice::timed_algorithms() { return gemm_ ? gemm_->choices().text() : ""; }

void CudaDevice::learn_algorithms(const std::string& text) {
  if (gemm_) gemm_->choices().read(text);
  else learned_ += text;
}

void CudaDevice::forget(cudaStream_t stream) {
  counters_.forget(stream);
  if (gemm_) gemm_->forget(stream);
}

}  // namespace ds::cuda
