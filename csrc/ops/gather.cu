// Gather along a dim on the GPU.
#include "gather.h"

#include "../cuda/strided.cuh"

namespace ds::cuda {
namespace {

constexpr int kThreads = 256;

/// The line of `size` elements along the gathered dim, from which an item reads.
struct Line {
  int64_t size, stride;
};

/// Operands are out, index and in, with stride 0 along the gathered dim of `in`.
template <class T, class I>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(Steps<3> steps, T* out, const I* index, const T* in, Line line) {
  const uint32_t item = blockIdx.x * kThreads + threadIdx.x;
  if (item >= steps.count) return;
  int32_t at[3];
  steps.offsets(item, at);
  const int64_t j = index[at[1]];
  const bool bad = j < 0 || j >= line.size;
  T x = in[at[2] + (bad ? 0 : j) * line.stride];
  if constexpr (!is_integer<T>)
    if (bad) x = from_float<T>(NAN);
  out[at[0]] = x;
}

}  // namespace

void run(const Gather& op, CudaContext& ctx) {
  constexpr const char* kOp = "gather";
  if (op.out.numel() == 0) return;
  const Line line = {op.in.shape[op.dim], op.in.strides[op.dim]};
  DS_CHECK_SHAPE(line.size > 0, kOp, text("elements in dim ", op.dim, " of in"), op.in.describe());
  View source = op.in;
  source.strides[op.dim] = 0;
  const View* const views[3] = {&op.out, &op.index, &source};
  for_all(kOp, op.in.dtype, [&](auto tag) {
    dispatch_index(kOp, op.index.dtype, [&](auto index) {
      using T = typename decltype(tag)::type;
      using I = typename decltype(index)::type;
      walk_vectors<1>(plan_walk(views), [&](auto, const Steps<3>& steps, char* const* data) {
        gather_kernel<T, I><<<(steps.count + kThreads - 1) / kThreads, kThreads, 0, ctx.stream>>>(
            steps, reinterpret_cast<T*>(data[0]), reinterpret_cast<const I*>(data[1]),
            reinterpret_cast<const T*>(data[2]), line);
        DS_CUDA_LAUNCHED(kOp);
      });
    });
  });
}

}  // namespace ds::cuda
