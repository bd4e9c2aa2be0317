// Gather along one dim on the GPU, and its gradient in ascending order without atomics.
#include "gather.h"

#include "../cuda/map.cuh"

namespace ds::cuda {
namespace {

constexpr int kThreads = 256;

/// The line of `size` elements along the gathered dim that an item looks into.
struct Line {
  int64_t size, stride;
};

/// Operands: out, index, in (with the gathered dim's stride set to 0).
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

/// Lines of dout and index along the gathered dim: `count` entries each.
struct Entries {
  int64_t count, dout_stride, index_stride;
};

/// Operands: dx, dout, index, walked over the lines. A thread per (line, j): the first j of an
/// index adds up every later one, so each element of dx has one writer, one order and one rounding.
template <class T, class I>
__global__ void __launch_bounds__(kThreads)
    gather_backward_kernel(Steps<3> lines, T* dx, const T* dout, const I* index, Line line,
                           Entries e) {
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x, item = thread / e.count;
  const int64_t j = thread - item * e.count;
  if (item >= lines.count) return;
  int32_t at[3];
  lines.offsets(static_cast<uint32_t>(item), at);
  const I* row = index + at[2];
  const I target = row[j * e.index_stride];
  if (target < 0 || target >= line.size) return;
  for (int64_t before = 0; before < j; ++before)
    if (row[before * e.index_stride] == target) return;
  T* out = dx + at[0] + static_cast<int64_t>(target) * line.stride;
  float sum = to_float(*out);
  for (int64_t k = j; k < e.count; ++k)
    if (row[k * e.index_stride] == target) sum += to_float(dout[at[1] + k * e.dout_stride]);
  *out = from_float<T>(sum);
}

struct Zero {
  static constexpr bool accumulate = false;
  template <class T, int N>
  __device__ void operator()(Vector<T, N>& out) const {
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] = from_float<T>(0.0f);
  }
};

/// v without the gathered dim: its size becomes 1, or stays with stride 0.
View without_dim(View v, int64_t dim, bool keep_size) {
  v.strides[dim] = 0;
  if (!keep_size) v.shape[dim] = 1;
  return v;
}

}  // namespace

void run(const Gather& op, CudaContext& ctx) {
  constexpr const char* kOp = "gather";
  if (op.out.numel() == 0) return;
  const Line line = {op.in.shape[op.dim], op.in.strides[op.dim]};
  DS_CHECK_SHAPE(line.size > 0, kOp, "a dim with elements", op.in.describe());
  const View source = without_dim(op.in, op.dim, true);
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

void run(const GatherBackward& op, CudaContext& ctx) {
  constexpr const char* kOp = "gather_backward";
  const Line line = {op.dx.shape[op.dim], op.dx.strides[op.dim]};
  const Entries entries = {op.dout.shape[op.dim], op.dout.strides[op.dim],
                           op.index.strides[op.dim]};
  const View dx = without_dim(op.dx, op.dim, false), dout = without_dim(op.dout, op.dim, false);
  const View lines = without_dim(op.index, op.dim, false);
  const View* const views[3] = {&dx, &dout, &lines};
  for_floating(kOp, op.dx.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (!op.accumulate) map<kPacket<T>, T>(kOp, ctx.stream, Zero{}, op.dx);
    if (op.dout.numel() == 0) return;
    dispatch_index(kOp, op.index.dtype, [&](auto index) {
      using I = typename decltype(index)::type;
      walk_vectors<1>(plan_walk(views), [&](auto, const Steps<3>& steps, char* const* data) {
        const int64_t blocks = (steps.count * entries.count + kThreads - 1) / kThreads;
        DS_CHECK_SHAPE(blocks < int64_t{1} << 31, kOp, "fewer than 2^39 indices",
                       op.index.describe());
        gather_backward_kernel<T, I><<<static_cast<unsigned>(blocks), kThreads, 0, ctx.stream>>>(
            steps, reinterpret_cast<T*>(data[0]), reinterpret_cast<const T*>(data[1]),
            reinterpret_cast<const I*>(data[2]), line, entries);
        DS_CUDA_LAUNCHED(kOp);
      });
    });
  });
}

}  // namespace ds::cuda
