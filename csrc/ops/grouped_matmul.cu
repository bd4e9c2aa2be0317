// Grouped products on the GPU, one launch for all groups. The grid depends only on shapes, so the
// host does not need group sizes. 16-bit dtypes use tensor cores, others the plain kernel.
#include "grouped_matmul.h"

#include "../cuda/block_reduce.cuh"
#include "../cuda/mma.cuh"
#include "../cuda/shared_memory.h"
#include "../cuda/vector.cuh"
#include "grouped_hopper_product.cuh"
#include "grouped_product.cuh"

namespace ds::cuda {
namespace {

/// Sizes of a tensor-core block: kWarpRows x kWarpColumns warps, each with 16 kTiles x 8 kColumns
/// results. kStages steps of kDepth along the summed dim are in flight.
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
using Wide = Shape<4, 2, 2, 8, 3>;  // 128 x 128: training and long prompts
using Flat = Shape<1, 4, 1, 2, 4>;  // 16 x 64: few rows per expert, limited by memory

/// Copies [kLines, kLength] to shared memory. Line i starts at source(i) and has `length` valid
/// elements. A null line becomes zeros.
template <class T, int kLines, int kLength, int kThreads, class Source>
__device__ __forceinline__ void copy_tile(T* shared, const T* somewhere, int64_t length,
                                          Source source) {
  constexpr int kChunks = kLength / 8;
#pragma unroll
  for (int i = threadIdx.x; i < kLines * kChunks; i += kThreads) {
    const int line = i / kChunks, chunk = i % kChunks;
    const T* const from = source(line);
    const bool valid = from != nullptr && chunk * 8 < length;
    cp_async_16(shared + swizzled<kLength>(line, chunk), valid ? from + chunk * 8 : somewhere,
                valid);
  }
}

/// Computes acc += a^T b. Both have kDepth rows in shared memory; a has kHeight columns from `row`
/// on, b has kWidth.
template <class T, class S>
__device__ __forceinline__ void multiply_columns(float (&acc)[S::kTiles][S::kColumns][4],
                                                 const T* a, const T* b, int row, int column) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int k = 0; k < S::kDepth / 16; ++k) {
    uint32_t left[S::kTiles][4];
#pragma unroll
    for (int m = 0; m < S::kTiles; ++m)
      ldmatrix_x4_transposed(left[m], a + swizzled<S::kHeight>(k * 16 + lane / 16 * 8 + lane % 8,
                                                               row / 8 + m * 2 + lane / 8 % 2));
#pragma unroll
    for (int n = 0; n < S::kColumns / 2; ++n) {
      uint32_t right[4];
      ldmatrix_x4_transposed(
          right, b + swizzled<S::kWidth>(k * 16 + lane % 16, column / 8 + n * 2 + lane / 16));
#pragma unroll
      for (int m = 0; m < S::kTiles; ++m) {
        mma_16x8x16<T>(acc[m][2 * n], left[m], right[0], right[1]);
        mma_16x8x16<T>(acc[m][2 * n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

/// Computes acc += a b. a has kDepth columns; b has kDepth rows and kWidth columns.
template <class T, class S>
__device__ __forceinline__ void multiply_rows_by_columns(
    float (&acc)[S::kTiles][S::kColumns][4], const RowFragments<T, S::kTiles, S::kDepth, false>& a,
    const T* b, int column) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int k = 0; k < S::kDepth / 16; ++k) {
    uint32_t left[S::kTiles][4];
#pragma unroll
    for (int m = 0; m < S::kTiles; ++m) a.get(m, k, left[m]);
#pragma unroll
    for (int n = 0; n < S::kColumns / 2; ++n) {
      uint32_t right[4];
      ldmatrix_x4_transposed(
          right, b + swizzled<S::kWidth>(k * 16 + lane % 16, column / 8 + n * 2 + lane / 16));
#pragma unroll
      for (int m = 0; m < S::kTiles; ++m) {
        mma_16x8x16<T>(acc[m][2 * n], left[m], right[0], right[1]);
        mma_16x8x16<T>(acc[m][2 * n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

/// The work of a thread block: rows of out from `row` on, columns from `column` on. The sum has
/// `depth` elements. For columns_by_columns, a row of out is a column of dout.
template <class T, Form kForm, class S>
struct Block {
  const Product<T>& p;
  Tile tile;
  int64_t row, column, depth;

  /// Copies step `step` of both operands to a stage of shared memory.
  __device__ __forceinline__ void load(T* a, int64_t step) const {
    T* const b = a + S::kHeight * S::kDepth;
    const int64_t from = step * S::kDepth;
    if constexpr (kForm == Form::columns_by_columns) {
      const int64_t first = tile.begin + from, end = tile.end;
      copy_tile<T, S::kDepth, S::kHeight, S::kThreads>(a, p.a, p.n - row, [&](int line) {
        return first + line < end ? p.a + (first + line) * p.n + row : nullptr;
      });
      copy_tile<T, S::kDepth, S::kWidth, S::kThreads>(b, p.b, p.k - column, [&](int line) {
        const int64_t source = first + line < end ? source_row(p, first + line) : -1;
        return source >= 0 ? p.b + source * p.k + column : nullptr;
      });
      return;
    }
    copy_tile<T, S::kHeight, S::kDepth, S::kThreads>(a, p.a, p.k - from, [&](int line) {
      const int64_t source = row + line < tile.end ? source_row(p, row + line) : -1;
      return source >= 0 ? p.a + source * p.k + from : nullptr;
    });
    const T* const weight = p.b + tile.group * p.n * p.k;
    if constexpr (kForm == Form::rows_by_rows) {
      copy_tile<T, S::kWidth, S::kDepth, S::kThreads>(b, p.b, p.k - from, [&](int line) {
        return column + line < p.n ? weight + (column + line) * p.k + from : nullptr;
      });
    } else {
      copy_tile<T, S::kDepth, S::kWidth, S::kThreads>(b, p.b, p.n - column, [&](int line) {
        return from + line < p.k ? weight + (from + line) * p.n + column : nullptr;
      });
    }
  }

  __device__ __forceinline__ void multiply(float (&acc)[S::kTiles][S::kColumns][4], const T* a,
                                           int warp_row, int warp_column) const {
    const T* const b = a + S::kHeight * S::kDepth;
    if constexpr (kForm == Form::columns_by_columns) {
      multiply_columns<T, S>(acc, a, b, warp_row, warp_column);
    } else {
      RowFragments<T, S::kTiles, S::kDepth, false> left;
      left.attach(a, warp_row);
      if constexpr (kForm == Form::rows_by_rows)
        multiply_by_rows<T, S::kDepth, S::kTiles, S::kColumns, false>(acc, left,
                                                                      b + warp_column * S::kDepth);
      else multiply_rows_by_columns<T, S>(acc, left, b, warp_column);
    }
  }
};

/// n, k and all pointers must allow packets of 16 bytes.
template <class T, Form kForm, class S>
__global__ void __launch_bounds__(S::kThreads) tensor_core_kernel(Product<T> p) {
  extern __shared__ __align__(128) unsigned char memory[];
  T* const shared = reinterpret_cast<T*>(memory);
  constexpr bool kGradient = kForm == Form::columns_by_columns;
  Tile tile;
  if constexpr (kGradient) {
    tile.group = static_cast<int>(blockIdx.z);
    const int64_t begin = p.offsets[tile.group], end = p.offsets[tile.group + 1];
    tile.begin = begin < 0 ? 0 : begin;
    tile.end = end > p.m ? p.m : end;
  } else if (!find_tile(p, blockIdx.y, S::kHeight, tile)) {
    return;
  }
  const int64_t rows = tile.end > tile.begin ? tile.end - tile.begin : 0;
  const int64_t row = kGradient ? int64_t{blockIdx.y} * S::kHeight : tile.begin;
  const int64_t column = int64_t{blockIdx.x} * S::kWidth;
  const int64_t depth = kGradient ? rows : tile.group < p.groups ? p.k : 0;
  const Block<T, kForm, S> block = {p, tile, row, column, depth};

  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int warp_row = warp / S::kWarpColumns * 16 * S::kTiles;
  const int warp_column = warp % S::kWarpColumns * 8 * S::kColumns;
  const int64_t steps = (depth + S::kDepth - 1) / S::kDepth;
  float acc[S::kTiles][S::kColumns][4] = {};
#pragma unroll
  for (int s = 0; s < S::kStages - 1; ++s) {
    if (s < steps) block.load(shared + s * S::kStageElements, s);
    cp_async_commit();
  }
  for (int64_t step = 0; step < steps; ++step) {
    cp_async_wait<S::kStages - 2>();
    __syncthreads();
    const int64_t next = step + S::kStages - 1;
    if (next < steps) block.load(shared + next % S::kStages * S::kStageElements, next);
    cp_async_commit();
    block.multiply(acc, shared + step % S::kStages * S::kStageElements, warp_row, warp_column);
  }

  const int64_t height = kGradient ? p.n : tile.end, width = kGradient ? p.k : p.n;
  T* const out = kGradient ? p.out + tile.group * p.n * p.k : p.out;
#pragma unroll
  for (int m = 0; m < S::kTiles; ++m)
#pragma unroll
    for (int n = 0; n < S::kColumns; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t r = row + warp_row + m * 16 + half * 8 + lane / 4;
        const int64_t c = column + warp_column + n * 8 + lane % 4 * 2;
        if (r >= height || c >= width) continue;
        uint32_t* const place = reinterpret_cast<uint32_t*>(out + r * width + c);
        float low = acc[m][n][half * 2], high = acc[m][n][half * 2 + 1];
        if (kGradient && p.accumulate) {
          const uint32_t old = *place;
          low += to_float(reinterpret_cast<const T*>(&old)[0]);
          high += to_float(reinterpret_cast<const T*>(&old)[1]);
        }
        *place = pack_pair<T>(low, high);
      }
}

constexpr int kSide = 64, kPlainDepth = 16, kPlainThreads = 256, kPer = 4;

/// The kernel for any dtype, size and alignment: 64 x 64 results per block, 4 x 4 per thread.
template <class T, Form kForm>
__global__ void __launch_bounds__(kPlainThreads) plain_kernel(Product<T> p) {
  __shared__ float left[kPlainDepth][kSide + 1], right[kPlainDepth][kSide + 1];
  constexpr bool kGradient = kForm == Form::columns_by_columns;
  Tile tile;
  if constexpr (kGradient) {
    tile.group = static_cast<int>(blockIdx.z);
    const int64_t begin = p.offsets[tile.group], end = p.offsets[tile.group + 1];
    tile.begin = begin < 0 ? 0 : begin;
    tile.end = end > p.m ? p.m : end;
  } else if (!find_tile(p, blockIdx.y, kSide, tile)) {
    return;
  }
  const int64_t rows = tile.end > tile.begin ? tile.end - tile.begin : 0;
  const int64_t row = kGradient ? int64_t{blockIdx.y} * kSide : tile.begin;
  const int64_t column = int64_t{blockIdx.x} * kSide;
  const int64_t depth = kGradient ? rows : tile.group < p.groups ? p.k : 0;
  const int64_t height = kGradient ? p.n : tile.end, width = kGradient ? p.k : p.n;
  const auto left_at = [&](int64_t r, int64_t d) {
    if (r >= height || d >= depth) return 0.0f;
    if constexpr (kGradient) return to_float(p.a[(tile.begin + d) * p.n + r]);
    const int64_t source = source_row(p, r);
    return source < 0 ? 0.0f : to_float(p.a[source * p.k + d]);
  };
  const auto right_at = [&](int64_t c, int64_t d) {
    if (c >= width || d >= depth) return 0.0f;
    if constexpr (kGradient) {
      const int64_t source = source_row(p, tile.begin + d);
      return source < 0 ? 0.0f : to_float(p.b[source * p.k + c]);
    }
    const T* const weight = p.b + tile.group * p.n * p.k;
    return to_float(kForm == Form::rows_by_rows ? weight[c * p.k + d] : weight[d * p.n + c]);
  };
  // Consecutive threads read consecutive elements, along the summed dim or across it.
  constexpr bool kAcrossLeft = kGradient, kAcrossRight = kForm != Form::rows_by_rows;
  const int y = threadIdx.x / (kSide / kPer), x = threadIdx.x % (kSide / kPer);
  float acc[kPer][kPer] = {};
  for (int64_t from = 0; from < depth; from += kPlainDepth) {
    for (int i = threadIdx.x; i < kSide * kPlainDepth; i += kPlainThreads) {
      const int across = i % kSide, along = i % kPlainDepth;
      const int l = kAcrossLeft ? across : i / kPlainDepth, ld = kAcrossLeft ? i / kSide : along;
      const int r = kAcrossRight ? across : i / kPlainDepth, rd = kAcrossRight ? i / kSide : along;
      left[ld][l] = left_at(row + l, from + ld);
      right[rd][r] = right_at(column + r, from + rd);
    }
    __syncthreads();
#pragma unroll
    for (int d = 0; d < kPlainDepth; ++d)
#pragma unroll
      for (int i = 0; i < kPer; ++i)
#pragma unroll
        for (int j = 0; j < kPer; ++j)
          acc[i][j] += left[d][y + i * (kSide / kPer)] * right[d][x + j * (kSide / kPer)];
    __syncthreads();
  }
  T* const out = kGradient ? p.out + tile.group * p.n * p.k : p.out;
#pragma unroll
  for (int i = 0; i < kPer; ++i)
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const int64_t r = row + y + i * (kSide / kPer), c = column + x + j * (kSide / kPer);
      if (r >= height || c >= width) continue;
      T& place = out[r * width + c];
      place = from_float<T>(kGradient && p.accumulate ? to_float(place) + acc[i][j] : acc[i][j]);
    }
}

unsigned pieces(int64_t size, int64_t piece) {
  return static_cast<unsigned>((size + piece - 1) / piece);
}

/// Returns the grid: columns, then tiles of rows, or for the gradient rows and groups. The GPU
/// allows at most 65535 tiles.
template <class T, Form kForm>
dim3 grid_of(const char* op, const Product<T>& p, int64_t height, int64_t width) {
  constexpr bool kGradient = kForm == Form::columns_by_columns;
  const int64_t tiles = kGradient ? pieces(p.n, height) : most_tiles(p.m, p.groups, height);
  if (tiles > 65535) throw Error("DS_ARGUMENT", op, "at most 65535 tiles of rows", text(tiles));
  return {pieces(kGradient ? p.k : p.n, width), static_cast<unsigned>(tiles),
          kGradient ? static_cast<unsigned>(p.groups) : 1u};
}

template <class T, Form kForm, class S>
void launch_tensor_cores(const char* op, const Product<T>& p, CudaContext& ctx) {
  static_assert(S::kBytes <= kSharedMemoryOfAll);
  const auto kernel = tensor_core_kernel<T, kForm, S>;
  DS_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(S::kBytes)),
          op);
  kernel<<<grid_of<T, kForm>(op, p, S::kHeight, S::kWidth), S::kThreads, S::kBytes, ctx.stream>>>(
      p);
  DS_CUDA_LAUNCHED(op);
}

template <class T, Form kForm>
void launch(const char* op, const Product<T>& p, CudaContext& ctx) {
  if constexpr (!std::is_same_v<T, float>) {
    const bool packets = p.n % 8 == 0 && p.k % 8 == 0 && p.k > 0 && aligned_for<8>(p.a) &&
                         aligned_for<8>(p.b) && aligned_for<8>(p.out);
    if (packets) {
      if constexpr (kForm != Form::columns_by_columns)
        if (p.m <= int64_t{16} * p.groups) return launch_tensor_cores<T, kForm, Flat>(op, p, ctx);
      if (run_hopper_product<T, kForm>(op, p, ctx)) return;
      return launch_tensor_cores<T, kForm, Wide>(op, p, ctx);
    }
  }
  plain_kernel<T, kForm>
      <<<grid_of<T, kForm>(op, p, kSide, kSide), kPlainThreads, 0, ctx.stream>>>(p);
  DS_CUDA_LAUNCHED(op);
}

}  // namespace

void run(const GroupedMatmul& op, CudaContext& ctx) {
  constexpr const char* kOp = "grouped_matmul";
  if (op.out.numel() == 0) return;
  for_floating(kOp, op.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Product<T> p = {op.x.as<T>(),
                          op.weight.as<T>(),
                          op.out.as<T>(),
                          op.rows.as<int32_t>(),
                          op.offsets.as<int32_t>(),
                          op.x.shape[0],
                          static_cast<int>(op.offsets.shape[0] - 1),
                          op.out.shape[0],
                          op.out.shape[1],
                          op.x.shape[1],
                          false};
    if (op.plain) launch<T, Form::rows_by_columns>(kOp, p, ctx);
    else launch<T, Form::rows_by_rows>(kOp, p, ctx);
  });
}

void run(const GroupedWeightGradient& op, CudaContext& ctx) {
  constexpr const char* kOp = "grouped_weight_gradient";
  if (op.dweight.numel() == 0) return;
  for_floating(kOp, op.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Product<T> p = {op.dout.as<T>(),
                          op.x.as<T>(),
                          op.dweight.as<T>(),
                          op.rows.as<int32_t>(),
                          op.offsets.as<int32_t>(),
                          op.x.shape[0],
                          static_cast<int>(op.offsets.shape[0] - 1),
                          op.dout.shape[0],
                          op.dout.shape[1],
                          op.x.shape[1],
                          op.accumulate};
    launch<T, Form::columns_by_columns>(kOp, p, ctx);
  });
}

}  // namespace ds::cuda
