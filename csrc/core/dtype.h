// Element types with their sizes and names, and the switch from a DType to a C++ type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "error.h"

namespace ds {

/// The order must match lib/runtime/dtype.ts. Only the CPU has f64, for gradient checks.
enum class DType : uint8_t { f32, f16, bf16, i32, i64, u8, boolean, f64 };
constexpr int kDTypes = 8;

constexpr size_t size_of(DType t) {
  constexpr size_t sizes[kDTypes] = {4, 2, 2, 4, 8, 1, 1, 8};
  return sizes[static_cast<int>(t)];
}

constexpr const char* name_of(DType t) {
  constexpr const char* names[kDTypes] = {"f32", "f16", "bf16", "i32", "i64", "u8", "bool", "f64"};
  return names[static_cast<int>(t)];
}

constexpr bool is_floating(DType t) {
  return t == DType::f32 || t == DType::f16 || t == DType::bf16 || t == DType::f64;
}

template <class T>
struct TypeTag {
  using type = T;
};

[[noreturn]] inline void unsupported(const char* op, DType t, const char* expected) {
  throw Error("DS_DTYPE", op, expected, name_of(t),
              "Cast the tensor first, for example with .to('f32').");
}

/// Calls f(TypeTag<T>{}), where T is the C++ type of `t` in `Types` (CpuTypes or CudaTypes). Throws
/// DS_DTYPE with the name `op` for dtypes that are not floating or that the back end lacks.
template <class Types, class F>
void dispatch_floating(const char* op, DType t, F&& f) {
  switch (t) {
    case DType::f32: return f(TypeTag<float>{});
    case DType::f16: return f(TypeTag<typename Types::f16>{});
    case DType::bf16: return f(TypeTag<typename Types::bf16>{});
    case DType::f64:
      if constexpr (Types::has_f64) return f(TypeTag<double>{});
      [[fallthrough]];
    default: unsupported(op, t, Types::has_f64 ? "f32, f16, bf16 or f64" : "f32, f16 or bf16");
  }
}

/// Like dispatch_floating() for every dtype. For booleans, T is bool.
template <class Types, class F>
void dispatch_all(const char* op, DType t, F&& f) {
  switch (t) {
    case DType::i32: return f(TypeTag<int32_t>{});
    case DType::i64: return f(TypeTag<int64_t>{});
    case DType::u8: return f(TypeTag<uint8_t>{});
    case DType::boolean: return f(TypeTag<bool>{});
    default: return dispatch_floating<Types>(op, t, static_cast<F&&>(f));
  }
}

/// Like dispatch_floating() for the dtypes of indices, i32 and i64.
template <class F>
void dispatch_index(const char* op, DType t, F&& f) {
  switch (t) {
    case DType::i32: return f(TypeTag<int32_t>{});
    case DType::i64: return f(TypeTag<int64_t>{});
    default: unsupported(op, t, "i32 or i64");
  }
}

}  // namespace ds
