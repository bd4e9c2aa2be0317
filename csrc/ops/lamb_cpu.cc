// LAMB on the CPU: a pass per half, over chunks of parameters, with denormals flushed to zero.
#include "lamb.h"

#include <algorithm>
#include <vector>

#include "../cpu/flush_denormals.h"
#include "../cpu/processor.h"
#include "../cpu/rows.h"
#include "../cpu/segment_sum.h"
#include "lamb_rule.h"

namespace ds::cpu {
namespace {

constexpr int64_t kGrain = 8;  // slots per task

#define DS_MOMENTS_BLOCK                                                                    \
  (const LambConstants& constants, float factor, const float* __restrict grad,              \
   const float* __restrict p, float* __restrict m, float* __restrict v,                     \
   double* __restrict parameter_squares, double* __restrict direction_squares, int64_t n) { \
    const LambConstants c = constants;                                                      \
    for (int64_t i = 0; i < n; ++i) {                                                       \
      lamb_moments(c, factor, grad[i], m[i], v[i]);                                         \
      const double u = lamb_direction(c, p[i], m[i], v[i]), x = p[i];                       \
      parameter_squares[i] += x * x;                                                        \
      direction_squares[i] += u * u;                                                        \
    }                                                                                       \
  }
#define DS_APPLY_BLOCK                                                                     \
  (const LambConstants& constants, float coefficient, float* __restrict p,                 \
   const float* __restrict m, const float* __restrict v, int64_t n) {                      \
    const LambConstants c = constants;                                                     \
    for (int64_t i = 0; i < n; ++i) p[i] = lamb_applied(c, coefficient, p[i], m[i], v[i]); \
  }
// The same loops for two instruction sets. Wider vectors change the speed, not the bits. They must
// not be inlined, so that the arithmetic stays inside the scope of FlushDenormals.
__attribute__((noinline)) void moments_block DS_MOMENTS_BLOCK
    __attribute__((noinline)) void apply_block DS_APPLY_BLOCK
#if defined(__x86_64__)
    __attribute__((noinline, target("arch=x86-64-v4"))) void moments_block_512 DS_MOMENTS_BLOCK
    __attribute__((noinline, target("arch=x86-64-v4"))) void apply_block_512 DS_APPLY_BLOCK
#endif
#undef DS_MOMENTS_BLOCK
#undef DS_APPLY_BLOCK

    struct Blocks {
  decltype(&moments_block) moments = moments_block;
  decltype(&apply_block) apply = apply_block;

  Blocks() {
#if defined(__x86_64__)
    if (runs_avx512()) {
      moments = moments_block_512;
      apply = apply_block_512;
    }
#endif
  }
};

const Blocks& blocks() {
  static const Blocks chosen;
  return chosen;
}

/// Updates the moments of a chunk and writes its two sums of squares.
template <class G>
void moments_chunk(const LambMoments& op, const LambConstants& c, const SegmentChunk& chunk,
                   double* sums) {
  alignas(64) float grad[kSegmentBlock];
  alignas(64) double parameter[kSegmentBlock] = {}, direction[kSegmentBlock] = {};
  const float factor = op.control.as<float>()[0];
  for (int64_t i = chunk.begin; i < chunk.end; i += kSegmentBlock) {
    const int64_t count = std::min(kSegmentBlock, chunk.end - i);
    widen(op.grad.as<G>() + i, grad, count);
    blocks().moments(c, factor, grad, op.master.as<float>() + i, op.m.as<float>() + i,
                     op.v.as<float>() + i, parameter, direction, count);
  }
  sums[0] = chunk_sum(parameter);
  sums[1] = chunk_sum(direction);
}

template <class W>
void apply_chunk(const LambApply& op, const LambConstants& c, const SegmentChunk& chunk) {
  const bool apply = op.control.as<float>()[1] != 0.0f;
  const float coefficient = op.coefficients.as<float>()[chunk.segment];
  for (int64_t i = chunk.begin; i < chunk.end; i += kSegmentBlock) {
    const int64_t count = std::min(kSegmentBlock, chunk.end - i);
    float* const p = op.master.as<float>() + i;
    if (apply) blocks().apply(c, coefficient, p, op.m.as<float>() + i, op.v.as<float>() + i, count);
    if (op.weight) narrow(p, op.weight.as<W>() + i, count);
  }
}

}  // namespace

void run(const LambMoments& op, CpuContext& ctx) {
  constexpr const char* kOp = "lamb_moments";
  check_ascending(kOp, op.starts, op.master.numel());
  const int64_t parameters = op.starts.numel() - 1;
  if (parameters == 0) return;
  auto* const sums = op.sums.as<double>();
  if (op.control.as<float>()[1] == 0.0f) {
    std::fill_n(sums, 2 * parameters, 0.0);
    return;
  }
  const LambConstants constants = lamb_constants(op.rule);
  const int64_t* const starts = op.starts.as<int64_t>();
  const int64_t slots = slot_count(op.master.numel(), parameters);
  std::vector<double> partials(static_cast<size_t>(2 * slots));
  for_floating(kOp, op.grad.dtype, [&]<class G>(TypeTag<G>) {
    if constexpr (!std::is_same_v<G, double>) {
      ctx.pool.parallel_for(slots, kGrain, [&](int64_t begin, int64_t end) {
        const FlushDenormals flush;
        for (int64_t slot = begin; slot < end; ++slot)
          moments_chunk<G>(op, constants, chunk_of(starts, parameters, slot), &partials[2 * slot]);
      });
    }
  });
  for (int64_t i = 0; i < parameters; ++i) {
    sums[2 * i] = segment_sum(partials.data(), 2, starts, i);
    sums[2 * i + 1] = segment_sum(partials.data() + 1, 2, starts, i);
  }
}

void run(const LambCoefficients& op, CpuContext&) {
  const int64_t parameters = op.coefficients.numel();
  if (op.control.as<float>()[1] == 0.0f) return;
  const auto* const sums = op.sums.as<double>();
  for (int64_t i = 0; i < parameters; ++i)
    op.coefficients.as<float>()[i] =
        lamb_coefficient(sums[2 * i], sums[2 * i + 1], op.min_coefficient, op.max_coefficient);
}

void run(const LambApply& op, CpuContext& ctx) {
  constexpr const char* kOp = "lamb_apply";
  check_ascending(kOp, op.starts, op.master.numel());
  const int64_t parameters = op.starts.numel() - 1;
  if (parameters == 0) return;
  const LambConstants constants = lamb_constants(op.rule);
  const int64_t slots = slot_count(op.master.numel(), parameters);
  for_floating(kOp, op.weight ? op.weight.dtype : DType::f32, [&]<class W>(TypeTag<W>) {
    if constexpr (!std::is_same_v<W, double>) {
      ctx.pool.parallel_for(slots, kGrain, [&](int64_t begin, int64_t end) {
        const FlushDenormals flush;
        for (int64_t slot = begin; slot < end; ++slot)
          apply_chunk<W>(op, constants, chunk_of(op.starts.as<int64_t>(), parameters, slot));
      });
    }
  });
}

}  // namespace ds::cpu
