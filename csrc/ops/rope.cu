// Rotary position embedding on the GPU: a thread per packet of pairs, with both halves in
// registers.
#include "rope.h"

#include <algorithm>

#include "../cuda/vector.cuh"

namespace ds::cuda {
namespace {

constexpr int kThreads = 256;

/// Sizes of [B, T, H, D] with half = D / 2, and the strides of its first three dims.
template <class T>
struct Rotation {
  const T* in;
  const float *cos, *sin;
  T* out;
  const int* positions;             // [B, T] or null
  int64_t items, t, h, half, rows;  // rows: of cos and sin
  int64_t in_strides[3], out_strides[3];
  float direction;  // -1 for the inverse
};

/// Rotates item i: packet i % (half / N) of head row i / (half / N). N divides half.
template <int N, class T>
__global__ void __launch_bounds__(kThreads) rope_kernel(Rotation<T> r) {
  const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (item >= r.items) return;
  const int64_t packets = r.half / N, row = item / packets, column = (item - row * packets) * N;
  const int64_t position = row / r.h, head = row - position * r.h;
  const int64_t batch = position / r.t, t = position - batch * r.t;
  const T* in =
      r.in + batch * r.in_strides[0] + t * r.in_strides[1] + head * r.in_strides[2] + column;
  T* out =
      r.out + batch * r.out_strides[0] + t * r.out_strides[1] + head * r.out_strides[2] + column;
  const Vector<T, N> x1 = load_vector<N>(in), x2 = load_vector<N>(in + r.half);
  const int64_t angle = r.positions ? r.positions[position] : t;
  Vector<float, N> cos, sin;
  if (angle >= 0 && angle < r.rows) {
    cos = load_vector<N>(r.cos + angle * r.half + column);
    sin = load_vector<N>(r.sin + angle * r.half + column);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) cos.v[i] = sin.v[i] = NAN;
  }
  Vector<T, N> y1, y2;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float a = to_float(x1.v[i]), b = to_float(x2.v[i]), s = sin.v[i] * r.direction;
    y1.v[i] = from_float<T>(a * cos.v[i] - b * s);
    y2.v[i] = from_float<T>(b * cos.v[i] + a * s);
  }
  store_vector(out, y1);
  store_vector(out + r.half, y2);
}

/// Returns true if the strides of the first three dims are multiples of n.
bool strides_divide(const View& v, int64_t n) {
  for (int d = 0; d < 3; ++d)
    if (v.shape[d] > 1 && v.strides[d] % n != 0) return false;
  return true;
}

}  // namespace

void run(const Rope& op, CudaContext& ctx) {
  constexpr const char* kOp = "rope";
  if (op.in.numel() == 0) return;
  const int64_t half = op.in.shape[3] / 2, t = op.in.shape[1];
  for_floating(kOp, op.in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int N = kPacket<T>;
    Rotation<T> r = {op.in.as<T>(),
                     op.cos.as<float>(),
                     op.sin.as<float>(),
                     op.out.as<T>(),
                     op.positions ? op.positions.as<int>() : nullptr,
                     0,
                     t,
                     op.in.shape[2],
                     half,
                     op.cos.shape[0],
                     {},
                     {},
                     op.inverse ? -1.0f : 1.0f};
    std::copy_n(op.in.strides, 3, r.in_strides);
    std::copy_n(op.out.strides, 3, r.out_strides);
    const bool vectors = half % N == 0 && aligned_for<N>(r.in) && aligned_for<N>(r.out) &&
                         aligned_for<N>(r.cos) && aligned_for<N>(r.sin) &&
                         strides_divide(op.in, N) && strides_divide(op.out, N);
    r.items = op.in.numel() / 2 / (vectors ? N : 1);
    const auto kernel = vectors ? rope_kernel<N, T> : rope_kernel<1, T>;
    kernel<<<static_cast<unsigned>((r.items + kThreads - 1) / kThreads), kThreads, 0, ctx.stream>>>(
        r);
    DS_CUDA_LAUNCHED(kOp);
  });
}

}  // namespace ds::cuda
