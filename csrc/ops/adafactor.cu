// Adafactor on the GPU. A warp sums a row, a thread a column of a group of rows, and a block a
// chunk of elements.
#include "adafactor.h"

#include <algorithm>

#include "../cuda/segment_sum.cuh"
#include "adafactor_rule.h"

namespace ds::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

unsigned blocks_of(int64_t items, int64_t each) {
  return static_cast<unsigned>(std::max<int64_t>(1, (items + each - 1) / each));
}

template <class G>
__device__ __forceinline__ double gradient_square(const G* grad, int64_t i, float factor) {
  const double g = mul_rn(to_float(grad[i]), factor);
  return g * g;
}

/// Returns the chunk of this block, of n elements in one segment.
__device__ __forceinline__ SegmentChunk own_chunk(int64_t n) {
  const int64_t begin = int64_t{blockIdx.x} * kSegmentChunk;
  const int64_t end = begin + kSegmentChunk;
  return {0, begin, end < n ? end : n};
}

/// Writes partials[block], the sum of p^2 over the chunk of the block.
__global__ void __launch_bounds__(kSegmentThreads)
    parameter_kernel(const float* master, const float* control, int64_t n, double* partials) {
  if (control[1] == 0) return;
  const SegmentChunk chunk = own_chunk(n);
  const bool whole = packets_at(master + chunk.begin);
  SquareSum squares;
  for_packets(chunk, [&](int64_t at, int64_t valid) {
    const SegmentPacket<float> p = load_segment(master + at, valid, whole);
#pragma unroll
    for (int i = 0; i < kSegmentWidth; ++i) squares.add(i, p.v[i]);
  });
  const double sum = squares.of_block();
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

/// Writes sums[k], the sum of partials over the chunks of n elements. Each chunk has gridDim.x
/// partials.
__global__ void __launch_bounds__(kSegmentThreads)
    total_kernel(const double* partials, const float* control, int64_t n, double* sums) {
  const int64_t starts[] = {0, n};
  const double sum =
      control[1] == 0 ? 0
                      : segment_sum(partials + blockIdx.x, static_cast<int>(gridDim.x), starts, 0);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

/// Sums rows, one warp per row, in the order of cpu::sum_of.
template <class G>
__global__ void __launch_bounds__(kThreads)
    row_kernel(const G* grad, const float* control, MatrixPart part, int64_t n, double* rows) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (row >= part.rows) return;
  const int lane = threadIdx.x % kWarp;
  const RowPart here = RowPart::of(part, n, row);
  const float factor = control[0];
  double sum = 0;
  if (control[1] != 0) {
    for (int64_t i = here.begin + lane; i < here.end; i += kWarp)
      sum += gradient_square(grad, i, factor);
  }
  sum = warp_sum(sum);
  if (lane == 0) rows[row] = sum;
}

/// Writes partials[group * columns + column], the sum over the rows of a group in order.
template <class G>
__global__ void __launch_bounds__(kThreads)
    column_kernel(const G* grad, const float* control, MatrixPart part, int64_t n, RowGroups groups,
                  double* partials) {
  if (control[1] == 0) return;
  const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (item >= groups.count * part.columns) return;
  const int64_t group = groups.first + item / part.columns, column = item % part.columns;
  const int64_t rows = part.rows / part.matrices, matrix = group / groups.each;
  const int64_t first = matrix * rows + group % groups.each * kAdafactorRows;
  const int64_t last = (matrix + 1) * rows;
  const int64_t end = first + kAdafactorRows < last ? first + kAdafactorRows : last;
  const float factor = control[0];
  double sum = 0;
  for (int64_t row = first; row < end; ++row) {
    const int64_t i = row * part.columns + column - part.from;
    if (i >= 0 && i < n) sum += gradient_square(grad, i, factor);
  }
  partials[item] = sum;
}

/// Sums a column of a matrix over its groups in this range, in order. One thread per column.
__global__ void __launch_bounds__(kThreads)
    column_total_kernel(const double* partials, const float* control, MatrixPart part,
                        RowGroups groups, double* columns) {
  const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (item >= part.matrices * part.columns) return;
  const int64_t matrix = item / part.columns, column = item % part.columns;
  double sum = 0;
  if (control[1] != 0) {
    const int64_t low = matrix * groups.each - groups.first, high = low + groups.each;
    for (int64_t g = low < 0 ? 0 : low; g < high && g < groups.count; ++g)
      sum += partials[g * part.columns + column];
  }
  columns[item] = sum;
}

/// Pointers of AdafactorFactors for rows or columns.
struct Moments {
  const double* sums;
  float *moment, *factor;
  const float* control;
  double decay, eps;
  MatrixPart part;
};

/// Updates the moments of a matrix's rows and computes their mean and factors. One block per
/// matrix.
__global__ void __launch_bounds__(kSegmentThreads) row_factor_kernel(Moments s) {
  if (s.control[1] == 0) return;
  const int64_t rows = s.part.rows / s.part.matrices, first = int64_t{blockIdx.x} * rows;
  double sum = 0;
  for (int64_t i = first + threadIdx.x; i < first + rows; i += kSegmentThreads) {
    const float moment = adafactor_mean(s.decay, s.moment[i], s.sums[i], s.part.columns, s.eps);
    s.moment[i] = moment;
    sum += static_cast<double>(moment);
  }
  const double mean = block_sum(sum) / static_cast<double>(rows);
  for (int64_t i = first + threadIdx.x; i < first + rows; i += kSegmentThreads)
    s.factor[i] = adafactor_factor(s.moment[i], mean);
}

/// Updates the moments of columns and writes their factors. A thread per column of a matrix.
__global__ void __launch_bounds__(kThreads) column_factor_kernel(Moments s) {
  if (s.control[1] == 0) return;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= s.part.matrices * s.part.columns) return;
  const int64_t rows = s.part.rows / s.part.matrices;
  const float moment = adafactor_mean(s.decay, s.moment[i], s.sums[i], rows, s.eps);
  s.moment[i] = moment;
  s.factor[i] = adafactor_factor(moment, 1.0);
}

/// Scales of the gradient: factors of rows and columns, or a second moment per element.
struct Factors {
  const float *row, *column, *v;
  MatrixPart part;
};

/// Computes directions of elements from `first` on, which one thread reads in order.
struct Directions {
  const Factors& factors;
  const int64_t first;
  MatrixPlace start;  // row and column of element `first`

  __device__ __forceinline__ Directions(const Factors& given, int64_t begin)
      : factors(given), first(begin), start{0, 0} {
    if (!given.v) start = MatrixPlace::at(given.part, begin);
  }

  __device__ __forceinline__ float at(int64_t i, float g) const {
    if (factors.v) return adafactor_direction(g, factors.v[i]);
    const MatrixPart& part = factors.part;
    const auto columns = static_cast<uint32_t>(part.columns);
    const uint32_t place = static_cast<uint32_t>(start.column + (i - first));
    const int64_t r = start.row + place / columns;
    const int64_t matrix = part.matrices == 1 ? 0 : r / (part.rows / part.matrices);
    return adafactor_direction(g, factors.row[r],
                               factors.column[matrix * columns + place % columns]);
  }
};

/// Writes partials[block], the sum of u^2 over the chunk of the block.
template <class G>
__global__ void __launch_bounds__(kSegmentThreads)
    direction_kernel(const G* grad, Factors factors, const float* control, int64_t n,
                     double* partials) {
  if (control[1] == 0) return;
  const float factor = control[0];
  const SegmentChunk chunk = own_chunk(n);
  const bool whole = packets_at(grad + chunk.begin);
  const Directions directions(factors, chunk.begin);
  SquareSum squares;
  for_packets(chunk, [&](int64_t at, int64_t valid) {
    const SegmentPacket<G> g = load_segment(grad + at, valid, whole);
#pragma unroll
    for (int i = 0; i < kSegmentWidth; ++i)
      if (i < valid) squares.add(i, directions.at(at + i, mul_rn(to_float(g.v[i]), factor)));
  });
  const double sum = squares.of_block();
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

/// Updates v, and writes the sums of p^2 and u^2 over the chunk of the block to partials[block, 2].
template <class G>
__global__ void __launch_bounds__(kSegmentThreads)
    moment_kernel(const float* master, float* v, const G* grad, const float* control,
                  AdafactorDecay decay, int64_t n, double* partials) {
  if (control[1] == 0) return;
  const float factor = control[0];
  const SegmentChunk chunk = own_chunk(n);
  const bool whole = packets_at(master + chunk.begin) && packets_at(v + chunk.begin) &&
                     packets_at(grad + chunk.begin);
  SquareSum parameter, direction;
  for_packets(chunk, [&](int64_t at, int64_t valid) {
    const SegmentPacket<G> grads = load_segment(grad + at, valid, whole);
    const SegmentPacket<float> p = load_segment(master + at, valid, whole);
    SegmentPacket<float> moments = load_segment(v + at, valid, whole);
#pragma unroll
    for (int i = 0; i < kSegmentWidth; ++i) {
      const float g = mul_rn(to_float(grads.v[i]), factor);
      moments.v[i] = adafactor_moment(decay, g, moments.v[i]);
      // Elements beyond the end are 0, and a zero gradient gives a zero direction.
      parameter.add(i, p.v[i]);
      direction.add(i, adafactor_direction(g, moments.v[i]));
    }
    store_segment(v + at, moments, valid, whole);
  });
  const double parameters = parameter.of_block(), directions = direction.of_block();
  if (threadIdx.x != 0) return;
  partials[2 * int64_t{blockIdx.x}] = parameters;
  partials[2 * int64_t{blockIdx.x} + 1] = directions;
}

/// Operands of the last pass.
template <class G, class W>
struct Apply {
  float *master, *moment;
  const G* grad;
  W* weight;
  Factors factors;
  const double *parameter_squares, *direction_squares;
  const float* control;
  AdafactorScalars rule;
  int64_t n;
};

/// Updates the master, the first moment and the weight. A block per chunk.
template <class G, class W>
__global__ void __launch_bounds__(kSegmentThreads) apply_kernel(Apply<G, W> s) {
  const bool apply = s.control[1] != 0;
  if (!apply && !s.weight) return;
  const float factor = s.control[0];
  const SegmentChunk chunk = own_chunk(s.n);
  const Directions directions(s.factors, chunk.begin);
  const AdafactorStep step = adafactor_step(s.rule, s.parameter_squares[0], s.direction_squares[0],
                                            s.factors.part.rows * s.factors.part.columns);
  const bool whole = packets_at(s.master + chunk.begin) && packets_at(s.grad + chunk.begin) &&
                     (!s.moment || packets_at(s.moment + chunk.begin)) &&
                     (!s.weight || packets_at(s.weight + chunk.begin));
  for_packets(chunk, [&](int64_t at, int64_t valid) {
    SegmentPacket<float> p = load_segment(s.master + at, valid, whole);
    if (apply) {
      const SegmentPacket<G> g = load_segment(s.grad + at, valid, whole);
      SegmentPacket<float> m;
      if (s.moment) m = load_segment(s.moment + at, valid, whole);
#pragma unroll
      for (int i = 0; i < kSegmentWidth; ++i) {
        if (i >= valid) continue;
        const float u = directions.at(at + i, mul_rn(to_float(g.v[i]), factor));
        p.v[i] = adafactor_applied(step, p.v[i], u, s.moment ? &m.v[i] : nullptr);
      }
      store_segment(s.master + at, p, valid, whole);
      if (s.moment) store_segment(s.moment + at, m, valid, whole);
    }
    if (!s.weight) return;
    SegmentPacket<W> weight;
#pragma unroll
    for (int i = 0; i < kSegmentWidth; ++i) weight.v[i] = from_float<W>(p.v[i]);
    store_segment(s.weight + at, weight, valid, whole);
  });
}

Factors factors_of(const View& row, const View& column, const MatrixPart& part) {
  return {row.as<float>(), column.as<float>(), nullptr, part};
}

}  // namespace

void run(const AdafactorSums& op, CudaContext& ctx) {
  constexpr const char* kOp = "adafactor_sums";
  const int64_t n = op.master.numel();
  const RowGroups groups = RowGroups::of(op.part, n);
  const auto chunks = blocks_of(n, kSegmentChunk);
  const auto items = static_cast<size_t>(groups.count * op.part.columns);
  double* const partials = ctx.scratch_of<double>(chunks + items);
  const auto* const control = op.control.as<float>();
  parameter_kernel<<<chunks, kSegmentThreads, 0, ctx.stream>>>(op.master.as<float>(), control, n,
                                                               partials);
  DS_CUDA_LAUNCHED(kOp);
  total_kernel<<<1, kSegmentThreads, 0, ctx.stream>>>(partials, control, n,
                                                      op.squares.as<double>());
  DS_CUDA_LAUNCHED(kOp);
  for_floating(kOp, op.grad.dtype, [&](auto tag) {
    using G = typename decltype(tag)::type;
    const G* const grad = op.grad.as<G>();
    row_kernel<<<blocks_of(op.part.rows, kWarps), kThreads, 0, ctx.stream>>>(
        grad, control, op.part, n, op.rows.as<double>());
    DS_CUDA_LAUNCHED(kOp);
    column_kernel<<<blocks_of(groups.count * op.part.columns, kThreads), kThreads, 0, ctx.stream>>>(
        grad, control, op.part, n, groups, partials + chunks);
    DS_CUDA_LAUNCHED(kOp);
  });
  column_total_kernel<<<blocks_of(op.part.matrices * op.part.columns, kThreads), kThreads, 0,
                        ctx.stream>>>(partials + chunks, control, op.part, groups,
                                      op.columns.as<double>());
  DS_CUDA_LAUNCHED(kOp);
}

void run(const AdafactorFactors& op, CudaContext& ctx) {
  constexpr const char* kOp = "adafactor_factors";
  const auto* const control = op.control.as<float>();
  const Moments rows = {op.row_sums.as<double>(),
                        op.row.as<float>(),
                        op.row_factor.as<float>(),
                        control,
                        op.decay,
                        op.eps,
                        op.part};
  row_factor_kernel<<<static_cast<unsigned>(op.part.matrices), kSegmentThreads, 0, ctx.stream>>>(
      rows);
  DS_CUDA_LAUNCHED(kOp);
  const Moments columns = {op.column_sums.as<double>(),
                           op.column.as<float>(),
                           op.column_factor.as<float>(),
                           control,
                           op.decay,
                           op.eps,
                           op.part};
  column_factor_kernel<<<blocks_of(op.part.matrices * op.part.columns, kThreads), kThreads, 0,
                         ctx.stream>>>(columns);
  DS_CUDA_LAUNCHED(kOp);
}

void run(const AdafactorDirection& op, CudaContext& ctx) {
  constexpr const char* kOp = "adafactor_direction";
  const int64_t n = op.grad.numel();
  const auto chunks = blocks_of(n, kSegmentChunk);
  double* const partials = ctx.scratch_of<double>(chunks);
  for_floating(kOp, op.grad.dtype, [&](auto tag) {
    using G = typename decltype(tag)::type;
    direction_kernel<<<chunks, kSegmentThreads, 0, ctx.stream>>>(
        op.grad.as<G>(), factors_of(op.row_factor, op.column_factor, op.part),
        op.control.as<float>(), n, partials);
    DS_CUDA_LAUNCHED(kOp);
  });
  total_kernel<<<1, kSegmentThreads, 0, ctx.stream>>>(partials, op.control.as<float>(), n,
                                                      op.squares.as<double>());
  DS_CUDA_LAUNCHED(kOp);
}

void run(const AdafactorMoment& op, CudaContext& ctx) {
  constexpr const char* kOp = "adafactor_moment";
  const int64_t n = op.master.numel();
  const auto chunks = blocks_of(n, kSegmentChunk);
  double* const partials = ctx.scratch_of<double>(2 * size_t{chunks});
  for_floating(kOp, op.grad.dtype, [&](auto tag) {
    using G = typename decltype(tag)::type;
    moment_kernel<<<chunks, kSegmentThreads, 0, ctx.stream>>>(
        op.master.as<float>(), op.v.as<float>(), op.grad.as<G>(), op.control.as<float>(),
        adafactor_decay(op.decay, op.eps), n, partials);
    DS_CUDA_LAUNCHED(kOp);
  });
  total_kernel<<<2, kSegmentThreads, 0, ctx.stream>>>(partials, op.control.as<float>(), n,
                                                      op.squares.as<double>());
  DS_CUDA_LAUNCHED(kOp);
}

void run(const AdafactorApply& op, CudaContext& ctx) {
  constexpr const char* kOp = "adafactor_apply";
  const int64_t n = op.master.numel();
  if (n == 0) return;
  for_floating(kOp, op.grad.dtype, [&](auto grad) {
    for_floating(kOp, op.weight ? op.weight.dtype : DType::f32, [&](auto weight) {
      using G = typename decltype(grad)::type;
      using W = typename decltype(weight)::type;
      Apply<G, W> operands = {};
      operands.master = op.master.as<float>();
      operands.moment = op.moment ? op.moment.as<float>() : nullptr;
      operands.grad = op.grad.as<G>();
      operands.weight = op.weight ? op.weight.as<W>() : nullptr;
      operands.factors = {op.v ? nullptr : op.row_factor.as<float>(),
                          op.v ? nullptr : op.column_factor.as<float>(),
                          op.v ? op.v.as<float>() : nullptr, op.part};
      operands.parameter_squares = op.parameter_squares.as<double>();
      operands.direction_squares = op.direction_squares.as<double>();
      operands.control = op.control.as<float>();
      operands.rule = op.rule;
      operands.n = n;
      apply_kernel<<<blocks_of(n, kSegmentChunk), kSegmentThreads, 0, ctx.stream>>>(operands);
      DS_CUDA_LAUNCHED(kOp);
    });
  });
}

}  // namespace ds::cuda
