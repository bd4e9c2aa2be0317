// Rotary position embedding on the GPU: a thread rotates one packet of pairs in up to four heads of
// a token, with both halves in registers, and reads the packet's angles once.
#include "rope.h"

#include <algorithm>

#include "../cuda/strided.cuh"

namespace ds::cuda {
namespace {

constexpr int kThreads = 256;
constexpr uint32_t kMaxItems = 1u << 30;  // of a batch in a launch: FastDivisor's limit is 2^31

/// Sizes of [B, T, H, D] with half = D / 2, and the strides of its first three dims.
template <class T>
struct Rotation {
  const T* in;
  const float *cos, *sin;
  T* out;
  const int* positions;                // [B, T] or null
  int64_t t, half, rows;               // rows: of cos and sin
  int64_t first;                       // first token of the launch
  uint32_t items, batch_blocks, step;  // of a batch: items, blocks; heads between those of a thread
  FastDivisor packets, token_items;    // packets of half a head; items of a token
  int64_t in_strides[3], out_strides[3];
  float direction;  // -1 for the inverse
};

/// Rotates packets of N pairs; N divides half. A thread loads all its heads before it stores any.
template <int N, int kHeads, class T>
__global__ void __launch_bounds__(kThreads) rope_kernel(const __grid_constant__ Rotation<T> r) {
  const uint32_t batch = blockIdx.x / r.batch_blocks;
  const uint32_t item = (blockIdx.x - batch * r.batch_blocks) * kThreads + threadIdx.x;
  if (item >= r.items) return;
  const uint32_t token = r.token_items.quotient(item);
  const uint32_t place = item - token * r.token_items.divisor, head = r.packets.quotient(place);
  const uint32_t column = (place - head * r.packets.divisor) * N;
  const int64_t t = r.first + token;
  const T* const in =
      r.in + batch * r.in_strides[0] + t * r.in_strides[1] + head * r.in_strides[2] + column;
  T* const out =
      r.out + batch * r.out_strides[0] + t * r.out_strides[1] + head * r.out_strides[2] + column;
  Vector<T, N> x1[kHeads], x2[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    x1[h] = load_vector<N>(in + h * r.step * r.in_strides[2]);
    x2[h] = load_vector<N>(in + h * r.step * r.in_strides[2] + r.half);
  }
  const int64_t angle = r.positions ? r.positions[batch * r.t + t] : t;
  Vector<float, N> cos, sin;
  if (angle >= 0 && angle < r.rows) {
    cos = load_vector<N>(r.cos + angle * r.half + column);
    sin = load_vector<N>(r.sin + angle * r.half + column);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) cos.v[i] = sin.v[i] = NAN;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) sin.v[i] *= r.direction;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    Vector<T, N> y1, y2;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float a = to_float(x1[h].v[i]), b = to_float(x2[h].v[i]);
      y1.v[i] = from_float<T>(a * cos.v[i] - b * sin.v[i]);
      y2.v[i] = from_float<T>(b * cos.v[i] + a * sin.v[i]);
    }
    store_vector(out + h * r.step * r.out_strides[2], y1);
    store_vector(out + h * r.step * r.out_strides[2] + r.half, y2);
  }
}

/// Launches the kernel for all tokens, as many at a time as 32-bit indices allow.
template <int N, int kHeads, class T>
void launch_rope(const char* op, Rotation<T> r, int64_t batches, int64_t heads, CudaContext& ctx) {
  const int64_t packets = r.half / N, token_items = packets * heads / kHeads;
  r.packets = FastDivisor(static_cast<uint32_t>(packets));
  r.token_items = FastDivisor(static_cast<uint32_t>(token_items));
  r.step = static_cast<uint32_t>(heads / kHeads);
  const int64_t most = std::max<int64_t>(1, kMaxItems / token_items);
  for (r.first = 0; r.first < r.t; r.first += most) {
    const int64_t items = std::min(most, r.t - r.first) * token_items;
    r.items = static_cast<uint32_t>(items);
    r.batch_blocks = static_cast<uint32_t>((items + kThreads - 1) / kThreads);
    const auto blocks = static_cast<unsigned>(r.batch_blocks * batches);
    rope_kernel<N, kHeads, T><<<blocks, kThreads, 0, ctx.stream>>>(r);
    DS_CUDA_LAUNCHED(op);
  }
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
    Rotation<T> r{};
    r.in = op.in.as<T>();
    r.cos = op.cos.as<float>();
    r.sin = op.sin.as<float>();
    r.out = op.out.as<T>();
    r.positions = op.positions ? op.positions.as<int>() : nullptr;
    r.t = t;
    r.half = half;
    r.rows = op.cos.shape[0];
    r.direction = op.inverse ? -1.0f : 1.0f;
    std::copy_n(op.in.strides, 3, r.in_strides);
    std::copy_n(op.out.strides, 3, r.out_strides);
    const bool vectors = half % N == 0 && aligned_for<N>(r.in) && aligned_for<N>(r.out) &&
                         aligned_for<N>(r.cos) && aligned_for<N>(r.sin) &&
                         strides_divide(op.in, N) && strides_divide(op.out, N);
    const int64_t batches = op.in.shape[0], heads = op.in.shape[2];
    if (!vectors) return launch_rope<1, 1>(kOp, r, batches, heads, ctx);
    if (heads % 4 == 0) return launch_rope<N, 4>(kOp, r, batches, heads, ctx);
    if (heads % 2 == 0) return launch_rope<N, 2>(kOp, r, batches, heads, ctx);
    launch_rope<N, 1>(kOp, r, batches, heads, ctx);
  });
}

}  // namespace ds::cuda
