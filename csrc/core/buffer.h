// A block of memory with one owner, which returns it to its device in stream order.
#pragma once

#include <memory>
#include <utility>

#include "device.h"
#include "error.h"

namespace ds {

/// The kind of memory: on the device, or page-locked on the host.
enum class Placement : int32_t { device, pinned };

/// Owns a block of memory. The destructor returns device memory on `home`: the stream of the
/// allocation, or the stream of release_on(). It returns pinned memory after the device has
/// finished all its work.
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
        // The next call reports the failed device, which no longer accesses this memory.
      }
      device_.release_pinned(data_, bytes_);
    }
  }

  /// Returns the memory on `stream` instead, and keeps the stream alive. A collective may hold its
  /// memory longer than the caller holds the buffer or the stream.
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
  std::shared_ptr<Stream> kept_;  // keeps `home_` alive after release_on()
  size_t bytes_;
  Placement placement_;
  void* data_;
};

}  // namespace ds
