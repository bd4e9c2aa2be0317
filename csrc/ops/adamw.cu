// AdamW on the GPU, for all storages of its state. AdamWRule::update (adamw_rule.h) updates a
// parameter in f32 registers. The storages differ in how a thread loads and stores them:
//
//     op            master       moments         parameters of a thread
//     AdamW         f32          f32             4 neighbours, by the kernel of update_range.cuh
//     AdamW         f32          bf16            4 neighbours
//     AdamWHalves   split        f32 or bf16     8 neighbours and their byte of tie bits
//     AdamW8bit     f32          8-bit codes     8 of the 256 parameters of a scale
//
// Each kernel reads and writes every operand once.
#include "adamw.h"

#include <algorithm>

#include "../cuda/block_reduce.cuh"
#include "../cuda/master_halves.cuh"
#include "adamw8bit.h"
#include "adamw_halves.h"
#include "adamw_rule.h"
#include "moments.cuh"
#include "update_range.cuh"

namespace ds::cuda {
namespace {

// -------------------------------------------------------------------------------------------------
// bf16 moments

/// An f32, f16 or bf16 array. All threads of a launch take the same branch, so one kernel serves
/// all pairs of dtypes.
struct Floats {
  void* data;
  DType dtype;

  static Floats of(const View& x) {
    Floats out = {nullptr, x.dtype};
    for_floating(AdamWRule::kName, x.dtype,
                 [&](auto tag) { out.data = x.as<typename decltype(tag)::type>(); });
    return out;
  }

  template <int N, class T>
  __device__ __forceinline__ Vector<float, N> widened(int64_t at) const {
    const auto narrow = load_streaming<N>(static_cast<const T*>(data) + at);
    Vector<float, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] = to_float(narrow.v[i]);
    return out;
  }

  template <int N, class T>
  __device__ __forceinline__ void rounded(int64_t at, const Vector<float, N>& x) const {
    Vector<T, N> narrow;
#pragma unroll
    for (int i = 0; i < N; ++i) narrow.v[i] = from_float<T>(x.v[i]);
    store_streaming(static_cast<T*>(data) + at, narrow);
  }

  template <int N>
  __device__ __forceinline__ Vector<float, N> load(int64_t at) const {
    if (dtype == DType::bf16) return widened<N, __nv_bfloat16>(at);
    if (dtype == DType::f16) return widened<N, __half>(at);
    return widened<N, float>(at);
  }

  template <int N>
  __device__ __forceinline__ void store(int64_t at, const Vector<float, N>& x) const {
    if (dtype == DType::bf16) rounded<N, __nv_bfloat16>(at, x);
    else if (dtype == DType::f16) rounded<N, __half>(at, x);
    else rounded<N, float>(at, x);
  }

  bool aligned() const {
    return reinterpret_cast<uintptr_t>(data) % (kUpdateWidth * size_of(dtype)) == 0;
  }
};

/// Operands of a range with bf16 moments. `weight.data` is null if the model computes with the f32
/// master.
struct NarrowRange {
  AdamWRule rule;
  float* master;
  uint16_t *m, *v;
  Floats grad, weight;
  const float* control;
  int64_t n;
};

template <int N>
__device__ __forceinline__ void update_narrow(const NarrowRange& r, float factor, bool apply,
                                              int64_t at) {
  Vector<float, N> p = load_streaming<N>(r.master + at);
  if (apply) {
    const auto grad = r.grad.load<N>(at);
    auto m = widen_moment(load_streaming<N>(r.m + at));
    auto v = widen_moment(load_streaming<N>(r.v + at));
#pragma unroll
    for (int i = 0; i < N; ++i) r.rule.update(factor, grad.v[i], p.v[i], m.v[i], v.v[i]);
    const RoundedMoments<N> kept(p, m, v);
    store_streaming(r.master + at, p);
    store_streaming(r.m + at, kept.m);
    store_streaming(r.v + at, kept.v);
  }
  if (r.weight.data) r.weight.store<N>(at, p);
}

/// Updates elements with moments in bf16, N at a time. The first threads of the grid update the
/// rest one by one.
template <int N>
__global__ void __launch_bounds__(kUpdateThreads) narrow_kernel(NarrowRange r) {
  const float factor = r.control[0];
  const bool apply = r.control[1] != 0;
  if (!apply && !r.weight.data) return;
  const int64_t packets = r.n / N, step = int64_t{gridDim.x} * kUpdateThreads;
  const int64_t first = int64_t{blockIdx.x} * kUpdateThreads + threadIdx.x;
  const int64_t tail = packets * N + first;
  for (int64_t i = first; i < packets; i += step) update_narrow<N>(r, factor, apply, i * N);
  if (tail < r.n) update_narrow<1>(r, factor, apply, tail);
}

void run_narrow(const AdamW& op, CudaContext& ctx) {
  const NarrowRange r = {
      AdamWRule::of(op),      op.master.as<float>(),
      op.m.as<uint16_t>(),    op.v.as<uint16_t>(),
      Floats::of(op.grad),    op.weight ? Floats::of(op.weight) : Floats{nullptr, DType::f32},
      op.control.as<float>(), op.master.numel()};
  if (r.n == 0) return;
  const bool vectors = aligned_for<kUpdateWidth>(r.master) && aligned_for<kUpdateWidth>(r.m) &&
                       aligned_for<kUpdateWidth>(r.v) && r.grad.aligned() && r.weight.aligned();
  const int64_t items = vectors ? (r.n + kUpdateWidth - 1) / kUpdateWidth : r.n;
  const int64_t blocks = std::min<int64_t>((items + kUpdateThreads - 1) / kUpdateThreads,
                                           int64_t{ctx.sm_count} * kUpdateBlocks<AdamWRule>);
  const auto kernel = vectors ? narrow_kernel<kUpdateWidth> : narrow_kernel<1>;
  kernel<<<static_cast<unsigned>(blocks), kUpdateThreads, 0, ctx.stream>>>(r);
  DS_CUDA_LAUNCHED(AdamWRule::kName);
}

// -------------------------------------------------------------------------------------------------
// Split masters

constexpr const char* kHalves = "adamw_halves";
constexpr int kHalvesBlocks = 4;  // per SM

/// Operands of a range with split masters. M is the storage of moments: float, or bits of bf16.
template <class G, class M>
struct HalvesRange {
  AdamWRule rule;
  Halves master;
  M *m, *v;
  const G* grad;
  const float* control;
  int64_t n;
  bool vectors;
};

/// Updates split masters, eight per thread and step.
template <class G, class M>
__global__ void __launch_bounds__(kUpdateThreads) halves_kernel(HalvesRange<G, M> r) {
  if (r.control[1] == 0) return;
  const float factor = r.control[0];
  const int64_t first = (int64_t{blockIdx.x} * kUpdateThreads + threadIdx.x) * kEight;
  for (int64_t at = first; at < r.n; at += int64_t{gridDim.x} * kUpdateThreads * kEight) {
    const int64_t valid = r.n - at;
    const bool whole = r.vectors && valid >= kEight;
    const auto grad = load_eight(r.grad + at, whole, valid);
    auto m = widen_moment(load_eight(r.m + at, whole, valid));
    auto v = widen_moment(load_eight(r.v + at, whole, valid));
    auto p = join_eight(r.master, at, whole, valid);
#pragma unroll
    for (int i = 0; i < kEight; ++i)
      r.rule.update(factor, to_float(grad.v[i]), p.v[i], m.v[i], v.v[i]);
    if constexpr (std::is_same_v<M, float>) {
      store_eight(r.m + at, m, whole, valid);
      store_eight(r.v + at, v, whole, valid);
    } else {
      const RoundedMoments<kEight> kept(p, m, v);
      store_eight(r.m + at, kept.m, whole, valid);
      store_eight(r.v + at, kept.v, whole, valid);
    }
    split_eight(r.master, p, at, whole, valid);
  }
}

template <class G, class M>
void run_halves(const AdamWHalves& op, CudaContext& ctx) {
  const int64_t n = op.m.numel();
  constexpr int64_t kStep = int64_t{kUpdateThreads} * kEight;
  const auto blocks = static_cast<unsigned>(
      std::min<int64_t>((n + kStep - 1) / kStep, int64_t{ctx.sm_count} * kHalvesBlocks));
  HalvesRange<G, M> r = {AdamWRule::of(op),
                         Halves::of(op),
                         op.m.as<M>(),
                         op.v.as<M>(),
                         op.grad.as<G>(),
                         op.control.as<float>(),
                         n,
                         false};
  r.vectors = aligned_for_eight(r.master) && aligned_for<kEight>(r.m) && aligned_for<kEight>(r.v) &&
              aligned_for<kEight>(r.grad);
  halves_kernel<G, M><<<blocks, kUpdateThreads, 0, ctx.stream>>>(r);
  DS_CUDA_LAUNCHED(kHalves);
}

// -------------------------------------------------------------------------------------------------
// 8-bit moments: a warp per block of 256 parameters, which share a scale

constexpr int kWarps = kUpdateThreads / kWarp, kCodedBlocks = 16;  // per block; per SM
constexpr int kEach = kCodeBlock / kWarp;                          // elements of a lane

__device__ const DynamicCode kSigned = dynamic_code(true), kUnsigned = dynamic_code(false);

template <class G, class W>
struct CodedRange {
  AdamWRule rule;
  float* master;
  uint8_t *m, *v;
  float *m_scale, *v_scale;
  const G* grad;
  W* weight;
  const float* control;
  int64_t n;
};

/// Rounds the warp's block to codes. Returns its largest magnitude.
__device__ __forceinline__ float round_to_codes(const DynamicCode& code, const float (&x)[kEach],
                                                uint8_t* codes, int64_t valid, int lane) {
  float size = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) size = Max{}(size, fabsf(x[i]));
  const float scale = warp_reduce(size, Max{});
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = i * kWarp + lane;
    if (at >= valid) continue;
    const int nearest = nearest_code(code.middle, code.zero, div_rn(x[i], scale));
    codes[at] = static_cast<uint8_t>(scale == 0.0f ? code.zero : nearest);
  }
  return scale;
}

/// Updates elements with moments in 8 bits, a warp per block of codes. Each thread block first
/// copies both code books to shared memory.
template <class G, class W>
__global__ void __launch_bounds__(kUpdateThreads) coded_kernel(CodedRange<G, W> r) {
  __shared__ DynamicCode code_m, code_v;
  const bool apply = r.control[1] != 0;
  if (!apply && !r.weight) return;
  for (int i = threadIdx.x; i < 256; i += kUpdateThreads) {
    code_m.value[i] = kSigned.value[i];
    code_v.value[i] = kUnsigned.value[i];
    if (i < 255) {
      code_m.middle[i] = kSigned.middle[i];
      code_v.middle[i] = kUnsigned.middle[i];
    }
  }
  if (threadIdx.x == 0) {
    code_m.zero = kSigned.zero;
    code_v.zero = kUnsigned.zero;
  }
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  const int64_t blocks = (r.n + kCodeBlock - 1) / kCodeBlock;
  const float factor = r.control[0];
  for (int64_t block = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; block < blocks;
       block += int64_t{gridDim.x} * kWarps) {
    const int64_t start = block * kCodeBlock, valid = r.n - start;
    float p[kEach], m[kEach] = {}, v[kEach] = {};
    const float m_scale = r.m_scale[block], v_scale = r.v_scale[block];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = i * kWarp + lane;
      if (at >= valid) continue;
      p[i] = r.master[start + at];
      if (!apply) continue;
      m[i] = mul_rn(code_m.value[r.m[start + at]], m_scale);
      v[i] = mul_rn(code_v.value[r.v[start + at]], v_scale);
      r.rule.update(factor, to_float(r.grad[start + at]), p[i], m[i], v[i]);
      r.master[start + at] = p[i];
    }
    if (apply) {
      const float new_m = round_to_codes(code_m, m, r.m + start, valid, lane);
      const float new_v = round_to_codes(code_v, v, r.v + start, valid, lane);
      if (lane == 0) {
        r.m_scale[block] = new_m;
        r.v_scale[block] = new_v;
      }
    }
    if (!r.weight) continue;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = i * kWarp + lane;
      if (at < valid) r.weight[start + at] = from_float<W>(p[i]);
    }
  }
}

}  // namespace

void run(const AdamW& op, CudaContext& ctx) {
  if (op.m.dtype == DType::bf16) run_narrow(op, ctx);
  else update_range(AdamWRule::of(op), op, {op.m, op.v}, ctx);
}

void run(const AdamWHalves& op, CudaContext& ctx) {
  if (op.m.numel() == 0) return;
  for_floating(kHalves, op.grad.dtype, [&](auto grad) {
    using G = typename decltype(grad)::type;
    if (op.m.dtype == DType::bf16) run_halves<G, uint16_t>(op, ctx);
    else run_halves<G, float>(op, ctx);
  });
}

void run(const AdamW8bit& op, CudaContext& ctx) {
  constexpr const char* kOp = "adamw8bit";
  const int64_t n = op.master.numel();
  if (n == 0) return;
  const int64_t blocks = (op.m_scale.numel() + kWarps - 1) / kWarps;
  const auto grid =
      static_cast<unsigned>(std::min<int64_t>(blocks, int64_t{ctx.sm_count} * kCodedBlocks));
  for_floating(kOp, op.grad.dtype, [&](auto grad) {
    for_floating(kOp, op.weight ? op.weight.dtype : DType::f32, [&](auto weight) {
      using G = typename decltype(grad)::type;
      using W = typename decltype(weight)::type;
      const CodedRange<G, W> range = {
          AdamWRule::of(op),      op.master.as<float>(),
          op.m.as<uint8_t>(),     op.v.as<uint8_t>(),
          op.m_scale.as<float>(), op.v_scale.as<float>(),
          op.grad.as<G>(),        op.weight ? op.weight.as<W>() : nullptr,
          op.control.as<float>(), n};
      coded_kernel<<<grid, kUpdateThreads, 0, ctx.stream>>>(range);
      DS_CUDA_LAUNCHED(kOp);
    });
  });
}

}  // namespace ds::cuda
