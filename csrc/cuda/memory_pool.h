// The memory of one GPU: the driver's stream-ordered pool behind a free list of small blocks.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "../core/device.h"

namespace ds::cuda {

/// Sizes are rounded up to 512 bytes. A block of up to 1 MiB that is released on the compute stream
/// goes to a list per size. The compute stream reuses it in stream order without a call to the
/// driver (which costs 1.4 us for an allocation and its release). Other blocks go to the driver's
/// pool on the given stream. Thread-safe. The device must be current for allocations and trims.
class MemoryPool {
 public:
  MemoryPool(int device, cudaStream_t compute);
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  /// Returns uninitialized memory, usable by `stream` from here on; never null. If the pool is
  /// exhausted, it returns cached blocks to the driver, waits for the device and trims. Throws
  /// DS_OUT_OF_MEMORY if that does not help.
  void* allocate(size_t bytes, cudaStream_t stream);
  /// Returns null if the memory is not available at once.
  void* try_allocate(size_t bytes, cudaStream_t stream);
  /// Returns a block of the free list, or null. It makes no call to the driver, so any device may
  /// be current.
  void* try_cached(size_t bytes, cudaStream_t stream);
  /// `bytes` as at allocation. Never throws: the next call of the driver reports a failure again.
  void release(void* data, size_t bytes, cudaStream_t stream) noexcept;

  MemoryStats stats() const;
  void reset_peaks();
  /// Limits reserved bytes; 0 removes the limit. If nothing is allocated, the driver's pool
  /// receives the limit and never exceeds it. Otherwise the pool checks its reserved bytes after
  /// each allocation. It returns an allocation that exceeds the limit, so the peak may include it.
  void set_cap(size_t bytes);
  /// Waits for the device and returns all unused memory to the driver.
  void trim();

  /// While `on`, the compute stream allocates memory of graphs: see Device.
  void serve_graphs(bool on);
  /// While `on`, the compute stream records, and its allocations do not call the driver. They use
  /// free memory of graphs, or throw DS_CUDA. Blocks that belong to no graph are released
  /// afterwards.
  void record(bool on);
  /// Returns whether `data` lies in memory that the current or the last recording has allocated.
  bool has_recorded(const void* data) const;
  /// A block, of a size in bytes.
  struct Block {
    void* data;
    size_t size;
  };
  /// Returns the memory of the last recorded graph, each block once, and keeps it.
  std::vector<Block> keep_recorded();
  /// Releases a graph's memory. Blocks of no other graph are freed; with the last graph, all free
  /// blocks are freed.
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
  /// Frees the unused memory of graphs when no graph is left.
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
