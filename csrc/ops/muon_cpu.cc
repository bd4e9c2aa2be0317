// Muon's element-wise passes on the CPU, in chunks and blocks, with denormals flushed to zero.
#include "muon.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "../cpu/flush_denormals.h"
#include "../cpu/rows.h"
#include "../cpu/segment_sum.h"
#include "muon_rule.h"

namespace ds::cpu {
namespace {

constexpr int64_t kSlotGrain = 8;               // chunks per task
constexpr int64_t kGrain = 32 * kSegmentBlock;  // elements per task

// These functions must not be inlined, so that their arithmetic stays inside the scope of
// FlushDenormals. They copy the constants, because a store to a float array might change the
// referenced ones, and the compiler would then load them again for each element.
__attribute__((noinline)) void momentum_block(const MuonConstants& constants, float factor,
                                              const float* __restrict grad,
                                              float* __restrict momentum,
                                              double* __restrict squares, int64_t n) {
  const MuonConstants c = constants;
  for (int64_t i = 0; i < n; ++i) {
    momentum[i] = muon_mix(c, factor, grad[i], momentum[i]);
    const double u = muon_update(c, factor, grad[i], momentum[i]);
    squares[i] += u * u;
  }
}

__attribute__((noinline)) void direction_block(const MuonConstants& constants, float factor,
                                               float divisor, const float* __restrict momentum,
                                               float* __restrict grad, int64_t n) {
  const MuonConstants c = constants;
  for (int64_t i = 0; i < n; ++i)
    grad[i] = div_rn(muon_update(c, factor, grad[i], momentum[i]), divisor);
}

__attribute__((noinline)) void apply_block(const MuonStep& step, const float* __restrict direction,
                                           float* __restrict p, int64_t n) {
  const MuonStep s = step;
  for (int64_t i = 0; i < n; ++i) p[i] = muon_applied(s, p[i], direction[i]);
}

template <class G>
double momentum_chunk(const MuonMomentum& op, const SegmentChunk& chunk) {
  alignas(64) float grad[kSegmentBlock];
  alignas(64) double squares[kSegmentBlock] = {};
  const MuonConstants constants = muon_constants(op.beta, op.nesterov);
  for (int64_t i = chunk.begin; i < chunk.end; i += kSegmentBlock) {
    const int64_t count = std::min(kSegmentBlock, chunk.end - i);
    widen(op.grad.as<G>() + i, grad, count);
    momentum_block(constants, op.control.as<float>()[0], grad, op.momentum.as<float>() + i, squares,
                   count);
  }
  return chunk_sum(squares);
}

template <class G, class D>
void direction_range(const MuonDirection& op, int64_t begin, int64_t end) {
  const FlushDenormals flush;
  alignas(64) float block[kSegmentBlock] = {};
  const MuonConstants constants = muon_constants(op.beta, op.nesterov);
  const float divisor = muon_divisor(op.squares.as<double>()[0]);
  const bool apply = op.control.as<float>()[1] != 0.0f;
  for (int64_t i = begin; i < end; i += kSegmentBlock) {
    const int64_t count = std::min(kSegmentBlock, end - i);
    if (apply) {
      widen(op.grad.as<G>() + i, block, count);
      direction_block(constants, op.control.as<float>()[0], divisor, op.momentum.as<float>() + i,
                      block, count);
    }
    narrow(block, op.direction.as<D>() + i, count);
  }
}

template <class D, class W>
void apply_range(const MuonApply& op, int64_t begin, int64_t end) {
  const FlushDenormals flush;
  alignas(64) float direction[kSegmentBlock];
  const MuonStep step = muon_step(op);
  const bool apply = op.control.as<float>()[1] != 0.0f;
  for (int64_t i = begin; i < end; i += kSegmentBlock) {
    const int64_t count = std::min(kSegmentBlock, end - i);
    float* const p = op.master.as<float>() + i;
    if (apply) {
      widen(op.direction.as<D>() + i, direction, count);
      apply_block(step, direction, p, count);
    }
    if (op.weight) narrow(p, op.weight.as<W>() + i, count);
  }
}

}  // namespace

void run(const MuonMomentum& op, CpuContext& ctx) {
  constexpr const char* kOp = "muon_momentum";
  const int64_t n = op.momentum.numel();
  check_ascending(kOp, op.starts, n);
  const int64_t parameters = op.starts.numel() - 1;
  if (parameters == 0) return;
  auto* const sums = op.sums.as<double>();
  if (op.control.as<float>()[1] == 0.0f) {
    std::fill_n(sums, parameters, 0.0);
    return;
  }
  const int64_t* const starts = op.starts.as<int64_t>();
  const int64_t slots = slot_count(n, parameters);
  std::vector<double> partials(static_cast<size_t>(slots));
  for_floating(kOp, op.grad.dtype, [&]<class G>(TypeTag<G>) {
    if constexpr (!std::is_same_v<G, double>) {
      ctx.pool.parallel_for(slots, kSlotGrain, [&](int64_t begin, int64_t end) {
        const FlushDenormals flush;
        for (int64_t slot = begin; slot < end; ++slot)
          partials[slot] = momentum_chunk<G>(op, chunk_of(starts, parameters, slot));
      });
    }
  });
  for (int64_t i = 0; i < parameters; ++i) sums[i] = segment_sum(partials.data(), 1, starts, i);
}

void run(const MuonDirection& op, CpuContext& ctx) {
  constexpr const char* kOp = "muon_direction";
  for_floating(kOp, op.grad.dtype, [&]<class G>(TypeTag<G>) {
    for_floating(kOp, op.direction.dtype, [&]<class D>(TypeTag<D>) {
      if constexpr (!std::is_same_v<G, double> && !std::is_same_v<D, double>) {
        ctx.pool.parallel_for(op.momentum.numel(), kGrain, [&](int64_t begin, int64_t end) {
          direction_range<G, D>(op, begin, end);
        });
      }
    });
  });
}

void run(const MuonApply& op, CpuContext& ctx) {
  constexpr const char* kOp = "muon_apply";
  const DType weight = op.weight ? op.weight.dtype : DType::f32;
  for_floating(kOp, op.direction.dtype, [&]<class D>(TypeTag<D>) {
    for_floating(kOp, weight, [&]<class W>(TypeTag<W>) {
      if constexpr (!std::is_same_v<D, double> && !std::is_same_v<W, double>) {
        ctx.pool.parallel_for(op.master.numel(), kGrain, [&](int64_t begin, int64_t end) {
          apply_range<D, W>(op, begin, end);
        });
      }
    });
  });
}

}  // namespace ds::cpu
