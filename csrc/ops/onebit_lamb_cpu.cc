// 1-bit LAMB on the CPU, in one pass over chunks of parameters, with denormals flushed to zero.
#include <algorithm>
#include <vector>

#include "../cpu/flush_denormals.h"
#include "../cpu/segment_sum.h"
#include "onebit_lamb_rule.h"

namespace ds::cpu {
namespace {

constexpr int64_t kGrain = 8;  // slots per task

/// Must not be inlined, so that the arithmetic stays inside the scope of FlushDenormals.
__attribute__((noinline)) void moments_block(const OneBitLambConstants& constants,
                                             const float* __restrict p,
                                             const float* __restrict payload,
                                             const float* __restrict v, float* __restrict m,
                                             float* __restrict fresh, double* __restrict direction,
                                             double* __restrict update, double* __restrict ratio,
                                             int64_t n) {
  const OneBitLambConstants c = constants;
  for (int64_t i = 0; i < n; ++i) {
    const OneBitLambTerms t = one_bit_lamb_element(c, p[i], payload[i], v[i], m[i], fresh[i]);
    direction[i] += t.direction;
    update[i] += t.update;
    ratio[i] = t.ratio > ratio[i] ? t.ratio : ratio[i];
  }
}

void moments_chunk(const OneBitLambMoments& op, const OneBitLambConstants& c,
                   const SegmentChunk& chunk, double* sums) {
  alignas(64) double direction[kSegmentBlock] = {}, update[kSegmentBlock] = {},
                     ratio[kSegmentBlock] = {};
  for (int64_t i = chunk.begin; i < chunk.end; i += kSegmentBlock) {
    const int64_t count = std::min(kSegmentBlock, chunk.end - i);
    moments_block(c, op.master.as<float>() + i, op.payload.as<float>() + i, op.v.as<float>() + i,
                  op.m.as<float>() + i, op.fresh.as<float>() + i, direction, update, ratio, count);
  }
  sums[0] = chunk_sum(direction);
  sums[1] = chunk_sum(update);
  sums[2] = *std::max_element(ratio, ratio + kSegmentBlock);
}

}  // namespace

void run(const OneBitLambAverage& op, CpuContext&) {
  if (op.control.as<float>()[1] == 0.0f) return;
  const FlushDenormals flush;
  const float beta = static_cast<float>(op.beta);
  const float one_minus_beta = static_cast<float>(1.0 - op.beta);
  for (int64_t i = 0; i < op.frozen.numel(); ++i) {
    const float coefficient = op.coefficients.as<float>()[i];
    float& frozen = op.frozen.as<float>()[i];
    if (coefficient != 1.0f) frozen = fma_rn(beta, frozen, mul_rn(one_minus_beta, coefficient));
  }
}

void run(const OneBitLambMoments& op, CpuContext& ctx) {
  check_ascending("one_bit_lamb_moments", op.starts, op.master.numel());
  const int64_t parameters = op.starts.numel() - 1;
  if (parameters == 0) return;
  auto* const sums = op.sums.as<double>();
  std::fill_n(sums, 3 * parameters, 0.0);
  if (op.control.as<float>()[1] == 0.0f) return;
  const OneBitLambConstants constants = one_bit_lamb_constants(op);
  const int64_t* const starts = op.starts.as<int64_t>();
  const int64_t slots = slot_count(op.master.numel(), parameters);
  std::vector<double> partials(static_cast<size_t>(3 * slots));
  ctx.pool.parallel_for(slots, kGrain, [&](int64_t begin, int64_t end) {
    const FlushDenormals flush;
    for (int64_t slot = begin; slot < end; ++slot)
      moments_chunk(op, constants, chunk_of(starts, parameters, slot), &partials[3 * slot]);
  });
  for (int64_t i = 0; i < parameters; ++i) {
    sums[3 * i] = segment_sum(partials.data(), 3, starts, i);
    sums[3 * i + 1] = segment_sum(partials.data() + 1, 3, starts, i);
    const double* const ratios = partials.data() + 3 * first_slot(starts, i) + 2;
    for (int64_t chunk = 0; chunk < chunk_count(starts, i); ++chunk)
      sums[3 * i + 2] = std::max(sums[3 * i + 2], ratios[3 * chunk]);
  }
}

void run(const OneBitLambCoefficients& op, CpuContext&) {
  if (op.control.as<float>()[1] == 0.0f) return;
  const FlushDenormals flush;
  for (int64_t i = 0; i < op.coefficients.numel(); ++i) {
    float& factor = op.factor.as<float>()[i];
    factor = one_bit_lamb_factor(op.sums.as<double>() + 3 * i, factor, op.decays, op.least, op.most,
                                 op.threshold);
    op.coefficients.as<float>()[i] = mul_rn(op.frozen.as<float>()[i], factor);
  }
}

}  // namespace ds::cpu
