// N consecutive elements as one value: wide loads and stores, and conversions.
#pragma once

#include <type_traits>

#include "cuda_context.h"

namespace ds::cuda {

/// N consecutive elements, aligned to their size, at most to 16 bytes.
template <class T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Vector {
  T v[N];
};

/// Number of elements in the widest load, 16 bytes.
template <class T>
constexpr int kPacket = 16 / sizeof(T);

template <int kBytes>
struct Word;
template <>
struct Word<1> {
  using type = uint8_t;
};
template <>
struct Word<2> {
  using type = uint16_t;
};
template <>
struct Word<4> {
  using type = uint32_t;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<16> {
  using type = uint4;
};
template <class T, int N>
using word_of = typename Word<(N * sizeof(T) < 16 ? N * sizeof(T) : 16)>::type;

/// Loads N elements. `p` must be aligned to their size, at most to 16 bytes.
template <int N, class T>
__device__ __forceinline__ Vector<T, N> load_vector(const T* p) {
  using W = word_of<T, N>;
  Vector<T, N> out;
#pragma unroll
  for (int i = 0; i < static_cast<int>(N * sizeof(T) / sizeof(W)); ++i)
    reinterpret_cast<W*>(&out)[i] = reinterpret_cast<const W*>(p)[i];
  return out;
}

/// Stores N elements, aligned as for load_vector().
template <class T, int N>
__device__ __forceinline__ void store_vector(T* p, const Vector<T, N>& x) {
  using W = word_of<T, N>;
#pragma unroll
  for (int i = 0; i < static_cast<int>(N * sizeof(T) / sizeof(W)); ++i)
    reinterpret_cast<W*>(p)[i] = reinterpret_cast<const W*>(&x)[i];
}

/// Like load_vector(), with a hint that the line will not be read again soon (evict first).
template <int N, class T>
__device__ __forceinline__ Vector<T, N> load_streaming(const T* p) {
  using W = word_of<T, N>;
  Vector<T, N> out;
#pragma unroll
  for (int i = 0; i < static_cast<int>(N * sizeof(T) / sizeof(W)); ++i)
    reinterpret_cast<W*>(&out)[i] = __ldcs(reinterpret_cast<const W*>(p) + i);
  return out;
}

/// Like store_vector(), with a hint that the line will not be read again soon.
template <class T, int N>
__device__ __forceinline__ void store_streaming(T* p, const Vector<T, N>& x) {
  using W = word_of<T, N>;
#pragma unroll
  for (int i = 0; i < static_cast<int>(N * sizeof(T) / sizeof(W)); ++i)
    __stcs(reinterpret_cast<W*>(p) + i, reinterpret_cast<const W*>(&x)[i]);
}

/// Returns true if vectors of N elements may be loaded at p + k N for all k.
template <int N, class T>
bool aligned_for(const T* p) {
  return reinterpret_cast<uintptr_t>(p) % (N * sizeof(T) < 16 ? N * sizeof(T) : 16) == 0;
}

template <class T>
constexpr bool is_integer = std::is_integral_v<T>;

/// The type in which an element type is accumulated: i64 for integers, otherwise f32.
template <class T>
using compute_t = std::conditional_t<is_integer<T>, int64_t, float>;

/// Converts an element to its compute type.
template <class T>
__device__ __forceinline__ compute_t<T> widen(T x) {
  if constexpr (is_integer<T>) return static_cast<int64_t>(x);
  else return to_float(x);
}

/// Converts a compute value to an element: floats round to nearest even, bool is x != 0. Float to
/// integer truncates with saturation to 64 bits; NaN gives 0.
template <class T, class From>
__device__ __forceinline__ T narrow(From x) {
  if constexpr (std::is_same_v<T, bool>) return x != From(0);
  else if constexpr (is_integer<T>) {
    if constexpr (is_integer<From>) return static_cast<T>(x);
    else return static_cast<T>(x == x ? static_cast<int64_t>(x) : 0);
  } else return from_float<T>(static_cast<float>(x));
}

}  // namespace ds::cuda
