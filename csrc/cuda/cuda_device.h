// A GPU as a device: streams, events, copies, host functions, memory and the table of CUDA ops.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "../core/device.h"
#include "host_queue.h"
#include "memory_pool.h"
#include "running_code.h"
#include "sleeping_waits.h"
#include "stream_counters.h"

namespace ds::cuda {

class CudaDevice;
class Gemm;

/// Owns a non-blocking CUDA stream, which does not synchronize with the legacy default stream.
class CudaStream final : public Stream {
 public:
  /// `priority` 0 is the lowest. Waiting thread blocks and copies of streams with higher priority
  /// start first.
  CudaStream(CudaDevice& device, int priority, Urgency urgency = Urgency::kUsual);
  ~CudaStream() override;
  cudaStream_t get() const { return stream_; }
  Urgency urgency() const { return urgency_; }
  /// Returns the stream's host queue, and creates it on the first call.
  HostQueue& host_queue();

 private:
  CudaDevice& device_;
  const Urgency urgency_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<HostQueue> host_queue_;
};

inline cudaStream_t stream_of(Stream& stream) { return static_cast<CudaStream&>(stream).get(); }

/// A GPU. Methods make it the current device of the calling thread. The first matrix product opens
/// cuBLASLt.
class CudaDevice final : public Device {
 public:
  /// Opens GPU `index`. Throws DS_DEVICE if its compute capability is below 8.0, and DS_CUDA if the
  /// library has no code for it.
  explicit CudaDevice(int index);
  ~CudaDevice() override;
  DeviceInfo info() const override;

  void* allocate(size_t bytes, Stream& stream) override;
  void release(void* data, size_t bytes, Stream& stream) override;
  void* allocate_pinned(size_t bytes) override;
  void release_pinned(void* data, size_t bytes) override;
  MemoryStats memory() const override;
  void reset_peaks() override;
  void set_cap(size_t bytes) override;
  void trim() override;

  std::unique_ptr<Stream> create_stream(Urgency urgency) override;
  std::unique_ptr<Event> create_event(bool timed) override;
  Stream& compute_stream() override { return *compute_; }
  void record(Event& event, Stream& stream) override;
  void wait(Stream& stream, Event& event) override;
  bool done(Event& event) override;
  void synchronize(Event& event) override;
  void synchronize(Stream& stream) override;
  void synchronize_all() override;
  double elapsed_ms(Event& start, Event& end) override;

  void copy(void* dst, const void* src, size_t bytes, Stream& stream) override;
  void launch_host(Stream& stream, std::function<void()> task) override;
  void run(OpId op, const void* args, Stream& stream) override;
  void set_deterministic_algorithms(bool deterministic) override { deterministic_ = deterministic; }
  std::string timed_algorithms() override;
  void learn_algorithms(const std::string& text) override;

  bool supports_graphs() const override { return true; }
  void enter_graph_memory() override { pool_->serve_graphs(true); }
  void leave_graph_memory() override { pool_->serve_graphs(false); }
  void begin_capture() override;
  std::unique_ptr<Graph> end_capture(bool keep) override;
  void launch(Graph& graph, Stream& stream) override;

  // For op bodies and other files of the CUDA back end.
  int index() const { return index_; }
  int sm_count() const { return properties_.multiProcessorCount; }
  int compute_capability() const { return properties_.major * 10 + properties_.minor; }
  RunningCode code() const { return code_; }
  bool deterministic_algorithms() const { return deterministic_; }
  MemoryPool& pool() { return *pool_; }
  StreamCounters& counters() { return counters_; }
  /// Returns true while the compute stream records. Then no thread may wait for it.
  bool captures() const { return captures_; }
  /// Returns the matrix products, and opens cuBLASLt on the first call. Throws DS_LIBRARY if it is
  /// missing.
  Gemm& gemm();
  void make_current() const;
  /// Declares that the device's work cannot end: from now on, waits throw DS_CUDA.
  void give_up() { given_up_.store(true); }
  bool has_given_up() const { return given_up_.load(); }
  /// Adds `more` to the number of bulk streams.
  void count_bulk_streams(int more) { bulk_streams_ += more; }
  /// Frees the workspaces of a stream that is about to be destroyed.
  void forget(cudaStream_t stream);

 private:
  struct HostCall;
  static void run_host_call(HostCall* call);
  /// Destroys the tasks of finished host functions on the calling thread, because objects that
  /// tasks capture belong to the thread that uses the device.
  void collect_host_calls();
  /// Throws DS_CUDA after give_up().
  void require_usable() const;
  /// Returns true if a kernel should copy: the copy is awaited, and bulk streams keep the copy
  /// engines busy.
  bool should_copy_by_kernel(cudaMemoryType to, const Stream& stream) const;

  const int index_;
  cudaDeviceProp properties_{};
  RunningCode code_{};
  bool deterministic_ = false, captures_ = false;
  int bulk_streams_ = 0;
  std::atomic<bool> given_up_{false};
  std::atomic<HostCall*> finished_{nullptr};
  SleepingWaits waits_;
  std::unique_ptr<CudaStream> compute_;
  std::unique_ptr<MemoryPool> pool_;
  std::unique_ptr<Gemm> gemm_;
  std::string learned_;  // algorithms for `gemm_` before it is created
  StreamCounters counters_;
};

/// Runs the CUDA body of an op (op_table.cu). `args` as in Device::run.
void run_op(OpId op, const void* args, CudaDevice& device, cudaStream_t stream);

}  // namespace ds::cuda
