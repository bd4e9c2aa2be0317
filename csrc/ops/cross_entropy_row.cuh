// Shared by the cross-entropy kernels: sums of exponentials, and the arguments of both passes.
#pragma once

#include "../cuda/vector.cuh"
#include "cross_entropy.h"

namespace ds::cuda {

constexpr int kLossThreads = 512, kLossUnroll = 4;
constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

/// Returns 2^x by one instruction. Results below 2^-126 become 0.
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// A running maximum, and the sum of e^(x - max).
struct OnlineSum {
  float max = -INFINITY, sum = 0;

  /// Raises the maximum to at least `other` and rescales the sum.
  __device__ __forceinline__ void raise(float other) {
    if (!(other > max)) return;
    sum *= power_of_two((max - other) * kLog2e);
    max = other;
  }
  /// Returns the shift that add() takes. It is 0 while there is no maximum, because all x were
  /// -infinity or NaN.
  __device__ __forceinline__ float shift() const { return max == -INFINITY ? 0.0f : -max * kLog2e; }
  __device__ __forceinline__ void add(float x, float shift) {
    sum += power_of_two(fmaf(x, kLog2e, shift));
  }
};

/// Arguments of the CrossEntropy kernels.
template <class T, class I>
struct Loss {
  const T* logits;
  const I* target;
  float *losses, *lse;
  int64_t* correct;  // or null
  float smoothing;
  int64_t columns, row_stride, ignore_index;
  int64_t first, classes;

  /// Returns true if `label` is a class. is_here() returns true if this rank has its column.
  __device__ __forceinline__ bool is_class(int64_t label) const {
    return label >= 0 && label < classes;
  }
  __device__ __forceinline__ bool is_here(int64_t label) const {
    return label >= first && label < first + columns;
  }
};

/// Arguments of the backward kernel. `out` may be `logits`.
template <class T, class I>
struct Gradient {
  const T* logits;
  const I* target;
  const float *lse, *scale;
  T* out;
  float own, even;  // the target's probability at the label, and elsewhere
  int64_t columns, row_stride, out_stride, ignore_index;
  int64_t first, classes;
};

template <class T, class I>
Loss<T, I> loss_of(const CrossEntropy& op) {
  return {op.logits.as<T>(),
          op.target.as<I>(),
          op.losses.as<float>(),
          op.lse.as<float>(),
          op.correct ? op.correct.as<int64_t>() : nullptr,
          static_cast<float>(op.smoothing),
          op.logits.shape[1],
          op.logits.strides[0],
          op.ignore_index,
          op.first,
          all_classes(op)};
}

template <class T, class I>
Gradient<T, I> gradient_of(const CrossEntropyBackward& op) {
  const double even = op.smoothing / static_cast<double>(all_classes(op));
  return {op.logits.as<T>(),        op.target.as<I>(),  op.lse.as<float>(),
          op.scale.as<float>(),     op.dlogits.as<T>(), static_cast<float>(1 - op.smoothing + even),
          static_cast<float>(even), op.logits.shape[1], op.logits.strides[0],
          op.dlogits.strides[0],    op.ignore_index,    op.first,
          all_classes(op)};
}

}  // namespace ds::cuda
