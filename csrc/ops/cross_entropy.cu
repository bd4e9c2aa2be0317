// Cross-entropy on the GPU, a block per row. Forward and backward read the logits once.
#include "cross_entropy.h"

#include "../cuda/block_reduce.cuh"
#include "../cuda/vector.cuh"

namespace ds::cuda {
namespace {

constexpr int kThreads = 512, kUnroll = 4;
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

/// No statistics besides the sum of exponentials, for a loss without options.
struct NothingElse {
  __device__ __forceinline__ void add(float) {}
  __device__ __forceinline__ bool may_be_beaten(float) const { return false; }
  __device__ __forceinline__ void compare(float, int64_t) {}
};

/// Statistics for smoothing and accuracy: the sum of the logits, and whether another class beats
/// the target. A larger logit beats it; an equal one does so at a smaller column.
struct Whole {
  float own;
  int64_t label;
  float sum = 0;
  bool is_beaten = false;

  __device__ __forceinline__ void add(float x) { sum += x; }
  /// Returns true if one of several logits with maximum `largest` may change the result. Rarely
  /// true.
  __device__ __forceinline__ bool may_be_beaten(float largest) const {
    return !is_beaten && largest >= own;
  }
  __device__ __forceinline__ void compare(float x, int64_t column) {
    is_beaten |= x > own || (x == own && column < label);
  }
};

/// Returns the number of elements before the first 16-byte boundary, at most `columns`.
template <class T>
__device__ __forceinline__ int64_t unaligned_head(const T* row, int64_t columns) {
  const int64_t head = (16 - reinterpret_cast<uintptr_t>(row) % 16) % 16 / sizeof(T);
  return head < columns ? head : columns;
}

/// Returns the sum of exponentials of the thread's logits in a row. Passes each logit to `rest`.
template <class T, class Rest>
__device__ __forceinline__ OnlineSum row_sum(const T* row, int64_t columns, Rest& rest) {
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
        if (first + u * kThreads < packets) {
          online.add(to_float(x[u].v[i]), shift);
          rest.add(to_float(x[u].v[i]));
        }
    if (!rest.may_be_beaten(local)) continue;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (first + u * kThreads < packets)
          rest.compare(to_float(x[u].v[i]), head + (first + u * kThreads) * N + i);
  }
  const int64_t tail = head + packets * N, odd = head + columns - tail;
  for (int64_t i = threadIdx.x; i < odd; i += kThreads) {
    const int64_t column = i < head ? i : tail + i - head;
    const float x = to_float(row[column]);
    online.raise(x);
    online.add(x, online.shift());
    rest.add(x);
    rest.compare(x, column);
  }
  return online;
}

/// Returns the log-sum-exp of the row in thread 0.
template <class T, class Rest>
__device__ __forceinline__ float log_sum_exp(const T* row, int64_t columns, Rest& rest) {
  OnlineSum online = row_sum(row, columns, rest);
  const float max = block_reduce(online.max, Max{});
  online.raise(max);
  const float total = block_sum(online.sum);
  return max + log2f(total) * kLn2;
}

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

/// Rows run from the last to the first, because the GEMM before has just written the last rows to
/// L2.
template <class T, class I>
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(Loss<T, I> op) {
  const int64_t n = gridDim.x - 1 - blockIdx.x, label = op.target[n];
  if (label == op.ignore_index) {
    if (threadIdx.x == 0) op.losses[n] = op.lse[n] = 0;
    return;
  }
  const T* row = op.logits + n * op.row_stride;
  NothingElse rest;
  const float value = log_sum_exp(row, op.columns, rest);
  if (threadIdx.x != 0) return;
  op.lse[n] = value;
  const float own = op.is_here(label) ? to_float(row[label - op.first]) : 0.0f;
  op.losses[n] = op.is_class(label) ? value - own : NAN;
}

/// The forward with smoothing, or with `correct`.
template <class T, class I>
__global__ void __launch_bounds__(kThreads) cross_entropy_whole_kernel(Loss<T, I> op) {
  const int64_t n = gridDim.x - 1 - blockIdx.x, label = op.target[n];
  if (label == op.ignore_index) {
    if (threadIdx.x != 0) return;
    op.losses[n] = op.lse[n] = 0;
    if (op.correct) op.correct[n] = 0;
    return;
  }
  const T* row = op.logits + n * op.row_stride;
  const bool is_here = op.is_here(label);
  const float own = is_here ? to_float(row[label - op.first]) : op.is_class(label) ? 0.0f : NAN;
  Whole whole = {own, label - op.first};
  const float value = log_sum_exp(row, op.columns, whole);
  const float sum = block_sum(whole.sum);
  const bool is_beaten = block_reduce(whole.is_beaten ? 1.0f : 0.0f, Max{}) > 0;
  if (threadIdx.x != 0) return;
  float loss = value - whole.own;
  if (op.smoothing > 0) loss += op.smoothing * (whole.own - sum / static_cast<float>(op.classes));
  op.lse[n] = value;
  op.losses[n] = loss;
  if (op.correct) op.correct[n] = is_here && value == value && !is_beaten;
}

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

/// Writes the gradient of a row of logits. A block per row.
template <class T, class I>
__global__ void __launch_bounds__(kThreads) cross_entropy_backward_kernel(Gradient<T, I> g) {
  constexpr int N = kPacket<T>;
  const int64_t n = blockIdx.x, label = g.target[n], columns = g.columns;
  const T* row = g.logits + n * g.row_stride;
  T* out = g.out + n * g.out_stride;
  const bool ignored = label == g.ignore_index, bad = !ignored && (label < 0 || label >= g.classes);
  const float scale = ignored ? 0.0f : bad ? NAN : g.scale[0];
  const float shift = -g.lse[n] * kLog2e;
  const int64_t own_column = label - g.first;
  const auto gradient = [&](float x, int64_t column) {
    const float p = power_of_two(fmaf(x, kLog2e, shift));
    return from_float<T>(ignored ? 0.0f : (p - (column == own_column ? g.own : g.even)) * scale);
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
      int64_t* const correct = op.correct ? op.correct.as<int64_t>() : nullptr;
      const Loss<T, I> loss = {op.logits.as<T>(),
                               op.target.as<I>(),
                               op.losses.as<float>(),
                               op.lse.as<float>(),
                               correct,
                               static_cast<float>(op.smoothing),
                               columns,
                               op.logits.strides[0],
                               op.ignore_index,
                               op.first,
                               all_classes(op)};
      const auto blocks = static_cast<unsigned>(n);
      if (correct || op.smoothing > 0)
        cross_entropy_whole_kernel<<<blocks, kThreads, 0, ctx.stream>>>(loss);
      else cross_entropy_kernel<<<blocks, kThreads, 0, ctx.stream>>>(loss);
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
      const double even = op.smoothing / static_cast<double>(all_classes(op));
      const Gradient<T, I> g = {
          op.logits.as<T>(),        op.target.as<I>(),
          op.lse.as<float>(),       op.scale.as<float>(),
          op.dlogits.as<T>(),       static_cast<float>(1 - op.smoothing + even),
          static_cast<float>(even), columns,
          op.logits.strides[0],     op.dlogits.strides[0],
          op.ignore_index,          op.first,
          all_classes(op)};
      cross_entropy_backward_kernel<<<static_cast<unsigned>(n), kThreads, 0, ctx.stream>>>(g);
      DS_CUDA_LAUNCHED(kOp);
    });
  });
}

}  // namespace ds::cuda
