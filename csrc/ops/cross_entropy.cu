// Cross-entropy on the GPU: a block per row. Forward and backward each read the logits once.
#include "cross_entropy.h"

#include <algorithm>

#include "../cuda/dependent_launch.cuh"
#include "cross_entropy_rows.cuh"

namespace ds::cuda {
namespace {

constexpr int kThreads = 512, kGradientThreads = 384;

/// log sum exp of the row.
template <class T, class Rest>
__device__ __forceinline__ float log_sum_exp(const T* row, int64_t columns, Rest& rest) {
  OnlineSum online = row_sum<kThreads>(row, columns, rest, NotKept{});
  const float max = block_reduce(online.max, Max{});
  online.raise(max);
  const float total = block_sum(online.sum);
  return max + log2f(total) * kLn2;
}

/// CrossEntropy as the kernels see it.
template <class T, class I>
struct Loss {
  const T* logits;
  const I* target;
  float *losses, *lse;
  int64_t* correct;  // or null
  float smoothing;
  int64_t columns, row_stride, ignore_index;
  int64_t first, classes;

  /// Returns whether `label` is a class, and whether this rank has its column.
  __device__ __forceinline__ bool is_class(int64_t label) const {
    return label >= 0 && label < classes;
  }
  __device__ __forceinline__ bool is_here(int64_t label) const {
    return label >= first && label < first + columns;
  }
};

/// Rows run from the last to the first: the previous GEMM has just written the last rows, so they
/// are in L2.
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

/// With smoothing, or with `correct`.
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
  Whole whole{own, label - op.first};
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

/// CrossEntropyBackward as the kernel sees it; out may be logits itself.
template <class T, class I>
struct Gradient {
  const T* logits;
  const I* target;
  const float *lse, *scale;
  T* out;
  float own, even;  // the target's probability at the label, and at the other classes
  int64_t columns, row_stride, out_stride, ignore_index;
  int64_t first, classes;
};

template <class T, class I>
__global__ void __launch_bounds__(kThreads) cross_entropy_backward_kernel(Gradient<T, I> g) {
  constexpr int N = kPacket<T>;
  const int64_t n = blockIdx.x, label = g.target[n];
  const bool ignored = label == g.ignore_index, bad = label < 0 || label >= g.classes;
  const RowGradient gradient = {-g.lse[n] * kLog2e,     g.own,           g.even,
                                bad ? NAN : g.scale[0], label - g.first, ignored};
  write_gradient<kThreads>(g.logits + n * g.row_stride, g.out + n * g.out_stride, g.columns,
                           gradient,
                           [](int64_t, const T* from) { return load_streaming<N>(from); });
}

/// Shared memory that a block may use, in bytes.
size_t most_shared_memory(const char* name) {
  int device = 0, bytes = 0;
  DS_CUDA(cudaGetDevice(&device), name);
  DS_CUDA(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), name);
  return static_cast<size_t>(bytes);
}

/// Blocks that share a row of 2-byte elements, if it is long.
constexpr int kRowCluster = 8;
/// Rows of this many bytes or more would leave L2 between their two uses. H200, rows of 256,512
/// bytes: a cluster takes 0.81 of a block's time.
constexpr int64_t kLongRow = 192 * 1024;

template <class T>
bool is_aligned_to_packets(const T* rows, int64_t stride) {
  return reinterpret_cast<uintptr_t>(rows) % 16 == 0 && stride % kPacket<T> == 0;
}

/// Whether the shared memory of a cluster holds a row, and a row is long enough for it.
template <class T, class I>
bool uses_cluster(const char* name, const LossAndGradient<T, I>& op, size_t share,
                  const CudaContext& ctx) {
  return ctx.code.architecture >= 90 && op.columns * int64_t{sizeof(T)} >= kLongRow &&
         is_aligned_to_packets(op.logits, op.row_stride) &&
         is_aligned_to_packets(op.out, op.out_stride) && share <= most_shared_memory(name) / 2;
}

/// As many packets of a row stay in shared memory as leave room for kBlocks blocks in an SM: one
/// loads while another stores.
template <bool kWhole, class T, class I>
void launch_with_gradient(const char* name, LossAndGradient<T, I> op, int64_t rows,
                          CudaContext& ctx) {
  Launch launch = {.op = name,
                   .grid = static_cast<unsigned>(rows),
                   .block = kGradientThreads,
                   .stream = ctx.stream};
  if constexpr (sizeof(T) == 2) {
    const auto share = static_cast<size_t>(op.columns / kPacket<T> / kRowCluster + 2) * 16;
    if (uses_cluster(name, op, share, ctx)) {
      constexpr int kThreadsOfShare = 256;
      launch.grid = static_cast<unsigned>(rows * kRowCluster);
      launch.block = kThreadsOfShare;
      launch.shared_bytes = share;
      launch.cluster = kRowCluster;
      return launch_behind(
          ctx, launch,
          cross_entropy_gradient_cluster<T, I, kWhole, kThreadsOfShare, 6, kRowCluster>, op);
    }
  }
  constexpr int kBlocks = 3;
  constexpr size_t kReserved = 2048;  // of a block: the system's, and the kernel's own
  const size_t room = most_shared_memory(name) / kBlocks - kReserved;
  op.staged = std::min<int64_t>(op.columns / kPacket<T> + 1, static_cast<int64_t>(room / 16));
  launch.shared_bytes = static_cast<size_t>(op.staged) * 16;
  launch_behind(ctx, launch, cross_entropy_gradient_kernel<T, I, kWhole, kGradientThreads, kBlocks>,
                op);
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

void run(const CrossEntropyWithGradient& op, CudaContext& ctx) {
  constexpr const char* kOp = "cross_entropy_with_gradient";
  const int64_t n = op.logits.shape[0], columns = op.logits.shape[1];
  if (n == 0) return;
  for_floating(kOp, op.logits.dtype, [&](auto tag) {
    dispatch_index(kOp, op.target.dtype, [&](auto index) {
      using T = typename decltype(tag)::type;
      using I = typename decltype(index)::type;
      const double even = columns == 0 ? 0.0 : op.smoothing / static_cast<double>(columns);
      const LossAndGradient<T, I> loss = {
          .logits = op.logits.as<T>(),
          .target = op.target.as<I>(),
          .losses = op.losses.as<float>(),
          .correct = op.correct ? op.correct.as<int64_t>() : nullptr,
          .out = op.dlogits.as<T>(),
          .smoothing = static_cast<float>(op.smoothing),
          .own = static_cast<float>(1 - op.smoothing + even),
          .even = static_cast<float>(even),
          .scale = static_cast<float>(op.factor),
          .columns = columns,
          .row_stride = op.logits.strides[0],
          .out_stride = op.dlogits.strides[0],
          .ignore_index = op.ignore_index,
          .staged = 0,
      };
      if (loss.correct || op.smoothing > 0) launch_with_gradient<true>(kOp, loss, n, ctx);
      else launch_with_gradient<false>(kOp, loss, n, ctx);
    });
  });
}

}  // namespace ds::cuda
