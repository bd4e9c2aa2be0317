// The short causal convolution on the GPU: a thread per channel and run of tokens, with the last
// inputs in registers.
#include "short_conv.h"

#include "../core/exponential.h"
#include "../cuda/vector.cuh"

namespace ds::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRun = 16;  // tokens per thread
constexpr int kWarp = 32;

template <class T>
struct Conv {
  const T *x, *weight, *bias, *dout;
  T *out, *dx;
  float *dweight, *dbias;
  const int* documents;
  int64_t x_batch, x_token, dout_batch, dout_token;
  int64_t batches, t, channels;
  int taps;
};

/// Returns the number of earlier tokens in token t's document, at most taps - 1.
__device__ __forceinline__ int earlier_of(const int* documents, int64_t t, int taps) {
  int count = 0;
  while (count < taps - 1 && t - count > 0 &&
         (!documents || documents[t - count - 1] == documents[t]))
    ++count;
  return count;
}

/// The weights of a channel, and its bias.
struct Taps {
  float w[kMostTaps], bias;
};

/// Returns the sum of token t before SiLU.
template <class T>
__device__ float sum_at(const T* x, int64_t stride, const Taps& own, int taps, int64_t t,
                        int earlier) {
  float sum = own.bias;
#pragma unroll
  for (int j = 0; j < kMostTaps; ++j) {
    const int back = taps - 1 - j;
    if (j < taps && back <= earlier) sum += own.w[j] * to_float(x[(t - back) * stride]);
  }
  return sum;
}

/// Returns the weights of a channel, and its bias or 0.
template <class T>
__device__ Taps load_taps(const T* weight, const T* bias, int64_t channel, int taps) {
  Taps own;
#pragma unroll
  for (int j = 0; j < kMostTaps; ++j)
    own.w[j] = j < taps ? to_float(weight[channel * taps + j]) : 0.0f;
  own.bias = bias ? to_float(bias[channel]) : 0.0f;
  return own;
}

/// Computes out of a channel and kRun tokens per thread. Blocks: (channels, batches and runs).
template <class T>
__global__ void __launch_bounds__(kThreads) conv_kernel(Conv<T> a) {
  const int64_t channel = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (channel >= a.channels) return;
  const int64_t runs = (a.t + kRun - 1) / kRun, b = blockIdx.y / runs;
  const int64_t first = (blockIdx.y % runs) * kRun, end = min(first + kRun, a.t);
  const int* const documents = a.documents ? a.documents + b * a.t : nullptr;
  const T* const x = a.x + b * a.x_batch + channel;
  const Taps own = load_taps(a.weight, a.bias, channel, a.taps);
  for (int64_t t = first; t < end; ++t) {
    const int earlier = earlier_of(documents, t, a.taps);
    const float sum = sum_at(x, a.x_token, own, a.taps, t, earlier);
    a.out[(b * a.t + t) * a.channels + channel] = from_float<T>(sum * sigmoid_of(sum));
  }
}

/// Returns the gradient of token t's sum.
template <class T>
__device__ float slope_at(const Conv<T>& a, const T* x, const T* dout, const Taps& own, int64_t t,
                          int earlier) {
  const float sum = sum_at(x, a.x_token, own, a.taps, t, earlier), s = sigmoid_of(sum);
  return to_float(dout[t * a.dout_token]) * s * (1.0f + sum * (1.0f - s));
}

/// Computes dx of a channel and kRun tokens per thread. Blocks: (channels, batches and runs).
template <class T>
__global__ void __launch_bounds__(kThreads) conv_inputs_kernel(Conv<T> a) {
  const int64_t channel = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (channel >= a.channels) return;
  const int64_t runs = (a.t + kRun - 1) / kRun, b = blockIdx.y / runs;
  const int64_t first = (blockIdx.y % runs) * kRun, end = min(first + kRun, a.t);
  const int* const documents = a.documents ? a.documents + b * a.t : nullptr;
  const T *const x = a.x + b * a.x_batch + channel, *const dout =
                                                        a.dout + b * a.dout_batch + channel;
  float grads[kMostTaps];
  const Taps own = load_taps(a.weight, a.bias, channel, a.taps);
#pragma unroll
  for (int j = 0; j < kMostTaps; ++j) grads[j] = 0.0f;
  // grads[i] is the gradient of x[t - i]. Tokens of the next run also add to this run's inputs.
  for (int64_t t = first; t < min(end + a.taps - 1, a.t + a.taps - 1); ++t) {
#pragma unroll
    for (int j = kMostTaps - 1; j > 0; --j) grads[j] = grads[j - 1];
    grads[0] = 0.0f;
    if (t < a.t) {
      const int earlier = earlier_of(documents, t, a.taps);
      const float slope = slope_at(a, x, dout, own, t, earlier);
#pragma unroll
      for (int j = 0; j < kMostTaps; ++j) {
        const int back = a.taps - 1 - j;
        if (j >= a.taps || back > earlier) continue;
#pragma unroll
        for (int i = 0; i < kMostTaps; ++i)
          if (i == back) grads[i] += own.w[j] * slope;
      }
    }
    const int64_t done = t - (a.taps - 1);
    float value = 0.0f;
#pragma unroll
    for (int i = 0; i < kMostTaps; ++i)
      if (i == a.taps - 1) value = grads[i];
    if (done >= first && done < end)
      a.dx[(b * a.t + done) * a.channels + channel] = from_float<T>(value);
  }
}

/// Computes the gradients of 32 channels' weights and biases per block. Its warps share the tokens
/// and add their sums in order.
template <class T>
__global__ void __launch_bounds__(kThreads) conv_weights_kernel(Conv<T> a) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ float parts[kWarps][kMostTaps + 1][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t channel = int64_t{blockIdx.x} * kWarp + lane;
  float sums[kMostTaps] = {}, slopes = 0.0f;
  if (channel < a.channels) {
    const Taps own = load_taps(a.weight, a.bias, channel, a.taps);
    for (int64_t row = warp; row < a.batches * a.t; row += kWarps) {
      const int64_t b = row / a.t, t = row % a.t;
      const int* const documents = a.documents ? a.documents + b * a.t : nullptr;
      const T* const x = a.x + b * a.x_batch + channel;
      const int earlier = earlier_of(documents, t, a.taps);
      const float slope = slope_at(a, x, a.dout + b * a.dout_batch + channel, own, t, earlier);
      slopes += slope;
#pragma unroll
      for (int j = 0; j < kMostTaps; ++j) {
        const int back = a.taps - 1 - j;
        if (j < a.taps && back <= earlier) sums[j] += slope * to_float(x[(t - back) * a.x_token]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kMostTaps; ++j) parts[warp][j][lane] = sums[j];
  parts[warp][kMostTaps][lane] = slopes;
  __syncthreads();
  // Tap a.taps is the bias.
  for (int i = threadIdx.x; i < (a.taps + 1) * kWarp; i += kThreads) {
    const int64_t own = int64_t{blockIdx.x} * kWarp + i % kWarp;
    const int tap = i / kWarp;
    const bool is_bias = tap == a.taps;
    if (own >= a.channels || (is_bias && !a.dbias)) continue;
    float sum = 0.0f;
    for (int part = 0; part < kWarps; ++part)
      sum += parts[part][is_bias ? kMostTaps : tap][i % kWarp];
    if (is_bias) a.dbias[own] = sum;
    else a.dweight[own * a.taps + tap] = sum;
  }
}

template <class T>
struct ConvStep {
  const T *x, *weight, *bias;
  T *out, *pool;
  const int *starts, *lengths, *slots;
  int64_t stride, channels, rows, slot_count;
  int taps;
};

/// Processes a channel of a sequence per thread. Writes the pool after it has read its inputs.
template <class T>
__global__ void __launch_bounds__(kThreads) conv_step_kernel(ConvStep<T> a) {
  const int64_t channel = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (channel >= a.channels) return;
  const int s = blockIdx.y;
  const int64_t first = a.starts[s] - a.starts[0], count = a.starts[s + 1] - a.starts[s];
  if (first < 0 || count <= 0 || first + count > a.rows) return;
  const int slot = a.slots[s] < a.slot_count ? a.slots[s] : -1, held = a.taps - 1;
  T* const kept = slot < 0 ? nullptr : a.pool + int64_t{slot} * held * a.channels + channel;
  const Taps own = load_taps(a.weight, a.bias, channel, a.taps);
  float last[kMostTaps];  // last[i]: the input i tokens before
#pragma unroll
  for (int i = 0; i < kMostTaps; ++i)
    last[i] = kept && a.lengths[s] > count && i < held ? to_float(kept[(held - 1 - i) * a.channels])
                                                       : 0.0f;
  for (int64_t t = 0; t < count; ++t) {
#pragma unroll
    for (int i = kMostTaps - 1; i > 0; --i) last[i] = last[i - 1];
    last[0] = to_float(a.x[(first + t) * a.stride + channel]);
    float sum = own.bias;
    // Starts with the oldest input, like the other kernels.
#pragma unroll
    for (int i = kMostTaps - 1; i >= 0; --i) {
#pragma unroll
      for (int j = 0; j < kMostTaps; ++j)
        if (j < a.taps && a.taps - 1 - j == i) sum += own.w[j] * last[i];
    }
    a.out[(first + t) * a.channels + channel] = from_float<T>(sum * sigmoid_of(sum));
  }
  if (!kept) return;
#pragma unroll
  for (int i = 0; i < kMostTaps; ++i)
    if (i < held) kept[(held - 1 - i) * a.channels] = from_float<T>(last[i]);
}

template <class T>
Conv<T> conv_of(const View& x, const View& weight, const View& bias, const View& documents) {
  Conv<T> a = {};
  a.x = x.as<T>();
  a.weight = weight.as<T>();
  a.bias = bias ? bias.as<T>() : nullptr;
  a.documents = documents ? documents.as<int>() : nullptr;
  a.x_batch = x.strides[0];
  a.x_token = x.strides[1];
  a.batches = x.shape[0];
  a.t = x.shape[1];
  a.channels = x.shape[2];
  a.taps = static_cast<int>(weight.shape[1]);
  return a;
}

/// Returns the grid: blocks of channels, and of runs of tokens. Throws if there are too many runs.
template <class T>
dim3 grid_of(const char* op, const Conv<T>& a) {
  const int64_t runs = a.batches * ((a.t + kRun - 1) / kRun);
  if (runs > 65535)
    throw Error("DS_SHAPE", op, text("at most ", 65535 * int64_t{kRun}, " tokens on a GPU"),
                text(a.batches * a.t));
  return dim3(static_cast<unsigned>((a.channels + kThreads - 1) / kThreads),
              static_cast<unsigned>(runs));
}

}  // namespace

void run(const ShortConv& op, CudaContext& ctx) {
  constexpr const char* kOp = "short_conv";
  if (op.out.numel() == 0) return;
  for_floating(kOp, op.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Conv<T> a = conv_of<T>(op.x, op.weight, op.bias, op.documents);
    a.out = op.out.as<T>();
    conv_kernel<T><<<grid_of(kOp, a), kThreads, 0, ctx.stream>>>(a);
    DS_CUDA_LAUNCHED(kOp);
  });
}

void run(const ShortConvBackward& op, CudaContext& ctx) {
  constexpr const char* kOp = "short_conv_backward";
  if (op.dweight.numel() == 0) return;
  for_floating(kOp, op.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Conv<T> a = conv_of<T>(op.x, op.weight, op.bias, op.documents);
    a.dout = op.dout.as<T>();
    a.dout_batch = op.dout.strides[0];
    a.dout_token = op.dout.strides[1];
    a.dx = op.dx.as<T>();
    a.dweight = op.dweight.as<float>();
    a.dbias = op.dbias ? op.dbias.as<float>() : nullptr;
    if (op.dx.numel() > 0) {
      conv_inputs_kernel<T><<<grid_of(kOp, a), kThreads, 0, ctx.stream>>>(a);
      DS_CUDA_LAUNCHED(kOp);
    }
    const auto blocks = static_cast<unsigned>((a.channels + kWarp - 1) / kWarp);
    conv_weights_kernel<T><<<blocks, kThreads, 0, ctx.stream>>>(a);
    DS_CUDA_LAUNCHED(kOp);
  });
}

void run(const ShortConvStep& op, CudaContext& ctx) {
  constexpr const char* kOp = "short_conv_step";
  const int64_t sequences = op.lengths.numel();
  if (op.out.numel() == 0 || sequences == 0) return;
  if (sequences > 65535)
    throw Error("DS_SHAPE", kOp, "at most 65535 sequences on a GPU", text(sequences));
  for_floating(kOp, op.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    ConvStep<T> a = {op.x.as<T>(),
                     op.weight.as<T>(),
                     op.bias ? op.bias.as<T>() : nullptr,
                     op.out.as<T>(),
                     op.pool.as<T>(),
                     op.starts.as<int>(),
                     op.lengths.as<int>(),
                     op.slots.as<int>(),
                     op.x.strides[0],
                     op.x.shape[1],
                     op.x.shape[0],
                     op.pool.shape[0],
                     static_cast<int>(op.weight.shape[1])};
    const dim3 grid(static_cast<unsigned>((a.channels + kThreads - 1) / kThreads),
                    static_cast<unsigned>(sequences));
    conv_step_kernel<T><<<grid, kThreads, 0, ctx.stream>>>(a);
    DS_CUDA_LAUNCHED(kOp);
  });
}

}  // namespace ds::cuda
