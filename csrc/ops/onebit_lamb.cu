// 1-bit LAMB on the GPU: a block per chunk of a parameter, then a block per parameter.
#include "../cuda/segment_sum.cuh"
#include "onebit_lamb_rule.h"

namespace ds::cuda {
namespace {

struct Range {
  const float *master, *payload, *v;
  float *m, *fresh;
  const int64_t* starts;
  const float* control;
  int64_t parameters;
  OneBitLambConstants constants;
};

/// Updates m and fresh, and writes the three sums of the chunk of the block to partials[block, 3].
__global__ void __launch_bounds__(kSegmentThreads) moments_kernel(Range s, double* partials) {
  if (s.control[1] == 0) return;
  const SegmentChunk chunk = chunk_of(s.starts, s.parameters, blockIdx.x);
  const bool whole = packets_at(s.master + chunk.begin) && packets_at(s.payload + chunk.begin) &&
                     packets_at(s.v + chunk.begin) && packets_at(s.m + chunk.begin) &&
                     packets_at(s.fresh + chunk.begin);
  double direction[kSegmentWidth] = {}, update[kSegmentWidth] = {}, ratio = 0;
  for_packets(chunk, [&](int64_t at, int64_t valid) {
    const SegmentPacket<float> p = load_segment(s.master + at, valid, whole);
    const SegmentPacket<float> x = load_segment(s.payload + at, valid, whole);
    const SegmentPacket<float> v = load_segment(s.v + at, valid, whole);
    SegmentPacket<float> m = load_segment(s.m + at, valid, whole);
    SegmentPacket<float> fresh = load_segment(s.fresh + at, valid, whole);
#pragma unroll
    for (int i = 0; i < kSegmentWidth; ++i) {
      if (i >= valid) continue;
      const OneBitLambTerms t =
          one_bit_lamb_element(s.constants, p.v[i], x.v[i], v.v[i], m.v[i], fresh.v[i]);
      direction[i] += t.direction;
      update[i] += t.update;
      ratio = t.ratio > ratio ? t.ratio : ratio;
    }
    store_segment(s.m + at, m, valid, whole);
    store_segment(s.fresh + at, fresh, valid, whole);
  });
  const double first = block_sum((direction[0] + direction[1]) + (direction[2] + direction[3]));
  const double second = block_sum((update[0] + update[1]) + (update[2] + update[3]));
  const double largest = block_reduce(ratio, Max{});
  if (threadIdx.x != 0) return;
  partials[3 * int64_t{blockIdx.x}] = first;
  partials[3 * int64_t{blockIdx.x} + 1] = second;
  partials[3 * int64_t{blockIdx.x} + 2] = largest;
}

/// Adds the sums of a parameter over its chunks, and takes the largest ratio. A block per
/// parameter.
__global__ void __launch_bounds__(kSegmentThreads)
    sums_kernel(const double* partials, const int64_t* starts, const float* control, double* sums) {
  const bool skipped = control[1] == 0;
  const int64_t parameter = blockIdx.x;
  const double first = skipped ? 0 : segment_sum(partials, 3, starts, parameter);
  const double second = skipped ? 0 : segment_sum(partials + 1, 3, starts, parameter);
  double ratio = 0;
  const double* const ratios = partials + 3 * first_slot(starts, parameter) + 2;
  const int64_t chunks = skipped ? 0 : chunk_count(starts, parameter);
  for (int64_t i = threadIdx.x; i < chunks; i += kSegmentThreads)
    ratio = ratios[3 * i] > ratio ? ratios[3 * i] : ratio;
  const double largest = block_reduce(ratio, Max{});
  if (threadIdx.x != 0) return;
  sums[3 * parameter] = first;
  sums[3 * parameter + 1] = second;
  sums[3 * parameter + 2] = largest;
}

/// Averages coefficients. One thread per parameter.
__global__ void __launch_bounds__(kSegmentThreads)
    average_kernel(const float* coefficients, float* frozen, const float* control, float beta,
                   float one_minus_beta, int64_t parameters) {
  const int64_t i = int64_t{blockIdx.x} * kSegmentThreads + threadIdx.x;
  if (control[1] == 0 || i >= parameters || coefficients[i] == 1.0f) return;
  frozen[i] = fma_rn(beta, frozen[i], mul_rn(one_minus_beta, coefficients[i]));
}

/// Writes the factor and the coefficient of each parameter. One thread per parameter.
__global__ void __launch_bounds__(kSegmentThreads)
    coefficient_kernel(OneBitLambCoefficients op, const double* sums, const float* frozen,
                       float* factor, float* coefficients, const float* control,
                       int64_t parameters) {
  const int64_t i = int64_t{blockIdx.x} * kSegmentThreads + threadIdx.x;
  if (control[1] == 0 || i >= parameters) return;
  factor[i] =
      one_bit_lamb_factor(sums + 3 * i, factor[i], op.decays, op.least, op.most, op.threshold);
  coefficients[i] = mul_rn(frozen[i], factor[i]);
}

unsigned blocks_of(int64_t parameters) {
  return static_cast<unsigned>((parameters + kSegmentThreads - 1) / kSegmentThreads);
}

}  // namespace

void run(const OneBitLambAverage& op, CudaContext& ctx) {
  const int64_t parameters = op.frozen.numel();
  if (parameters == 0) return;
  average_kernel<<<blocks_of(parameters), kSegmentThreads, 0, ctx.stream>>>(
      op.coefficients.as<float>(), op.frozen.as<float>(), op.control.as<float>(),
      static_cast<float>(op.beta), static_cast<float>(1.0 - op.beta), parameters);
  DS_CUDA_LAUNCHED("one_bit_lamb_average");
}

void run(const OneBitLambMoments& op, CudaContext& ctx) {
  constexpr const char* kOp = "one_bit_lamb_moments";
  const int64_t parameters = op.starts.numel() - 1;
  if (parameters == 0) return;
  const auto slots = static_cast<unsigned>(slot_count(op.master.numel(), parameters));
  double* const partials = ctx.scratch_of<double>(3 * size_t{slots});
  const Range range = {
      op.master.as<float>(),     op.payload.as<float>(),  op.v.as<float>(),       op.m.as<float>(),
      op.fresh.as<float>(),      op.starts.as<int64_t>(), op.control.as<float>(), parameters,
      one_bit_lamb_constants(op)};
  moments_kernel<<<slots, kSegmentThreads, 0, ctx.stream>>>(range, partials);
  DS_CUDA_LAUNCHED(kOp);
  sums_kernel<<<static_cast<unsigned>(parameters), kSegmentThreads, 0, ctx.stream>>>(
      partials, op.starts.as<int64_t>(), op.control.as<float>(), op.sums.as<double>());
  DS_CUDA_LAUNCHED(kOp);
}

void run(const OneBitLambCoefficients& op, CudaContext& ctx) {
  const int64_t parameters = op.coefficients.numel();
  if (parameters == 0) return;
  coefficient_kernel<<<blocks_of(parameters), kSegmentThreads, 0, ctx.stream>>>(
      op, op.sums.as<double>(), op.frozen.as<float>(), op.factor.as<float>(),
      op.coefficients.as<float>(), op.control.as<float>(), parameters);
  DS_CUDA_LAUNCHED("one_bit_lamb_coefficients");
}

}  // namespace ds::cuda
