// File calls: resolve handles on the JavaScript thread and move bytes on a task thread.
#include "file_tasks.h"

#include <algorithm>

#include "../cpu/cpu_device.h"
#include "../io/crc32c.h"
#include "../io/file_engine.h"
#include "task.h"

namespace ds::addon {
namespace {

constexpr size_t kWindowBytes = size_t{32} << 20;  // read while the window before it is summed

/// Writes the ranges and computes their checksum while the engine writes.
double write_ranges(const std::string& path, int64_t offset, std::string& head,
                    const std::vector<HostRange>& ranges, uint32_t crc) {
  io::File file = io::File::open_for_writing(path, offset == 0);
  std::vector<io::Transfer> batch;
  auto add = [&](char* data, size_t bytes) {
    batch.push_back({&file, offset, data, bytes, io::Direction::write});
    offset += static_cast<int64_t>(bytes);
  };
  add(head.data(), head.size());
  for (const HostRange& range : ranges) add(range.data, range.bytes);
  io::Pending pending(io::file_engine(), batch);
  for (const io::Transfer& part : batch) crc = io::crc32c(crc, part.data, part.bytes);
  pending.wait();
  file.close();
  return crc;
}

/// Returns a file's checksum. It reads one window while it sums the other.
double checksum_of(const io::File& file) {
  const int64_t size = file.size();
  const size_t window_bytes = std::min<size_t>(kWindowBytes, static_cast<size_t>(size));
  std::vector<char> windows[2] = {std::vector<char>(window_bytes), std::vector<char>(window_bytes)};
  auto read = [&](int64_t at) {
    std::vector<char>& window = windows[at / static_cast<int64_t>(kWindowBytes) % 2];
    const size_t bytes = std::min<size_t>(kWindowBytes, static_cast<size_t>(size - at));
    const io::Transfer part{&file, at, window.data(), bytes, io::Direction::read};
    return std::pair{part, std::make_unique<io::Pending>(io::file_engine(), std::vector{part})};
  };
  uint32_t crc = 0;
  if (size == 0) return crc;
  auto next = read(0);
  while (next.second) {
    const auto [part, pending] = std::move(next);
    pending->wait();
    const int64_t after = part.offset + static_cast<int64_t>(part.bytes);
    next = after < size ? read(after) : std::pair{part, std::unique_ptr<io::Pending>()};
    crc = io::crc32c(crc, part.data, part.bytes);
  }
  return crc;
}

}  // namespace

HostRange host_range(const Handle<Buffer>& buffer, size_t offset, size_t bytes, Place place) {
  if (buffer->placement() != Placement::pinned && &buffer->device() != &cpu::cpu_device()) {
    refuse("DS_DEVICE", place, "host memory", text("memory of ", buffer->device().info().name),
           "Copy it to pinned memory first.");
  }
  char* data = range_of(*buffer, offset, bytes, place);
  return {buffer.share(), data, bytes};
}

Promise<double> write_file(Addon& addon, std::string path, ByteCount offset, Bytes head,
                           Doubles segments, Checksum crc) {
  constexpr Place kSegments{"writeFile", "segments"};
  if (segments.count % 3 != 0) {
    refuse("DS_ARGUMENT", kSegments, "triples [buffer, offset, bytes]",
           text(segments.count, " numbers"));
  }
  std::vector<HostRange> ranges;
  for (size_t at = 0; at < segments.count; at += 3) {
    ranges.push_back(host_range<ByteCount>(addon, segments, at, kSegments));
  }
  std::string copied(static_cast<const char*>(head.data), head.size);
  return start_task(addon, [offset, crc, path = std::move(path), head = std::move(copied),
                            ranges = std::move(ranges)]() mutable {
    return write_ranges(path, static_cast<int64_t>(offset.value), head, ranges, crc);
  });
}

Promise<void> read_file(Addon& addon, Descriptor descriptor, std::string path, ByteCount offset,
                        ByteCount bytes, Handle<Buffer> buffer, ByteCount buffer_offset) {
  HostRange into = host_range(buffer, buffer_offset, bytes, {"readFile", "buffer"});
  auto file = std::make_shared<io::File>(io::File::duplicate_of(descriptor, path));
  return start_task(addon, [offset, file = std::move(file), into = std::move(into)] {
    const io::Transfer whole{file.get(), static_cast<int64_t>(offset.value), into.data, into.bytes,
                             io::Direction::read};
    io::Pending(io::file_engine(), {whole}).wait();
  });
}

Promise<double> checksum_file(Addon& addon, Descriptor descriptor, std::string path) {
  auto file = std::make_shared<io::File>(io::File::duplicate_of(descriptor, path));
  return start_task(addon, [file = std::move(file)] { return checksum_of(*file); });
}

Promise<void> sync_path(Addon& addon, std::string path) {
  return start_task(addon, [path = std::move(path)] { io::File::open_for_reading(path).sync(); });
}

Promise<bool> rename_exclusive(Addon& addon, std::string from, std::string to) {
  return start_task(addon, [from = std::move(from), to = std::move(to)] {
    return io::rename_exclusive(from, to);
  });
}

Promise<bool> lock_file(Addon& addon, Descriptor descriptor) {
  return start_task(addon, [descriptor] { return io::try_lock(descriptor); });
}

std::string file_engine_name(Addon&) { return io::file_engine().name(); }

void set_file_engine(Addon&, std::string name) { io::choose_file_engine(name); }

}  // namespace ds::addon
