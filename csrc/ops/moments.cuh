// AdamW's moments in the registers of a GPU thread, for both storage dtypes.
#pragma once

#include "../core/bf16_moments.h"
#include "../cuda/vector.cuh"

namespace ds::cuda {

/// Converts moments stored as bits of bf16 to f32.
template <int N>
__device__ __forceinline__ Vector<float, N> widen_moment(const Vector<uint16_t, N>& kept) {
  Vector<float, N> out;
#pragma unroll
  for (int i = 0; i < N; ++i) out.v[i] = float_of_bf16(kept.v[i]);
  return out;
}

template <int N>
__device__ __forceinline__ Vector<float, N> widen_moment(const Vector<float, N>& kept) {
  return kept;
}

/// Rounds m and v to bf16 after an update of the masters `p`.
template <int N>
struct RoundedMoments {
  Vector<uint16_t, N> m, v;

  __device__ __forceinline__ RoundedMoments(const Vector<float, N>& p,
                                            const Vector<float, N>& new_m,
                                            const Vector<float, N>& new_v) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      m.v[i] = round_m(new_m.v[i]);
      v.v[i] = round_v(new_v.v[i], p.v[i], new_m.v[i]);
    }
  }
};

}  // namespace ds::cuda
