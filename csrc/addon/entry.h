// Entries: C++ functions that JavaScript calls. A signature declares the arguments.
#pragma once

#include <node_api.h>

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "arguments.h"
#include "convert.h"

/// Marks the declaration of an entry. scripts/gen-addon.mjs generates entries.generated.h and the
/// TypeScript types from the marked signatures.
#define DS_ENTRY

namespace ds::addon {

/// An entry with its function and its names: see the specialization.
template <auto F, const char* const* kNames>
struct Entry;

/// Adapts `R f(Addon&, Args...)` to a Node-API callback. kNames holds the names of the entry and of
/// its arguments. It checks all arguments, from left to right, before it calls f. call() converts
/// C++ exceptions to JavaScript exceptions.
template <class R, class... Args, R (*F)(Addon&, Args...), const char* const* kNames>
struct Entry<F, kNames> {
  static napi_value call(napi_env env, napi_callback_info info) {
    size_t count = sizeof...(Args);
    napi_value values[sizeof...(Args) + 1];
    void* data = nullptr;
    if (napi_get_cb_info(env, info, &count, values, nullptr, &data) != napi_ok) return nullptr;
    Addon& addon = *static_cast<Addon*>(data);
    try {
      return invoke(addon, values, std::index_sequence_for<Args...>{});
    } catch (const Error& error) {
      throw_js(env, addon.failure->cause_of(error));
    } catch (const std::exception& error) {
      throw_js(env, unforeseen(kNames[0], error));
    }
    return nullptr;
  }

  /// Returns the entry's name and arguments as JSON.
  static std::string describe(Addon& addon) {
    std::string out = text(R"({"name":")", kNames[0], R"(","arguments":[)");
    [[maybe_unused]] size_t i = 0;
    [[maybe_unused]] const auto add = [&](const std::string& kind) {
      out += text(i ? "," : "", R"({"name":")", kNames[i + 1], R"(",)", kind, "}");
      ++i;
    };
    (add(Kind<Args>::describe(addon)), ...);
    return out + "]}";
  }

 private:
  template <size_t... I>
  static napi_value invoke(Addon& addon, [[maybe_unused]] napi_value* values,
                           std::index_sequence<I...>) {
    // Braces guarantee evaluation from left to right.
    std::tuple<Args...> read{Kind<Args>::read(addon, values[I], {kNames[0], kNames[I + 1]})...};
    const auto run = [&](Args&... args) -> R { return F(addon, std::move(args)...); };
    if constexpr (std::is_void_v<R>) {
      std::apply(run, read);
      return nullptr;
    } else {
      return to_js(addon.env, std::apply(run, read));
    }
  }
};

}  // namespace ds::addon
