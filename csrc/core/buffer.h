// A block of memory with an owner: returned to its device exactly once, in stream order.
#pragma once

#include <memory>
#include <utility>

#include "device.h"
#include "error.h"

namespace ds {

/// Accessibility of a buffer's bytes.
enum class Placement : int32_t { device, pinned };

/// Owns its bytes. Device memory is returned on `home`, the stream it was allocated on, unless
/// release_on names another; pinned memory is returned after the device has finished all its work.
class Buffer {
 public:
  Buffer(Device& device, Stream& stream, size_t bytes)
      : device_(device),
        home_(&stream),
        bytes_(bytes),
        placement_(Placement::device),
        data_(device.allocate(bytes, stream)) {}
  Buffer(Device& device, size_t pinned_bytes)
      : device_(device),
        home_(nullptr),
        bytes_(pinned_bytes),
        placement_(Placement::pinned),
        data_(device.allocate_pinned(pinned_bytes)) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  ~Buffer() {
    if (placement_ == Placement::device) {
      device_.release(data_, bytes_, *home_);
    } else {
      try {
        device_.synchronize_all();
      } catch (const Error&) {
        // A dead device reports itself at the next call; nothing of it touches this memory any
        // more.
      }
      device_.release_pinned(data_, bytes_);
    }
  }

  /// The buffer keeps the stream: a collective may hold its memory longer than others use either.
  void release_on(std::shared_ptr<Stream> stream) {
    if (placement_ != Placement::device) return;
    home_ = stream.get();
    kept_ = std::move(stream);
  }

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  Device& device() const { return device_; }
  Placement placement() const { return placement_; }

 private:
  Device& device_;
  Stream* home_;
  std::shared_ptr<Stream> kept_;  // home_, where release_on has named it
  size_t bytes_;
  Placement placement_;
  void* data_;
};

}  // namespace ds
