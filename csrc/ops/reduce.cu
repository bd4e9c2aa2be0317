// Reductions on the GPU in a fixed order. Lanes run along kept columns or along reduced rows,
// depending on which are dense in memory. Long reductions are split over blocks, and a second pass
// combines the results. Sums of dense 16-bit columns have kernels of their own.
#include "reduce.h"

#include <algorithm>

#include "../cuda/block_reduce.cuh"
#include "../cuda/column_sum.cuh"
#include "../cuda/strided.cuh"

namespace ds::cuda {
namespace {

struct Multiply {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a * b;
  }
};

/// The iteration space, split into kept dims and reduced dims.
struct Plan {
  Steps<2> kept;     // operands: in, out
  Steps<1> reduced;  // operand: in
  uint32_t splits;   // parts of the reduced items, a block each
};

template <class T>
struct Result {
  T* out;
  compute_t<T>* partials;  // [splits, kept], or null with one part
  bool mean, accumulate;
};

template <class A, class Combine>
__device__ __forceinline__ A identity() {
  if constexpr (std::is_same_v<Combine, Add>) return 0;
  else if constexpr (std::is_same_v<Combine, Multiply>) return 1;
  else if constexpr (is_integer<A>) return std::is_same_v<Combine, Max> ? INT64_MIN : INT64_MAX;
  else return std::is_same_v<Combine, Max> ? -INFINITY : INFINITY;
}

/// The result of a thread, which combines values one by one.
template <class T, class Combine>
struct Running {
  using A = compute_t<T>;
  A total = identity<A, Combine>();
  __device__ __forceinline__ void add(A x) { total = Combine{}(total, x); }
  __device__ __forceinline__ A result() const { return total; }
};

/// Long f32 sums track their rounding errors (Knuth's TwoSum, as in the summations of Kahan and
/// Neumaier), because the errors of equal values are equal and would accumulate. f16 and bf16
/// results are rounded to fewer digits and need no correction.
template <>
struct Running<float, Add> {
  float total = 0, lost = 0;
  __device__ __forceinline__ void add(float x) {
    const float next = __fadd_rn(total, x), took = __fsub_rn(next, total);
    lost = __fadd_rn(lost, __fadd_rn(__fsub_rn(total, __fsub_rn(next, took)), __fsub_rn(x, took)));
    total = next;
  }
  /// If the sum is infinite, its tracked error is NaN and is ignored.
  __device__ __forceinline__ float result() const { return isfinite(lost) ? total + lost : total; }
};

template <class T>
__device__ __forceinline__ void finish(const Plan& plan, const Result<T>& result, int32_t at,
                                       compute_t<T> total) {
  if (result.mean) total /= static_cast<compute_t<T>>(plan.reduced.count);
  T* out = result.out + at;
  *out = narrow<T>(result.accumulate ? widen(*out) + total : total);
}

/// Stores the total of kept item `item`, or of its part blockIdx.y.
template <class T>
__device__ __forceinline__ void settle(const Plan& plan, const Result<T>& result, uint32_t item,
                                       compute_t<T> total) {
  if (result.partials) {
    result.partials[int64_t{blockIdx.y} * plan.kept.count + item] = total;
    return;
  }
  int32_t at[2];
  plan.kept.offsets(item, at);
  finish(plan, result, at[1], total);
}

__device__ __forceinline__ void part_of(const Plan& plan, uint32_t& first, uint32_t& last) {
  const uint32_t length = (plan.reduced.count + plan.splits - 1) / plan.splits;
  first = min(blockIdx.y * length, plan.reduced.count);
  last = min(first + length, plan.reduced.count);
}

// -------------------------------------------------------------------------------------------------
// Columns: each of 32 lanes has N consecutive columns; 8 rows of threads share the reduction.

constexpr int kLanes = 32, kRows = 8, kUnroll = 4;

/// Reduces where kept elements are contiguous, N columns per thread. The kRows rows of threads
/// share the reduced elements of the part of blockIdx.y.
template <int N, class T, class Combine>
__global__ void __launch_bounds__(kLanes* kRows)
    reduce_columns_kernel(const T* in, Result<T> result, Plan plan, uint32_t columns) {
  using A = compute_t<T>;
  __shared__ A shared[kRows][N][kLanes + 1];
  const uint32_t column = (blockIdx.x * kLanes + threadIdx.x) * N;
  const bool active = column < columns;
  const Combine combine;
  Running<T, Combine> sums[N];
  uint32_t first, last;
  part_of(plan, first, last);
  if (active) {
    int32_t base[2];
    plan.kept.offsets(column, base);
    for (uint32_t r = first + threadIdx.y; r < last; r += kRows * kUnroll) {
      Vector<T, N> x[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        int32_t at[1];
        if (r + u * kRows >= last) break;
        plan.reduced.offsets(r + u * kRows, at);
        x[u] = load_vector<N>(in + base[0] + at[0]);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (r + u * kRows >= last) break;
#pragma unroll
        for (int i = 0; i < N; ++i) sums[i].add(widen(x[u].v[i]));
      }
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) shared[threadIdx.y][i][threadIdx.x] = sums[i].result();
  __syncthreads();
  // Thread row y finishes columns y, y + 8, ... of each lane.
  for (int i = threadIdx.y; i < N; i += kRows) {
    A total = shared[0][i][threadIdx.x];
    for (int y = 1; y < kRows; ++y) total = combine(total, shared[y][i][threadIdx.x]);
    if (active) settle(plan, result, column + i, total);
  }
}

/// Reduces a kept item per block. Its threads stride over the reduced items.
template <class T, class Combine>
__global__ void __launch_bounds__(256)
    reduce_rows_kernel(const T* in, Result<T> result, Plan plan) {
  using A = compute_t<T>;
  const Combine combine;
  const uint32_t item = blockIdx.x;
  int32_t base[2];
  plan.kept.offsets(item, base);
  uint32_t first, last;
  part_of(plan, first, last);
  Running<T, Combine> sums[kUnroll];
  for (uint32_t r = first + threadIdx.x; r < last; r += 256 * kUnroll)
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      int32_t at[1];
      if (r + u * 256 >= last) break;
      plan.reduced.offsets(r + u * 256, at);
      sums[u].add(widen(in[base[0] + at[0]]));
    }
  const A total = block_reduce(combine(combine(sums[0].result(), sums[1].result()),
                                       combine(sums[2].result(), sums[3].result())),
                               combine);
  if (threadIdx.x == 0) settle(plan, result, item, total);
}

/// Rows of threads of the second pass. Row y combines parts y, y + 32, ... of each kept item. Then
/// the 32 results are combined in order.
constexpr int kPartRows = 32;

/// Combines the partials of plan.splits parts in a fixed order. A column of threads per kept
/// element.
template <class T, class Combine>
__global__ void __launch_bounds__(kLanes* kPartRows)
    reduce_parts_kernel(Result<T> result, Plan plan) {
  using A = compute_t<T>;
  __shared__ A shared[kPartRows][kLanes];
  const Combine combine;
  const uint32_t item = blockIdx.x * kLanes + threadIdx.x;
  Running<T, Combine> part;
  if (item < plan.kept.count)
    for (uint32_t s = threadIdx.y; s < plan.splits; s += kPartRows)
      part.add(result.partials[int64_t{s} * plan.kept.count + item]);
  A sum = part.result();
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || item >= plan.kept.count) return;
  for (int y = 1; y < kPartRows; ++y) sum = combine(sum, shared[y][threadIdx.x]);
  int32_t at[2];
  plan.kept.offsets(item, at);
  finish(plan, result, at[1], sum);
}

// -------------------------------------------------------------------------------------------------
// Planning and launching

/// Kept dims as a walk of (in, out), reduced dims as a walk of in: innermost dims first, merged.
struct Dims {
  Walk<2> kept;
  Walk<1> reduced;
};

Dims split_dims(const Reduce& op) {
  Dims dims;
  for (int d = op.in.ndim - 1; d >= 0; --d) {
    if (op.out.shape[d] == op.in.shape[d])
      add_dim(dims.kept, op.in.shape[d], {op.in.strides[d], op.out.strides[d]});
    else add_dim(dims.reduced, op.in.shape[d], {op.in.strides[d]});
  }
  merge_dims(dims.kept);
  merge_dims(dims.reduced);
  return dims;
}

/// Returns a number of parts that fills the GPU. Each part has at least `least` reduced items.
uint32_t choose_splits(const CudaContext& ctx, int64_t blocks, int64_t reduced, int64_t least) {
  const int64_t wanted = (int64_t{ctx.sm_count} * 6 + blocks - 1) / blocks;
  return static_cast<uint32_t>(std::clamp<int64_t>(std::min(wanted, reduced / least), 1, 4096));
}

/// Returns true if lanes may load N consecutive kept columns at once.
template <class T>
bool packed_columns(const Dims& dims, const T* in, int N) {
  bool packed = dims.kept.ndim == 1 && dims.kept.strides[0][0] == 1 &&
                dims.kept.shape[0] % N == 0 && reinterpret_cast<uintptr_t>(in) % 16 == 0;
  for (int d = 0; d < dims.reduced.ndim; ++d)
    packed = packed && dims.reduced.strides[0][d] % N == 0;
  return packed;
}

/// Sums many rows of 16-bit elements (bias gradients). Returns false, without a launch, if the
/// layout does not fit.
template <class T>
bool sum_dense_columns(const Reduce& op, const Dims& dims, CudaContext& ctx) {
  constexpr int64_t kLeastRows = 256;
  if (op.op != ReduceOp::sum || dims.reduced.ndim != 1 || dims.reduced.shape[0] < kLeastRows ||
      !packed_columns(dims, op.in.as<T>(), kPacket<T>) || dims.kept.strides[1][0] != 1)
    return false;
  const DenseRows<T> in = {op.in.as<T>(), dims.reduced.shape[0], dims.kept.shape[0],
                           dims.reduced.strides[0][0]};
  sum_columns("reduce", ctx, in, op.out.as<T>(), op.accumulate);
  return true;
}

template <class Combine, class T>
void reduce_kernels(const Reduce& op, const Dims& dims, Result<T> result, CudaContext& ctx) {
  constexpr int N = kPacket<T>;
  const T* in = op.in.as<T>();
  Plan plan = {steps_of(dims.kept, 1), steps_of(dims.reduced, 1), 1};
  const auto use_parts = [&] {
    if (plan.splits > 1)
      result.partials = ctx.scratch_of<compute_t<T>>(size_t{plan.splits} * plan.kept.count);
  };
  const bool rows = dims.reduced.ndim > 0 && std::llabs(dims.reduced.strides[0][0]) == 1;
  if (rows && plan.reduced.count >= 32) {
    plan.splits = choose_splits(ctx, plan.kept.count, plan.reduced.count, 256 * kUnroll);
    use_parts();
    reduce_rows_kernel<T, Combine>
        <<<dim3(plan.kept.count, plan.splits), 256, 0, ctx.stream>>>(in, result, plan);
  } else {
    const bool packed = packed_columns(dims, in, N);
    const uint32_t width = kLanes * (packed ? N : 1),
                   blocks = (plan.kept.count + width - 1) / width;
    plan.splits = choose_splits(ctx, blocks, plan.reduced.count, kRows * kUnroll);
    use_parts();
    const auto kernel =
        packed ? reduce_columns_kernel<N, T, Combine> : reduce_columns_kernel<1, T, Combine>;
    kernel<<<dim3(blocks, plan.splits), dim3(kLanes, kRows), 0, ctx.stream>>>(in, result, plan,
                                                                              plan.kept.count);
  }
  DS_CUDA_LAUNCHED("reduce");
  if (plan.splits == 1) return;
  const uint32_t blocks = (plan.kept.count + kLanes - 1) / kLanes;
  reduce_parts_kernel<T, Combine><<<blocks, dim3(kLanes, kPartRows), 0, ctx.stream>>>(result, plan);
  DS_CUDA_LAUNCHED("reduce");
}

}  // namespace

void run(const Reduce& op, CudaContext& ctx) {
  constexpr const char* kOp = "reduce";
  if (op.out.numel() == 0) return;
  const Dims dims = split_dims(op);
  DS_CHECK_SHAPE(fits_32_bits(dims.kept) && fits_32_bits(dims.reduced), kOp,
                 "kept and reduced extents below 2^31 elements", op.in.describe());
  for_all(kOp, op.in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<T, bool>) {
      if constexpr (sizeof(T) == 2 && !is_integer<T>)
        if (sum_dense_columns<T>(op, dims, ctx)) return;
      const Result<T> result = {op.out.as<T>(), nullptr, op.op == ReduceOp::mean, op.accumulate};
      if (op.op == ReduceOp::max) reduce_kernels<Max>(op, dims, result, ctx);
      else if (op.op == ReduceOp::min) reduce_kernels<Min>(op, dims, result, ctx);
      else if (op.op == ReduceOp::prod) reduce_kernels<Multiply>(op, dims, result, ctx);
      else reduce_kernels<Add>(op, dims, result, ctx);
    }
  });
}

// -------------------------------------------------------------------------------------------------
// ArgMax

namespace {

/// A candidate for the maximum. NaN beats every number; of equal values, the first wins.
template <class A>
struct Best {
  A value;
  int64_t index;  // -1: none yet
};

template <class A>
__device__ __forceinline__ bool beats(const Best<A>& a, const Best<A>& b) {
  if (a.index < 0 || b.index < 0) return b.index < 0 && a.index >= 0;
  const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  if (a_nan != b_nan) return a_nan;
  if (!a_nan && a.value != b.value) return a.value > b.value;
  return a.index < b.index;
}

template <class A>
__device__ __forceinline__ Best<A> best_of_warp(Best<A> best) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const Best<A> other = {__shfl_xor_sync(0xffffffffu, best.value, offset),
                           __shfl_xor_sync(0xffffffffu, best.index, offset)};
    if (beats(other, best)) best = other;
  }
  return best;
}

/// Finds the maximum of a row by kPerRow threads: a warp, or a block of 1024 for a row of a
/// vocabulary.
template <int kPerRow, class T>
__global__ void __launch_bounds__(kPerRow > 256 ? kPerRow : 256)
    argmax_kernel(const T* in, int64_t* out, Steps<1> rows, int64_t columns, int64_t stride) {
  using A = compute_t<T>;
  const uint32_t thread = threadIdx.x % kPerRow;
  const uint32_t row = blockIdx.x * (blockDim.x / kPerRow) + threadIdx.x / kPerRow;
  if (row >= rows.count) return;
  int32_t at[1];
  rows.offsets(row, at);
  Best<A> best = {A(0), -1};
#pragma unroll 4
  for (int64_t c = thread; c < columns; c += kPerRow) {
    const Best<A> next = {widen(in[at[0] + c * stride]), c};
    if (beats(next, best)) best = next;
  }
  best = best_of_warp(best);
  if constexpr (kPerRow > kWarp) {
    static_assert(kPerRow == kWarp * kWarp);
    __shared__ A values[kWarp];
    __shared__ int64_t indices[kWarp];
    if (thread % kWarp == 0) {
      values[thread / kWarp] = best.value;
      indices[thread / kWarp] = best.index;
    }
    __syncthreads();
    if (thread < kWarp) best = best_of_warp(Best<A>{values[thread], indices[thread]});
  }
  if (thread == 0) out[row] = best.index;
}

}  // namespace

void run(const ArgMax& op, CudaContext& ctx) {
  constexpr const char* kOp = "arg_max";
  Walk<1> rows;
  for (int d = op.in.ndim - 2; d >= 0; --d) add_dim(rows, op.in.shape[d], {op.in.strides[d]});
  merge_dims(rows);
  DS_CHECK_SHAPE(fits_32_bits(rows), kOp, "an extent below 2^31 elements", op.in.describe());
  const Steps<1> steps = steps_of(rows, 1);
  if (steps.count == 0) return;
  for_all(kOp, op.in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<T, bool>) {
      const int64_t columns = op.in.size(-1);
      const bool wide = columns > 4096;
      const auto kernel = wide ? argmax_kernel<1024, T> : argmax_kernel<kWarp, T>;
      kernel<<<wide ? steps.count : (steps.count + 7) / 8, wide ? 1024 : 256, 0, ctx.stream>>>(
          op.in.as<T>(), op.out.as<int64_t>(), steps, columns, op.in.strides[op.in.ndim - 1]);
      DS_CUDA_LAUNCHED(kOp);
    }
  });
}

}  // namespace ds::cuda
