// NF4 on the GPU: a warp per block of values finds its scale; threads dequantize packets of codes.
#include "nf4.h"

#include "../cuda/block_reduce.cuh"
#include "../cuda/vector.cuh"
#include "nf4_math.h"

namespace ds::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

/// Returns the larger value. Ignores NaN.
struct Larger {
  __device__ __forceinline__ float operator()(float a, float b) const { return a > b ? a : b; }
};

/// Returns the largest magnitude of x[0, count) to all lanes of the warp.
template <class T>
__device__ __forceinline__ float largest(const T* x, int64_t count) {
  float max = 0.0f;
  for (int64_t i = threadIdx.x % kWarp; i < count; i += kWarp)
    max = Larger{}(fabsf(to_float(x[i])), max);
  return warp_reduce(max, Larger{});
}

/// Writes absmax and the packed 4-bit codes of a block of values. A warp per block.
template <class T>
__global__ void __launch_bounds__(kThreads)
    nf4_quantize_kernel(const T* in, const float* codes, uint8_t* packed, float* absmax, int64_t n,
                        int64_t block, int64_t blocks) {
  __shared__ float code[kNf4Codes];
  if (threadIdx.x < kNf4Codes) code[threadIdx.x] = codes[threadIdx.x];
  __syncthreads();
  const int64_t b = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (b >= blocks) return;
  const int64_t from = b * block, count = n - from < block ? n - from : block;
  const float max = largest(in + from, count), inverse = inverse_scale(max);
  const int lane = threadIdx.x % kWarp;
  if (lane == 0) absmax[b] = max;
  for (int64_t i = 2 * lane; i < count; i += 2 * kWarp) {
    const uint8_t high = nearest_of_16(code, mul_rn(to_float(in[from + i]), inverse));
    const float second = i + 1 < count ? mul_rn(to_float(in[from + i + 1]), inverse) : 0.0f;
    packed[(from + i) / 2] = static_cast<uint8_t>(high << 4 | nearest_of_16(code, second));
  }
}

/// Writes absmax and the 8-bit codes of a block of values. A warp per block. kThreads equals the
/// number of codes.
__global__ void __launch_bounds__(kThreads)
    bytes_quantize_kernel(const float* in, const float* codes, uint8_t* out, float* absmax,
                          int64_t n, int64_t block, int64_t blocks) {
  __shared__ float code[kByteCodes];
  code[threadIdx.x] = codes[threadIdx.x];
  __syncthreads();
  const int64_t b = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (b >= blocks) return;
  const int64_t from = b * block, count = n - from < block ? n - from : block;
  const float max = largest(in + from, count), inverse = inverse_scale(max);
  const int lane = threadIdx.x % kWarp;
  if (lane == 0) absmax[b] = max;
  for (int64_t i = lane; i < count; i += kWarp)
    out[from + i] = nearest_of_256(code, mul_rn(in[from + i], inverse));
}

/// Divides by `by`. For powers of two, it shifts instead: a 64-bit division takes longer than all
/// other work on a block of values.
struct Divisor {
  int64_t by;
  int shift;  // log2 of `by`, or -1

  explicit Divisor(int64_t n) : by(n), shift(0) {
    while (int64_t{1} << shift < n) ++shift;
    if (int64_t{1} << shift != n) shift = -1;
  }
  __device__ __forceinline__ int64_t of(int64_t x) const {
    return shift >= 0 ? x >> shift : x / by;
  }
};

struct Scales {
  const float* absmax;         // if scales are f32
  const uint8_t* bytes;        // if scales are u8; then also:
  const float *code, *nested;  // the 256 codes, and the scales of nested blocks
  const float* offset;
  Divisor block, nested_block;

  __device__ __forceinline__ float of_value(int64_t i) const {
    const int64_t b = block.of(i);
    if (absmax) return absmax[b];
    return nested_scale(code[bytes[b]], nested[nested_block.of(b)], *offset);
  }
};

constexpr int kPackets = 4;  // packets of a thread, with all loads in flight at once

/// Writes kPackets packets of N values per thread. All values of a packet have one scale: N is 1,
/// or an even divisor of `block`.
template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    nf4_dequantize_kernel(const uint8_t* packed, const float* codes, T* out, int64_t n,
                          Scales scales) {
  __shared__ float code[kNf4Codes];
  if (threadIdx.x < kNf4Codes) code[threadIdx.x] = codes[threadIdx.x];
  __syncthreads();
  const int64_t own = (int64_t{blockIdx.x} * kThreads * kPackets + threadIdx.x) * N;
  constexpr int kBytes = N == 1 ? 1 : N / 2;
  Vector<uint8_t, kBytes> pairs[kPackets];
  float scale[kPackets];
#pragma unroll
  for (int k = 0; k < kPackets; ++k) {
    const int64_t first = own + k * kThreads * N;
    if (first >= n) break;
    pairs[k] = load_vector<kBytes>(packed + first / 2);
    scale[k] = scales.of_value(first);
  }
#pragma unroll
  for (int k = 0; k < kPackets; ++k) {
    const int64_t first = own + k * kThreads * N;
    if (first >= n) return;
    Vector<T, N> values;
#pragma unroll
    for (int i = 0; i < N; ++i)
      values.v[i] =
          from_float<T>(mul_rn(code[code_of(pairs[k].v, N == 1 ? first % 2 : i)], scale[k]));
    store_vector(out + first, values);
  }
}

unsigned blocks_for(int64_t items, int64_t each) {
  return static_cast<unsigned>((items + each - 1) / each);
}

}  // namespace

void run(const Nf4Quantize& op, CudaContext& ctx) {
  constexpr const char* kOp = "nf4_quantize";
  const int64_t n = op.in.numel(), blocks = blocks_of(n, op.block);
  if (n == 0) return;
  for_floating(kOp, op.in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    nf4_quantize_kernel<T><<<blocks_for(blocks, kWarps), kThreads, 0, ctx.stream>>>(
        op.in.as<T>(), op.code.as<float>(), op.packed.as<uint8_t>(), op.absmax.as<float>(), n,
        op.block, blocks);
    DS_CUDA_LAUNCHED(kOp);
  });
}

void run(const BytesQuantize& op, CudaContext& ctx) {
  constexpr const char* kOp = "bytes_quantize";
  const int64_t n = op.in.numel(), blocks = blocks_of(n, op.block);
  if (n == 0) return;
  bytes_quantize_kernel<<<blocks_for(blocks, kWarps), kThreads, 0, ctx.stream>>>(
      op.in.as<float>(), op.code.as<float>(), op.out.as<uint8_t>(), op.absmax.as<float>(), n,
      op.block, blocks);
  DS_CUDA_LAUNCHED(kOp);
}

void run(const Nf4Dequantize& op, CudaContext& ctx) {
  constexpr const char* kOp = "nf4_dequantize";
  const int64_t n = op.out.numel();
  if (n == 0) return;
  const bool nested = op.absmax.dtype == DType::u8;
  const Scales scales = {nested ? nullptr : op.absmax.as<float>(),
                         nested ? op.absmax.as<uint8_t>() : nullptr,
                         nested ? op.nested_code.as<float>() : nullptr,
                         nested ? op.nested_absmax.as<float>() : nullptr,
                         nested ? op.offset.as<float>() : nullptr,
                         Divisor(op.block),
                         Divisor(nested ? op.nested_block : 1)};
  for_floating(kOp, op.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int N = kPacket<T>;
    const uint8_t* packed = op.packed.as<uint8_t>();
    T* out = op.out.as<T>();
    const bool vectors =
        n % N == 0 && op.block % N == 0 && aligned_for<N / 2>(packed) && aligned_for<N>(out);
    const auto kernel = vectors ? nf4_dequantize_kernel<N, T> : nf4_dequantize_kernel<1, T>;
    kernel<<<blocks_for(n, int64_t{kThreads} * kPackets * (vectors ? N : 1)), kThreads, 0,
             ctx.stream>>>(packed, op.code.as<float>(), out, n, scales);
    DS_CUDA_LAUNCHED(kOp);
  });
}

}  // namespace ds::cuda
