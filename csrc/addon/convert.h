// Converts results and errors to JavaScript values.
#pragma once

#include <node_api.h>

#include <string>

#include "addon.h"

namespace ds::addon {

/// The return type of an asynchronous entry that resolves with a T: see start_task.
template <class T>
struct Promise {
  napi_value value;
};

/// A JavaScript object with the fields of T in types/addon.d.ts.
template <class T>
struct Object {
  napi_value value;
};

// If the environment is ending (a terminated worker), these calls fail and return null, because no
// JavaScript code can use the result. They do not throw: C code calls them.

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

/// Sets a property. Does nothing if the environment is ending.
template <class T>
void set(napi_env env, napi_value object, const char* name, const T& value) {
  const napi_value converted = to_js(env, value);
  if (object && converted) napi_set_named_property(env, object, name, converted);
}

/// Returns a JavaScript Error with code, op, expected, got and hint, or null if the environment is
/// ending. Needs an open handle scope.
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

/// Converts an exception other than Error: host memory was exhausted, or the code has a defect.
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

}  // namespace ds::addon
