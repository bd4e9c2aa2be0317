// Muon's element-wise passes on the GPU: a block per chunk for the norms, a thread per element
// afterwards.
#include "muon.h"

#include <algorithm>

#include "../cuda/segment_sum.cuh"
#include "muon_rule.h"

namespace ds::cuda {
namespace {

constexpr int kThreads = 256, kBlocksPerSm = 8;

/// Updates the momentum, and writes partials[block], the sum of u^2 over the chunk of the block.
template <class G>
__global__ void __launch_bounds__(kSegmentThreads)
    momentum_kernel(float* momentum, const G* grad, const int64_t* starts, int64_t parameters,
                    const float* control, MuonConstants constants, double* partials) {
  if (control[1] == 0) return;
  const float factor = control[0];
  const SegmentChunk chunk = chunk_of(starts, parameters, blockIdx.x);
  const bool whole = packets_at(momentum + chunk.begin) && packets_at(grad + chunk.begin);
  SquareSum squares;
  for_packets(chunk, [&](int64_t at, int64_t valid) {
    const SegmentPacket<G> g = load_segment(grad + at, valid, whole);
    SegmentPacket<float> m = load_segment(momentum + at, valid, whole);
#pragma unroll
    for (int i = 0; i < kSegmentWidth; ++i) {
      m.v[i] = muon_mix(constants, factor, to_float(g.v[i]), m.v[i]);
      squares.add(i, muon_update(constants, factor, to_float(g.v[i]), m.v[i]));
    }
    store_segment(momentum + at, m, valid, whole);
  });
  const double sum = squares.of_block();
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

/// Adds the sums of a parameter's chunks. One block per parameter.
__global__ void __launch_bounds__(kSegmentThreads)
    sums_kernel(const double* partials, const int64_t* starts, const float* control, double* sums) {
  const double sum = control[1] == 0 ? 0 : segment_sum(partials, 1, starts, blockIdx.x);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

/// Writes u divided by the norm of its parameter, or 0 if the step is skipped.
template <class G, class D>
__global__ void __launch_bounds__(kThreads)
    direction_kernel(const float* momentum, const G* grad, const double* squares, D* direction,
                     const float* control, MuonConstants constants, int64_t n) {
  const float factor = control[0], divisor = muon_divisor(squares[0]);
  const bool apply = control[1] != 0;
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (int64_t i = first; i < n; i += int64_t{gridDim.x} * kThreads) {
    float u = 0;
    if (apply) u = div_rn(muon_update(constants, factor, to_float(grad[i]), momentum[i]), divisor);
    direction[i] = from_float<D>(u);
  }
}

/// Updates the master and writes the weight, unless that is null.
template <class D, class W>
__global__ void __launch_bounds__(kThreads)
    apply_kernel(float* master, const D* direction, W* weight, const float* control, MuonStep step,
                 int64_t n) {
  const bool apply = control[1] != 0;
  if (!apply && !weight) return;
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (int64_t i = first; i < n; i += int64_t{gridDim.x} * kThreads) {
    float p = master[i];
    if (apply) {
      p = muon_applied(step, p, to_float(direction[i]));
      master[i] = p;
    }
    if (weight) weight[i] = from_float<W>(p);
  }
}

unsigned blocks_for(int64_t n, const CudaContext& ctx) {
  const int64_t most = int64_t{ctx.sm_count} * kBlocksPerSm;
  return static_cast<unsigned>(std::min<int64_t>((n + kThreads - 1) / kThreads, most));
}

}  // namespace

void run(const MuonMomentum& op, CudaContext& ctx) {
  constexpr const char* kOp = "muon_momentum";
  const int64_t parameters = op.starts.numel() - 1;
  if (parameters == 0) return;
  const auto slots = static_cast<unsigned>(slot_count(op.momentum.numel(), parameters));
  double* const partials = ctx.scratch_of<double>(slots);
  const auto* const starts = op.starts.as<int64_t>();
  for_floating(kOp, op.grad.dtype, [&](auto tag) {
    using G = typename decltype(tag)::type;
    momentum_kernel<<<slots, kSegmentThreads, 0, ctx.stream>>>(
        op.momentum.as<float>(), op.grad.as<G>(), starts, parameters, op.control.as<float>(),
        muon_constants(op.beta, op.nesterov), partials);
    DS_CUDA_LAUNCHED(kOp);
  });
  sums_kernel<<<static_cast<unsigned>(parameters), kSegmentThreads, 0, ctx.stream>>>(
      partials, starts, op.control.as<float>(), op.sums.as<double>());
  DS_CUDA_LAUNCHED(kOp);
}

void run(const MuonDirection& op, CudaContext& ctx) {
  constexpr const char* kOp = "muon_direction";
  const int64_t n = op.momentum.numel();
  if (n == 0) return;
  for_floating(kOp, op.grad.dtype, [&](auto grad) {
    for_floating(kOp, op.direction.dtype, [&](auto direction) {
      using G = typename decltype(grad)::type;
      using D = typename decltype(direction)::type;
      direction_kernel<<<blocks_for(n, ctx), kThreads, 0, ctx.stream>>>(
          op.momentum.as<float>(), op.grad.as<G>(), op.squares.as<double>(), op.direction.as<D>(),
          op.control.as<float>(), muon_constants(op.beta, op.nesterov), n);
      DS_CUDA_LAUNCHED(kOp);
    });
  });
}

void run(const MuonApply& op, CudaContext& ctx) {
  constexpr const char* kOp = "muon_apply";
  const int64_t n = op.master.numel();
  if (n == 0) return;
  for_floating(kOp, op.direction.dtype, [&](auto direction) {
    for_floating(kOp, op.weight ? op.weight.dtype : DType::f32, [&](auto weight) {
      using D = typename decltype(direction)::type;
      using W = typename decltype(weight)::type;
      apply_kernel<<<blocks_for(n, ctx), kThreads, 0, ctx.stream>>>(
          op.master.as<float>(), op.direction.as<D>(), op.weight ? op.weight.as<W>() : nullptr,
          op.control.as<float>(), muon_step(op), n);
      DS_CUDA_LAUNCHED(kOp);
    });
  });
}

}  // namespace ds::cuda
