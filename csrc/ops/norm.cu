// LayerNorm and RMSNorm on the GPU. Forward: a warp keeps a row in registers. Backward: persistent
// blocks whose threads own columns, so that weight gradients stay in registers over all rows.
#include "norm.h"

#include <algorithm>
#include <initializer_list>

#include "../cuda/block_reduce.cuh"
#include "../cuda/column_sum.cuh"
#include "../cuda/vector.cuh"

namespace ds::cuda {
namespace {

/// The forward's operands; null where absent. mean is null for RMSNorm.
template <class T>
struct Forward {
  const T *x, *residual, *weight, *bias;
  T *sum, *out;
  float *mean, *rstd;
  int64_t n, c;
  float eps;
};

/// The backward's operands; null where absent.
template <class T>
struct Backward {
  const T *s, *weight, *dout, *dsum;
  T* dx;
  const float *mean, *rstd;
  float* partials;  // [blocks, 2, C], or null when no weight gradient is wanted
  int64_t n, c;
};

// -------------------------------------------------------------------------------------------------
// Forward

/// s of one packet: x plus residual, rounded to T.
template <int N, class T>
__device__ __forceinline__ Vector<T, N> add_residual(const Forward<T>& f, int64_t at) {
  Vector<T, N> s = load_streaming<N>(f.x + at);
  if (f.residual) {
    const Vector<T, N> r = load_streaming<N>(f.residual + at);
#pragma unroll
    for (int i = 0; i < N; ++i) s.v[i] = from_float<T>(to_float(s.v[i]) + to_float(r.v[i]));
  }
  return s;
}

template <int N, class T>
__device__ __forceinline__ void write_normalized(const Forward<T>& f, int64_t row, int64_t column,
                                                 const Vector<T, N>& s, float mean, float rstd) {
  const Vector<T, N> w = load_vector<N>(f.weight + column);
  Vector<T, N> b = {}, y;
  if (f.bias) b = load_vector<N>(f.bias + column);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float normalized = (to_float(s.v[i]) - mean) * rstd;
    y.v[i] = from_float<T>(normalized * to_float(w.v[i]) + (f.bias ? to_float(b.v[i]) : 0.0f));
  }
  store_streaming(f.out + row * f.c + column, y);
}

/// {mean, rstd} from the sums of the deviations from a rounded mean, and of their squares (norm.h).
template <bool kCentered>
__device__ __forceinline__ float2 statistics_of(float mean, float error, float squares, float c,
                                                float eps) {
  error /= c;
  const float variance = kCentered ? fmaxf(squares / c - error * error, 0.0f) : squares / c;
  return {kCentered ? mean + error : 0.0f, 1.0f / sqrtf(variance + eps)};
}

/// One warp per row of at most kPackets * 32 packets, which stay in registers.
template <class T, int kPackets, bool kCentered>
__global__ void __launch_bounds__(256) norm_forward_warp(Forward<T> f) {
  constexpr int N = kPacket<T>;
  const int64_t row = int64_t{blockIdx.x} * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  if (row >= f.n) return;
  const int lane = threadIdx.x % kWarp, packets = static_cast<int>(f.c) / N;
  Vector<T, N> s[kPackets];
#pragma unroll
  for (int k = 0; k < kPackets; ++k)
    if (k * kWarp + lane < packets) s[k] = add_residual<N>(f, row * f.c + (k * kWarp + lane) * N);
  float total = 0;
#pragma unroll
  for (int k = 0; k < kPackets; ++k) {
    if (k * kWarp + lane >= packets) continue;
    if (f.sum) store_vector(f.sum + row * f.c + (k * kWarp + lane) * N, s[k]);
#pragma unroll
    for (int i = 0; i < N; ++i) total += to_float(s[k].v[i]);
  }
  const float c = static_cast<float>(f.c), rounded = kCentered ? warp_sum(total) / c : 0.0f;
  float error = 0, squares = 0;
#pragma unroll
  for (int k = 0; k < kPackets; ++k) {
    if (k * kWarp + lane >= packets) continue;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float d = to_float(s[k].v[i]) - rounded;
      if (kCentered) error += d;
      squares += d * d;
    }
  }
  if (kCentered) error = warp_sum(error);
  const auto [mean, rstd] = statistics_of<kCentered>(rounded, error, warp_sum(squares), c, f.eps);
#pragma unroll
  for (int k = 0; k < kPackets; ++k)
    if (k * kWarp + lane < packets)
      write_normalized<N>(f, row, (k * kWarp + lane) * N, s[k], mean, rstd);
  if (lane == 0) {
    if (kCentered) f.mean[row] = mean;
    f.rstd[row] = rstd;
  }
}

/// One block per row of any length; s is formed again in each of the three passes.
template <class T, int N, bool kCentered>
__global__ void __launch_bounds__(256) norm_forward_block(Forward<T> f) {
  const int64_t row = blockIdx.x, base = row * f.c;
  const int64_t first = int64_t{threadIdx.x} * N, step = int64_t{blockDim.x} * N;
  float total = 0;
  for (int64_t c = first; c < f.c; c += step) {
    const Vector<T, N> s = add_residual<N>(f, base + c);
#pragma unroll
    for (int i = 0; i < N; ++i) total += to_float(s.v[i]);
  }
  const float n = static_cast<float>(f.c), rounded = kCentered ? block_sum(total) / n : 0.0f;
  float error = 0, squares = 0;
  for (int64_t c = first; c < f.c; c += step) {
    const Vector<T, N> s = add_residual<N>(f, base + c);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float d = to_float(s.v[i]) - rounded;
      if (kCentered) error += d;
      squares += d * d;
    }
  }
  if (kCentered) error = block_sum(error);
  const auto [mean, rstd] = statistics_of<kCentered>(rounded, error, block_sum(squares), n, f.eps);
  for (int64_t c = first; c < f.c; c += step) {
    const Vector<T, N> s = add_residual<N>(f, base + c);
    if (f.sum) store_vector(f.sum + base + c, s);
    write_normalized<N>(f, row, c, s, mean, rstd);
  }
  if (threadIdx.x == 0) {
    if (kCentered) f.mean[row] = mean;
    f.rstd[row] = rstd;
  }
}

template <bool kCentered, class T>
void launch_forward(const char* op, const Forward<T>& f, CudaContext& ctx) {
  constexpr int N = kPacket<T>, kRows = 8;
  const bool vectors = f.c % N == 0 && aligned_for<N>(f.x) && aligned_for<N>(f.residual) &&
                       aligned_for<N>(f.weight) && aligned_for<N>(f.bias) &&
                       aligned_for<N>(f.sum) && aligned_for<N>(f.out);
  const int64_t per_lane = (f.c / N + kWarp - 1) / kWarp;
  const unsigned rows = static_cast<unsigned>(f.n),
                 warps = static_cast<unsigned>((f.n + kRows - 1) / kRows);
  if (!vectors) norm_forward_block<T, 1, kCentered><<<rows, 256, 0, ctx.stream>>>(f);
  else if (per_lane <= 4)
    norm_forward_warp<T, 4, kCentered><<<warps, kRows * kWarp, 0, ctx.stream>>>(f);
  else if (per_lane <= 8)
    norm_forward_warp<T, 8, kCentered><<<warps, kRows * kWarp, 0, ctx.stream>>>(f);
  else if (per_lane <= 16)
    norm_forward_warp<T, 16, kCentered><<<warps, kRows * kWarp, 0, ctx.stream>>>(f);
  else norm_forward_block<T, N, kCentered><<<rows, 256, 0, ctx.stream>>>(f);
  DS_CUDA_LAUNCHED(op);
}

// -------------------------------------------------------------------------------------------------
// Backward: with w' = dout * weight and x' = (s - mean) * rstd,
//   dx = dsum + rstd * (w' - mean(w') - x' * mean(w' x'));  dweight = sum dout x';  dbias = sum
//   dout.

/// Waits for the threads of one group of warps only. `id` is 1 to 15.
__device__ __forceinline__ void group_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Hides where x came from, so that the compiler widens the packet again after the barrier instead
/// of keeping two registers' worth of floats per register of elements alive across it.
template <class T, int N>
__device__ __forceinline__ void forget_origin(Vector<T, N>& x) {
#pragma unroll
  for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(reinterpret_cast<uint32_t*>(&x)[i]));
}

/// A block takes kRowsAtOnce rows at a time, whose loads are all in flight before the first is
/// used; the launch bounds keep enough threads on an SM to hide the reductions. Short rows leave
/// room for two.
template <int kRowsAtOnce>
constexpr int kMaxThreads = kRowsAtOnce == 2 ? 256 : 1024;
template <int kRowsAtOnce>
constexpr int kBlocksPerSm = kRowsAtOnce == 2 ? 3 : 1;

/// Adds up the groups' weight gradients, in order, into the block's partials. All threads take
/// part.
template <int N, class T>
__device__ __forceinline__ void write_partials(const Backward<T>& b, int64_t column, bool active,
                                               const float (&dweight)[N], const float (&dbias)[N]) {
  extern __shared__ float columns[];  // [groups, 2, C] where the block has several groups
  const int group = threadIdx.y, groups = blockDim.y;
  float* const out = b.partials + int64_t{blockIdx.x} * 2 * b.c;
  float* const own = groups > 1 ? columns + group * 2 * b.c : out;
  if (active) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      own[column + i] = dweight[i];
      own[b.c + column + i] = dbias[i];
    }
  }
  if (groups == 1) return;
  __syncthreads();
  const int threads = blockDim.x * groups;
  for (int64_t i = group * blockDim.x + threadIdx.x; i < 2 * b.c; i += threads) {
    float sum = columns[i];
    for (int g = 1; g < groups; ++g) sum += columns[g * 2 * b.c + i];
    out[i] = sum;
  }
}

/// Each group of threads (blockDim.x, whole warps) takes rows; thread t owns packet t of every row.
/// blockDim.y groups share a block, so that the blocks' partial weight gradients stay few.
template <class T, bool kCentered, int kRowsAtOnce>
__global__ void __launch_bounds__(kMaxThreads<kRowsAtOnce>, kBlocksPerSm<kRowsAtOnce>)
    norm_backward_rows(Backward<T> b) {
  constexpr int N = kPacket<T>;
  // Group g's slots are [g * warps of a group, ...): at most 32 warps in all, two buffers in turn.
  __shared__ float2 reduced[2][kRowsAtOnce][kWarp];
  const int group = threadIdx.y, groups = blockDim.y, warps = blockDim.x / kWarp;
  const int lane = threadIdx.x % kWarp, slot0 = group * warps, slot = slot0 + threadIdx.x / kWarp;
  const int64_t column = int64_t{threadIdx.x} * N;
  const bool active = column < b.c;
  const float inverse_c = 1.0f / static_cast<float>(b.c);
  Vector<T, N> w = {};
  if (active) w = load_vector<N>(b.weight + column);
  float dweight[N] = {}, dbias[N] = {};
  int buffer = 0;
  const int64_t block_rows = int64_t{groups} * kRowsAtOnce;
  // All groups of a block take the same number of turns, some perhaps without a row in the last, so
  // that every warp has met as many barriers as the others when the block's own one comes.
  for (int64_t first = blockIdx.x * block_rows; first < b.n; first += gridDim.x * block_rows) {
    const int64_t row0 = first + group * kRowsAtOnce;
    Vector<T, N> s[kRowsAtOnce] = {}, dout[kRowsAtOnce] = {}, dsum[kRowsAtOnce];
    float mean[kRowsAtOnce], rstd[kRowsAtOnce];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const int64_t row = row0 + r;
      mean[r] = rstd[r] = 0;
      if (row >= b.n) continue;
      if (kCentered) mean[r] = b.mean[row];
      rstd[r] = b.rstd[row];
      if (!active) continue;
      s[r] = load_streaming<N>(b.s + row * b.c + column);
      dout[r] = load_streaming<N>(b.dout + row * b.c + column);
      if (b.dsum) dsum[r] = load_streaming<N>(b.dsum + row * b.c + column);
    }
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      float2 sums = {0, 0};
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float g = to_float(dout[r].v[i]);
        const float normalized = (to_float(s[r].v[i]) - mean[r]) * rstd[r];
        const float weighted = g * to_float(w.v[i]);
        if (kCentered) sums.x += weighted, dbias[i] += g;
        sums.y += weighted * normalized;
        dweight[i] += g * normalized;
      }
      if (kCentered) sums.x = warp_sum(sums.x);
      sums.y = warp_sum(sums.y);
      if (lane == 0) reduced[buffer][r][slot] = sums;
    }
    group_barrier(1 + group, blockDim.x);
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const int64_t row = row0 + r;
      if (!b.dx || !active || row >= b.n) continue;
      forget_origin(s[r]);
      forget_origin(dout[r]);
      float2 sums = {0, 0};
      for (int k = 0; k < warps; ++k) {
        const float2 part = reduced[buffer][r][slot0 + k];
        sums.x += part.x;
        sums.y += part.y;
      }
      sums.x *= inverse_c;
      sums.y *= inverse_c;
      Vector<T, N> dx;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float normalized = (to_float(s[r].v[i]) - mean[r]) * rstd[r];
        const float weighted = to_float(dout[r].v[i]) * to_float(w.v[i]);
        const float through = (weighted - sums.x - normalized * sums.y) * rstd[r];
        dx.v[i] = from_float<T>(b.dsum ? to_float(dsum[r].v[i]) + through : through);
      }
      store_streaming(b.dx + row * b.c + column, dx);
    }
    buffer ^= 1;
  }
  if (!b.partials) return;
  write_partials<N>(b, column, active, dweight, dbias);
}

/// dx of one row per block, for rows that the kernel above cannot take (odd, unaligned or very
/// long).
template <class T, bool kCentered>
__global__ void __launch_bounds__(256) norm_backward_any(Backward<T> b) {
  const int64_t row = blockIdx.x, base = row * b.c;
  const float mean = kCentered ? b.mean[row] : 0.0f, rstd = b.rstd[row];
  float weighted_sum = 0, product_sum = 0;
  for (int64_t c = threadIdx.x; c < b.c; c += blockDim.x) {
    const float weighted = to_float(b.dout[base + c]) * to_float(b.weight[c]);
    if (kCentered) weighted_sum += weighted;
    product_sum += weighted * ((to_float(b.s[base + c]) - mean) * rstd);
  }
  const float weighted_mean = kCentered ? block_sum(weighted_sum) / static_cast<float>(b.c) : 0.0f;
  const float product_mean = block_sum(product_sum) / static_cast<float>(b.c);
  for (int64_t c = threadIdx.x; c < b.c; c += blockDim.x) {
    const float weighted = to_float(b.dout[base + c]) * to_float(b.weight[c]);
    const float normalized = (to_float(b.s[base + c]) - mean) * rstd;
    const float through = (weighted - weighted_mean - normalized * product_mean) * rstd;
    b.dx[base + c] = from_float<T>(b.dsum ? to_float(b.dsum[base + c]) + through : through);
  }
}

/// Its weight gradients: a thread per column, a range of rows per blockIdx.y.
template <class T, bool kCentered>
__global__ void __launch_bounds__(256) norm_backward_any_weight(Backward<T> b) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= b.c) return;
  const int64_t rows = (b.n + gridDim.y - 1) / gridDim.y, first = blockIdx.y * rows;
  const int64_t last = first + rows < b.n ? first + rows : b.n;
  float dweight = 0, dbias = 0;
  for (int64_t row = first; row < last; ++row) {
    const float g = to_float(b.dout[row * b.c + column]);
    const float mean = kCentered ? b.mean[row] : 0.0f;
    dweight += g * ((to_float(b.s[row * b.c + column]) - mean) * b.rstd[row]);
    dbias += g;
  }
  float* out = b.partials + int64_t{blockIdx.y} * 2 * b.c;
  out[column] = dweight;
  out[b.c + column] = dbias;
}

/// Launches the persistent kernel for groups of `threads` threads; returns the number of its
/// blocks, each of which leaves one partial weight gradient.
template <bool kCentered, int kRowsAtOnce, class T>
int64_t launch_backward_rows(const char* op, Backward<T>& b, int64_t threads, bool weights,
                             CudaContext& ctx) {
  constexpr int64_t kMaxGroups = 8, kSmThreads = kRowsAtOnce == 2 ? 768 : 1024;
  const int64_t groups = std::clamp<int64_t>(256 / threads, 1, kMaxGroups);
  const int64_t per_sm = std::max<int64_t>(1, kSmThreads / (threads * groups));
  const int64_t wanted = (b.n + groups * kRowsAtOnce - 1) / (groups * kRowsAtOnce);
  const int64_t blocks = std::min<int64_t>(wanted, ctx.sm_count * per_sm);
  const size_t shared = groups > 1 ? groups * 2 * b.c * sizeof(float) : 0;
  const dim3 block(static_cast<unsigned>(threads), static_cast<unsigned>(groups));
  if (weights) b.partials = ctx.scratch_of<float>(blocks * 2 * b.c);
  norm_backward_rows<T, kCentered, kRowsAtOnce>
      <<<static_cast<unsigned>(blocks), block, shared, ctx.stream>>>(b);
  DS_CUDA_LAUNCHED(op);
  return blocks;
}

/// The same for rows of any length and alignment.
template <bool kCentered, class T>
int64_t launch_backward_any(const char* op, Backward<T>& b, bool weights, CudaContext& ctx) {
  if (b.dx) {
    norm_backward_any<T, kCentered><<<static_cast<unsigned>(b.n), 256, 0, ctx.stream>>>(b);
    DS_CUDA_LAUNCHED(op);
  }
  if (!weights) return 0;
  const int64_t splits = std::min<int64_t>(64, (b.n + 31) / 32);
  b.partials = ctx.scratch_of<float>(splits * 2 * b.c);
  const dim3 grid(static_cast<unsigned>((b.c + 255) / 256), static_cast<unsigned>(splits));
  norm_backward_any_weight<T, kCentered><<<grid, 256, 0, ctx.stream>>>(b);
  DS_CUDA_LAUNCHED(op);
  return splits;
}

/// Fills dx and b.partials; returns the number of partial weight gradients.
template <bool kCentered, class T>
int64_t launch_backward(const char* op, Backward<T>& b, bool weights, CudaContext& ctx) {
  constexpr int N = kPacket<T>;
  const int64_t threads = (b.c / N + kWarp - 1) / kWarp * kWarp;
  const bool vectors = b.c % N == 0 && aligned_for<N>(b.s) && aligned_for<N>(b.weight) &&
                       aligned_for<N>(b.dout) && aligned_for<N>(b.dsum) && aligned_for<N>(b.dx);
  if (!vectors || threads > kMaxThreads<1>)
    return launch_backward_any<kCentered>(op, b, weights, ctx);
  if (threads > kMaxThreads<2>)
    return launch_backward_rows<kCentered, 1>(op, b, threads, weights, ctx);
  return launch_backward_rows<kCentered, 2>(op, b, threads, weights, ctx);
}

// -------------------------------------------------------------------------------------------------
// Launchers

template <class T>
T* pointer(const View& v) {
  return v ? v.as<T>() : nullptr;
}

/// [N, C] operands of x's shape and dtype, all contiguous; absent ones are skipped.
void require_rows(const char* op, const View& x, std::initializer_list<const View*> others) {
  DS_CHECK_SHAPE(x.ndim == 2, op, "[N, C]", x.describe());
  require_contiguous(op, x, "the input");
  for (const View* v : others) {
    if (!*v) continue;
    require_same_shape(op, x, *v);
    require_same_dtype(op, x, *v);
    require_contiguous(op, *v, "every [N, C] operand");
  }
}

void require_vectors(const char* op, int64_t size, DType dtype,
                     std::initializer_list<const View*> vectors) {
  for (const View* v : vectors) {
    if (!*v) continue;
    DS_CHECK_SHAPE(v->ndim == 1 && v->shape[0] == size, op, text("[", size, "]"), v->describe());
    if (v->dtype != dtype) throw Error("DS_DTYPE", op, name_of(dtype), v->describe());
    require_contiguous(op, *v, "every vector");
  }
}

template <bool kCentered, class Op>
void run_forward(const char* name, const Op& op, const View& bias, const View& mean,
                 CudaContext& ctx) {
  require_rows(name, op.x, {&op.residual, &op.sum, &op.out});
  const int64_t n = op.x.shape[0], c = op.x.shape[1];
  require_vectors(name, c, op.x.dtype, {&op.weight, &bias});
  require_vectors(name, n, DType::f32, {&mean, &op.rstd});
  DS_CHECK_SHAPE(!op.residual || op.sum, name, "sum beside a residual", "nothing");
  if (n == 0 || c == 0) return;
  for_floating(name, op.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Forward<T> f = {op.x.template as<T>(),
                          pointer<T>(op.residual),
                          op.weight.template as<T>(),
                          pointer<T>(bias),
                          pointer<T>(op.sum),
                          op.out.template as<T>(),
                          pointer<float>(mean),
                          op.rstd.template as<float>(),
                          n,
                          c,
                          static_cast<float>(op.eps)};
    launch_forward<kCentered>(name, f, ctx);
  });
}

template <bool kCentered, class Op>
void run_backward(const char* name, const Op& op, const View& dbias, const View& mean,
                  CudaContext& ctx) {
  require_rows(name, op.s, {&op.dout, &op.dsum, &op.dx});
  const int64_t n = op.s.shape[0], c = op.s.shape[1];
  require_vectors(name, c, op.s.dtype, {&op.weight, &op.dweight, &dbias});
  require_vectors(name, n, DType::f32, {&mean, &op.rstd});
  if (c == 0) return;
  for_floating(name, op.s.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Backward<T> b = {op.s.template as<T>(),
                     op.weight.template as<T>(),
                     op.dout.template as<T>(),
                     pointer<T>(op.dsum),
                     pointer<T>(op.dx),
                     pointer<float>(mean),
                     op.rstd.template as<float>(),
                     nullptr,
                     n,
                     c};
    const bool weights = op.dweight || dbias;
    const int64_t rows = n == 0 ? 0 : launch_backward<kCentered>(name, b, weights, ctx);
    if (op.dweight)
      column_sum(name, ctx.stream, op.dweight.template as<T>(), b.partials, rows, 2 * c, c,
                 op.accumulate);
    if (dbias)
      column_sum(name, ctx.stream, dbias.template as<T>(), b.partials + c, rows, 2 * c, c,
                 op.accumulate);
  });
}

}  // namespace

void run(const LayerNorm& op, CudaContext& ctx) {
  run_forward<true>("layer_norm", op, op.bias, op.mean, ctx);
}
void run(const RmsNorm& op, CudaContext& ctx) {
  run_forward<false>("rms_norm", op, View{}, View{}, ctx);
}

void run(const LayerNormBackward& op, CudaContext& ctx) {
  run_backward<true>("layer_norm_backward", op, op.dbias, op.mean, ctx);
}
void run(const RmsNormBackward& op, CudaContext& ctx) {
  run_backward<false>("rms_norm_backward", op, View{}, View{}, ctx);
}

}  // namespace ds::cuda
