// Conversion of JavaScript values to C++ and back, deduced from the C++ signature of each exported
// function.
#pragma once

#include <node_api.h>

#include <cmath>
#include <string>
#include <tuple>
#include <type_traits>

#include "addon.h"

namespace ds::addon {

/// The bytes of a typed array argument; valid during the call.
struct Bytes {
  void* data;
  size_t size;
};

/// A Float64Array, an Int32Array.
struct Doubles : Bytes {};
struct Integers : Bytes {};

/// A Float64Array as a JavaScript value, for a function that keeps a reference.
struct DoublesObject {
  napi_value value;
};

/// The return type of functions that resolve later with a T: see start_task.
template <class T>
struct Promise {
  napi_value value;
};

/// An object with the fields of T in types/addon.d.ts.
template <class T>
struct Object {
  napi_value value;
};

DS_COLD inline void refuse_fraction(const char* op, double word) {
  throw Error("DS_ARGUMENT", op, "a whole number", text(word));
}

/// Returns a word of the argument block as an integer. Throws DS_ARGUMENT for a fraction, NaN, and
/// values outside int64.
inline int64_t integer_of(const char* op, double word) {
  if (word > -0x1p63 && word < 0x1p63) {
    const auto whole = static_cast<int64_t>(word);  // Not by trunc(), which is a call.
    if (static_cast<double>(whole) == word) return whole;
  }
  refuse_fraction(op, word);
}

DS_COLD inline void refuse_bytes(const char* op, double bytes) {
  throw Error("DS_ARGUMENT", op, "a whole number of bytes from 0 to 2^53", text(bytes),
              "Use a size of 0 or more and a documented dtype.");
}

/// Returns a number of bytes. Throws DS_ARGUMENT unless it is whole and from 0 to 2^53, the range
/// where doubles are exact. NaN comes from an invalid dtype or shape.
inline size_t bytes_of(const char* op, double bytes) {
  if (bytes >= 0 && bytes <= 0x1p53) {
    const auto whole = static_cast<size_t>(bytes);
    if (static_cast<double>(whole) == bytes) return whole;
  }
  refuse_bytes(op, bytes);
}

/// Returns a device number as an index. Throws DS_ARGUMENT if it is not a valid index.
inline size_t index_of(const char* op, double number) {
  if (number >= 0 && number <= 0x1p31 && number == std::trunc(number)) {
    return static_cast<size_t>(number);
  }
  throw Error("DS_ARGUMENT", op, "a whole number from 0", text(number));
}

inline size_t element_size(napi_typedarray_type type) {
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

inline void require_ok(napi_status status, const char* expected) {
  if (status != napi_ok) throw Error("DS_ARGUMENT", "addon", expected, "another type");
}

inline Bytes bytes_from(napi_env env, napi_value value, const char* expected, int wanted = -1) {
  napi_typedarray_type type;
  size_t length = 0;
  void* data = nullptr;
  napi_status status =
      napi_get_typedarray_info(env, value, &type, &length, &data, nullptr, nullptr);
  if (status == napi_ok && wanted >= 0 && type != wanted) status = napi_invalid_arg;
  require_ok(status, expected);
  return {data, length * element_size(type)};
}

template <class T>
T from_js(napi_env env, napi_value value) {
  if constexpr (std::is_same_v<T, double>) {
    double x;
    require_ok(napi_get_value_double(env, value, &x), "a number");
    return x;
  } else if constexpr (std::is_same_v<T, int64_t>) {
    int64_t x;
    require_ok(napi_get_value_int64(env, value, &x), "an integer");
    return x;
  } else if constexpr (std::is_same_v<T, int32_t>) {
    int32_t x;
    require_ok(napi_get_value_int32(env, value, &x), "an integer");
    return x;
  } else if constexpr (std::is_same_v<T, bool>) {
    bool x;
    require_ok(napi_get_value_bool(env, value, &x), "a boolean");
    return x;
  } else if constexpr (std::is_same_v<T, std::string>) {
    size_t length = 0;
    require_ok(napi_get_value_string_utf8(env, value, nullptr, 0, &length), "a string");
    std::string text(length, '\0');
    require_ok(napi_get_value_string_utf8(env, value, text.data(), length + 1, &length),
               "a string");
    return text;
  } else if constexpr (std::is_same_v<T, Bytes>) {
    return bytes_from(env, value, "a typed array");
  } else if constexpr (std::is_same_v<T, Doubles>) {
    return {bytes_from(env, value, "a Float64Array", napi_float64_array)};
  } else if constexpr (std::is_same_v<T, Integers>) {
    return {bytes_from(env, value, "an Int32Array", napi_int32_array)};
  } else {
    static_assert(std::is_same_v<T, DoublesObject>, "add a conversion for this type");
    return {value};
  }
}

// An environment that is ending (a terminated worker) rejects these calls, and their result is no
// longer needed. Nothing throws here: an exception would leave a C callback.

inline napi_value to_js(napi_env env, double x) {
  napi_value out = nullptr;
  napi_create_double(env, x, &out);
  return out;
}
inline napi_value to_js(napi_env env, bool x) {
  napi_value out = nullptr;
  napi_get_boolean(env, x, &out);
  return out;
}
inline napi_value to_js(napi_env env, const std::string& x) {
  napi_value out = nullptr;
  napi_create_string_utf8(env, x.data(), x.size(), &out);
  return out;
}
inline napi_value to_js(napi_env, napi_value x) { return x; }
template <class T>
napi_value to_js(napi_env, const Promise<T>& x) {
  return x.value;
}
template <class T>
napi_value to_js(napi_env, const Object<T>& x) {
  return x.value;
}

/// Sets a property; without effect if the environment rejects the call.
template <class T>
void set(napi_env env, napi_value object, const char* name, const T& value) {
  const napi_value converted = to_js(env, value);
  if (object && converted) napi_set_named_property(env, object, name, converted);
}

/// Creates a JavaScript Error with code, op, expected, got and hint; needs an open handle scope.
/// Returns null if the environment rejects the call.
inline napi_value error_value(napi_env env, const Error& error) noexcept {
  napi_value value = nullptr;
  const napi_value message = to_js(env, std::string(error.what()));
  if (!message || napi_create_error(env, nullptr, message, &value) != napi_ok) return nullptr;
  set(env, value, "code", error.code.name());
  set(env, value, "op", error.op);
  set(env, value, "expected", error.expected);
  set(env, value, "got", error.got);
  set(env, value, "hint", error.hint);
  return value;
}

/// Converts an exception of `op` that is not an Error: out of host memory, or a defect.
inline Error unforeseen(const char* op, const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error)) {
    return Error("DS_OUT_OF_MEMORY", op, "enough host memory", "a failed allocation",
                 "Free host memory, or raise the memory limit of this process.");
  }
  return Error("DS_INTERNAL", op, "no failure", error.what());
}

/// Throws `error` into JavaScript, unless an exception is already pending.
inline void throw_js(napi_env env, const Error& error) noexcept {
  napi_handle_scope scope = nullptr;
  if (napi_open_handle_scope(env, &scope) != napi_ok) return;
  if (const napi_value value = error_value(env, error)) napi_throw(env, value);
  napi_close_handle_scope(env, scope);
}

template <auto F>
struct Trampoline;

/// Exported functions have the form `R f(Addon&, Args...)`. scripts/gen-addon.mjs generates their
/// TypeScript types. Exceptions do not pass this function.
template <class R, class... Args, R (*F)(Addon&, Args...)>
struct Trampoline<F> {
  static napi_value call(napi_env env, napi_callback_info info) {
    constexpr size_t n = sizeof...(Args);
    napi_value values[n + 1];
    size_t count = n;
    void* data = nullptr;
    if (napi_get_cb_info(env, info, &count, values, nullptr, &data) != napi_ok) return nullptr;
    try {
      return invoke(env, *static_cast<Addon*>(data), values, std::index_sequence_for<Args...>{});
    } catch (const Error& error) {
      throw_js(env, static_cast<Addon*>(data)->failure->cause_of(error));
    } catch (const std::exception& error) {
      throw_js(env, unforeseen("addon", error));
    }
    return nullptr;
  }

 private:
  template <size_t... I>
  static napi_value invoke(napi_env env, Addon& addon, napi_value* values,
                           std::index_sequence<I...>) {
    if constexpr (std::is_void_v<R>) {
      F(addon, from_js<Args>(env, values[I])...);
      return nullptr;
    } else {
      return to_js(env, F(addon, from_js<Args>(env, values[I])...));
    }
  }
};

}  // namespace ds::addon
