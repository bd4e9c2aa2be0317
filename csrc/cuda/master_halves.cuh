// Loads and stores eight consecutive master weights, split as in core/master_halves.h, per thread.
#pragma once

#include "../core/master_halves.h"
#include "vector.cuh"

namespace ds::cuda {

constexpr int kEight = 8;

/// Pointers to split master weights: bf16 weights, lower bits, and one tie bit per weight.
struct Halves {
  uint16_t* high;
  uint16_t* low;
  uint8_t* ties;

  template <class Op>
  static Halves of(const Op& op) {
    return {op.high.template as<uint16_t>(), op.low.template as<uint16_t>(),
            op.ties.template as<uint8_t>()};
  }
};

/// Loads eight values from `p`. Lanes from `valid` on are 0. If `whole`, all eight are valid, and
/// wide loads are used.
template <class T>
__device__ __forceinline__ Vector<T, kEight> load_eight(const T* p, bool whole, int64_t valid) {
  if (whole) return load_streaming<kEight>(p);
  Vector<T, kEight> out = {};
#pragma unroll
  for (int i = 0; i < kEight; ++i)
    if (i < valid) out.v[i] = p[i];
  return out;
}

/// Stores the first `valid` of eight values at `p`. If `whole`, all eight, by one wide store.
template <class T>
__device__ __forceinline__ void store_eight(T* p, const Vector<T, kEight>& x, bool whole,
                                            int64_t valid) {
  if (whole) return store_streaming(p, x);
#pragma unroll
  for (int i = 0; i < kEight; ++i)
    if (i < valid) p[i] = x.v[i];
}

/// Returns the f32 master weights `at` to `at` + 8, as load_eight does. `at` is a multiple of 8.
__device__ __forceinline__ Vector<float, kEight> join_eight(const Halves& h, int64_t at, bool whole,
                                                            int64_t valid) {
  const auto high = load_eight(h.high + at, whole, valid);
  const auto low = load_eight(h.low + at, whole, valid);
  const unsigned ties = h.ties[at / 8];
  Vector<float, kEight> out;
#pragma unroll
  for (int i = 0; i < kEight; ++i)
    out.v[i] = __uint_as_float(join_master({high.v[i], low.v[i], (ties >> i & 1u) != 0}));
  return out;
}

/// Splits x and stores the first `valid` master weights from `at` on. `at` is a multiple of 8.
__device__ __forceinline__ void split_eight(const Halves& h, const Vector<float, kEight>& x,
                                            int64_t at, bool whole, int64_t valid) {
  Vector<uint16_t, kEight> high, low;
  unsigned ties = 0;
#pragma unroll
  for (int i = 0; i < kEight; ++i) {
    const MasterHalves one = split_master(__float_as_uint(x.v[i]));
    high.v[i] = one.high;
    low.v[i] = one.low;
    if (i < valid && one.tie) ties |= 1u << i;
  }
  store_eight(h.high + at, high, whole, valid);
  store_eight(h.low + at, low, whole, valid);
  h.ties[at / 8] = static_cast<uint8_t>(ties);
}

/// Returns true if load_eight() may use wide loads at multiples of 8.
inline bool aligned_for_eight(const Halves& h) {
  return aligned_for<kEight>(h.high) && aligned_for<kEight>(h.low);
}

}  // namespace ds::cuda
