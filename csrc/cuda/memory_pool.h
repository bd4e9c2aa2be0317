// The memory of a GPU: the driver's stream-ordered pool, and a free list of small blocks before it.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "../core/device.h"

namespace ds::cuda {

/// Allocates GPU memory. Sizes are rounded up to 512 bytes. A block of at most 1 MiB that is
/// released on the compute stream enters a free list of its size. The compute stream reuses it in
/// stream order without the driver, which would take 1.4 us per allocation and release. All other
/// blocks use the driver's pool. Thread-safe. The device must be current for allocations and trims.
class MemoryPool {
 public:
  MemoryPool(int device, cudaStream_t compute);
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  /// Returns uninitialized memory for work of `stream` from now on, never null. If the pool is
  /// exhausted, frees cached blocks, waits for the device and trims. Throws DS_OUT_OF_MEMORY if
  /// that does not suffice.
  void* allocate(size_t bytes, cudaStream_t stream);
  /// Like allocate(), but returns null if the memory is not available at once.
  void* try_allocate(size_t bytes, cudaStream_t stream);
  /// Returns a block of the free list, or null. It does not call the driver, so the device need not
  /// be current.
  void* try_cached(size_t bytes, cudaStream_t stream);
  /// Releases a block of `bytes`, as allocated. Never throws: the driver reports a failure again at
  /// the next call.
  void release(void* data, size_t bytes, cudaStream_t stream) noexcept;

  MemoryStats stats() const;
  void reset_peaks();
  /// Limits reserved bytes; 0 removes the limit. If nothing is allocated, the driver's pool
  /// enforces the limit. Otherwise the pool checks its reserved bytes after each allocation and
  /// frees an allocation that exceeds the limit. Then the peak may include it.
  void set_cap(size_t bytes);
  /// Waits for the device and returns all unused memory to the driver.
  void trim();

  /// While `on`, the compute stream allocates memory of graphs: see Device::enter_graph_memory.
  void serve_graphs(bool on);
  /// While `on`, the compute stream records, and its allocations do not call the driver: they use
  /// free memory of graphs, or throw DS_CUDA. Other blocks are released after the recording.
  void record(bool on);
  /// Returns true if the current or last recording allocated the memory at `data`.
  bool has_recorded(const void* data) const;
  /// A block of memory and its size in bytes.
  struct Block {
    void* data;
    size_t size;
  };
  /// Returns the blocks of the last recorded graph, each once, and keeps them allocated.
  std::vector<Block> keep_recorded();
  /// Releases the blocks of a graph. Frees blocks that no other graph uses. With the last graph,
  /// frees all unused blocks of graphs.
  void release_recorded(const std::vector<Block>& recorded);

 private:
  static constexpr size_t kClass = 512, kSmall = size_t{1} << 20;

  size_t attribute(cudaMemPoolAttr which) const;
  void* from_pool(size_t size, cudaStream_t stream);
  void* recover(size_t size, cudaStream_t stream);
  void empty_free_list() noexcept;
  void trim_locked();
  void count_allocation(size_t size);
  void* from_graph_memory(size_t size);
  /// Frees the unused memory of graphs if no graph is left.
  void free_graph_memory();
  void give_back(void* data, size_t size, cudaStream_t stream) noexcept;

  const int device_;
  const cudaStream_t compute_;
  cudaMemPool_t pool_ = nullptr;
  mutable std::mutex mutex_;
  MemoryStats stats_;  // the driver's pool counts reserved bytes and their peak
  std::array<std::vector<void*>, kSmall / kClass + 1> free_;  // by size / kClass

  bool serves_graphs_ = false, records_ = false;
  int graphs_ = 0;
  // Memory of graphs, used or not, with the number of graphs that use each block.
  std::unordered_map<void*, int> graph_blocks_;
  std::unordered_map<size_t, std::vector<void*>> free_of_graphs_;  // by size
  std::unordered_map<void*, size_t> recorded_;                     // blocks of the last recording
  std::vector<Block> postponed_;                                   // released during the recording
};

}  // namespace ds::cuda
