// RotaryStore on the GPU: a warp per head of each token.
#include "rotary_store.h"

#include "../cuda/dependent_launch.cuh"
#include "../cuda/vector.cuh"
#include "key_codes.cuh"

namespace ds::cuda {
namespace {

constexpr int kThreads = 128, kWarpSize = 32, kWarps = kThreads / kWarpSize;

/// Heads of queries, keys or values. Returns the start of row (token, head).
template <class T>
struct HeadRows {
  T* data;
  int64_t token_stride, head_stride;

  __device__ __forceinline__ T* at(int64_t token, int head) const {
    return data + token * token_stride + head * head_stride;
  }
};

template <class T, class P>
struct RotaryArguments {
  HeadRows<const T> q, k, v;
  HeadRows<T> out;
  const float *cos, *sin;
  const int *positions, *slots;
  const T *q_norm, *k_norm;  // null if heads are not normalized
  P* pool;
  int64_t rows, angles, places;  // heads of all tokens, rows of the table, slots of the pool
  int heads, key_heads, block, d;
  float eps;
  bool settled;  // positions, slots and angles may be read before the previous kernel has ended
};

template <class T>
__device__ __forceinline__ float rounded(float x) {
  return to_float(from_float<T>(x));
}

/// Returns 1 / sqrt(mean of the squares of a head + eps) to all lanes.
template <int N, class T>
__device__ float inverse_norm(const T* in, int d, float eps) {
  float squares = 0.f;
  for (int c = threadIdx.x % kWarpSize * N; c < d; c += kWarpSize * N) {
    const Vector<T, N> x = load_vector<N>(in + c);
#pragma unroll
    for (int i = 0; i < N; ++i) squares = fmaf(to_float(x.v[i]), to_float(x.v[i]), squares);
  }
#pragma unroll
  for (int other = kWarpSize / 2; other > 0; other /= 2)
    squares += __shfl_xor_sync(0xffffffffu, squares, other);
  return 1.0f / sqrtf(squares / static_cast<float>(d) + eps);
}

/// Angles of N consecutive channels.
template <int N>
struct Angles {
  float cos[N], sin[N];

  template <class Arguments>
  __device__ __forceinline__ void load(const Arguments& a, int position, int c) {
    const int half = a.d / 2;
    const bool known = position >= 0 && position < a.angles;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int64_t angle = int64_t{position} * half + c + i;
      const bool is_here = known && c + i < half;
      cos[i] = is_here ? a.cos[angle] : NAN, sin[i] = is_here ? a.sin[angle] : NAN;
    }
  }
};

/// Writes a head, normalized if `norm` is present and rotated by the angles of `position`. `angles`
/// are those of this lane's first channels.
template <int N, class T, class P, class Out>
__device__ void turn(const RotaryArguments<T, P>& a, const T* in, const T* norm, int position,
                     Angles<N> angles, Out* out) {
  const int half = a.d / 2, first = static_cast<int>(threadIdx.x) % kWarpSize * N;
  const float scale = norm ? inverse_norm<N>(in, a.d, a.eps) : 1.f;
  for (int c = first; c < half; c += kWarpSize * N) {
    if (c != first) angles.load(a, position, c);
    const Vector<T, N> x1 = load_vector<N>(in + c), x2 = load_vector<N>(in + half + c);
    Vector<T, N> y1, y2;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float lower = to_float(x1.v[i]), upper = to_float(x2.v[i]);
      if (norm) {
        lower = rounded<T>(lower * scale * to_float(norm[c + i]));
        upper = rounded<T>(upper * scale * to_float(norm[half + c + i]));
      }
      y1.v[i] = from_float<T>(lower * angles.cos[i] - upper * angles.sin[i]);
      y2.v[i] = from_float<T>(upper * angles.cos[i] + lower * angles.sin[i]);
    }
    store_to_pool(out + c, y1);
    store_to_pool(out + half + c, y2);
  }
}

template <int N, class T, class P>
__device__ void copy_head(const T* in, P* out, int d) {
  for (int c = threadIdx.x % kWarpSize * N; c < d; c += kWarpSize * N)
    store_to_pool(out + c, load_vector<N>(in + c));
}

/// Processes row r, head r % (H + 2 Hk) of a token: its queries, then keys, then values. N divides
/// D / 2.
template <int N, class T, class P>
__global__ void __launch_bounds__(kThreads)
    rotary_store_kernel(const __grid_constant__ RotaryArguments<T, P> a) {
  let_next_begin();
  if (!a.settled) await_previous();
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  if (row >= a.rows) return;
  const int each = a.heads + 2 * a.key_heads;
  const int64_t token = row / each;
  int head = static_cast<int>(row - token * each);
  const int position = a.positions[token], slot = a.slots[token];
  Angles<N> angles;
  if (head < a.heads + a.key_heads)
    angles.load(a, position, static_cast<int>(threadIdx.x) % kWarpSize * N);
  if (a.settled) await_previous();
  if (head < a.heads) {
    turn<N>(a, a.q.at(token, head), a.q_norm, position, angles, a.out.at(token, head));
    return;
  }
  head -= a.heads;
  const bool is_key = head < a.key_heads;
  if (!is_key) head -= a.key_heads;
  if (slot < 0 || slot >= a.places) return;
  const int64_t b = slot / a.block, half = int64_t{a.key_heads} * a.block * a.d;
  P* const key = a.pool + b * 2 * half + (int64_t{head} * a.block + (slot - b * a.block)) * a.d;
  if (is_key) turn<N>(a, a.k.at(token, head), a.k_norm, position, angles, key);
  else copy_head<N>(a.v.at(token, head), key + half, a.d);
}

template <class T>
HeadRows<T> rows_of(const View& v) {
  return {v.as<std::remove_const_t<T>>(), v.strides[0], v.strides[1]};
}

template <int N, class T>
bool divides(const HeadRows<T>& rows) {
  return rows.token_stride % N == 0 && rows.head_stride % N == 0 &&
         aligned_for<N>(static_cast<const std::remove_const_t<T>*>(rows.data));
}

template <int N, class T, class P>
bool fits(const RotaryArguments<T, P>& a) {
  return a.d / 2 % N == 0 && divides<N>(a.q) && divides<N>(a.k) && divides<N>(a.v) &&
         divides<N>(a.out) && aligned_for<N>(a.pool);
}

template <class T, class P>
RotaryArguments<T, P> arguments_of(const RotaryStore& op) {
  const int64_t* const pool = op.pool.shape;
  RotaryArguments<T, P> a{};
  a.q = rows_of<const T>(op.q);
  a.k = rows_of<const T>(op.k);
  a.v = rows_of<const T>(op.v);
  a.out = rows_of<T>(op.out);
  a.cos = op.cos.as<float>();
  a.sin = op.sin.as<float>();
  a.positions = op.positions.as<int>();
  a.slots = op.slots.as<int>();
  a.q_norm = op.q_norm ? op.q_norm.as<T>() : nullptr;
  a.k_norm = op.k_norm ? op.k_norm.as<T>() : nullptr;
  a.pool = op.pool.as<P>();
  a.heads = static_cast<int>(op.q.shape[1]);
  a.key_heads = static_cast<int>(pool[2]);
  a.block = static_cast<int>(pool[3]);
  a.d = static_cast<int>(pool[4]);
  a.rows = op.q.shape[0] * (a.heads + 2 * a.key_heads);
  a.angles = op.cos.shape[0];
  a.places = pool[0] * pool[3];
  a.eps = static_cast<float>(op.eps);
  return a;
}

}  // namespace

void run(const RotaryStore& op, CudaContext& ctx) {
  for_floating("rotary_store", op.q.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_pool<T>(op.pool, [&]<class P>(P*) {
      RotaryArguments<T, P> a = arguments_of<T, P>(op);
      if (a.rows == 0) return;
      a.settled = is_settled(ctx, op.positions.data) && is_settled(ctx, op.slots.data) &&
                  is_settled(ctx, op.cos.data) && is_settled(ctx, op.sin.data);
      const auto blocks = static_cast<unsigned>((a.rows + kWarps - 1) / kWarps);
      const auto kernel = fits<4>(a)   ? rotary_store_kernel<4, T, P>
                          : fits<2>(a) ? rotary_store_kernel<2, T, P>
                                       : rotary_store_kernel<1, T, P>;
      launch_behind(ctx, {"rotary_store", dim3(blocks), dim3(kThreads), ctx.stream}, kernel, a);
    });
  });
}

}  // namespace ds::cuda
