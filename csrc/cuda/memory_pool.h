// One GPU's memory: the driver's stream-ordered pool behind a free list of small blocks.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <mutex>
#include <unordered_map>
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
  /// A block of the free list, null where it has none: the only way to memory that asks the driver
  /// for nothing, so that any device may be current.
  void* try_cached(size_t bytes, cudaStream_t stream);
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

  /// While `on`, what the compute stream allocates is memory of graphs: see Device.
  void serve_graphs(bool on);
  /// While `on`, nothing is asked of the driver for the compute stream, which records: memory of
  /// graphs that is free serves, or else DS_CUDA is thrown; what is not theirs is given back
  /// afterwards.
  void record(bool on);
  /// Whether `data` lies in memory that the recording under way, or the last one, has allocated.
  bool has_recorded(const void* data) const;
  /// A block, of a size in bytes.
  struct Block {
    void* data;
    size_t size;
  };
  /// A graph exists, which was recorded last: the memory that it runs in, each block once.
  std::vector<Block> keep_recorded();
  /// It does no more: what no other graph runs in goes, and with the last one all that is free.
  void let_go(const std::vector<Block>& recorded);

 private:
  static constexpr size_t kClass = 512, kSmall = size_t{1} << 20;

  size_t attribute(cudaMemPoolAttr which) const;
  void* from_pool(size_t size, cudaStream_t stream);
  void* recover(size_t size, cudaStream_t stream);
  void empty_free_list() noexcept;
  void trim_locked();
  void count_allocation(size_t size);
  void* from_graph_memory(size_t size);
  /// What is free of it, once there is no graph.
  void free_graph_memory();
  void give_back(void* data, size_t size, cudaStream_t stream) noexcept;

  const int device_;
  const cudaStream_t compute_;
  cudaMemPool_t pool_ = nullptr;
  mutable std::mutex mutex_;
  MemoryStats stats_;  // reserved and its peak live in the driver's pool
  std::array<std::vector<void*>, kSmall / kClass + 1> free_;  // by size / kClass

  bool serves_graphs_ = false, records_ = false;
  int graphs_ = 0;
  // Memory of graphs, in use or not, and how many were recorded in each block.
  std::unordered_map<void*, int> graph_blocks_;
  std::unordered_map<size_t, std::vector<void*>> free_of_graphs_;  // by size
  std::unordered_map<void*, size_t> recorded_;                     // by the last recording
  std::vector<Block> postponed_;                                   // released while recording
};

}  // namespace ds::cuda
