// The kinds of arguments, each with its check. The signature of an entry declares its arguments.
// Entry (entry.h) reads them from left to right before the function runs.
#pragma once

#include <node_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "../io/file.h"
#include "addon.h"

namespace ds::addon {

/// The JavaScript names of an entry and its argument, for errors.
struct Place {
  const char* entry;
  const char* argument;
};

/// Returns the shortest digits that identify `x`. Powers of two above 2^52 become "2^53" etc.
std::string number_text(double x);

/// Throws an error with this code for an argument.
DS_COLD void refuse(ErrorCode code, Place place, const std::string& expected,
                    const std::string& got, const std::string& hint = "");
/// Throws DS_ARGUMENT. It names `got` by its value if it is a number, otherwise by its type.
DS_COLD void refuse_value(Addon& addon, Place place, const std::string& expected, napi_value got);
/// Throws DS_RELEASED. Any whole number may have been a handle, except 0, which means no object.
DS_COLD void refuse_handle(Place place, const char* noun, double got, const char* hint);
/// Throws DS_ARGUMENT with the bounds of a whole number.
DS_COLD void refuse_whole(Place place, int64_t min, int64_t max, int64_t step, double got);

// --- numbers ----------------------------------------------------------------------------------

inline constexpr int64_t kExact = int64_t{1} << 53;  // doubles hold all integers up to here

/// A whole number from kMin to kMax that is a multiple of kStep.
template <class T, int64_t kMin, int64_t kMax, int64_t kStep = 1>
struct Whole {
  static_assert(-kExact <= kMin && kMin <= kMax && kMax <= kExact && kStep > 0);
  T value;

  operator T() const { return value; }

  /// Throws DS_ARGUMENT for NaN, fractions and values out of bounds.
  static Whole of(double x, Place place) {
    if (x >= static_cast<double>(kMin) && x <= static_cast<double>(kMax)) {
      const auto whole = static_cast<int64_t>(x);  // a cast, because trunc() is a function call
      if (static_cast<double>(whole) == x && whole % kStep == 0) return {static_cast<T>(whole)};
    }
    refuse_whole(place, kMin, kMax, kStep, x);
  }
};

using ByteCount = Whole<size_t, 0, kExact>;
/// Size or offset in bytes of a swap file's transfer.
using SwapBytes = Whole<size_t, 0, kExact, io::kDirectAlignment>;
using Checksum = Whole<uint32_t, 0, UINT32_MAX>;
using Descriptor = Whole<int, 0, INT32_MAX>;
using DeviceNumber = Whole<size_t, 0, INT32_MAX>;
using OfferNumber = Whole<uint64_t, 1, kExact>;
using OpNumber = Whole<int32_t, 0, static_cast<int64_t>(OpId::count) - 1>;
using Port = Whole<uint16_t, 0, UINT16_MAX>;
using RankNumber = Whole<int, 0, INT32_MAX>;
using RunCount = Whole<int, 1, INT32_MAX>;
using SignalNumber = Whole<int, 1, 64>;
using Step = Whole<int64_t, -kExact, kExact>;
using ThreadCount = Whole<int, 1, 1 << 14>;
using Ticket = Whole<uint64_t, 0, kExact>;
using TokenCount = Whole<size_t, 0, INT32_MAX>;
using TokenNumber = Whole<int32_t, 0, INT32_MAX>;
using UrgencyNumber = Whole<int, 0, kUrgencies - 1>;

/// A time of at least 0 milliseconds. Infinity means no limit.
struct Timeout {
  double milliseconds;
};

// --- handles ----------------------------------------------------------------------------------

/// Returns the environment's table of handles of T.
template <class T>
HandleTable<T>& table_of(Addon& addon);
template <>
inline HandleTable<Buffer>& table_of(Addon& addon) {
  return addon.buffers;
}
template <>
inline HandleTable<StreamRef>& table_of(Addon& addon) {
  return addon.streams;
}
template <>
inline HandleTable<EventRef>& table_of(Addon& addon) {
  return addon.events;
}
template <>
inline HandleTable<GraphRef>& table_of(Addon& addon) {
  return addon.graphs;
}
template <>
inline HandleTable<SwapFileRef>& table_of(Addon& addon) {
  return addon.swap_files;
}
template <>
inline HandleTable<const grammar::Vocabulary>& table_of(Addon& addon) {
  return addon.vocabularies;
}
template <>
inline HandleTable<grammar::Grammar>& table_of(Addon& addon) {
  return addon.grammars;
}
template <>
inline HandleTable<grammar::Matcher>& table_of(Addon& addon) {
  return addon.matchers;
}

/// A handle of a live object.
template <class T>
class Handle {
 public:
  /// Throws DS_RELEASED if no live object has the handle `number`.
  static Handle of(HandleTable<T>& table, double number, Place place) {
    if (T* object = table.find(number)) return Handle(table, number, *object);
    refuse_handle(place, table.noun(), number, table.hint());
  }

  T& operator*() const { return *object_; }
  T* operator->() const { return object_; }
  /// Returns an owning reference, which outlives the handle.
  std::shared_ptr<T> share() const { return table_->get(number_); }
  /// Releases the handle and returns its owning reference.
  std::shared_ptr<T> take() const { return table_->take(number_); }

 private:
  Handle(HandleTable<T>& table, double number, T& object)
      : table_(&table), object_(&object), number_(number) {}

  HandleTable<T>* table_;
  T* object_;
  double number_;
};

/// A device that this environment has opened.
struct OpenDevice {
  Device* device;
  Device* operator->() const { return device; }

  /// Throws DS_DEVICE if the device is not open.
  static OpenDevice of(Addon& addon, double number, Place place);
};

// --- arrays -----------------------------------------------------------------------------------

/// The bytes of a typed array, valid during the call.
struct Bytes {
  void* data;
  size_t size;
};

/// The elements of a Float64Array or Int32Array, valid during the call.
template <class T>
struct Elements {
  const T* data;
  size_t count;
  const T& operator[](size_t i) const { return data[i]; }
};
using Doubles = Elements<double>;
using Integers = Elements<int32_t>;

/// A Float64Array that the environment keeps as its argument block: see set_arguments.
struct DoublesObject {
  napi_value value;
  double* data;
  size_t count;
};

// --- the check of each kind -------------------------------------------------------------------

/// Reads arguments of type T. `read` throws DS_ARGUMENT, DS_RELEASED or DS_DEVICE. `describe`
/// returns the kind and its bounds as members of a JSON object.
template <class T>
struct Kind;

template <class T, int64_t kMin, int64_t kMax, int64_t kStep>
struct Kind<Whole<T, kMin, kMax, kStep>> {
  static Whole<T, kMin, kMax, kStep> read(Addon& addon, napi_value value, Place place) {
    double x;
    if (napi_get_value_double(addon.env, value, &x) == napi_ok) {
      return Whole<T, kMin, kMax, kStep>::of(x, place);
    }
    refuse_value(addon, place, "a number", value);
  }
  static std::string describe(Addon&) {
    return text(R"("kind":"whole","min":)", kMin, R"(,"max":)", kMax, R"(,"step":)", kStep);
  }
};

template <>
struct Kind<Timeout> {
  static Timeout read(Addon& addon, napi_value value, Place place);
  static std::string describe(Addon&) { return R"("kind":"timeout")"; }
};

template <class T>
struct Kind<Handle<T>> {
  static Handle<T> read(Addon& addon, napi_value value, Place place) {
    HandleTable<T>& table = table_of<T>(addon);
    double x;
    if (napi_get_value_double(addon.env, value, &x) != napi_ok) {
      refuse_value(addon, place, text("a ", table.noun()), value);
    }
    const Handle<T> handle = Handle<T>::of(table, x, place);
    if (static_cast<double>(static_cast<int64_t>(x)) == x) return handle;
    refuse_handle(place, table.noun(), x, table.hint());
  }
  static std::string describe(Addon& addon) {
    return text(R"("kind":"handle","of":")", table_of<T>(addon).noun(), '"');
  }
};

template <>
struct Kind<OpenDevice> {
  static OpenDevice read(Addon& addon, napi_value value, Place place);
  static std::string describe(Addon&) { return R"("kind":"device")"; }
};

template <>
struct Kind<bool> {
  static bool read(Addon& addon, napi_value value, Place place);
  static std::string describe(Addon&) { return R"("kind":"boolean")"; }
};

template <>
struct Kind<std::string> {
  static std::string read(Addon& addon, napi_value value, Place place);
  static std::string describe(Addon&) { return R"("kind":"string")"; }
};

template <>
struct Kind<Bytes> {
  static Bytes read(Addon& addon, napi_value value, Place place);
  static std::string describe(Addon&) { return R"("kind":"bytes")"; }
};

template <>
struct Kind<Doubles> {
  static Doubles read(Addon& addon, napi_value value, Place place);
  static std::string describe(Addon&) { return R"("kind":"doubles")"; }
};

template <>
struct Kind<Integers> {
  static Integers read(Addon& addon, napi_value value, Place place);
  static std::string describe(Addon&) { return R"("kind":"integers")"; }
};

template <>
struct Kind<DoublesObject> {
  static DoublesObject read(Addon& addon, napi_value value, Place place);
  static std::string describe(Addon&) { return R"("kind":"doubles")"; }
};

// --- relations between arguments --------------------------------------------------------------

/// Returns the address of a range of a buffer. Throws DS_BOUNDS if the range exceeds the buffer.
char* range_of(const Buffer& buffer, size_t offset, size_t bytes, Place place);

/// Throws DS_DEVICE with the names of both devices.
DS_COLD void refuse_device(const Device& device, const StreamRef& stream, Place place);
/// Throws DS_DEVICE unless both belong to the same device. A back end casts events, streams and
/// graphs to its own classes without a check.
inline void require_same_device(const Device& device, const StreamRef& stream, Place place) {
  if (&device != &stream.device) refuse_device(device, stream, place);
}

}  // namespace ds::addon
