// Cross-entropy on the GPU, a block per row. Forward and backward read the logits once.
#include "cross_entropy.h"

#include <algorithm>

#include "../cuda/block_reduce.cuh"
#include "../cuda/vector.cuh"
#include "cross_entropy_both.cuh"
#include "cross_entropy_row.cuh"

namespace ds::cuda {
namespace {

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
  for (int64_t first = threadIdx.x; first < packets; first += kLossThreads * kLossUnroll) {
    Vector<T, N> x[kLossUnroll];
    float local = -INFINITY;
#pragma unroll
    for (int u = 0; u < kLossUnroll; ++u) {
      const int64_t p = first + u * kLossThreads;
      if (p < packets) x[u] = load_vector<N>(row + head + p * N);
    }
#pragma unroll
    for (int u = 0; u < kLossUnroll; ++u)
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (first + u * kLossThreads < packets) local = fmaxf(local, to_float(x[u].v[i]));
    online.raise(local);
    const float shift = online.shift();
#pragma unroll
    for (int u = 0; u < kLossUnroll; ++u)
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (first + u * kLossThreads < packets) {
          online.add(to_float(x[u].v[i]), shift);
          rest.add(to_float(x[u].v[i]));
        }
    if (!rest.may_be_beaten(local)) continue;
#pragma unroll
    for (int u = 0; u < kLossUnroll; ++u)
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (first + u * kLossThreads < packets)
          rest.compare(to_float(x[u].v[i]), head + (first + u * kLossThreads) * N + i);
  }
  const int64_t tail = head + packets * N, odd = head + columns - tail;
  for (int64_t i = threadIdx.x; i < odd; i += kLossThreads) {
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

/// Rows run from the last to the first, because the GEMM before has just written the last rows to
/// L2.
template <class T, class I>
__global__ void __launch_bounds__(kLossThreads) cross_entropy_kernel(Loss<T, I> op) {
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
__global__ void __launch_bounds__(kLossThreads) cross_entropy_whole_kernel(Loss<T, I> op) {
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

/// Writes the gradient of a row of logits. A block per row.
template <class T, class I>
__global__ void __launch_bounds__(kLossThreads) cross_entropy_backward_kernel(Gradient<T, I> g) {
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
  for (int64_t first = threadIdx.x; first < packets; first += kLossThreads * kLossUnroll) {
    Vector<T, N> x[kLossUnroll];
#pragma unroll
    for (int u = 0; u < kLossUnroll; ++u)
      if (first + u * kLossThreads < packets)
        x[u] = load_streaming<N>(row + head + (first + u * kLossThreads) * N);
#pragma unroll
    for (int u = 0; u < kLossUnroll; ++u) {
      const int64_t at = head + (first + u * kLossThreads) * N;
      if (first + u * kLossThreads >= packets) break;
#pragma unroll
      for (int i = 0; i < N; ++i) x[u].v[i] = gradient(to_float(x[u].v[i]), at + i);
      store_vector(out + at, x[u]);
    }
  }
  const int64_t tail = head + packets * N, odd = head + columns - tail;
  for (int64_t i = threadIdx.x; i < odd; i += kLossThreads) {
    const int64_t column = i < head ? i : tail + i - head;
    out[column] = gradient(to_float(row[column]), column);
  }
}

/// x *= factor / divisor.
template <int N, class T>
__global__ void __launch_bounds__(kLossThreads)
    rescale_kernel(T* x, int64_t row_stride, int64_t packets, int64_t rows, const float* factor,
                   const float* divisor) {
  if (factor[0] == divisor[0]) return;
  const float ratio = factor[0] / divisor[0];
  for (int64_t n = blockIdx.x; n < rows; n += gridDim.x) {
    for (int64_t p = threadIdx.x; p < packets; p += kLossThreads) {
      T* const at = x + n * row_stride + p * N;
      Vector<T, N> v = load_vector<N>(at);
#pragma unroll
      for (int i = 0; i < N; ++i) v.v[i] = from_float<T>(to_float(v.v[i]) * ratio);
      store_vector(at, v);
    }
  }
}

/// Launches the kernel of both passes. Returns false if rows do not fit, or if the GPU has too
/// little shared memory.
template <class T, class I>
bool launch_both(const CrossEntropyBoth& op, CudaContext& ctx) {
  constexpr int N = kPacket<T>;
  const int64_t rows = op.logits.shape[0], columns = op.logits.shape[1];
  const auto even = [](const View& v) { return v.shape[0] < 2 || v.strides[0] % N == 0; };
  if (sizeof(T) != 2 || op.smoothing > 0 || columns % N != 0 || columns / N > kHeldPackets ||
      !even(op.logits) || !even(op.dlogits) || !aligned_for<N>(op.logits.as<T>()) ||
      !aligned_for<N>(op.dlogits.as<T>()))
    return false;
  constexpr const char* kOp = "cross_entropy_both";
  int device = 0, most = 0;
  DS_CUDA(cudaGetDevice(&device), kOp);
  DS_CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), kOp);
  constexpr int kScratch = 1024;  // of block_reduce()
  if (most < kHeldBytes + kScratch) return false;
  const auto kernel = cross_entropy_both_kernel<T, I>;
  DS_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kHeldBytes),
          kOp);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(rows, ctx.sm_count));
  kernel<<<blocks, kLossThreads, kHeldBytes, ctx.stream>>>(
      loss_of<T, I>(forward_of(op)), gradient_of<T, I>(backward_of(op)), rows);
  DS_CUDA_LAUNCHED(kOp);
  return true;
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
      const Loss<T, I> loss = loss_of<T, I>(op);
      const auto blocks = static_cast<unsigned>(n);
      if (op.correct || op.smoothing > 0)
        cross_entropy_whole_kernel<<<blocks, kLossThreads, 0, ctx.stream>>>(loss);
      else cross_entropy_kernel<<<blocks, kLossThreads, 0, ctx.stream>>>(loss);
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
      cross_entropy_backward_kernel<<<static_cast<unsigned>(n), kLossThreads, 0, ctx.stream>>>(
          gradient_of<T, I>(op));
      DS_CUDA_LAUNCHED(kOp);
    });
  });
}

void run(const CrossEntropyBoth& op, CudaContext& ctx) {
  constexpr const char* kOp = "cross_entropy_both";
  if (op.logits.shape[0] == 0) return;
  bool done = false;
  for_floating(kOp, op.logits.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (sizeof(T) == 2)
      dispatch_index(kOp, op.target.dtype, [&](auto index) {
        done = launch_both<T, typename decltype(index)::type>(op, ctx);
      });
  });
  if (done) return;
  run(forward_of(op), ctx);
  run(backward_of(op), ctx);
}

void run(const Rescale& op, CudaContext& ctx) {
  constexpr const char* kOp = "rescale";
  constexpr int64_t kBlocksPerSm = 4;
  const int64_t rows = op.x.shape[0], columns = op.x.shape[1];
  if (rows == 0 || columns == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(rows, kBlocksPerSm * ctx.sm_count));
  for_floating(kOp, op.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int N = kPacket<T>;
    T* const x = op.x.as<T>();
    const int64_t stride = op.x.strides[0];
    const bool vectors = columns % N == 0 && stride % N == 0 && aligned_for<N>(x);
    const auto kernel = vectors ? rescale_kernel<N, T> : rescale_kernel<1, T>;
    kernel<<<blocks, kLossThreads, 0, ctx.stream>>>(x, stride, columns / (vectors ? N : 1), rows,
                                                    op.factor.as<float>(), op.divisor.as<float>());
    DS_CUDA_LAUNCHED(kOp);
  });
}

}  // namespace ds::cuda
