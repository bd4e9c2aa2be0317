// Running sums and products on the GPU. Lines are divided into parts, and a first pass scans the
// totals of parts, so that a few long lines also fill the GPU. A warp processes a part of a line
// that is dense in memory, a thread a part of a strided line. The borders of parts depend only on
// shapes.
#include "scan.h"

#include <algorithm>

#include "../cuda/strided.cuh"

namespace ds::cuda {
namespace {

constexpr int kThreads = 256, kWarp = 32, kWarps = kThreads / kWarp;
constexpr int kItems = 4;  // consecutive elements that a lane loads at once
constexpr int kTile = kWarp * kItems;

/// The division of a line: part p is elements [p length, (p + 1) length).
struct Parts {
  int64_t n;       // elements of a line
  int64_t length;  // elements of a part
  uint32_t lines, count;
};

// -------------------------------------------------------------------------------------------------
// Scan operations: a State per element, and combine(left, right), which is associative.

template <class T>
struct Sum {
  using State = compute_t<T>;
  __device__ static State combine(State left, State right) { return left + right; }
};

template <class T>
struct Product {
  using State = compute_t<T>;
  __device__ static State combine(State left, State right) { return left * right; }
};

/// The map s -> a s + b.
struct Affine {
  float a, b;
};

struct Recurrence {
  using State = Affine;
  __device__ static State combine(State left, State right) {
    return {right.a * left.a, right.a * left.b + right.b};
  }
};

template <class State>
__device__ __forceinline__ State from_lane_below(State x, int distance) {
  return __shfl_up_sync(0xffffffffu, x, distance);
}
__device__ __forceinline__ Affine from_lane_below(Affine x, int distance) {
  return {from_lane_below(x.a, distance), from_lane_below(x.b, distance)};
}
template <class State>
__device__ __forceinline__ State from_lane(State x, int lane) {
  return __shfl_sync(0xffffffffu, x, lane);
}
__device__ __forceinline__ Affine from_lane(Affine x, int lane) {
  return {from_lane(x.a, lane), from_lane(x.b, lane)};
}

/// A dim of an operand, iterated from its end if `reverse`.
struct Dim {
  int64_t first, step;
  __device__ __forceinline__ int64_t at(int64_t j) const { return first + j * step; }
};

/// The running result of Scan. Operands: out, in.
template <class T, class Rule>
struct Running : Rule {
  using State = typename Rule::State;
  static constexpr int operands = 2;
  T* out;
  const T* in;
  Dim out_dim, in_dim;
  bool accumulate;

  __device__ State load(const int32_t (&at)[2], uint32_t, int64_t j) const {
    return widen(in[at[1] + in_dim.at(j)]);
  }
  __device__ void store(const int32_t (&at)[2], uint32_t, int64_t j, State x) const {
    T* const place = out + at[0] + out_dim.at(j);
    *place = narrow<T>(accumulate ? widen(*place) + x : x);
  }
};

/// Where the products before each element of a line are stored.
struct Before {
  float* data;
  int64_t line_stride, stride;
  __device__ __forceinline__ float& at(uint32_t line, int64_t i) const {
    return data[line * line_stride + i * stride];
  }
};

/// Computes before[i] = in[0] .. in[i - 1]. Operands: dx, in, dout.
template <class T>
struct ProductsBefore : Product<T> {
  static constexpr int operands = 3;
  const T* in;
  Dim in_dim;
  Before before;
  int64_t n;

  __device__ float load(const int32_t (&at)[3], uint32_t, int64_t j) const {
    return to_float(in[at[1] + in_dim.at(j)]);
  }
  __device__ void store(const int32_t (&)[3], uint32_t line, int64_t j, float x) const {
    if (j == 0) before.at(line, 0) = 1.0f;
    if (j + 1 < n) before.at(line, j + 1) = x;
  }
};

/// Computes dx[i] = before[i] S[i] with S[i] = dout[i] + in[i + 1] S[i + 1]. j counts from the end.
template <class T>
struct Gradient : Recurrence {
  static constexpr int operands = 3;
  T* dx;
  const T *in, *dout;
  Dim dx_dim, in_dim, dout_dim;
  Before before;
  int64_t n;
  bool accumulate;

  __device__ Affine load(const int32_t (&at)[3], uint32_t, int64_t j) const {
    const float next = j == 0 ? 0.0f : to_float(in[at[1] + in_dim.at(j - 1)]);
    return {next, to_float(dout[at[2] + dout_dim.at(j)])};
  }
  __device__ void store(const int32_t (&at)[3], uint32_t line, int64_t j, Affine s) const {
    T* const place = dx + at[0] + dx_dim.at(j);
    const float x = before.at(line, n - 1 - j) * s.b;
    *place = from_float<T>(accumulate ? to_float(*place) + x : x);
  }
};

// -------------------------------------------------------------------------------------------------
// Kernels. Totals are [lines, parts]. scan_totals_kernel replaces each total by the scan of the
// totals before it.

/// The scan so far, or empty. Combined with an empty carry, the other value is unchanged.
template <class F>
struct Carry {
  typename F::State state;
  bool some;

  __device__ __forceinline__ typename F::State before(typename F::State x) const {
    return some ? F::combine(state, x) : x;
  }
};

/// Scans a State per lane. Lanes from `count` on are ignored.
template <class F>
__device__ __forceinline__ typename F::State scan_lanes(typename F::State x) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const typename F::State below = from_lane_below(x, distance);
    if (lane >= distance) x = F::combine(below, x);
  }
  return x;
}

/// Scans a part of a line per warp. With kTotals it writes the part's total, otherwise each
/// element.
template <bool kTotals, class F>
__global__ void __launch_bounds__(kThreads)
    scan_dense_kernel(F f, Steps<F::operands> lines, Parts parts, typename F::State* totals) {
  using State = typename F::State;
  const int64_t warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const uint32_t line = static_cast<uint32_t>(warp / parts.count);
  const uint32_t part = static_cast<uint32_t>(warp - int64_t{line} * parts.count);
  if (line >= parts.lines) return;
  const int lane = threadIdx.x % kWarp;
  int32_t at[F::operands];
  lines.offsets(line, at);
  const int64_t begin = part * parts.length, end = min(begin + parts.length, parts.n);
  Carry<F> carry = {{}, false};
  if (!kTotals && part > 0) carry = {totals[warp], true};
  for (int64_t tile = begin; tile < end; tile += kTile) {
    const int64_t first = tile + lane * kItems;
    State x[kItems];
    State own = {};
#pragma unroll
    for (int u = 0; u < kItems; ++u) {
      if (first + u >= end) break;
      x[u] = f.load(at, line, first + u);
      own = u == 0 ? x[u] : F::combine(own, x[u]);
    }
    // Lanes beyond the end have no state. They come last, so no lane reads their results.
    const State upto = scan_lanes<F>(own);
    const State below = from_lane_below(upto, 1);
    if constexpr (!kTotals) {
      Carry<F> before = carry;
      if (lane > 0) before = {carry.before(below), true};
#pragma unroll
      for (int u = 0; u < kItems; ++u) {
        if (first + u >= end) break;
        before = {before.before(x[u]), true};
        f.store(at, line, first + u, before.state);
      }
    }
    const int last = static_cast<int>(min(int64_t{kTile}, end - tile) - 1) / kItems;
    carry = {carry.before(from_lane(upto, last)), true};
  }
  if (kTotals && lane == 0) totals[warp] = carry.state;
}

/// Scans a part of a line per thread. Consecutive threads have consecutive lines.
template <bool kTotals, class F>
__global__ void __launch_bounds__(kThreads)
    scan_across_kernel(F f, Steps<F::operands> lines, Parts parts, typename F::State* totals) {
  const uint32_t line = blockIdx.x * kThreads + threadIdx.x, part = blockIdx.y;
  if (line >= parts.lines) return;
  int32_t at[F::operands];
  lines.offsets(line, at);
  typename F::State* const total = totals + int64_t{line} * parts.count + part;
  const int64_t begin = part * parts.length, end = min(begin + parts.length, parts.n);
  Carry<F> carry = {{}, false};
  if (!kTotals && part > 0) carry = {*total, true};
#pragma unroll 4
  for (int64_t j = begin; j < end; ++j) {
    carry = {carry.before(f.load(at, line, j)), true};
    if constexpr (!kTotals) f.store(at, line, j, carry.state);
  }
  if (kTotals) *total = carry.state;
}

/// Replaces each total by the scan of the totals before it, a line per warp.
template <class F>
__global__ void __launch_bounds__(kThreads)
    scan_totals_kernel(Parts parts, typename F::State* totals) {
  const uint32_t line = blockIdx.x * kWarps + threadIdx.x / kWarp;
  if (line >= parts.lines) return;
  const uint32_t lane = threadIdx.x % kWarp;
  typename F::State* const row = totals + int64_t{line} * parts.count;
  Carry<F> carry = {{}, false};
  for (uint32_t tile = 0; tile < parts.count; tile += kWarp) {
    typename F::State own = {};
    if (tile + lane < parts.count) own = row[tile + lane];
    const typename F::State upto = scan_lanes<F>(own);
    const typename F::State below = from_lane_below(upto, 1);
    // The first result of a line is never read.
    if (tile + lane < parts.count) row[tile + lane] = lane > 0 ? carry.before(below) : carry.state;
    carry = {carry.before(from_lane(upto, min(kWarp, parts.count - tile) - 1)), true};
  }
}

// -------------------------------------------------------------------------------------------------
// Launching

/// The lines of an op's operands along its dim.
template <int kOperands>
struct Plan {
  Steps<kOperands> lines;
  Parts parts;
  bool dense;  // elements of a line are consecutive in memory
};

constexpr int64_t kMostParts = 1024;

/// Plans lines. They are dense if those of operand `lead` are.
template <int kOperands>
Plan<kOperands> plan_lines(const char* name, const View (&operands)[kOperands], int64_t dim,
                           int lead) {
  View first[kOperands];
  const View* views[kOperands];
  for (int o = 0; o < kOperands; ++o) {
    first[o] = operands[o];
    first[o].shape[dim] = 1;
    views[o] = &first[o];
  }
  const Walk<kOperands> walk = plan_walk(views);
  DS_CHECK_SHAPE(fits_32_bits(walk), name, "fewer than 2^31 elements outside the dim",
                 operands[0].describe());
  Plan<kOperands> plan = {steps_of(walk, 1), {}, false};
  const int64_t n = operands[0].shape[dim], lines = walk.numel();
  bool densest = true;
  for (int d = 0; d < operands[lead].ndim; ++d)
    densest = densest &&
              (d == dim || operands[lead].shape[d] == 1 ||
               std::llabs(operands[lead].strides[d]) >= std::llabs(operands[lead].strides[dim]));
  constexpr int64_t kLeastDense = kWarp, kDensePart = 16 * kTile, kAcrossPart = 64;
  plan.dense = densest && n > kLeastDense;
  // Parts of a dense line are long enough to hide the pass over their totals. Strided lines are
  // divided only if there are too few threads otherwise.
  const int64_t wanted = plan.dense ? n / kDensePart : std::min(n / kAcrossPart, (1 << 16) / lines);
  const int64_t count = std::clamp<int64_t>(wanted, 1, kMostParts);
  const int64_t unit = plan.dense ? kTile : 1;
  const int64_t length = ((n + count - 1) / count + unit - 1) / unit * unit;
  plan.parts = {n, length, static_cast<uint32_t>(lines),
                static_cast<uint32_t>((n + length - 1) / length)};
  return plan;
}

unsigned blocks_for(int64_t items, int64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

template <bool kTotals, class F, int kOperands>
void launch(const char* name, const F& f, const Plan<kOperands>& plan, typename F::State* totals,
            CudaContext& ctx) {
  const Parts& parts = plan.parts;
  if (plan.dense) {
    const unsigned blocks = blocks_for(int64_t{parts.lines} * parts.count, kWarps);
    scan_dense_kernel<kTotals><<<blocks, kThreads, 0, ctx.stream>>>(f, plan.lines, parts, totals);
  } else {
    const dim3 grid(blocks_for(parts.lines, kThreads), parts.count);
    scan_across_kernel<kTotals><<<grid, kThreads, 0, ctx.stream>>>(f, plan.lines, parts, totals);
  }
  DS_CUDA_LAUNCHED(name);
}

template <class F, int kOperands>
void scan(const char* name, const F& f, const Plan<kOperands>& plan, CudaContext& ctx) {
  using State = typename F::State;
  const Parts& parts = plan.parts;
  State* totals = nullptr;
  if (parts.count > 1) {
    totals = ctx.scratch_of<State>(size_t{parts.lines} * parts.count);
    launch<true>(name, f, plan, totals, ctx);
    const unsigned blocks = blocks_for(parts.lines, kWarps);
    scan_totals_kernel<F><<<blocks, kThreads, 0, ctx.stream>>>(parts, totals);
    DS_CUDA_LAUNCHED(name);
  }
  launch<false>(name, f, plan, totals, ctx);
}

Dim dim_of(const View& v, int64_t dim, bool reverse) {
  const int64_t stride = v.strides[dim];
  return reverse ? Dim{(v.shape[dim] - 1) * stride, -stride} : Dim{0, stride};
}

template <class T, template <class> class Rule>
void running(const Scan& op, const Plan<2>& plan, CudaContext& ctx) {
  Running<T, Rule<T>> f;
  f.out = op.out.as<T>();
  f.in = op.in.as<T>();
  f.out_dim = dim_of(op.out, op.dim, op.reverse);
  f.in_dim = dim_of(op.in, op.dim, op.reverse);
  f.accumulate = op.accumulate;
  scan("scan", f, plan, ctx);
}

template <class T>
void running(const Scan& op, CudaContext& ctx) {
  const Plan<2> plan = plan_lines<2>("scan", {op.out, op.in}, op.dim, 1);
  if (op.op == ScanOp::sum) running<T, Sum>(op, plan, ctx);
  else running<T, Product>(op, plan, ctx);
}

template <class T>
void gradient(const CumprodBackward& op, CudaContext& ctx) {
  constexpr const char* kOp = "cumprod_backward";
  const Plan<3> plan = plan_lines<3>(kOp, {op.dx, op.in, op.dout}, op.dim, 1);
  const int64_t n = plan.parts.n, lines = plan.parts.lines;
  Before before = {ctx.scratch_of<float>(static_cast<size_t>(op.in.numel())), n, 1};
  if (!plan.dense) before = {before.data, 1, lines};
  ProductsBefore<T> products;
  products.in = op.in.as<T>();
  products.in_dim = dim_of(op.in, op.dim, false);
  products.before = before;
  products.n = n;
  scan(kOp, products, plan, ctx);
  Gradient<T> f;
  f.dx = op.dx.as<T>();
  f.in = op.in.as<T>();
  f.dout = op.dout.as<T>();
  f.dx_dim = dim_of(op.dx, op.dim, true);
  f.in_dim = dim_of(op.in, op.dim, true);
  f.dout_dim = dim_of(op.dout, op.dim, true);
  f.before = before;
  f.n = n;
  f.accumulate = op.accumulate;
  scan(kOp, f, plan, ctx);
}

}  // namespace

void run(const Scan& op, CudaContext& ctx) {
  if (op.in.numel() == 0) return;
  if (op.in.dtype == DType::i64) return running<int64_t>(op, ctx);
  for_floating("scan", op.in.dtype,
               [&](auto tag) { running<typename decltype(tag)::type>(op, ctx); });
}

void run(const CumprodBackward& op, CudaContext& ctx) {
  if (op.in.numel() == 0) return;
  for_floating("cumprod_backward", op.in.dtype,
               [&](auto tag) { gradient<typename decltype(tag)::type>(op, ctx); });
}

}  // namespace ds::cuda
