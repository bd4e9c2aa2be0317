// Order of an allocation: free list or graph memory, then the driver's pool, then recover().
#include "memory_pool.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "../core/error.h"
#include "cuda_error.h"

namespace ds::cuda {

namespace {

constexpr const char* kOp = "allocate";

size_t rounded(size_t bytes, size_t unit) {
  return (std::max<size_t>(bytes, 1) + unit - 1) / unit * unit;
}

void set_attribute(cudaMemPool_t pool, cudaMemPoolAttr which, uint64_t value) {
  DS_CUDA(cudaMemPoolSetAttribute(pool, which, &value), kOp);
}

/// Sets whether the driver may make an allocation's stream wait for a release on another stream.
void allow_stream_waits(cudaMemPool_t pool, bool allow) {
  int value = allow;
  DS_CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &value), kOp);
}

cudaMemPool_t create_pool(int device, size_t cap) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  properties.maxSize = cap;
  cudaMemPool_t pool = nullptr;
  DS_CUDA(cudaMemPoolCreate(&pool, &properties), kOp);
  set_attribute(pool, cudaMemPoolAttrReleaseThreshold, UINT64_MAX);
  // Copies overlap with computation. An allocation must not make one wait for the other.
  allow_stream_waits(pool, false);
  return pool;
}

}  // namespace

MemoryPool::MemoryPool(int device, cudaStream_t compute) : device_(device), compute_(compute) {
  size_t free = 0;
  DS_CUDA(cudaMemGetInfo(&free, &stats_.total), kOp);
  pool_ = create_pool(device_, 0);
}

MemoryPool::~MemoryPool() {
  empty_free_list();
  cudaMemPoolDestroy(pool_);
}

size_t MemoryPool::attribute(cudaMemPoolAttr which) const {
  uint64_t value = 0;
  DS_CUDA(cudaMemPoolGetAttribute(pool_, which, &value), "memory");
  return value;
}

void* MemoryPool::from_pool(size_t size, cudaStream_t stream) {
  if (stats_.cap && stats_.in_use + size > stats_.cap) return nullptr;
  void* data = nullptr;
  const cudaError_t status = cudaMallocFromPoolAsync(&data, size, pool_, stream);
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    return nullptr;
  }
  check(status, "cudaMallocFromPoolAsync", kOp);
  if (stats_.cap && attribute(cudaMemPoolAttrReservedMemCurrent) > stats_.cap) {
    DS_CUDA(cudaFreeAsync(data, stream), kOp);
    return nullptr;
  }
  return data;
}

void* MemoryPool::recover(size_t size, cudaStream_t stream) {
  empty_free_list();
  allow_stream_waits(pool_, true);
  void* data = from_pool(size, stream);
  allow_stream_waits(pool_, false);
  if (data) return data;
  trim_locked();
  return from_pool(size, stream);
}

void* MemoryPool::allocate(size_t bytes, cudaStream_t stream) {
  if (void* data = try_allocate(bytes, stream)) return data;
  const size_t size = rounded(bytes, kClass);
  std::lock_guard lock(mutex_);
  void* data = recover(size, stream);
  if (data && serves_graphs_ && stream == compute_) graph_blocks_.emplace(data, 0);
  if (!data) {
    throw Error(
        "DS_OUT_OF_MEMORY", kOp, text(size, " bytes of device memory"),
        text(stats_.in_use, " bytes in use, ", attribute(cudaMemPoolAttrReservedMemCurrent),
             " reserved, cap ", stats_.cap ? text(stats_.cap) : std::string("none"), ", device ",
             stats_.total),
        "Use a smaller micro-batch or sequence, activation checkpointing or offloading, or raise "
        "the memory cap.");
  }
  count_allocation(size);
  return data;
}

void* MemoryPool::try_allocate(size_t bytes, cudaStream_t stream) {
  if (void* data = try_cached(bytes, stream)) return data;
  const size_t size = rounded(bytes, kClass);
  std::lock_guard lock(mutex_);
  void* data =
      serves_graphs_ && stream == compute_ ? from_graph_memory(size) : from_pool(size, stream);
  if (data) count_allocation(size);
  return data;
}

void* MemoryPool::try_cached(size_t bytes, cudaStream_t stream) {
  const size_t size = rounded(bytes, kClass);
  if (size > kSmall || stream != compute_) return nullptr;
  std::lock_guard lock(mutex_);
  std::vector<void*>& blocks = free_[size / kClass];
  if (serves_graphs_ || blocks.empty()) return nullptr;
  void* data = blocks.back();
  blocks.pop_back();
  count_allocation(size);
  return data;
}

/// Blocks have exactly the requested size, so that the same work finds all its blocks again.
void* MemoryPool::from_graph_memory(size_t size) {
  std::vector<void*>& free = free_of_graphs_[size];
  if (!free.empty()) {
    void* data = free.back();
    free.pop_back();
    if (records_) recorded_.emplace(data, size);
    return data;
  }
  if (records_) {
    throw Error("DS_CUDA", kOp, "an allocation that the same work made before the recording",
                text("another allocation of ", size, " bytes"),
                "Run the same work in graph memory first.");
  }
  void* data = from_pool(size, compute_);
  if (data) graph_blocks_.emplace(data, 0);
  return data;
}

void MemoryPool::serve_graphs(bool on) {
  std::lock_guard lock(mutex_);
  serves_graphs_ = on;
  if (!on) free_graph_memory();
}

void MemoryPool::record(bool on) {
  std::lock_guard lock(mutex_);
  records_ = on;
  if (on) {
    recorded_.clear();
    return;
  }
  for (const Block& block : postponed_) give_back(block.data, block.size, compute_);
  postponed_.clear();
}

bool MemoryPool::has_recorded(const void* data) const {
  const auto at = reinterpret_cast<uintptr_t>(data);
  std::lock_guard lock(mutex_);
  return std::any_of(recorded_.begin(), recorded_.end(), [&](const auto& block) {
    const auto first = reinterpret_cast<uintptr_t>(block.first);
    return first <= at && at < first + block.second;
  });
}

std::vector<MemoryPool::Block> MemoryPool::keep_recorded() {
  std::lock_guard lock(mutex_);
  std::vector<Block> kept;
  for (const auto& [data, size] : recorded_) {
    ++graph_blocks_[data];
    kept.push_back({data, size});
  }
  recorded_.clear();
  ++graphs_;
  return kept;
}

void MemoryPool::release_recorded(const std::vector<Block>& recorded) {
  std::lock_guard lock(mutex_);
  --graphs_;
  for (const auto& [data, size] : recorded) {
    if (--graph_blocks_[data] > 0) continue;
    std::vector<void*>& free = free_of_graphs_[size];
    const auto at = std::find(free.begin(), free.end(), data);
    if (at == free.end()) continue;
    free.erase(at);
    graph_blocks_.erase(data);
    give_back(data, size, compute_);
  }
  free_graph_memory();
}

void MemoryPool::free_graph_memory() {
  if (graphs_ > 0 || serves_graphs_) return;
  for (auto& [size, blocks] : free_of_graphs_) {
    for (void* block : blocks) {
      graph_blocks_.erase(block);
      give_back(block, size, compute_);
    }
  }
  free_of_graphs_.clear();
}

void MemoryPool::count_allocation(size_t size) {
  stats_.in_use += size;
  stats_.peak_in_use = std::max(stats_.peak_in_use, stats_.in_use);
  ++stats_.allocations;
}

void MemoryPool::release(void* data, size_t bytes, cudaStream_t stream) noexcept {
  if (!data) return;
  const size_t size = rounded(bytes, kClass);
  std::lock_guard lock(mutex_);
  stats_.in_use -= size;
  if (!graph_blocks_.empty() && graph_blocks_.contains(data)) {
    if (graphs_ > 0 || serves_graphs_) {
      free_of_graphs_[size].push_back(data);
      return;
    }
    graph_blocks_.erase(data);
  }
  if (records_ && stream == compute_) postponed_.push_back({data, size});
  else give_back(data, size, stream);
}

void MemoryPool::give_back(void* data, size_t size, cudaStream_t stream) noexcept {
  if (size <= kSmall && stream == compute_) {
    free_[size / kClass].push_back(data);
  } else if (cudaFreeAsync(data, stream) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
  }
}

void MemoryPool::empty_free_list() noexcept {
  for (std::vector<void*>& blocks : free_) {
    for (void* block : blocks) cudaFreeAsync(block, compute_);
    blocks.clear();
  }
}

void MemoryPool::trim_locked() {
  empty_free_list();
  DS_CUDA(cudaDeviceSynchronize(), "trim");
  DS_CUDA(cudaMemPoolTrimTo(pool_, 0), "trim");
}

void MemoryPool::trim() {
  std::lock_guard lock(mutex_);
  trim_locked();
}

MemoryStats MemoryPool::stats() const {
  std::lock_guard lock(mutex_);
  MemoryStats out = stats_;
  out.reserved = attribute(cudaMemPoolAttrReservedMemCurrent);
  out.peak_reserved = std::max<size_t>(out.reserved, attribute(cudaMemPoolAttrReservedMemHigh));
  return out;
}

void MemoryPool::reset_peaks() {
  std::lock_guard lock(mutex_);
  stats_.peak_in_use = stats_.in_use;
  set_attribute(pool_, cudaMemPoolAttrReservedMemHigh, 0);
}

void MemoryPool::set_cap(size_t bytes) {
  std::lock_guard lock(mutex_);
  stats_.cap = bytes;
  if (stats_.in_use > 0) return;
  trim_locked();
  const cudaMemPool_t replaced = std::exchange(pool_, create_pool(device_, bytes));
  DS_CUDA(cudaMemPoolDestroy(replaced), "set_cap");
}

}  // namespace ds::cuda
