// Bodies of the calls on swap files: host functions of a stream, which keep file and memory alive.
#include "swap_files.h"

#include <utility>

#include "../io/swap_file.h"
#include "file_tasks.h"

namespace ds::addon {
namespace {

constexpr size_t kTuningWords = 3;

size_t aligned(double bytes, const char* what) {
  const size_t size = bytes_of("swap file", bytes);
  if (size % io::kDirectAlignment == 0) return size;
  throw Error("DS_ARGUMENT", "swap file", text(what, " in multiples of ", io::kDirectAlignment),
              text(bytes));
}

HostRange aligned_range(Addon& addon, double handle, double offset, double bytes) {
  aligned(offset, "a memory offset");
  aligned(bytes, "a size");
  return host_range(addon, handle, offset, bytes);
}

/// A file and the buffers that its engine has registered.
struct OpenSwapFile {
  std::vector<std::shared_ptr<Buffer>> memory;
  io::SwapFile file;
};

}  // namespace

struct SwapFileRef {
  OpenSwapFile open;
  size_t block_bytes;
};

double open_swap_file(Addon& addon, std::string folder, std::string label, std::string purpose,
                      double bytes, Doubles tuning) {
  const auto* words = static_cast<const double*>(tuning.data);
  const size_t count = tuning.size / sizeof(double);
  if (count < kTuningWords)
    throw Error("DS_ARGUMENT", "swap file", "all tuning values", "too few values");
  io::SwapOptions options{std::move(folder), std::move(label), std::move(purpose)};
  options.bytes = static_cast<int64_t>(aligned(bytes, "a size"));
  options.block_bytes = aligned(words[0], "blocks");
  options.depth = static_cast<unsigned>(index_of("swap file", words[1]));
  options.checkers = static_cast<unsigned>(index_of("swap file", words[2]));
  if (!options.block_bytes || !options.depth || !options.checkers) {
    throw Error("DS_ARGUMENT", "swap file", "at least 1 byte in a block, 1 request and 1 thread",
                "0");
  }
  std::vector<std::shared_ptr<Buffer>> kept;
  for (size_t at = kTuningWords; at + 3 <= count; at += 3) {
    HostRange range = aligned_range(addon, words[at], words[at + 1], words[at + 2]);
    options.memory.push_back({range.data, range.bytes});
    kept.push_back(std::move(range.owner));
  }
  auto made = std::shared_ptr<SwapFileRef>(
      new SwapFileRef{{std::move(kept), io::SwapFile(options)}, options.block_bytes});
  return addon.swap_files.add(std::move(made));
}

void start_swap(Addon& addon, double file, bool writes, double offset, double buffer,
                double buffer_offset, double bytes, double stream) {
  StreamRef& at = *addon.streams.get(stream);
  const std::shared_ptr<SwapFileRef>& ref = addon.swap_files.get(file);
  HostRange range = aligned_range(addon, buffer, buffer_offset, bytes);
  const size_t place = bytes_of("swap file", offset);
  if (place % ref->block_bytes != 0) {
    throw Error("DS_ARGUMENT", "swap file", text("a multiple of ", ref->block_bytes), text(offset));
  }
  const auto end = static_cast<size_t>(ref->open.file.bytes());
  if (place > end || range.bytes > end - place) {
    throw Error("DS_BOUNDS", "swap file", text("bytes inside its ", end),
                text(range.bytes, " at offset ", place));
  }
  const io::Direction direction = writes ? io::Direction::write : io::Direction::read;
  at.device.launch_host(at.stream, [=, ref = ref, range = std::move(range)] {
    ref->open.file.start(direction, static_cast<int64_t>(place), {range.data, range.bytes},
                         range.owner);
  });
}

void wait_swap(Addon& addon, double file, double buffer, double buffer_offset, double bytes,
               double stream) {
  StreamRef& at = *addon.streams.get(stream);
  HostRange range = aligned_range(addon, buffer, buffer_offset, bytes);
  at.device.launch_host(at.stream, [ref = addon.swap_files.get(file), range = std::move(range),
                                    failure = addon.failure] {
    try {
      ref->open.file.wait({range.data, range.bytes});
    } catch (const Error& error) {
      failure->set(error);
    }
  });
  addon.failure->rethrow();
}

Object<SwapFileInfo> swap_file_info(Addon& addon, double file) {
  const io::SwapFile& open = addon.swap_files.get(file)->open.file;
  napi_value out = nullptr;
  napi_create_object(addon.env, &out);
  set(addon.env, out, "path", open.path());
  set(addon.env, out, "direct", open.direct());
  set(addon.env, out, "fileSystem", open.file_system());
  set(addon.env, out, "engine", std::string(open.engine()));
  set(addon.env, out, "bytesRead", static_cast<double>(open.bytes_read()));
  set(addon.env, out, "bytesWritten", static_cast<double>(open.bytes_written()));
  set(addon.env, out, "secondsWaited", open.seconds_waited());
  return {out};
}

void release_swap_file(Addon& addon, double file) { addon.swap_files.take(file); }

}  // namespace ds::addon
