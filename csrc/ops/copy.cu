// Copy on the GPU: memcpy if both sides are contiguous, tiles in shared memory for transposes, and
// otherwise the element-wise kernel.
#include "copy.h"

#include "../cuda/map.cuh"

namespace ds::cuda {
namespace {

constexpr const char* kOp = "copy";

template <class Out, class In>
struct Cast {
  static constexpr bool accumulate = false;
  template <int N>
  __device__ void operator()(Vector<Out, N>& out, const Vector<In, N>& in) const {
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] = narrow<Out>(widen(in.v[i]));
  }
};

/// Copies words. One kernel serves all dtypes of the same size.
template <class W>
struct Move {
  static constexpr bool accumulate = false;
  template <int N>
  __device__ void operator()(Vector<W, N>& out, const Vector<W, N>& in) const {
    out = in;
  }
};

// -------------------------------------------------------------------------------------------------
// Transposes: `in` is dense along the dim `rows`, `out` along the dim `cols`.

struct Transposition {
  uint32_t rows, cols, row_tiles, col_tiles;
  int32_t in_col_stride, out_row_stride;
  Steps<2> batch;
};

template <class W>
constexpr uint32_t kTile = sizeof(W) <= 2 ? 64 : 32;
constexpr int kTileThreadsX = 32, kTileThreadsY = 8;

/// Copies a tile per block through shared memory, so that loads and stores are both coalesced. W is
/// a word of the size of an element.
template <class W>
__global__ void __launch_bounds__(kTileThreadsX* kTileThreadsY)
    transpose_kernel(W* out, const W* in, Transposition t) {
  // The padding makes the row pitch an odd number of banks.
  constexpr uint32_t kPad = sizeof(W) < 4 ? 4 / sizeof(W) : 1;
  __shared__ W tile[kTile<W>][kTile<W> + kPad];
  const uint32_t batch = blockIdx.x / (t.row_tiles * t.col_tiles);
  const uint32_t rest = blockIdx.x - batch * (t.row_tiles * t.col_tiles);
  const uint32_t row0 = rest % t.row_tiles * kTile<W>, col0 = rest / t.row_tiles * kTile<W>;
  int32_t at[2];
  t.batch.offsets(batch, at);
#pragma unroll
  for (uint32_t c = threadIdx.y; c < kTile<W>; c += kTileThreadsY)
#pragma unroll
    for (uint32_t r = threadIdx.x; r < kTile<W>; r += kTileThreadsX)
      if (row0 + r < t.rows && col0 + c < t.cols)
        tile[c][r] = in[at[1] + static_cast<int32_t>(row0 + r) +
                        static_cast<int32_t>(col0 + c) * t.in_col_stride];
  __syncthreads();
#pragma unroll
  for (uint32_t r = threadIdx.y; r < kTile<W>; r += kTileThreadsY)
#pragma unroll
    for (uint32_t c = threadIdx.x; c < kTile<W>; c += kTileThreadsX)
      if (row0 + r < t.rows && col0 + c < t.cols)
        out[at[0] + static_cast<int32_t>(col0 + c) +
            static_cast<int32_t>(row0 + r) * t.out_row_stride] = tile[c][r];
}

/// Returns the dim along which `in` is dense and `out` is not, or 0 if tiles would not help.
int transposed_dim(const Walk<2>& w) {
  constexpr int64_t kWorthwhile = 8;
  if (w.ndim < 2 || w.strides[0][0] != 1 || w.strides[1][0] <= 1 || w.shape[0] < kWorthwhile)
    return 0;
  for (int d = 1; d < w.ndim; ++d)
    if (w.strides[1][d] == 1 && w.shape[d] >= kWorthwhile) return d;
  return 0;
}

template <class W>
void transpose(const Walk<2>& part, int dim, cudaStream_t stream) {
  const auto tiles = [](int64_t n) { return static_cast<uint32_t>((n + kTile<W> - 1) / kTile<W>); };
  Walk<2> batch;
  for (int d = 1; d < part.ndim; ++d)
    if (d != dim) add_dim(batch, part.shape[d], {part.strides[0][d], part.strides[1][d]});
  Transposition t = {};
  t.rows = static_cast<uint32_t>(part.shape[dim]);
  t.cols = static_cast<uint32_t>(part.shape[0]);
  t.row_tiles = tiles(t.rows);
  t.col_tiles = tiles(t.cols);
  t.in_col_stride = static_cast<int32_t>(part.strides[1][0]);
  t.out_row_stride = static_cast<int32_t>(part.strides[0][dim]);
  t.batch = steps_of(batch, 1);
  const uint32_t blocks = t.row_tiles * t.col_tiles * t.batch.count;
  transpose_kernel<W><<<blocks, dim3(kTileThreadsX, kTileThreadsY), 0, stream>>>(
      reinterpret_cast<W*>(part.data[0]), reinterpret_cast<const W*>(part.data[1]), t);
  DS_CUDA_LAUNCHED(kOp);
}

// -------------------------------------------------------------------------------------------------

template <class W>
void move(const Copy& op, const Walk<2>& walk, CudaContext& ctx) {
  if (const int dim = transposed_dim(walk))
    return for_each_part(walk, [&](const Walk<2>& part) { transpose<W>(part, dim, ctx.stream); });
  map<kPacket<W>, W, W>(kOp, ctx.stream, Move<W>{}, op.out, op.in);
}

void copy_same_dtype(const Copy& op, CudaContext& ctx) {
  const View* const views[2] = {&op.out, &op.in};
  const Walk<2> walk = plan_walk(views);
  const size_t element = size_of(op.out.dtype);
  if (walk.ndim == 0 || (walk.ndim == 1 && walk.strides[0][0] == 1 && walk.strides[1][0] == 1)) {
    const size_t bytes = static_cast<size_t>(walk.numel()) * element;
    DS_CUDA(cudaMemcpyAsync(op.out.data, op.in.data, bytes, cudaMemcpyDeviceToDevice, ctx.stream),
            kOp);
    return;
  }
  switch (element) {
    case 1: return move<uint8_t>(op, walk, ctx);
    case 2: return move<uint16_t>(op, walk, ctx);
    case 4: return move<uint32_t>(op, walk, ctx);
    default: return move<uint64_t>(op, walk, ctx);
  }
}

}  // namespace

void run(const Copy& op, CudaContext& ctx) {
  for_all(kOp, op.in.dtype, [](auto) {});
  for_all(kOp, op.out.dtype, [](auto) {});
  if (op.out.numel() == 0) return;
  if (op.in.dtype == op.out.dtype) return copy_same_dtype(op, ctx);
  for_all(kOp, op.out.dtype, [&](auto out_tag) {
    for_all(kOp, op.in.dtype, [&](auto in_tag) {
      using Out = typename decltype(out_tag)::type;
      using In = typename decltype(in_tag)::type;
      if constexpr (!std::is_same_v<Out, In>)
        map<8, Out, In>(kOp, ctx.stream, Cast<Out, In>{}, op.out, op.in);
    });
  });
}

}  // namespace ds::cuda
