// Adam and AdamW on the GPU. f32 moments use the shared kernel, bf16 moments their own.
#include "adamw_rule.h"
#include "moments.cuh"
#include "update_range.cuh"

namespace ds::cuda {
namespace {

/// f32, f16 or bf16. All threads of a launch take the same branch, so one kernel serves every pair
/// of dtypes.
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

/// `weight.data` is null if the model computes with the f32 master.
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

}  // namespace

void run(const AdamW& op, CudaContext& ctx) {
  if (op.m.dtype == DType::bf16) run_narrow(op, ctx);
  else update_range(AdamWRule::of(op), op, {op.m, op.v}, ctx);
}

}  // namespace ds::cuda
