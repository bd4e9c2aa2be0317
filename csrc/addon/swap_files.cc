// Swap file calls: host functions of a stream, which keep the file and its memory alive.
#include "swap_files.h"

#include <utility>

#include "../io/swap_file.h"
#include "file_tasks.h"

namespace ds::addon {
namespace {

constexpr size_t kTuningWords = 3;

/// Bytes of a transfer's block, and numbers of requests or threads.
using BlockBytes = Whole<size_t, io::kDirectAlignment, int64_t{1} << 40, io::kDirectAlignment>;
using Workers = Whole<unsigned, 1, 1 << 16>;

/// A file, and the buffers that its engine has registered.
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
                      SwapBytes bytes, Doubles tuning) {
  constexpr Place kTuning{"openSwapFile", "tuning"};
  if (tuning.count < kTuningWords || (tuning.count - kTuningWords) % 3 != 0) {
    refuse("DS_ARGUMENT", kTuning,
           "[blockBytes, depth, checkers], then triples [buffer, offset, bytes]",
           text(tuning.count, " numbers"));
  }
  io::SwapOptions options{std::move(folder), std::move(label), std::move(purpose)};
  options.bytes = static_cast<int64_t>(bytes.value);
  options.block_bytes = BlockBytes::of(tuning[0], kTuning);
  options.depth = Workers::of(tuning[1], kTuning);
  options.checkers = Workers::of(tuning[2], kTuning);
  std::vector<std::shared_ptr<Buffer>> kept;
  for (size_t at = kTuningWords; at < tuning.count; at += 3) {
    HostRange range = host_range<SwapBytes>(addon, tuning, at, kTuning);
    options.memory.push_back({range.data, range.bytes});
    kept.push_back(std::move(range.owner));
  }
  auto made = std::shared_ptr<SwapFileRef>(
      new SwapFileRef{{std::move(kept), io::SwapFile(options)}, options.block_bytes});
  return addon.swap_files.add(std::move(made));
}

void start_swap(Addon& addon, Handle<SwapFileRef> file, bool writes, ByteCount offset,
                Handle<Buffer> buffer, SwapBytes buffer_offset, SwapBytes bytes,
                Handle<StreamRef> stream) {
  HostRange range = host_range(buffer, buffer_offset, bytes, {"startSwap", "buffer"});
  if (offset % file->block_bytes != 0) {
    refuse("DS_ARGUMENT", {"startSwap", "offset"}, text("a multiple of ", file->block_bytes),
           text(offset.value));
  }
  const auto end = static_cast<size_t>(file->open.file.bytes());
  if (offset > end || bytes > end - offset) {
    refuse("DS_BOUNDS", {"startSwap", "bytes"}, text("a range inside the file's ", end, " bytes"),
           text(bytes.value, " bytes at ", offset.value));
  }
  const io::Direction direction = writes ? io::Direction::write : io::Direction::read;
  stream->device.launch_host(
      stream->stream, [=, ref = file.share(), range = std::move(range), failure = addon.failure] {
        try {
          ref->open.file.start(direction, static_cast<int64_t>(offset.value),
                               {range.data, range.bytes}, range.owner);
        } catch (const std::exception& error) {
          failure->set(unforeseen("startSwap", error));
        }
      });
}

void wait_swap(Addon& addon, Handle<SwapFileRef> file, Handle<Buffer> buffer,
               SwapBytes buffer_offset, SwapBytes bytes, Handle<StreamRef> stream) {
  HostRange range = host_range(buffer, buffer_offset, bytes, {"waitSwap", "buffer"});
  stream->device.launch_host(
      stream->stream, [ref = file.share(), range = std::move(range), failure = addon.failure] {
        try {
          ref->open.file.wait({range.data, range.bytes});
        } catch (const Error& error) {
          failure->set(error);
        }
      });
  addon.failure->rethrow();
}

Object<SwapFileInfo> swap_file_info(Addon& addon, Handle<SwapFileRef> file) {
  const io::SwapFile& open = file->open.file;
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

void release_swap_file(Addon&, Handle<SwapFileRef> file) { file.take(); }

}  // namespace ds::addon
