// The batch-invariant linear layer on the GPU. An element of out is one chain of tensor-core
// products, 16 inputs at a time in order, in a register of one thread. All tile sizes have this
// chain, so selecting a tile by M changes no bit. f32 has one tile size.
#include "invariant_linear.h"

#include <algorithm>

#include "../cuda/block_reduce.cuh"
#include "../cuda/mma.cuh"
#include "../cuda/shared_memory.h"
#include "../cuda/vector.cuh"

namespace ds::cuda {
namespace {

template <class T>
struct Arguments {
  const T *x, *weight, *bias;  // bias: null if absent
  T* out;
  int64_t x_stride, weight_stride, out_stride;
  int64_t m, n, k;
  bool x_packets, weight_packets;  // rows may be read by 16 bytes
  bool out_pairs;                  // pairs of elements may be written at once
};

/// Sizes of a thread block: kWarpRows x kWarpColumns warps, each with 16 kTiles x 8 kColumns
/// results. kStages steps of 64 inputs are in flight.
template <int kWarpRows_, int kWarpColumns_, int kTiles_, int kColumns_, int kStages_>
struct Shape {
  static constexpr int kWarpRows = kWarpRows_, kWarpColumns = kWarpColumns_;
  static constexpr int kTiles = kTiles_, kColumns = kColumns_, kStages = kStages_;
  static constexpr int kThreads = kWarpRows * kWarpColumns * kWarp;
  static constexpr int kHeight = kWarpRows * 16 * kTiles, kWidth = kWarpColumns * 8 * kColumns;
  static constexpr int kDepth = 64;
  static constexpr int kStageElements = (kHeight + kWidth) * kDepth;
  static constexpr size_t kBytes = size_t{2} * kStages * kStageElements;
};
using Wide = Shape<4, 2, 2, 8, 3>;    // 128 x 128: training and long prompts
using Middle = Shape<4, 1, 1, 4, 4>;  // 64 x 32: steps of many sequences
using Flat = Shape<1, 4, 1, 2, 6>;    // 16 x 64: steps of few sequences, limited by memory

/// Copies kLines rows of kDepth elements to shared memory, with zeros beyond `lines` rows and
/// `length` elements.
template <class T, int kLines, int kDepth, int kThreads>
__device__ __forceinline__ void copy_rows(T* shared, const T* from, int64_t stride, int64_t lines,
                                          int64_t length, bool packets) {
  constexpr int kChunks = kDepth / 8;
#pragma unroll
  for (int i = threadIdx.x; i < kLines * kChunks; i += kThreads) {
    const int line = i / kChunks, chunk = i % kChunks;
    const bool valid = line < lines && chunk * 8 < length;
    T* const to = shared + swizzled<kDepth>(line, chunk);
    const T* const source = from + line * stride + chunk * 8;
    if (packets) {
      cp_async_16(to, valid ? source : from, valid);
      continue;
    }
#pragma unroll
    for (int e = 0; e < 8; ++e)
      to[e] = valid && chunk * 8 + e < length ? source[e] : from_float<T>(0.0f);
  }
}

/// Computes a tile of out, kHeight rows by kWidth columns. A warp has a part of the tile. k runs
/// through kStages stages in shared memory.
template <class T, class S>
__global__ void __launch_bounds__(S::kThreads) tensor_core_kernel(Arguments<T> a) {
  extern __shared__ __align__(128) unsigned char memory[];
  T* const shared = reinterpret_cast<T*>(memory);
  const int64_t row = int64_t{blockIdx.x} * S::kHeight, column = int64_t{blockIdx.y} * S::kWidth;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int warp_row = warp / S::kWarpColumns * 16 * S::kTiles;
  const int warp_column = warp % S::kWarpColumns * 8 * S::kColumns;
  const auto load = [&](int64_t step) {
    T* const left = shared + step % S::kStages * S::kStageElements;
    const int64_t from = step * S::kDepth;
    copy_rows<T, S::kHeight, S::kDepth, S::kThreads>(
        left, a.x + row * a.x_stride + from, a.x_stride, a.m - row, a.k - from, a.x_packets);
    copy_rows<T, S::kWidth, S::kDepth, S::kThreads>(
        left + S::kHeight * S::kDepth, a.weight + column * a.weight_stride + from, a.weight_stride,
        a.n - column, a.k - from, a.weight_packets);
  };
  const int64_t steps = (a.k + S::kDepth - 1) / S::kDepth;
  float acc[S::kTiles][S::kColumns][4] = {};
#pragma unroll
  for (int s = 0; s < S::kStages - 1; ++s) {
    if (s < steps) load(s);
    cp_async_commit();
  }
  for (int64_t step = 0; step < steps; ++step) {
    cp_async_wait<S::kStages - 2>();
    __syncthreads();
    if (step + S::kStages - 1 < steps) load(step + S::kStages - 1);
    cp_async_commit();
    const T* const left = shared + step % S::kStages * S::kStageElements;
    RowFragments<T, S::kTiles, S::kDepth, false> rows;
    rows.attach(left, warp_row);
    multiply_by_rows<T, S::kDepth, S::kTiles, S::kColumns, false>(
        acc, rows, left + (S::kHeight + warp_column) * S::kDepth);
  }
#pragma unroll
  for (int m = 0; m < S::kTiles; ++m)
#pragma unroll
    for (int n = 0; n < S::kColumns; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t r = row + warp_row + m * 16 + half * 8 + lane / 4;
        const int64_t c = column + warp_column + n * 8 + lane % 4 * 2;
        if (r >= a.m || c >= a.n) continue;
        float low = acc[m][n][half * 2], high = acc[m][n][half * 2 + 1];
        const bool pair = c + 1 < a.n;
        if (a.bias) {
          low += to_float(a.bias[c]);
          if (pair) high += to_float(a.bias[c + 1]);
        }
        T* const place = a.out + r * a.out_stride + c;
        if (a.out_pairs && pair) {
          *reinterpret_cast<uint32_t*>(place) = pack_pair<T>(low, high);
        } else {
          place[0] = from_float<T>(low);
          if (pair) place[1] = from_float<T>(high);
        }
      }
}

constexpr int kSide = 64, kPlainDepth = 16, kPlainThreads = 256, kPer = 4;

/// The f32 kernel: 64 x 64 results per block, 4 x 4 per thread. The products of an element are
/// added in the order of the inputs.
template <class T>
__global__ void __launch_bounds__(kPlainThreads) plain_kernel(Arguments<T> a) {
  __shared__ float left[kPlainDepth][kSide + 1], right[kPlainDepth][kSide + 1];
  const int64_t row = int64_t{blockIdx.x} * kSide, column = int64_t{blockIdx.y} * kSide;
  const int y = threadIdx.x / (kSide / kPer), x = threadIdx.x % (kSide / kPer);
  float acc[kPer][kPer] = {};
  for (int64_t from = 0; from < a.k; from += kPlainDepth) {
#pragma unroll
    for (int i = threadIdx.x; i < kSide * kPlainDepth; i += kPlainThreads) {
      const int line = i / kPlainDepth, along = i % kPlainDepth;
      const int64_t k = from + along;
      const bool has_row = row + line < a.m && k < a.k, has_column = column + line < a.n && k < a.k;
      left[along][line] = has_row ? to_float(a.x[(row + line) * a.x_stride + k]) : 0.0f;
      right[along][line] =
          has_column ? to_float(a.weight[(column + line) * a.weight_stride + k]) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int d = 0; d < kPlainDepth; ++d)
#pragma unroll
      for (int i = 0; i < kPer; ++i)
#pragma unroll
        for (int j = 0; j < kPer; ++j)
          acc[i][j] =
              fmaf(left[d][y + i * (kSide / kPer)], right[d][x + j * (kSide / kPer)], acc[i][j]);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kPer; ++i)
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const int64_t r = row + y + i * (kSide / kPer), c = column + x + j * (kSide / kPer);
      if (r >= a.m || c >= a.n) continue;
      const float bias = a.bias ? to_float(a.bias[c]) : 0.0f;
      a.out[r * a.out_stride + c] = from_float<T>(acc[i][j] + bias);
    }
}

constexpr const char* kOp = "invariant_linear";

int64_t tiles(int64_t size, int64_t piece) { return (size + piece - 1) / piece; }

/// Returns the grid: tiles of rows first, so that blocks that read the same weights run together.
dim3 grid_of(int64_t m, int64_t n, int64_t height, int64_t width) {
  const int64_t down = tiles(m, height), across = tiles(n, width);
  if (across > 65535) throw Error("DS_LIMIT", kOp, "at most 65535 tiles of columns", text(across));
  return {static_cast<unsigned>(down), static_cast<unsigned>(across), 1u};
}

template <class T, class S>
void launch(const Arguments<T>& a, CudaContext& ctx) {
  static_assert(S::kBytes <= kSharedMemoryOfAll);
  const auto kernel = tensor_core_kernel<T, S>;
  if (S::kBytes > 48 * 1024)
    DS_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(S::kBytes)),
            kOp);
  kernel<<<grid_of(a.m, a.n, S::kHeight, S::kWidth), S::kThreads, S::kBytes, ctx.stream>>>(a);
  DS_CUDA_LAUNCHED(kOp);
}

bool rows_take_packets(const View& v) {
  return reinterpret_cast<uintptr_t>(v.data) % 16 == 0 && v.shape[1] % 8 == 0 &&
         (v.shape[0] < 2 || v.strides[0] % 8 == 0);
}

}  // namespace

void run(const InvariantLinear& op, CudaContext& ctx) {
  if (op.out.numel() == 0) return;
  for_floating(kOp, op.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Arguments<T> a = {op.x.as<T>(),
                            op.weight.as<T>(),
                            op.bias.as<T>(),
                            op.out.as<T>(),
                            op.x.strides[0],
                            op.weight.strides[0],
                            op.out.strides[0],
                            op.out.shape[0],
                            op.out.shape[1],
                            op.x.shape[1],
                            rows_take_packets(op.x),
                            rows_take_packets(op.weight),
                            reinterpret_cast<uintptr_t>(op.out.data) % 4 == 0 &&
                                (op.out.shape[0] < 2 || op.out.strides[0] % 2 == 0)};
    if constexpr (std::is_same_v<T, float>) {
      plain_kernel<T><<<grid_of(a.m, a.n, kSide, kSide), kPlainThreads, 0, ctx.stream>>>(a);
      DS_CUDA_LAUNCHED(kOp);
    } else {
      if (a.m <= Flat::kHeight) return launch<T, Flat>(a, ctx);
      const int64_t blocks = tiles(a.m, Wide::kHeight) * tiles(a.n, Wide::kWidth);
      if (blocks < ctx.sm_count) return launch<T, Middle>(a, ctx);
      launch<T, Wide>(a, ctx);
    }
  });
}

}  // namespace ds::cuda
