// Cross-entropy on the GPU: a block per row, one pass over the logits each way.
#include "cross_entropy.h"

#include "../cuda/block_reduce.cuh"
#include "../cuda/vector.cuh"

namespace ds::cuda {
namespace {

constexpr int kThreads = 512, kUnroll = 4;
constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

/// 2^x in one instruction; results below 2^-126 become 0.
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// A running maximum and the sum of e^(x - max) so far.
struct OnlineSum {
  float max = -INFINITY, sum = 0;

  /// Rescales to a maximum that covers `other`.
  __device__ __forceinline__ void raise(float other) {
    if (!(other > max)) return;
    sum *= power_of_two((max - other) * kLog2e);
    max = other;
  }
  /// What add() needs of the present maximum; while there is none, every x is -inf or NaN.
  __device__ __forceinline__ float shift() const { return max == -INFINITY ? 0.0f : -max * kLog2e; }
  __device__ __forceinline__ void add(float x, float shift) {
    sum += power_of_two(fmaf(x, kLog2e, shift));
  }
};

/// Elements of a row before the first 16-byte boundary, at most `columns`.
template <class T>
__device__ __forceinline__ int64_t unaligned_head(const T* row, int64_t columns) {
  const int64_t head = (16 - reinterpret_cast<uintptr_t>(row) % 16) % 16 / sizeof(T);
  return head < columns ? head : columns;
}

template <class T>
__device__ __forceinline__ OnlineSum row_sum(const T* row, int64_t columns) {
  constexpr int N = kPacket<T>;
  const int64_t head = unaligned_head(row, columns), packets = (columns - head) / N;
  OnlineSum online;
  for (int64_t first = threadIdx.x; first < packets; first += kThreads * kUnroll) {
    Vector<T, N> x[kUnroll];
    float local = -INFINITY;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t p = first + u * kThreads;
      if (p < packets) x[u] = load_vector<N>(row + head + p * N);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (first + u * kThreads < packets) local = fmaxf(local, to_float(x[u].v[i]));
    online.raise(local);
    const float shift = online.shift();
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (first + u * kThreads < packets) online.add(to_float(x[u].v[i]), shift);
  }
  const int64_t tail = head + packets * N, odd = head + columns - tail;
  for (int64_t i = threadIdx.x; i < odd; i += kThreads) {
    const float x = to_float(row[i < head ? i : tail + i - head]);
    online.raise(x);
    online.add(x, online.shift());
  }
  return online;
}

/// Rows run from the last to the first: the GEMM before has just written the last.
template <class T, class I>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_kernel(const T* logits, const I* target, float* losses, float* lse,
                         int64_t columns, int64_t row_stride, int64_t ignore_index) {
  const int64_t n = gridDim.x - 1 - blockIdx.x, label = target[n];
  if (label == ignore_index) {
    if (threadIdx.x == 0) losses[n] = lse[n] = 0;
    return;
  }
  const T* row = logits + n * row_stride;
  OnlineSum online = row_sum(row, columns);
  const float max = block_reduce(online.max, Max{});
  online.raise(max);
  const float total = block_sum(online.sum);
  if (threadIdx.x != 0) return;
  const float value = max + log2f(total) * kLn2;
  lse[n] = value;
  losses[n] = label >= 0 && label < columns ? value - to_float(row[label]) : NAN;
}

/// CrossEntropyBackward as the kernel sees it; out may be logits itself.
template <class T, class I>
struct Gradient {
  const T* logits;
  const I* target;
  const float *lse, *scale;
  T* out;
  int64_t columns, row_stride, out_stride, ignore_index;
};

template <class T, class I>
__global__ void __launch_bounds__(kThreads) cross_entropy_backward_kernel(Gradient<T, I> g) {
  constexpr int N = kPacket<T>;
  const int64_t n = blockIdx.x, label = g.target[n], columns = g.columns;
  const T* row = g.logits + n * g.row_stride;
  T* out = g.out + n * g.out_stride;
  const bool ignored = label == g.ignore_index, bad = !ignored && (label < 0 || label >= columns);
  const float scale = ignored ? 0.0f : bad ? NAN : g.scale[0];
  const float shift = -g.lse[n] * kLog2e;
  const auto gradient = [&](float x, int64_t column) {
    const float p = power_of_two(fmaf(x, kLog2e, shift));
    return from_float<T>(ignored ? 0.0f : (column == label ? p - 1.0f : p) * scale);
  };
  const int64_t head = unaligned_head(row, columns);
  const bool vectors = reinterpret_cast<uintptr_t>(out + head) % 16 == 0;
  const int64_t packets = vectors ? (columns - head) / N : 0;
  for (int64_t first = threadIdx.x; first < packets; first += kThreads * kUnroll) {
    Vector<T, N> x[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (first + u * kThreads < packets)
        x[u] = load_streaming<N>(row + head + (first + u * kThreads) * N);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = head + (first + u * kThreads) * N;
      if (first + u * kThreads >= packets) break;
#pragma unroll
      for (int i = 0; i < N; ++i) x[u].v[i] = gradient(to_float(x[u].v[i]), at + i);
      store_vector(out + at, x[u]);
    }
  }
  const int64_t tail = head + packets * N, odd = head + columns - tail;
  for (int64_t i = threadIdx.x; i < odd; i += kThreads) {
    const int64_t column = i < head ? i : tail + i - head;
    out[column] = gradient(to_float(row[column]), column);
  }
}

}  // namespace

void run(const CrossEntropy& op, CudaContext& ctx) {
  constexpr const char* kOp = "cross_entropy";
  const int64_t n = op.logits.shape[0], columns = op.logits.shape[1];
  if (n == 0) return;
  for_floating(kOp, op.logits.dtype, [&](auto tag) {
    dispatch_index(kOp, op.target.dtype, [&](auto index) {
      using T = typename decltype(tag)::type;
      using I = typename decltype(index)::type;
      cross_entropy_kernel<T, I><<<static_cast<unsigned>(n), kThreads, 0, ctx.stream>>>(
          op.logits.as<T>(), op.target.as<I>(), op.losses.as<float>(), op.lse.as<float>(), columns,
          op.logits.strides[0], op.ignore_index);
      DS_CUDA_LAUNCHED(kOp);
    });
  });
}

void run(const CrossEntropyBackward& op, CudaContext& ctx) {
  constexpr const char* kOp = "cross_entropy_backward";
  const int64_t n = op.logits.shape[0], columns = op.logits.shape[1];
  if (n == 0 || columns == 0) return;
  for_floating(kOp, op.logits.dtype, [&](auto tag) {
    dispatch_index(kOp, op.target.dtype, [&](auto index) {
      using T = typename decltype(tag)::type;
      using I = typename decltype(index)::type;
      const Gradient<T, I> g = {op.logits.as<T>(),    op.target.as<I>(),     op.lse.as<float>(),
                                op.scale.as<float>(), op.dlogits.as<T>(),    columns,
                                op.logits.strides[0], op.dlogits.strides[0], op.ignore_index};
      cross_entropy_backward_kernel<<<static_cast<unsigned>(n), kThreads, 0, ctx.stream>>>(g);
      DS_CUDA_LAUNCHED(kOp);
    });
  });
}

}  // namespace ds::cuda
