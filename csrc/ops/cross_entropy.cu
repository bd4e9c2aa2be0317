// Cross-entropy on the GPU, a block per row. Forward and backward read the logits once.
#include "cross_entropy.h"

#include <algorithm>

#include "../cuda/block_reduce.cuh"
#include "../cuda/mma.cuh"
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

// Both passes over rows of 16-bit logits that fit a thread block: kHeldGroups groups of kUnroll
// packets of each thread in shared memory, kLastGroups in its registers. Threads own the packets
// that they own in cross_entropy_kernel, so that the bits of lse are equal. While a thread writes
// the gradients of a row, it fetches the next row into the places that become free.
constexpr int kHeldGroups = 6, kLastGroups = 2, kAllGroups = kHeldGroups + kLastGroups;
constexpr int kHeldBytes = kHeldGroups * kUnroll * kThreads * 16;
constexpr int kHeldPackets = kAllGroups * kUnroll * kThreads;  // of the longest row
extern __shared__ __align__(16) unsigned char cross_entropy_shared[];

/// Keeps a packet of 16 bytes in four registers: converted elements, kept from one pass to the next,
/// would take a register each.
template <class P>
__device__ __forceinline__ void keep_packed(P& packet) {
  auto* const words = reinterpret_cast<uint32_t*>(&packet);
#pragma unroll
  for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(words[i]));
}

/// A thread's packets of the current row. Only this thread uses its places in shared memory.
template <class T>
struct HeldRow {
  static constexpr int N = kPacket<T>;
  using Packet = Vector<T, N>;
  int packets;  // of a row
  Packet last[kLastGroups][kUnroll];

  static __device__ __forceinline__ Packet* place(int group, int u) {
    return reinterpret_cast<Packet*>(cross_entropy_shared) + (group * kUnroll + u) * kThreads +
           threadIdx.x;
  }
  /// Returns the number of packet u of a group.
  static __device__ __forceinline__ int number(int group, int u) {
    return (group * kUnroll + u) * kThreads + static_cast<int>(threadIdx.x);
  }
  /// Starts to fetch a group of a row; null: of no row.
  template <int kGroup>
  __device__ __forceinline__ void fetch(const T* row) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int p = number(kGroup, u);
      const bool valid = row && p < packets;
      if constexpr (kGroup < kHeldGroups) {
        if (valid) cp_async_16(place(kGroup, u), row + p * N, true);
      } else if (valid) last[kGroup - kHeldGroups][u] = load_streaming<N>(row + p * N);
    }
    if constexpr (kGroup < kHeldGroups) cp_async_commit();
  }
  template <int kGroup>
  __device__ __forceinline__ Packet at(int u) const {
    if constexpr (kGroup < kHeldGroups) return *place(kGroup, u);
    else return last[kGroup - kHeldGroups][u];
  }
};

/// Calls f(0) to f(kCount - 1) with constants.
template <int kCount, class F>
__device__ __forceinline__ void for_groups(F&& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) {
    (f(std::integral_constant<int, I>{}), ...);
  }
  (std::make_integer_sequence<int, kCount>{});
}

template <class T, class I>
__global__ void __launch_bounds__(kThreads, 1)
    cross_entropy_both_kernel(Loss<T, I> op, Gradient<T, I> g, int64_t rows) {
  constexpr int N = kPacket<T>;
  const int packets = static_cast<int>(op.columns / N);
  HeldRow<T> held;
  held.packets = packets;
  const auto row_of = [&](int64_t n) { return n >= 0 ? op.logits + n * op.row_stride : nullptr; };
  int64_t n = rows - 1 - blockIdx.x;
  for_groups<kAllGroups>([&](auto group) { held.template fetch<group()>(row_of(n)); });
  for (; n >= 0; n -= gridDim.x) {
    const int64_t label = op.target[n];
    const bool ignored = label == op.ignore_index;
    OnlineSum online;
    for_groups<kAllGroups>([&](auto group) {
      constexpr int kGroup = group();
      cp_async_wait<(kGroup < kHeldGroups ? kHeldGroups - 1 - kGroup : 0)>();
      Vector<T, N> x[kUnroll];
      float local = -INFINITY;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (held.number(kGroup, u) >= packets) continue;
        x[u] = held.template at<kGroup>(u);
        keep_packed(x[u]);
#pragma unroll
        for (int i = 0; i < N; ++i) local = fmaxf(local, to_float(x[u].v[i]));
      }
      online.raise(local);
      const float shift = online.shift();
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (held.number(kGroup, u) >= packets) continue;
        keep_packed(x[u]);
#pragma unroll
        for (int i = 0; i < N; ++i) online.add(to_float(x[u].v[i]), shift);
      }
    });
    const float max = block_reduce(online.max, Max{});
    online.raise(max);
    const float lse = ignored ? 0.0f : max + log2f(block_sum(online.sum)) * kLn2;
    const bool bad = !ignored && !op.is_class(label);
    if (threadIdx.x == 0) {
      op.lse[n] = lse;
      const float own = op.is_here(label) ? to_float(op.logits[n * op.row_stride + label - op.first])
                                          : 0.0f;
      op.losses[n] = ignored ? 0.0f : bad ? NAN : lse - own;
    }
    __syncthreads();  // dlogits may be logits
    const float scale = ignored ? 0.0f : bad ? NAN : g.scale[0], shift = -lse * kLog2e;
    const int own_column = op.is_here(label) ? static_cast<int>(label - op.first) : -N;
    const T* const next = row_of(n - static_cast<int64_t>(gridDim.x));
    T* const out = g.out + n * g.out_stride;
    for_groups<kAllGroups>([&](auto group) {
      constexpr int kGroup = group();
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int p = held.number(kGroup, u);
        if (p >= packets) continue;
        Vector<T, N> x = held.template at<kGroup>(u);
        const int own = own_column - p * N;  // in this packet if 0 to N - 1
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float probability = power_of_two(fmaf(to_float(x.v[i]), kLog2e, shift));
          x.v[i] = from_float<T>(
              ignored ? 0.0f : (probability - (own == i ? g.own : g.even)) * scale);
        }
        store_vector(out + p * N, x);
      }
      held.template fetch<kGroup>(next);
    });
  }
  cp_async_wait<0>();
}

/// x *= factor / divisor.
template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    rescale_kernel(T* x, int64_t row_stride, int64_t packets, int64_t rows, const float* factor,
                   const float* divisor) {
  if (factor[0] == divisor[0]) return;
  const float ratio = factor[0] / divisor[0];
  for (int64_t n = blockIdx.x; n < rows; n += gridDim.x) {
    for (int64_t p = threadIdx.x; p < packets; p += kThreads) {
      T* const at = x + n * row_stride + p * N;
      Vector<T, N> v = load_vector<N>(at);
#pragma unroll
      for (int i = 0; i < N; ++i) v.v[i] = from_float<T>(to_float(v.v[i]) * ratio);
      store_vector(at, v);
    }
  }
}

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
  return {op.logits.as<T>(),        op.target.as<I>(),
          op.lse.as<float>(),       op.scale.as<float>(),
          op.dlogits.as<T>(),       static_cast<float>(1 - op.smoothing + even),
          static_cast<float>(even), op.logits.shape[1],
          op.logits.strides[0],     op.dlogits.strides[0],
          op.ignore_index,          op.first,
          all_classes(op)};
}

/// Launches the kernel of both passes. Returns false if rows do not fit, or if the GPU has too
/// little shared memory.
template <class T, class I>
bool launch_both(const CrossEntropyBoth& op, CudaContext& ctx) {
  constexpr int N = kPacket<T>;
  const int64_t rows = op.logits.shape[0], columns = op.logits.shape[1];
  const auto even = [](const View& v) { return v.shape[0] < 2 || v.strides[0] % N == 0; };
  if (sizeof(T) != 2 || op.smoothing > 0 || columns % N != 0 || columns / N > kHeldPackets ||
      !even(op.logits) || !even(op.dlogits) ||
      !aligned_for<N>(op.logits.as<T>()) || !aligned_for<N>(op.dlogits.as<T>()))
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
  kernel<<<blocks, kThreads, kHeldBytes, ctx.stream>>>(
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
      cross_entropy_backward_kernel<<<static_cast<unsigned>(n), kThreads, 0, ctx.stream>>>(
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
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>(rows, kBlocksPerSm * ctx.sm_count));
  for_floating(kOp, op.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int N = kPacket<T>;
    T* const x = op.x.as<T>();
    const int64_t stride = op.x.strides[0];
    const bool vectors = columns % N == 0 && stride % N == 0 && aligned_for<N>(x);
    const auto kernel = vectors ? rescale_kernel<N, T> : rescale_kernel<1, T>;
    kernel<<<blocks, kThreads, 0, ctx.stream>>>(x, stride, columns / (vectors ? N : 1), rows,
                                                op.factor.as<float>(), op.divisor.as<float>());
    DS_CUDA_LAUNCHED(kOp);
  });
}

}  // namespace ds::cuda
