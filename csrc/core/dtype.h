// Element types, their sizes and names, and the library's one dtype switch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "error.h"

namespace ds {

/// Order is shared with lib/runtime/dtype.ts; f64 exists on the CPU only, for gradient checks.
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

/// The dtype switch: calls f(TypeTag<T>{}) with the type that `Types` assigns to t. `Types` is the
/// back end's mapping (CpuTypes or CudaTypes); a type it maps to void is refused with op and name.
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

/// The same for every dtype; bool is a separate type with the values 0 and 1.
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

/// Index tensors: i32 or i64.
template <class F>
void dispatch_index(const char* op, DType t, F&& f) {
  switch (t) {
    case DType::i32: return f(TypeTag<int32_t>{});
    case DType::i64: return f(TypeTag<int64_t>{});
    default: unsupported(op, t, "i32 or i64");
  }
}

}  // namespace ds
