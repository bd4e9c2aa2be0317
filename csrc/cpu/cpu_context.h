// The context that the CPU body of an op receives, and the CPU's element types.
#pragma once

#include "../core/thread_pool.h"
#include "../core/view.h"
#include "float16.h"

namespace ds::cpu {

/// The CPU's types for the dtype switch of core/dtype.h.
struct CpuTypes {
  using f16 = ds::cpu::f16;
  using bf16 = ds::cpu::bf16;
  static constexpr bool has_f64 = true;
};

/// The type in which an element type is accumulated: f64 for f64, i64 for integers, otherwise f32.
template <class T>
struct Compute {
  using type = float;
};
template <>
struct Compute<double> {
  using type = double;
};
template <>
struct Compute<int32_t> {
  using type = int64_t;
};
template <>
struct Compute<int64_t> {
  using type = int64_t;
};
template <>
struct Compute<uint8_t> {
  using type = int64_t;
};
template <>
struct Compute<bool> {
  using type = int64_t;
};
template <class T>
using compute_t = typename Compute<T>::type;

/// The context of an op body: the pool on which it runs.
struct CpuContext {
  ThreadPool& pool;
};

/// Calls f with the CPU's type of a floating dtype. Throws DS_DTYPE for other dtypes.
template <class F>
void for_floating(const char* op, DType t, F&& f) {
  dispatch_floating<CpuTypes>(op, t, f);
}
/// Calls f with the CPU's type of any dtype.
template <class F>
void for_all(const char* op, DType t, F&& f) {
  dispatch_all<CpuTypes>(op, t, f);
}

}  // namespace ds::cpu
