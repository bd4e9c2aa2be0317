// Elements of a key-value pool: values of type T, or FP8 codes (e4m3).
#pragma once

#include "../cuda/vector.cuh"
#include "fp8.h"

namespace ds::cuda {

/// True if the elements P of a pool are codes of values T.
template <class T, class P>
constexpr bool kIsCoded = !std::is_same_v<T, P>;

/// Converts a value to an element of a pool.
template <class T, class P>
__device__ __forceinline__ P to_pool(T x) {
  if constexpr (kIsCoded<T, P>) return fp8_code<Fp8Format::e4m3>(to_float(x));
  else return x;
}

/// Converts an element of a pool to its value.
template <class T, class P>
__device__ __forceinline__ T from_pool(P x) {
  if constexpr (kIsCoded<T, P>) return from_float<T>(fp8_value(x, Fp8Format::e4m3));
  else return x;
}

/// Stores N values as elements of a pool.
template <class P, int N, class T>
__device__ __forceinline__ void store_to_pool(P* to, const Vector<T, N>& x) {
  Vector<P, N> out;
#pragma unroll
  for (int i = 0; i < N; ++i) out.v[i] = to_pool<T, P>(x.v[i]);
  store_vector(to, out);
}

/// Returns the values of 8 codes, which T represents exactly.
template <class T>
__device__ __forceinline__ Vector<T, 8> values_of(uint2 codes) {
  Vector<T, 8> out;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  const uint32_t words[2] = {codes.x, codes.y};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto pair = static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16));
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(pair));
    const __half2 values = *reinterpret_cast<const __half2*>(&halves);
    if constexpr (std::is_same_v<T, __half>) {
      out.v[2 * i] = __low2half(values);
      out.v[2 * i + 1] = __high2half(values);
    } else {
      out.v[2 * i] = from_float<T>(__low2float(values));
      out.v[2 * i + 1] = from_float<T>(__high2float(values));
    }
  }
#else
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t word = i < 4 ? codes.x : codes.y;
    out.v[i] = from_float<T>(fp8_value(static_cast<uint8_t>(word >> (i % 4 * 8)), Fp8Format::e4m3));
  }
#endif
  return out;
}

/// Loads eight elements of a pool, aligned to their size.
template <class T, class P>
__device__ __forceinline__ Vector<T, 8> load_from_pool(const P* p) {
  if constexpr (kIsCoded<T, P>) return values_of<T>(*reinterpret_cast<const uint2*>(p));
  else return load_vector<8>(p);
}

/// Calls `run` with a null pointer to the pool's element type.
template <class T, class Run>
void for_pool(const View& pool, Run run) {
  if (pool.dtype == DType::u8) run(static_cast<uint8_t*>(nullptr));
  else run(static_cast<T*>(nullptr));
}

}  // namespace ds::cuda
