// Rows of logits on the GPU: sums of exponentials, and gradients. A block has one row, or a
// cluster of blocks shares it.
#pragma once

#include "../cuda/block_reduce.cuh"
#include "../cuda/cluster.cuh"
#include "../cuda/dependent_launch.cuh"
#include "../cuda/vector.cuh"

namespace ds::cuda {

constexpr int kLossUnroll = 4;
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
  /// Returns the shift by the present maximum that add() takes. Without a maximum, every x is -inf
  /// or NaN.
  __device__ __forceinline__ float shift() const { return max == -INFINITY ? 0.0f : -max * kLog2e; }
  __device__ __forceinline__ void add(float x, float shift) {
    sum += power_of_two(fmaf(x, kLog2e, shift));
  }
};

/// Extra statistics of a loss without options: only the sum of exponentials is needed.
struct NothingElse {
  __device__ __forceinline__ void add(float) {}
  __device__ __forceinline__ bool may_be_beaten(float) const { return false; }
  __device__ __forceinline__ void compare(float, int64_t) {}
};

/// Extra statistics for smoothing and accuracy: the sum of the logits, and whether another class
/// beats the target. A larger logit beats it anywhere, an equal logit at a smaller column.
struct Whole {
  float own;
  int64_t label;
  float sum = 0;
  bool is_beaten = false;

  __device__ __forceinline__ void add(float x) { sum += x; }
  /// Returns whether any of several logits may change the result; `largest` is the largest of them.
  /// Rarely true.
  __device__ __forceinline__ bool may_be_beaten(float largest) const {
    return !is_beaten && largest >= own;
  }
  __device__ __forceinline__ void compare(float x, int64_t column) {
    is_beaten |= x > own || (x == own && column < label);
  }
};

/// Elements of a row before the first 16-byte boundary, at most `columns`.
template <class T>
__device__ __forceinline__ int64_t unaligned_head(const T* row, int64_t columns) {
  const int64_t head = (16 - reinterpret_cast<uintptr_t>(row) % 16) % 16 / sizeof(T);
  return head < columns ? head : columns;
}

/// Keeps nothing of a row.
struct NotKept {
  template <class P>
  __device__ __forceinline__ void operator()(int64_t, const P&) const {}
};

/// Returns the thread's part of the row's sum of exponentials; `rest` receives each of its logits,
/// keep(p, packet) each of its packets.
template <int kThreads, class T, class Rest, class Keep>
__device__ __forceinline__ OnlineSum row_sum(const T* row, int64_t columns, Rest& rest,
                                             Keep&& keep) {
  constexpr int N = kPacket<T>;
  const int64_t head = unaligned_head(row, columns), packets = (columns - head) / N;
  OnlineSum online;
  for (int64_t first = threadIdx.x; first < packets; first += kThreads * kLossUnroll) {
    Vector<T, N> x[kLossUnroll];
    float local = -INFINITY;
#pragma unroll
    for (int u = 0; u < kLossUnroll; ++u) {
      const int64_t p = first + u * kThreads;
      if (p < packets) x[u] = load_vector<N>(row + head + p * N);
    }
#pragma unroll
    for (int u = 0; u < kLossUnroll; ++u) {
      if (first + u * kThreads >= packets) break;
      keep(first + u * kThreads, x[u]);
#pragma unroll
      for (int i = 0; i < N; ++i) local = fmaxf(local, to_float(x[u].v[i]));
    }
    online.raise(local);
    const float shift = online.shift();
#pragma unroll
    for (int u = 0; u < kLossUnroll; ++u)
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (first + u * kThreads < packets) {
          online.add(to_float(x[u].v[i]), shift);
          rest.add(to_float(x[u].v[i]));
        }
    if (!rest.may_be_beaten(local)) continue;
#pragma unroll
    for (int u = 0; u < kLossUnroll; ++u)
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

/// The gradient of a row with respect to its logits:
///     (e^(x - lse) - (column is the label's ? own : even)) * scale.
struct RowGradient {
  float shift;      // -lse log2 e
  float own, even;  // the target's probability at the label, and at the other classes
  float scale;
  int64_t label;  // column
  bool ignored;   // then 0, whatever the logits

  __device__ __forceinline__ float at(float x, float probability) const {
    return ignored ? 0.0f : (power_of_two(fmaf(x, kLog2e, shift)) - probability) * scale;
  }
  /// Turns the logits from `column` on into their gradient.
  template <class T, int N>
  __device__ __forceinline__ void apply(Vector<T, N>& x, int64_t column) const {
    const int64_t mine = label - column;
    float own_x = 0;
    if (mine >= 0 && mine < N) {
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (i == mine) own_x = to_float(x.v[i]);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) x.v[i] = from_float<T>(at(to_float(x.v[i]), even));
    if (mine >= 0 && mine < N) {
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (i == mine) x.v[i] = from_float<T>(at(own_x, own));
    }
  }
};

/// Writes the gradient of a row; load(p, from) returns packet p of the row, whose address is
/// `from`. out may be row itself.
template <int kThreads, class T, class Load>
__device__ __forceinline__ void write_gradient(const T* row, T* out, int64_t columns,
                                               const RowGradient& gradient, Load&& load) {
  constexpr int N = kPacket<T>;
  const int64_t head = unaligned_head(row, columns), packets = (columns - head) / N;
  const bool vectors = reinterpret_cast<uintptr_t>(out + head) % 16 == 0;
  for (int64_t first = threadIdx.x; first < packets; first += kThreads * kLossUnroll) {
    Vector<T, N> x[kLossUnroll];
#pragma unroll
    for (int u = 0; u < kLossUnroll; ++u) {
      const int64_t p = first + u * kThreads;
      if (p < packets) x[u] = load(p, row + head + p * N);
    }
#pragma unroll
    for (int u = 0; u < kLossUnroll; ++u) {
      const int64_t at = head + (first + u * kThreads) * N;
      if (first + u * kThreads >= packets) break;
      gradient.apply(x[u], at);
      if (vectors) store_vector(out + at, x[u]);
      else
#pragma unroll
        for (int i = 0; i < N; ++i) out[at + i] = x[u].v[i];
    }
  }
  const int64_t tail = head + packets * N, odd = head + columns - tail;
  for (int64_t i = threadIdx.x; i < odd; i += kThreads) {
    const int64_t column = i < head ? i : tail + i - head;
    const float probability = column == gradient.label ? gradient.own : gradient.even;
    out[column] = from_float<T>(gradient.at(to_float(row[column]), probability));
  }
}

// -------------------------------------------------------------------------------------------------
// Loss and gradient in one pass

/// CrossEntropyWithGradient as the kernels see it; out may be logits itself.
template <class T, class I>
struct LossAndGradient {
  const T* logits;
  const I* target;
  float* losses;
  int64_t* correct;  // or null
  T* out;
  float smoothing, own, even;  // own, even: as in RowGradient
  float scale;
  int64_t columns, row_stride, out_stride, ignore_index;
  int64_t staged;  // packets of a block's row that fit its shared memory
};

extern __shared__ __align__(16) unsigned char loss_shared[];

/// One row a block. The first `staged` packets of the row stay in shared memory between its two
/// uses; the others are read again, from L2. Rows run from the last to the first: the previous GEMM
/// has just written the last rows, so they are in L2.
template <class T, class I, bool kWhole, int kThreads, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    cross_entropy_gradient_kernel(LossAndGradient<T, I> op) {
  constexpr int N = kPacket<T>;
  await_previous();
  const int64_t n = gridDim.x - 1 - blockIdx.x, label = op.target[n], columns = op.columns;
  const T* const row = op.logits + n * op.row_stride;
  T* const out = op.out + n * op.out_stride;
  auto* const staged = reinterpret_cast<Vector<T, N>*>(loss_shared);
  RowGradient gradient = {0, op.own, op.even, op.scale, label, label == op.ignore_index};
  if (gradient.ignored) {
    if (threadIdx.x == 0) {
      op.losses[n] = 0;
      if (op.correct) op.correct[n] = 0;
    }
    write_gradient<kThreads>(row, out, columns, gradient,
                             [](int64_t, const T*) { return Vector<T, N>{}; });
    return;
  }
  const bool is_class = label >= 0 && label < columns;
  const float own = is_class ? to_float(row[label]) : NAN;
  std::conditional_t<kWhole, Whole, NothingElse> rest = {};
  if constexpr (kWhole) rest.own = own, rest.label = label;
  OnlineSum online = row_sum<kThreads>(row, columns, rest, [&](int64_t p, const Vector<T, N>& x) {
    if (p < op.staged) staged[p] = x;
  });
  const float max = block_reduce(online.max, Max{});
  online.raise(max);
  const float value = max + log2f(block_sum(online.sum)) * kLn2;
  float loss = value - own;
  if constexpr (kWhole) {
    const float sum = block_sum(rest.sum);
    const bool is_beaten = block_reduce(rest.is_beaten ? 1.0f : 0.0f, Max{}) > 0;
    if (op.smoothing > 0) loss += op.smoothing * (own - sum / static_cast<float>(columns));
    if (threadIdx.x == 0 && op.correct) op.correct[n] = is_class && value == value && !is_beaten;
  }
  if (threadIdx.x == 0) op.losses[n] = loss;
  gradient.shift = -value * kLog2e;
  if (!is_class) gradient.scale = NAN;
  write_gradient<kThreads>(row, out, columns, gradient, [&](int64_t p, const T* from) {
    return p < op.staged ? staged[p] : load_streaming<N>(from);
  });
}

/// One row a cluster of kCluster blocks; each keeps its share of the packets in shared memory. Rows
/// are aligned to 16 bytes.
template <class T, class I, bool kWhole, int kThreads, int kBlocks, int kCluster>
__global__ void __launch_bounds__(kThreads, kBlocks)
    cross_entropy_gradient_cluster(LossAndGradient<T, I> op) {
  constexpr int N = kPacket<T>;
  __shared__ float4 shares[1];  // maximum, sum of exponentials, sum, is beaten
  await_previous();
  const int rank = blockIdx.x % kCluster;
  const int64_t n = (gridDim.x - 1 - blockIdx.x) / kCluster, label = op.target[n];
  const int64_t packets = op.columns / N, each = (packets + kCluster - 1) / kCluster;
  const int64_t begin = min(rank * each, packets) * N;
  const int64_t end = rank + 1 == kCluster ? op.columns : min((rank + 1) * each, packets) * N;
  const int64_t columns = end - begin;
  const T* const row = op.logits + n * op.row_stride + begin;
  T* const out = op.out + n * op.out_stride + begin;
  auto* const staged = reinterpret_cast<Vector<T, N>*>(loss_shared);
  RowGradient gradient = {0, op.own, op.even, op.scale, label - begin, label == op.ignore_index};
  if (gradient.ignored) {
    if (threadIdx.x == 0 && rank == 0) {
      op.losses[n] = 0;
      if (op.correct) op.correct[n] = 0;
    }
    write_gradient<kThreads>(row, out, columns, gradient,
                             [](int64_t, const T*) { return Vector<T, N>{}; });
    return;
  }
  const bool is_class = label >= 0 && label < op.columns;
  const float own = is_class ? to_float(row[label - begin]) : NAN;
  std::conditional_t<kWhole, Whole, NothingElse> rest = {};
  if constexpr (kWhole) rest.own = own, rest.label = label - begin;
  OnlineSum online = row_sum<kThreads>(row, columns, rest,
                                       [&](int64_t p, const Vector<T, N>& x) { staged[p] = x; });
  const float max = block_reduce(online.max, Max{});
  online.raise(max);
  float4 share = {max, block_sum(online.sum), 0, 0};
  if constexpr (kWhole) {
    share.z = block_sum(rest.sum);
    share.w = block_reduce(rest.is_beaten ? 1.0f : 0.0f, Max{});
  }
  if (threadIdx.x == 0) shares[0] = share;
  cluster_barrier();
  OnlineSum all;
  float total = 0, beaten = 0;
#pragma unroll
  for (int r = 0; r < kCluster; ++r) {
    const float* const from = &shares[0].x;
    const float part = load_of_block(from, r);
    all.raise(part);
    all.sum += load_of_block(from + 1, r) * power_of_two(fmaf(part, kLog2e, all.shift()));
    if constexpr (kWhole) total += load_of_block(from + 2, r), beaten += load_of_block(from + 3, r);
  }
  cluster_barrier();  // a block stays until the others have read its share
  const float value = all.max + log2f(all.sum) * kLn2;
  float loss = value - own;
  if (kWhole && op.smoothing > 0)
    loss += op.smoothing * (own - total / static_cast<float>(op.columns));
  if (threadIdx.x == 0 && rank == 0) {
    op.losses[n] = loss;
    if (op.correct) op.correct[n] = is_class && value == value && beaten == 0;
  }
  gradient.shift = -value * kLog2e;
  if (!is_class) gradient.scale = NAN;
  write_gradient<kThreads>(row, out, columns, gradient,
                           [&](int64_t p, const T*) { return staged[p]; });
}

}  // namespace ds::cuda
