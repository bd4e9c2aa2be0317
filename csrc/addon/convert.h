// JavaScript values to C++ and back, deduced from the C++ signature of each exported function.
#pragma once

#include <napi.h>

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

/// A word of the argument block as an integer, without its fraction. Throws DS_ARGUMENT for what no
/// int64 holds, NaN too.
inline int64_t integer_of(const char* op, double word) {
  if (word > -0x1p63 && word < 0x1p63) return static_cast<int64_t>(word);
  throw Error("DS_ARGUMENT", op, "a whole number", text(word));
}

inline void require_ok(napi_status status, const char* expected) {
  if (status != napi_ok) throw Error("DS_ARGUMENT", "addon", expected, "another type");
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
    return Napi::String(env, value).Utf8Value();
  } else if constexpr (std::is_same_v<T, Bytes>) {
    bool typed = false;
    require_ok(napi_is_typedarray(env, value, &typed), "a typed array");
    if (!typed) throw Error("DS_ARGUMENT", "addon", "a typed array", "another type");
    Napi::TypedArray array(env, value);
    auto* base = static_cast<char*>(array.ArrayBuffer().Data());
    return {base + array.ByteOffset(), array.ByteLength()};
  } else {
    static_assert(std::is_same_v<T, napi_value>, "add a conversion for this type");
    return value;
  }
}

inline napi_value to_js(napi_env env, double x) {
  napi_value out;
  napi_create_double(env, x, &out);
  return out;
}
inline napi_value to_js(napi_env env, bool x) { return Napi::Boolean::New(env, x); }
inline napi_value to_js(napi_env env, const std::string& x) { return Napi::String::New(env, x); }
inline napi_value to_js(napi_env, napi_value x) { return x; }

/// A JavaScript Error with code, op, expected, got and hint; needs an open handle scope.
inline Napi::Error error_value(napi_env env, const Error& error) {
  Napi::Error js = Napi::Error::New(env, error.what());
  Napi::Object value = js.Value();
  value.Set("code", error.code);
  value.Set("op", error.op);
  value.Set("expected", error.expected);
  value.Set("got", error.got);
  value.Set("hint", error.hint);
  return js;
}

/// Throws `error` into JavaScript.
inline void throw_js(napi_env env, const Error& error) {
  Napi::HandleScope scope(env);
  error_value(env, error).ThrowAsJavaScriptException();
}

template <auto F>
struct Trampoline;

/// Exported functions are `R f(Addon&, Args...)`; those that build objects return napi_value. Exceptions stop here.
template <class R, class... Args, R (*F)(Addon&, Args...)>
struct Trampoline<F> {
  static napi_value call(napi_env env, napi_callback_info info) {
    constexpr size_t n = sizeof...(Args);
    napi_value values[n + 1];
    size_t count = n;
    void* data = nullptr;
    napi_get_cb_info(env, info, &count, values, nullptr, &data);
    try {
      return invoke(env, *static_cast<Addon*>(data), values, std::index_sequence_for<Args...>{});
    } catch (const Error& error) {
      throw_js(env, static_cast<Addon*>(data)->failure->cause_of(error));
    } catch (const Napi::Error& error) {
      error.ThrowAsJavaScriptException();
    } catch (const std::exception& error) {
      throw_js(env, Error("DS_INTERNAL", "addon", "no failure", error.what()));
    }
    return nullptr;
  }

 private:
  template <size_t... I>
  static napi_value invoke(napi_env env, Addon& addon, napi_value* values, std::index_sequence<I...>) {
    if constexpr (std::is_void_v<R>) {
      F(addon, from_js<Args>(env, values[I])...);
      return nullptr;
    } else {
      return to_js(env, F(addon, from_js<Args>(env, values[I])...));
    }
  }
};

}  // namespace ds::addon
