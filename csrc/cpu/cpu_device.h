// The CPU as a device: a caching allocator, streams that run work at once, and the table of ops.
#pragma once

#include <array>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "../core/device.h"

namespace ds::cpu {

/// The CPU device. Thread-safe, because worker threads of the program may share it.
class CpuDevice final : public Device {
 public:
  CpuDevice();
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
  void wait(Stream&, Event&) override {}
  bool done(Event&) override { return true; }
  void synchronize(Event&) override {}
  void synchronize(Stream&) override {}
  void synchronize_all() override {}
  double elapsed_ms(Event& start, Event& end) override;

  void copy(void* dst, const void* src, size_t bytes, Stream& stream) override;
  void launch_host(Stream& stream, std::function<void()> task) override;
  void run(OpId op, const void* args, Stream& stream) override;

 private:
  static constexpr size_t kAlignment = 256, kSmall = 16 * kAlignment;

  static size_t size_class(size_t bytes);
  std::vector<void*>& cached(size_t size);
  void trim_locked();

  mutable std::mutex mutex_;
  MemoryStats stats_;
  std::array<std::vector<void*>, kSmall / kAlignment + 1> small_;  // by size class / kAlignment
  std::unordered_map<size_t, std::vector<void*>> large_;           // by size class
  std::unique_ptr<Stream> compute_;
};

/// Returns the process's CPU device.
CpuDevice& cpu_device();

/// Runs an op on the calling thread and the thread pool. `args` as in Device::run.
void run_op(OpId op, const void* args);

}  // namespace ds::cpu
