// Argument checks that are too large to be inlined, and their errors.
#include "arguments.h"

#include <charconv>
#include <cmath>
#include <utility>

namespace ds::addon {
namespace {

const char* name_of(Addon& addon, napi_value value) {
  napi_valuetype type = napi_undefined;
  napi_typeof(addon.env, value, &type);
  switch (type) {
    case napi_undefined: return "undefined";
    case napi_null: return "null";
    case napi_boolean: return "a boolean";
    case napi_number: return "a number";
    case napi_string: return "a string";
    case napi_symbol: return "a symbol";
    case napi_function: return "a function";
    case napi_bigint: return "a bigint";
    default: return "another object";
  }
}

std::string as(const std::string& expected, Place place) {
  return text(expected, " as ", place.argument);
}

size_t size_of_element(napi_typedarray_type type) {
  switch (type) {
    case napi_int16_array:
    case napi_uint16_array: return 2;
    case napi_int32_array:
    case napi_uint32_array:
    case napi_float32_array: return 4;
    case napi_float64_array:
    case napi_bigint64_array:
    case napi_biguint64_array: return 8;
    default: return 1;
  }
}

struct TypedArray {
  napi_typedarray_type type;
  size_t count;
  void* data;
};

TypedArray read_array(Addon& addon, napi_value value, Place place, const char* expected,
                      int wanted = -1) {
  TypedArray out{};
  napi_value memory = nullptr;
  const napi_status status = napi_get_typedarray_info(addon.env, value, &out.type, &out.count,
                                                      &out.data, &memory, nullptr);
  if (status != napi_ok || (wanted >= 0 && out.type != wanted)) {
    refuse_value(addon, place, expected, value);
  }
  bool detached = false;
  if (out.count == 0) napi_is_detached_arraybuffer(addon.env, memory, &detached);
  if (detached) refuse("DS_ARGUMENT", place, expected, "an array whose memory was transferred");
  return out;
}

double read_number(Addon& addon, napi_value value, Place place) {
  double x;
  if (napi_get_value_double(addon.env, value, &x) == napi_ok) return x;
  refuse_value(addon, place, "a number", value);
}

constexpr const char* kDoubles = "a Float64Array";

}  // namespace

// --- errors -----------------------------------------------------------------------------------

std::string number_text(double x) {
  if (std::isnan(x)) return "NaN";
  if (std::isinf(x)) return x < 0 ? "-Infinity" : "Infinity";
  if (std::abs(x) > 0x1p52) {
    int exponent;
    if (std::abs(std::frexp(x, &exponent)) == 0.5)
      return text(x < 0 ? "-" : "", "2^", exponent - 1);
  }
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), x).ptr;
  return {digits, end};
}

void refuse(ErrorCode code, Place place, const std::string& expected, const std::string& got,
            const std::string& hint) {
  throw Error(code, place.entry, as(expected, place), got, hint);
}

void refuse_value(Addon& addon, Place place, const std::string& expected, napi_value got) {
  refuse("DS_ARGUMENT", place, expected, name_of(addon, got));
}

void refuse_handle(Place place, const char* noun, double got, const char* hint) {
  const bool whole = got >= 0 && got < 0x1p52 && std::trunc(got) == got;
  refuse("DS_RELEASED", place, text("a live ", noun),
         whole ? "one that was released" : number_text(got), hint);
}

void refuse_whole(Place place, int64_t min, int64_t max, int64_t step, double got) {
  const std::string noun = step > 1 ? text("a multiple of ", step) : std::string("a whole number");
  const auto bound = [](int64_t x) { return number_text(static_cast<double>(x)); };
  refuse("DS_ARGUMENT", place, text(noun, " from ", bound(min), " to ", bound(max)),
         number_text(got));
}

// --- kinds ------------------------------------------------------------------------------------

Timeout Kind<Timeout>::read(Addon& addon, napi_value value, Place place) {
  const double x = read_number(addon, value, place);
  if (x >= 0) return {x};
  refuse("DS_ARGUMENT", place, "0 or more milliseconds", number_text(x));
}

OpenDevice OpenDevice::of(Addon& addon, double number, Place place) {
  const size_t index = DeviceNumber::of(number, place);
  const auto& streams = addon.compute_streams;
  StreamRef* stream = index < streams.size() ? addon.streams.find(streams[index]) : nullptr;
  if (stream) return {&stream->device};
  refuse("DS_DEVICE", place, "an open device", text("device ", index));
}

OpenDevice Kind<OpenDevice>::read(Addon& addon, napi_value value, Place place) {
  return OpenDevice::of(addon, read_number(addon, value, place), place);
}

bool Kind<bool>::read(Addon& addon, napi_value value, Place place) {
  bool x;
  if (napi_get_value_bool(addon.env, value, &x) == napi_ok) return x;
  refuse_value(addon, place, "a boolean", value);
}

std::string Kind<std::string>::read(Addon& addon, napi_value value, Place place) {
  size_t length = 0;
  if (napi_get_value_string_utf8(addon.env, value, nullptr, 0, &length) != napi_ok) {
    refuse_value(addon, place, "a string", value);
  }
  std::string out(length, '\0');
  napi_get_value_string_utf8(addon.env, value, out.data(), length + 1, &length);
  return out;
}

Bytes Kind<Bytes>::read(Addon& addon, napi_value value, Place place) {
  const TypedArray array = read_array(addon, value, place, "a typed array");
  return {array.data, array.count * size_of_element(array.type)};
}

Doubles Kind<Doubles>::read(Addon& addon, napi_value value, Place place) {
  const TypedArray array = read_array(addon, value, place, kDoubles, napi_float64_array);
  return {static_cast<double*>(array.data), array.count};
}

Integers Kind<Integers>::read(Addon& addon, napi_value value, Place place) {
  const TypedArray array = read_array(addon, value, place, "an Int32Array", napi_int32_array);
  return {static_cast<int32_t*>(array.data), array.count};
}

DoublesObject Kind<DoublesObject>::read(Addon& addon, napi_value value, Place place) {
  const TypedArray array = read_array(addon, value, place, kDoubles, napi_float64_array);
  return {value, static_cast<double*>(array.data), array.count};
}

// --- relations --------------------------------------------------------------------------------

char* range_of(const Buffer& buffer, size_t offset, size_t bytes, Place place) {
  if (offset > buffer.bytes() || bytes > buffer.bytes() - offset) {
    refuse("DS_BOUNDS", place, text("a range inside ", buffer.bytes(), " bytes"),
           text(bytes, " bytes at ", offset));
  }
  return static_cast<char*>(buffer.data()) + offset;
}

void refuse_device(const Device& device, const StreamRef& stream, Place place) {
  refuse("DS_DEVICE", place, text("an object of ", stream.device.info().name),
         text("one of ", device.info().name), "Use objects of one device in a call.");
}

}  // namespace ds::addon
