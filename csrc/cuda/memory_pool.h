// One GPU's memory: the driver's stream-ordered pool behind a free list of small blocks.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <mutex>
#include <vector>

#include "../core/device.h"

namespace ds::cuda {

/// Sizes are rounded up to 512 bytes. Blocks up to 1 MiB that are released on the compute stream go
/// to a list per size and are handed out to it again in stream order without a call to the driver
/// (which costs 1.4 us for an allocation and its release); everything else goes to the driver's
/// pool on the stream given. Thread-safe. The device must be current wherever memory is allocated
/// or trimmed.
class MemoryPool {
 public:
  MemoryPool(int device, cudaStream_t compute);
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  /// Memory whose contents are undefined, usable by `stream` from here on; never null. When the
  /// pool is exhausted: gives cached blocks back, waits for the device and trims, then throws
  /// DS_OUT_OF_MEMORY.
  void* allocate(size_t bytes, cudaStream_t stream);
  /// The same, but null where the memory is not to be had at once.
  void* try_allocate(size_t bytes, cudaStream_t stream);
  /// `bytes` as at allocation. Never throws: a failure would show again at the next call of the
  /// driver.
  void release(void* data, size_t bytes, cudaStream_t stream) noexcept;

  MemoryStats stats() const;
  void reset_peaks();
  /// Limits reserved bytes; 0 removes the limit. While nothing is allocated the limit is given to
  /// the driver's pool, which then never exceeds it. Later it is enforced here, by what the pool
  /// reports after each allocation: one that exceeds the limit is returned, so that the peak may
  /// show it.
  void set_cap(size_t bytes);
  /// Waits for the device and returns all memory that is not in use.
  void trim();

 private:
  static constexpr size_t kClass = 512, kSmall = size_t{1} << 20;

  size_t attribute(cudaMemPoolAttr which) const;
  void* from_pool(size_t size, cudaStream_t stream);
  void* recover(size_t size, cudaStream_t stream);
  void empty_free_list() noexcept;
  void trim_locked();
  void count_allocation(size_t size);

  const int device_;
  const cudaStream_t compute_;
  cudaMemPool_t pool_ = nullptr;
  mutable std::mutex mutex_;
  MemoryStats stats_;  // reserved and its peak live in the driver's pool
  std::array<std::vector<void*>, kSmall / kClass + 1> free_;  // by size / kClass
};

}  // namespace ds::cuda
