// Bodies of the file calls: resolve handles on the JavaScript thread, move bytes on a native one.
#include "file_tasks.h"

#include <algorithm>
#include <cmath>

#include "../cpu/cpu_device.h"
#include "../io/crc32c.h"
#include "../io/file_engine.h"
#include "task.h"

namespace ds::addon {
namespace {

constexpr size_t kWindowBytes = size_t{32} << 20;  // read ahead while a checksum is computed

int64_t file_offset(double offset) {
  const bool whole = offset >= 0 && offset < 0x1p53 && std::floor(offset) == offset;
  if (whole) return static_cast<int64_t>(offset);
  throw Error("DS_ARGUMENT", "file", "an integer offset in bytes", text(offset));
}

/// Computes the checksum while the engine writes.
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

/// Two windows: one is read while the other is summed up.
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

HostRange host_range(Addon& addon, double handle, double offset, double bytes) {
  std::shared_ptr<Buffer> buffer = addon.buffers.get(handle);
  if (buffer->placement() != Placement::pinned && &buffer->device() != &cpu::cpu_device()) {
    throw Error("DS_DEVICE", "file", "host memory",
                text("memory of ", buffer->device().info().name),
                "Copy it to pinned memory first.");
  }
  const size_t at = bytes_of("file", offset), size = bytes_of("file", bytes);
  if (at + size > buffer->bytes()) {
    throw Error("DS_BOUNDS", "file", text("a range inside ", buffer->bytes(), " bytes"),
                text(size, " bytes at ", at));
  }
  char* data = static_cast<char*>(buffer->data()) + at;
  return {std::move(buffer), data, size};
}

Promise<double> write_file(Addon& addon, std::string path, double offset, Bytes head,
                           Doubles segments, double crc) {
  const auto* words = static_cast<const double*>(segments.data);
  const size_t count = segments.size / sizeof(double) / 3;
  std::vector<HostRange> ranges;
  for (size_t i = 0; i < count; ++i, words += 3) {
    ranges.push_back(host_range(addon, words[0], words[1], words[2]));
  }
  std::string copied(static_cast<const char*>(head.data), head.size);
  const int64_t at = file_offset(offset);
  const auto start = static_cast<uint32_t>(crc);
  return start_task(addon, [=, path = std::move(path), head = std::move(copied),
                            ranges = std::move(ranges)]() mutable {
    return write_ranges(path, at, head, ranges, start);
  });
}

Promise<void> read_file(Addon& addon, int32_t descriptor, std::string path, double offset,
                        double bytes, double buffer, double buffer_offset) {
  HostRange into = host_range(addon, buffer, buffer_offset, bytes);
  const int64_t at = file_offset(offset);
  auto file = std::make_shared<io::File>(io::File::duplicate_of(descriptor, path));
  return start_task(addon, [at, file = std::move(file), into = std::move(into)] {
    const io::Transfer whole{file.get(), at, into.data, into.bytes, io::Direction::read};
    io::Pending(io::file_engine(), {whole}).wait();
  });
}

Promise<double> checksum_file(Addon& addon, int32_t descriptor, std::string path) {
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

Promise<bool> lock_file(Addon& addon, int32_t descriptor) {
  return start_task(addon, [descriptor] { return io::try_lock(descriptor); });
}

std::string file_engine_name(Addon&) { return io::file_engine().name(); }

void set_file_engine(Addon&, std::string name) { io::choose_file_engine(name); }

}  // namespace ds::addon
