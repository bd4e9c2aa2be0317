// LAMB on the GPU: three launches for a range, one block per chunk of a parameter.
#include "lamb.h"

#include "../cuda/segment_sum.cuh"
#include "lamb_rule.h"

namespace ds::cuda {
namespace {

/// Operands of a range. `weight` is null if the model computes with the f32 master.
template <class G, class W>
struct Range {
  float *master, *m, *v;
  const G* grad;
  W* weight;
  const int64_t* starts;
  const float* control;
  int64_t parameters;
  LambConstants constants;
};

/// Updates the moments. Writes the sums of squares of parameters to partials[2 * slot], of the
/// direction to partials[2 * slot + 1].
template <class G>
__global__ void __launch_bounds__(kSegmentThreads)
    moments_kernel(Range<G, float> s, double* partials) {
  if (s.control[1] == 0) return;
  const float factor = s.control[0];
  const SegmentChunk chunk = chunk_of(s.starts, s.parameters, blockIdx.x);
  const bool whole = packets_at(s.master + chunk.begin) && packets_at(s.m + chunk.begin) &&
                     packets_at(s.v + chunk.begin) && packets_at(s.grad + chunk.begin);
  SquareSum parameter, direction;
  for_packets(chunk, [&](int64_t at, int64_t valid) {
    const SegmentPacket<G> grad = load_segment(s.grad + at, valid, whole);
    const SegmentPacket<float> p = load_segment(s.master + at, valid, whole);
    SegmentPacket<float> m = load_segment(s.m + at, valid, whole);
    SegmentPacket<float> v = load_segment(s.v + at, valid, whole);
#pragma unroll
    for (int i = 0; i < kSegmentWidth; ++i) {
      lamb_moments(s.constants, factor, to_float(grad.v[i]), m.v[i], v.v[i]);
      // Elements beyond the end are 0, which gives a direction of 0.
      parameter.add(i, p.v[i]);
      direction.add(i, lamb_direction(s.constants, p.v[i], m.v[i], v.v[i]));
    }
    store_segment(s.m + at, m, valid, whole);
    store_segment(s.v + at, v, valid, whole);
  });
  const double parameter_squares = parameter.of_block(), direction_squares = direction.of_block();
  if (threadIdx.x != 0) return;
  partials[2 * int64_t{blockIdx.x}] = parameter_squares;
  partials[2 * int64_t{blockIdx.x} + 1] = direction_squares;
}

/// Adds the sums of a parameter's chunks. One block per parameter.
__global__ void __launch_bounds__(kSegmentThreads)
    sums_kernel(const double* partials, const int64_t* starts, const float* control, double* sums) {
  const bool skipped = control[1] == 0;
  const double parameter = skipped ? 0 : segment_sum(partials, 2, starts, blockIdx.x);
  const double direction = skipped ? 0 : segment_sum(partials + 1, 2, starts, blockIdx.x);
  if (threadIdx.x != 0) return;
  sums[2 * int64_t{blockIdx.x}] = parameter;
  sums[2 * int64_t{blockIdx.x} + 1] = direction;
}

/// Computes coefficients. One thread per parameter.
__global__ void __launch_bounds__(kSegmentThreads)
    coefficient_kernel(const double* sums, const float* control, double least, double most,
                       float* coefficients, int64_t parameters) {
  const int64_t i = int64_t{blockIdx.x} * kSegmentThreads + threadIdx.x;
  if (control[1] == 0 || i >= parameters) return;
  coefficients[i] = lamb_coefficient(sums[2 * i], sums[2 * i + 1], least, most);
}

/// Updates the master and writes the weight. A block per chunk.
template <class W>
__global__ void __launch_bounds__(kSegmentThreads)
    apply_kernel(Range<float, W> s, const float* coefficients) {
  const bool apply = s.control[1] != 0;
  if (!apply && !s.weight) return;
  const SegmentChunk chunk = chunk_of(s.starts, s.parameters, blockIdx.x);
  if (chunk.begin >= chunk.end) return;
  const float coefficient = coefficients[chunk.segment];
  const bool whole = packets_at(s.master + chunk.begin) && packets_at(s.m + chunk.begin) &&
                     packets_at(s.v + chunk.begin) &&
                     (!s.weight || packets_at(s.weight + chunk.begin));
  for_packets(chunk, [&](int64_t at, int64_t valid) {
    SegmentPacket<float> p = load_segment(s.master + at, valid, whole);
    if (apply) {
      const SegmentPacket<float> m = load_segment(s.m + at, valid, whole);
      const SegmentPacket<float> v = load_segment(s.v + at, valid, whole);
#pragma unroll
      for (int i = 0; i < kSegmentWidth; ++i)
        p.v[i] = lamb_applied(s.constants, coefficient, p.v[i], m.v[i], v.v[i]);
      store_segment(s.master + at, p, valid, whole);
    }
    if (!s.weight) return;
    SegmentPacket<W> weight;
#pragma unroll
    for (int i = 0; i < kSegmentWidth; ++i) weight.v[i] = from_float<W>(p.v[i]);
    store_segment(s.weight + at, weight, valid, whole);
  });
}

template <class G, class W, class Op>
Range<G, W> range_of(const Op& op) {
  return {op.master.template as<float>(),
          op.m.template as<float>(),
          op.v.template as<float>(),
          nullptr,
          nullptr,
          op.starts.template as<int64_t>(),
          op.control.template as<float>(),
          op.starts.numel() - 1,
          lamb_constants(op.rule)};
}

}  // namespace

void run(const LambMoments& op, CudaContext& ctx) {
  constexpr const char* kOp = "lamb_moments";
  const int64_t parameters = op.starts.numel() - 1;
  if (parameters == 0) return;
  const auto slots = static_cast<unsigned>(slot_count(op.master.numel(), parameters));
  double* const partials = ctx.scratch_of<double>(2 * size_t{slots});
  for_floating(kOp, op.grad.dtype, [&](auto tag) {
    using G = typename decltype(tag)::type;
    Range<G, float> range = range_of<G, float>(op);
    range.grad = op.grad.as<G>();
    moments_kernel<<<slots, kSegmentThreads, 0, ctx.stream>>>(range, partials);
    DS_CUDA_LAUNCHED(kOp);
  });
  sums_kernel<<<static_cast<unsigned>(parameters), kSegmentThreads, 0, ctx.stream>>>(
      partials, op.starts.as<int64_t>(), op.control.as<float>(), op.sums.as<double>());
  DS_CUDA_LAUNCHED(kOp);
}

void run(const LambCoefficients& op, CudaContext& ctx) {
  constexpr const char* kOp = "lamb_coefficients";
  const int64_t parameters = op.coefficients.numel();
  if (parameters == 0) return;
  const auto blocks = static_cast<unsigned>((parameters + kSegmentThreads - 1) / kSegmentThreads);
  coefficient_kernel<<<blocks, kSegmentThreads, 0, ctx.stream>>>(
      op.sums.as<double>(), op.control.as<float>(), op.min_coefficient, op.max_coefficient,
      op.coefficients.as<float>(), parameters);
  DS_CUDA_LAUNCHED(kOp);
}

void run(const LambApply& op, CudaContext& ctx) {
  constexpr const char* kOp = "lamb_apply";
  const int64_t parameters = op.starts.numel() - 1;
  if (parameters == 0) return;
  const auto slots = static_cast<unsigned>(slot_count(op.master.numel(), parameters));
  for_floating(kOp, op.weight ? op.weight.dtype : DType::f32, [&](auto tag) {
    using W = typename decltype(tag)::type;
    Range<float, W> range = range_of<float, W>(op);
    if (op.weight) range.weight = op.weight.as<W>();
    apply_kernel<<<slots, kSegmentThreads, 0, ctx.stream>>>(range, op.coefficients.as<float>());
    DS_CUDA_LAUNCHED(kOp);
  });
}

}  // namespace ds::cuda
