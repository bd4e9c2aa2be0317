// CpuDevice: aligned host memory cached by size class, streams that run work at once, the op table.
#include "cpu_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "../core/system.h"
#include "../ops/all_ops.generated.h"
#include "cpu_context.h"

namespace ds::cpu {

#define DS_ROW(name) void run(const name&, CpuContext&);
DS_OP_LIST(DS_ROW)
#undef DS_ROW

namespace {

constexpr size_t kCacheFloor = size_t{256} << 20;  // bytes that may always stay cached

class ImmediateStream final : public Stream {};

class ClockEvent final : public Event {
 public:
  std::chrono::steady_clock::time_point at;
};

size_t page_rounded(size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

using Body = void (*)(const void*, CpuContext&);
constexpr Body kBodies[] = {
#define DS_ROW(name) \
  [](const void* args, CpuContext& context) { run(*static_cast<const name*>(args), context); },
    DS_OP_LIST(DS_ROW)
#undef DS_ROW
};

}  // namespace

void run_op(OpId op, const void* args) {
  CpuContext context{thread_pool()};
  kBodies[static_cast<int>(op)](args, context);
}

CpuDevice::CpuDevice() : compute_(std::make_unique<ImmediateStream>()) {
  stats_.total =
      static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

DeviceInfo CpuDevice::info() const {
  return {"CPU", text(thread_pool().threads(), " threads"), stats_.total};
}

/// Rounds up to a size class. Classes are 1/8 of a power of two apart, so at most 12.5 % is wasted.
size_t CpuDevice::size_class(size_t bytes) {
  if (bytes <= kAlignment) return kAlignment;
  size_t step = kAlignment;
  while (step * 16 < bytes) step *= 2;
  return (bytes + step - 1) / step * step;
}

/// Returns the free blocks of a size class. Small classes, which most small ops use, need no
/// hashing.
std::vector<void*>& CpuDevice::cached(size_t size) {
  return size <= kSmall ? small_[size / kAlignment] : large_[size];
}

void* CpuDevice::allocate(size_t bytes, Stream&) {
  const size_t size = size_class(bytes);
  std::lock_guard lock(mutex_);
  std::vector<void*>& blocks = cached(size);
  void* data = nullptr;
  if (!blocks.empty()) {
    data = blocks.back();
    blocks.pop_back();
  } else {
    const auto try_system = [&] {
      const bool fits = !stats_.cap || stats_.reserved + size <= stats_.cap;
      return fits ? std::aligned_alloc(kAlignment, size) : nullptr;
    };
    data = try_system();
    if (!data) {
      trim_locked();
      data = try_system();
    }
    if (!data) {
      throw Error("DS_OUT_OF_MEMORY", "allocate", text(bytes, " bytes of host memory"),
                  text(stats_.in_use, " bytes in use, cap ",
                       stats_.cap ? text(stats_.cap) : std::string("none")),
                  "Use a smaller micro-batch or sequence, activation checkpointing, or raise the "
                  "memory cap.");
    }
    stats_.reserved += size;
    if (stats_.reserved > stats_.peak_reserved) stats_.peak_reserved = stats_.reserved;
  }
  stats_.in_use += size;
  if (stats_.in_use > stats_.peak_in_use) stats_.peak_in_use = stats_.in_use;
  ++stats_.allocations;
  return data;
}

void CpuDevice::release(void* data, size_t bytes, Stream&) {
  const size_t size = size_class(bytes);
  std::lock_guard lock(mutex_);
  stats_.in_use -= size;
  cached(size).push_back(data);
  if (stats_.reserved - stats_.in_use > kCacheFloor + stats_.peak_in_use / 2) trim_locked();
}

void CpuDevice::trim_locked() {
  const auto free_all = [this](size_t size, std::vector<void*>& blocks) {
    for (void* block : blocks) std::free(block);
    stats_.reserved -= size * blocks.size();
    blocks.clear();
  };
  for (size_t i = 0; i < small_.size(); ++i) free_all(i * kAlignment, small_[i]);
  for (auto& [size, blocks] : large_) free_all(size, blocks);
}

void CpuDevice::trim() {
  std::lock_guard lock(mutex_);
  trim_locked();
}

void* CpuDevice::allocate_pinned(size_t bytes) {
  const size_t size = page_rounded(bytes ? bytes : 1);
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw Error("DS_OUT_OF_MEMORY", "allocate_pinned", text(bytes, " bytes of host memory"),
                std::strerror(errno), "Free host memory, or offload less.");
  }
  system::prepare_pinned(data, size);
  std::lock_guard lock(mutex_);
  stats_.in_use += size;
  stats_.reserved += size;
  if (stats_.in_use > stats_.peak_in_use) stats_.peak_in_use = stats_.in_use;
  if (stats_.reserved > stats_.peak_reserved) stats_.peak_reserved = stats_.reserved;
  return data;
}

void CpuDevice::release_pinned(void* data, size_t bytes) {
  const size_t size = page_rounded(bytes ? bytes : 1);
  munmap(data, size);
  std::lock_guard lock(mutex_);
  stats_.in_use -= size;
  stats_.reserved -= size;
}

MemoryStats CpuDevice::memory() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void CpuDevice::reset_peaks() {
  std::lock_guard lock(mutex_);
  stats_.peak_in_use = stats_.in_use;
  stats_.peak_reserved = stats_.reserved;
}

void CpuDevice::set_cap(size_t bytes) {
  std::lock_guard lock(mutex_);
  stats_.cap = bytes;
}

std::unique_ptr<Stream> CpuDevice::create_stream(Urgency) {
  return std::make_unique<ImmediateStream>();
}
std::unique_ptr<Event> CpuDevice::create_event(bool) { return std::make_unique<ClockEvent>(); }

void CpuDevice::record(Event& event, Stream&) {
  static_cast<ClockEvent&>(event).at = std::chrono::steady_clock::now();
}

double CpuDevice::elapsed_ms(Event& start, Event& end) {
  return std::chrono::duration<double, std::milli>(static_cast<ClockEvent&>(end).at -
                                                   static_cast<ClockEvent&>(start).at)
      .count();
}

void CpuDevice::copy(void* dst, const void* src, size_t bytes, Stream&) {
  constexpr int64_t kChunk = 1 << 20;
  auto body = [&](int64_t begin, int64_t end) {
    std::memmove(static_cast<char*>(dst) + begin, static_cast<const char*>(src) + begin,
                 static_cast<size_t>(end - begin));
  };
  if (static_cast<int64_t>(bytes) <= kChunk) body(0, static_cast<int64_t>(bytes));
  else thread_pool().parallel_for(static_cast<int64_t>(bytes), kChunk, body);
}

void CpuDevice::launch_host(Stream&, std::function<void()> task) { task(); }

void CpuDevice::run(OpId op, const void* args, Stream&) { run_op(op, args); }

CpuDevice& cpu_device() {
  // Never destroyed, because buffers in static objects may be destroyed later.
  static CpuDevice* device = new CpuDevice();
  return *device;
}

}  // namespace ds::cpu
