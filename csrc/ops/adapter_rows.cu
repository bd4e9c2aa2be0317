// Low-rank updates of several adapters on the GPU. A thread block computes one tile of rows, which
// have the same adapter. 16-bit types use tensor cores, others plain loops. Sums are in a fixed
// order, so a row has the same bits in every batch.
#include "adapter_rows.h"

#include <algorithm>

#include "../cuda/block_reduce.cuh"
#include "../cuda/dependent_launch.cuh"
#include "../cuda/mma.cuh"
#include "../cuda/vector.cuh"

namespace ds::cuda {
namespace {

constexpr int kTile = static_cast<int>(kAdapterTile);
constexpr int kLayers = 3;

/// The lists of both ops.
struct Lists {
  const int *rows, *tiles;
  int entries, count, adapters;  // count: rows of x or out
};

template <class T>
struct ShrinkArguments {
  Lists lists;
  const T* x;
  const T* a[kLayers];
  const int* ranks[kLayers];
  T* h;
  int64_t k;
  int most;
};

template <class T>
struct ExpandArguments {
  Lists lists;
  const T* h;
  const T* b[kLayers];
  const int* ranks[kLayers];
  T* out[kLayers];
  int64_t stride[kLayers], m[kLayers];
  int blocks[kLayers];  // thread blocks along the columns
  int most, layers;
  bool pairs;  // two elements of out may be read and written at once
};

/// A tile; count is 0 if it is empty or invalid.
struct Tile {
  int adapter, first, count;

  __device__ Tile(const Lists& lists, int index) {
    const int* const p = lists.tiles + index * 3;
    adapter = p[0];
    first = p[1];
    count = p[2];
    const bool valid = adapter >= 0 && adapter < lists.adapters && first >= 0 && count > 0 &&
                       count <= kTile && first <= lists.entries - count;
    if (!valid) count = 0;
  }
  /// Returns the row of entry `i`, or -1.
  __device__ int row(const Lists& lists, int i) const {
    if (i >= count) return -1;
    const int row = lists.rows[first + i];
    return row >= 0 && row < lists.count ? row : -1;
  }
};

__device__ __forceinline__ int valid_rank(int rank, int most) {
  return rank < 0 || rank > most ? 0 : rank;
}

constexpr int kShrinkWarps = 8;

/// h of 16 entries and 8 kColumns ranks of a layer. Warps divide K in steps of 32; each thread
/// loads 8 elements of its rows at once. The order of k within a step differs from memory, equally
/// for x and a.
template <class T, int kColumns>
__global__ void __launch_bounds__(kShrinkWarps* kWarp)
    shrink_kernel(const ShrinkArguments<T> args) {
  __shared__ float parts[kShrinkWarps][kColumns][4][kWarp];
  let_next_begin();
  await_previous();
  const Tile tile(args.lists, static_cast<int>(blockIdx.x));
  if (tile.count == 0) return;
  const int layer = static_cast<int>(blockIdx.z),
            column = static_cast<int>(blockIdx.y) * 8 * kColumns;
  const int rank = valid_rank(args.ranks[layer][tile.adapter], args.most);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int group = lane / 4, quad = lane % 4;
  float acc[kColumns][4] = {};
  if (column < rank) {
    const int upper = tile.row(args.lists, group), lower = tile.row(args.lists, group + 8);
    const T* const top = args.x + int64_t{upper < 0 ? 0 : upper} * args.k;
    const T* const bottom = args.x + int64_t{lower < 0 ? 0 : lower} * args.k;
    const T* const a =
        args.a[layer] + (int64_t{tile.adapter} * args.most + column + group) * args.k;
    const uint4 zero = make_uint4(0, 0, 0, 0);
#pragma unroll 4
    for (int64_t from = warp * 32; from < args.k; from += kShrinkWarps * 32) {
      const int64_t k = from + quad * 8;
      const bool here = k < args.k;
      const uint4 u = here && upper >= 0 ? *reinterpret_cast<const uint4*>(top + k) : zero;
      const uint4 v = here && lower >= 0 ? *reinterpret_cast<const uint4*>(bottom + k) : zero;
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const bool inside = here && column + n * 8 + group < rank;
        const uint4 w =
            inside ? *reinterpret_cast<const uint4*>(a + int64_t{n} * 8 * args.k + k) : zero;
        const uint32_t first[4] = {u.x, v.x, u.y, v.y}, second[4] = {u.z, v.z, u.w, v.w};
        mma_16x8x16<T>(acc[n], first, w.x, w.y);
        mma_16x8x16<T>(acc[n], second, w.z, w.w);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kColumns; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) parts[warp][n][i][lane] = acc[n][i];
  __syncthreads();
  // Element i of a lane is column 2 quad + i % 2 of row group + 8 (i / 2).
  for (int at = static_cast<int>(threadIdx.x); at < kColumns * 4 * kWarp;
       at += kShrinkWarps * kWarp) {
    const int n = at / (4 * kWarp), i = at / kWarp % 4, l = at % kWarp;
    const int entry = l / 4 + 8 * (i / 2), j = column + n * 8 + l % 4 * 2 + i % 2;
    if (entry >= tile.count || j >= args.most) continue;
    float sum = 0.f;
#pragma unroll
    for (int w = 0; w < kShrinkWarps; ++w) sum += parts[w][n][i][l];
    args.h[(int64_t{layer} * args.lists.entries + tile.first + entry) * args.most + j] =
        from_float<T>(j < rank ? sum : 0.f);
  }
}

constexpr int kExpandWarps = 4;
constexpr int kExpandTiles = 4;  // 8 columns each, of a warp
constexpr int kExpandWidth = kExpandWarps * kExpandTiles * 8;

/// Adds the update of 16 entries and kExpandWidth columns of a layer to out.
template <class T>
__global__ void __launch_bounds__(kExpandWarps* kWarp)
    expand_kernel(const ExpandArguments<T> args) {
  let_next_begin();
  await_previous();
  const Tile tile(args.lists, static_cast<int>(blockIdx.x));
  if (tile.count == 0) return;
  int block = static_cast<int>(blockIdx.y), layer = 0;
  while (layer + 1 < args.layers && block >= args.blocks[layer]) block -= args.blocks[layer++];
  const int rank = valid_rank(args.ranks[layer][tile.adapter], args.most);
  if (rank == 0) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int group = lane / 4, quad = lane % 4;
  const int64_t m = args.m[layer];
  const int64_t column = int64_t{block} * kExpandWidth + warp * kExpandTiles * 8;
  const T* const h =
      args.h + (int64_t{layer} * args.lists.entries + tile.first) * args.most + quad * 4;
  const T* const b = args.b[layer] + int64_t{tile.adapter} * m * args.most + quad * 4;
  const uint2 zero = make_uint2(0, 0);
  float acc[kExpandTiles][4] = {};
  for (int j = 0; j < rank; j += 16) {
    const uint2 u = group < tile.count
                        ? *reinterpret_cast<const uint2*>(h + int64_t{group} * args.most + j)
                        : zero;
    const uint2 v = group + 8 < tile.count
                        ? *reinterpret_cast<const uint2*>(h + int64_t{group + 8} * args.most + j)
                        : zero;
    const uint32_t left[4] = {u.x, v.x, u.y, v.y};
#pragma unroll
    for (int n = 0; n < kExpandTiles; ++n) {
      const int64_t c = column + n * 8 + group;
      const uint2 w = c < m ? *reinterpret_cast<const uint2*>(b + c * args.most + j) : zero;
      mma_16x8x16<T>(acc[n], left, w.x, w.y);
    }
  }
  const int upper = tile.row(args.lists, group), lower = tile.row(args.lists, group + 8);
#pragma unroll
  for (int n = 0; n < kExpandTiles; ++n) {
    const int64_t c = column + n * 8 + quad * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = half == 0 ? upper : lower;
      if (row < 0) continue;
      T* const out = args.out[layer] + row * args.stride[layer] + c;
      const float low = acc[n][half * 2], high = acc[n][half * 2 + 1];
      if (args.pairs && c + 1 < m) {
        const Vector<T, 2> old = load_vector<2>(out);
        *reinterpret_cast<uint32_t*>(out) =
            pack_pair<T>(to_float(old.v[0]) + low, to_float(old.v[1]) + high);
        continue;
      }
      if (c < m) out[0] = from_float<T>(to_float(out[0]) + low);
      if (c + 1 < m) out[1] = from_float<T>(to_float(out[1]) + high);
    }
  }
}

constexpr int kPlainThreads = 128;

/// A warp sums each element of h.
template <class T>
__global__ void __launch_bounds__(kPlainThreads)
    plain_shrink_kernel(const ShrinkArguments<T> args) {
  const Tile tile(args.lists, static_cast<int>(blockIdx.x));
  const int layer = static_cast<int>(blockIdx.z);
  if (tile.count == 0) return;
  const int rank = valid_rank(args.ranks[layer][tile.adapter], args.most);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int at = warp; at < tile.count * args.most; at += kPlainThreads / kWarp) {
    const int entry = at / args.most, j = at % args.most;
    const int row = tile.row(args.lists, entry);
    float sum = 0.f;
    if (row >= 0 && j < rank) {
      const T* const x = args.x + int64_t{row} * args.k;
      const T* const a = args.a[layer] + (int64_t{tile.adapter} * args.most + j) * args.k;
      for (int64_t k = lane; k < args.k; k += kWarp)
        sum = fmaf(to_float(x[k]), to_float(a[k]), sum);
    }
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2)
      sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane == 0)
      args.h[(int64_t{layer} * args.lists.entries + tile.first + entry) * args.most + j] =
          from_float<T>(sum);
  }
}

/// A thread sums one column of all entries of a tile.
template <class T>
__global__ void __launch_bounds__(kPlainThreads)
    plain_expand_kernel(const ExpandArguments<T> args) {
  const Tile tile(args.lists, static_cast<int>(blockIdx.x));
  if (tile.count == 0) return;
  int block = static_cast<int>(blockIdx.y), layer = 0;
  while (layer + 1 < args.layers && block >= args.blocks[layer]) block -= args.blocks[layer++];
  const int rank = valid_rank(args.ranks[layer][tile.adapter], args.most);
  const int64_t m = args.m[layer], c = int64_t{block} * kExpandWidth + threadIdx.x;
  if (rank == 0 || c >= m) return;
  const T* const b = args.b[layer] + (int64_t{tile.adapter} * m + c) * args.most;
  for (int entry = 0; entry < tile.count; ++entry) {
    const int row = tile.row(args.lists, entry);
    if (row < 0) continue;
    const T* const h =
        args.h + (int64_t{layer} * args.lists.entries + tile.first + entry) * args.most;
    float sum = 0.f;
    for (int j = 0; j < rank; ++j) sum = fmaf(to_float(h[j]), to_float(b[j]), sum);
    T& out = args.out[layer][row * args.stride[layer] + c];
    out = from_float<T>(to_float(out) + sum);
  }
}
static_assert(kPlainThreads == kExpandWidth, "both expand kernels have the same grid");

Lists lists_of(const View& rows, const View& tiles, int64_t count, int64_t adapters) {
  return {rows.as<int>(), tiles.as<int>(), static_cast<int>(rows.shape[0]), static_cast<int>(count),
          static_cast<int>(adapters)};
}

unsigned pieces(int64_t size, int64_t piece) {
  return static_cast<unsigned>((size + piece - 1) / piece);
}

/// Tiles from which a block computes more ranks, so that fewer blocks read x.
constexpr int64_t kManyTiles = 96;

template <class T>
void launch(const AdapterShrink& op, CudaContext& ctx) {
  constexpr const char* kOp = "adapter_shrink";
  const View* const factors[] = {&op.a, &op.a2, &op.a3};
  const View* const ranks[] = {&op.ranks, &op.ranks2, &op.ranks3};
  ShrinkArguments<T> args = {};
  args.lists = lists_of(op.rows, op.tiles, op.x.shape[0], op.a.shape[0]);
  args.x = op.x.as<T>();
  args.h = op.h.as<T>();
  args.k = op.x.shape[1];
  args.most = static_cast<int>(op.a.shape[1]);
  const auto layers = static_cast<unsigned>(op.h.shape[0]);
  bool packets = args.k % 8 == 0 && args.most % 8 == 0 && aligned_for<8>(args.x);
  for (unsigned p = 0; p < layers; ++p) {
    args.a[p] = factors[p]->as<T>();
    args.ranks[p] = ranks[p]->as<int>();
    packets = packets && aligned_for<8>(args.a[p]);
  }
  const auto tiles = static_cast<unsigned>(op.tiles.shape[0]);
  if constexpr (!std::is_same_v<T, float>) {
    if (packets && tiles >= kManyTiles && args.most > 8) {
      launch_behind(
          ctx,
          {kOp, dim3(tiles, pieces(args.most, 16), layers), dim3(kShrinkWarps * kWarp), ctx.stream},
          shrink_kernel<T, 2>, args);
      return;
    }
    if (packets) {
      launch_behind(
          ctx,
          {kOp, dim3(tiles, pieces(args.most, 8), layers), dim3(kShrinkWarps * kWarp), ctx.stream},
          shrink_kernel<T, 1>, args);
      return;
    }
  }
  plain_shrink_kernel<T><<<dim3(tiles, 1, layers), kPlainThreads, 0, ctx.stream>>>(args);
  DS_CUDA_LAUNCHED(kOp);
}

template <class T>
void launch(const AdapterExpand& op, CudaContext& ctx) {
  constexpr const char* kOp = "adapter_expand";
  const View* const factors[] = {&op.b, &op.b2, &op.b3};
  const View* const ranks[] = {&op.ranks, &op.ranks2, &op.ranks3};
  const View* const outs[] = {&op.out, &op.out2, &op.out3};
  ExpandArguments<T> args = {};
  args.lists = lists_of(op.rows, op.tiles, op.out.shape[0], op.b.shape[0]);
  args.h = op.h.as<T>();
  args.most = static_cast<int>(op.h.shape[2]);
  args.layers = static_cast<int>(op.h.shape[0]);
  bool packets = args.most % 16 == 0 && aligned_for<4>(args.h);
  unsigned blocks = 0;
  args.pairs = true;
  for (int p = 0; p < args.layers; ++p) {
    args.b[p] = factors[p]->as<T>();
    args.ranks[p] = ranks[p]->as<int>();
    args.out[p] = outs[p]->as<T>();
    args.stride[p] = outs[p]->strides[0];
    args.m[p] = factors[p]->shape[1];
    args.blocks[p] = static_cast<int>(pieces(args.m[p], kExpandWidth));
    blocks += static_cast<unsigned>(args.blocks[p]);
    packets = packets && aligned_for<4>(args.b[p]);
    args.pairs = args.pairs && args.stride[p] % 2 == 0 && aligned_for<2>(args.out[p]);
  }
  if (blocks == 0) return;
  const dim3 grid(static_cast<unsigned>(op.tiles.shape[0]), blocks);
  if constexpr (!std::is_same_v<T, float>) {
    if (packets) {
      launch_behind(ctx, {kOp, grid, dim3(kExpandWarps * kWarp), ctx.stream}, expand_kernel<T>,
                    args);
      return;
    }
  }
  plain_expand_kernel<T><<<grid, kPlainThreads, 0, ctx.stream>>>(args);
  DS_CUDA_LAUNCHED(kOp);
}

}  // namespace

void run(const AdapterShrink& op, CudaContext& ctx) {
  if (op.tiles.shape[0] == 0 || op.h.numel() == 0) return;
  for_floating("adapter_shrink", op.x.dtype,
               [&](auto tag) { launch<typename decltype(tag)::type>(op, ctx); });
}

void run(const AdapterExpand& op, CudaContext& ctx) {
  if (op.tiles.shape[0] == 0 || op.h.numel() == 0) return;
  for_floating("adapter_expand", op.h.dtype,
               [&](auto tag) { launch<typename decltype(tag)::type>(op, ctx); });
}

}  // namespace ds::cuda
