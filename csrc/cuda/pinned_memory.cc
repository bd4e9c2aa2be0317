// Allocates pinned memory: maps it, requests huge pages, excludes it from forks, touches it on
// several threads, and registers it. Frees it in reverse.
#include "pinned_memory.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include "../core/error.h"

namespace ds::cuda {

namespace {

constexpr const char* kOp = "allocate_pinned";
constexpr size_t kHugePage = size_t{2} << 20;

size_t page_size() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

size_t page_rounded(size_t bytes) {
  const size_t page = page_size();
  return (std::max<size_t>(bytes, 1) + page - 1) / page * page;
}

/// Maps `size` bytes, aligned to a huge page if at least 2 MiB. Returns null if the system refuses.
char* map_pages(size_t size) {
  const size_t slack = size >= kHugePage ? kHugePage : 0;
  void* mapped =
      mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* begin = static_cast<char*>(mapped);
  if (slack == 0) return begin;
  const size_t head = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (head > 0) munmap(begin, head);
  if (head < slack) munmap(begin + head + size, slack - head);
  madvise(begin + head, size, MADV_HUGEPAGE);  // only advice: 4 KiB pages work too
  return begin + head;
}

void touch_range(char* begin, char* end, size_t page) {
  for (char* p = begin; p < end; p += page) *static_cast<volatile char*>(p) = 0;
}

/// Faults the pages in on several threads, because that takes most of the time of registering them.
void touch_pages(char* data, size_t size) {
  constexpr size_t kPerThread = size_t{32} << 20;
  const size_t wanted =
      std::min<size_t>({size / kPerThread, std::thread::hardware_concurrency(), 8});
  const size_t parts = std::max<size_t>(wanted, 1);
  const size_t page = page_size(), share = page_rounded(size / parts);
  std::vector<std::thread> threads;
  threads.reserve(parts);
  char* begin = data;
  char* const end = data + size;
  try {
    for (size_t i = 1; i < parts; ++i, begin += share) {
      threads.emplace_back(touch_range, begin, begin + share, page);
    }
  } catch (const std::exception&) {
    // If the system refuses more threads, the caller touches the rest.
  }
  touch_range(begin, end, page);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

void* allocate_pinned_pages(size_t bytes) {
  const size_t size = page_rounded(bytes);
  char* data = map_pages(size);
  if (!data) {
    throw Error("DS_OUT_OF_MEMORY", kOp, text(size, " bytes of host memory"), std::strerror(errno),
                "Free host memory, or offload less.");
  }
  // A forked child shares pages until a write, except pinned pages, which are copied at once.
  // Without this advice, starting a process would copy all optimizer state.
  madvise(data, size, MADV_DONTFORK);
  touch_pages(data, size);
  const cudaError_t status = cudaHostRegister(data, size, cudaHostRegisterPortable);
  if (status != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    munmap(data, size);
    throw Error("DS_OUT_OF_MEMORY", kOp, text(size, " bytes of page-locked host memory"),
                text(cudaGetErrorName(status), ": ", cudaGetErrorString(status)),
                "Raise the limit on locked memory (ulimit -l), free host memory, or offload less.");
  }
  return data;
}

void release_pinned_pages(void* data, size_t bytes) {
  if (cudaHostUnregister(data) != cudaSuccess) static_cast<void>(cudaGetLastError());
  munmap(data, page_rounded(bytes));
}

}  // namespace ds::cuda
