// The running softmax of attention on tensor cores, in the register layout of mma accumulators.
// Source: Dao 2023 (FlashAttention-2), algorithm 1.
#pragma once

#include "../cuda/mma.cuh"

namespace ds::cuda {

/// A maximum may be exceeded by this many powers of two before accumulators are rescaled. The
/// result is the same up to rounding. After the first key blocks, rescaling is rare.
constexpr float kMaxLag = 8.f;

/// The running softmax of a warp. A thread has the rows lane / 4 and lane / 4 + 8 of each tile.
/// With kMayBeEmpty, a row may begin with hidden keys. Its maximum stays -infinity until it sees a
/// key.
template <int kTiles, int kD, bool kMayBeEmpty>
struct OnlineSoftmax {
  float out[kTiles][kD / 8][4] = {};
  float max[kTiles][2], sum[kTiles][2] = {};  // sum: of this thread's columns only

  __device__ OnlineSoftmax() {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) max[m][0] = max[m][1] = -INFINITY;
  }

  /// Raises the maxima to those of `scores` if needed, and rescales the sums. With kByRow, only the
  /// maxima of rows that need it change, so that the bits of a row do not depend on other rows.
  template <bool kByRow = false, int kColumns>
  __device__ __forceinline__ void update_max(const float (&scores)[kTiles][kColumns][4],
                                             float scale_log2) {
    float top[kTiles][2];
    bool lags = false;
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float t = max[m][half];
#pragma unroll
        for (int n = 0; n < kColumns; ++n)
          t = fmaxf(t, fmaxf(scores[m][n][half * 2], scores[m][n][half * 2 + 1]));
        t = fmaxf(t, __shfl_xor_sync(0xffffffffu, t, 1));
        t = fmaxf(t, __shfl_xor_sync(0xffffffffu, t, 2));
        const bool own = (t - max[m][half]) * scale_log2 > kMaxLag;
        lags |= own;
        top[m][half] = kByRow && !own ? max[m][half] : t;
      }
    if (!__any_sync(0xffffffffu, lags)) return;
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float lag = (max[m][half] - top[m][half]) * scale_log2;
        const float factor = kMayBeEmpty && top[m][half] == -INFINITY ? 1.f : fast_exp2(lag);
        max[m][half] = top[m][half];
        sum[m][half] *= factor;
#pragma unroll
        for (int n = 0; n < kD / 8; ++n) {
          out[m][n][half * 2] *= factor;
          out[m][n][half * 2 + 1] *= factor;
        }
      }
  }

  /// Replaces scores by exp(scale (scores - max)) and adds them to the sums.
  template <int kColumns>
  __device__ __forceinline__ void exponentiate(float (&scores)[kTiles][kColumns][4],
                                               float scale_log2) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const bool empty = kMayBeEmpty && max[m][half] == -INFINITY;
        const float base = empty ? 0.f : max[m][half] * scale_log2;
#pragma unroll
        for (int n = 0; n < kColumns; ++n)
#pragma unroll
          for (int e = half * 2; e < half * 2 + 2; ++e) {
            scores[m][n][e] = fast_exp2(fmaf(scores[m][n][e], scale_log2, -base));
            sum[m][half] += scores[m][n][e];
          }
      }
  }
};

}  // namespace ds::cuda
