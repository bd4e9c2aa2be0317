// Launches the adapter kernels on the GPU: tensor cores for 16-bit dtypes, otherwise plain loops.
// Sums are in a fixed order.
#include "adapter_rows.h"

#include <algorithm>

#include "adapter_gate.cuh"
#include "adapter_rows.cuh"
#include "adapter_sum.cuh"

namespace ds::cuda {
namespace {

static_assert(kAdapterTile == kAdapterRows);

constexpr int kShrinkWarps = 8, kShrinkColumns = 2;
constexpr int kExpandWarps = 4, kExpandUnits = 2;
constexpr int kExpandWaves = 4;  // blocks per SM
constexpr int kExpandWidth = kExpandWarps * kExpandUnits * kExpandUnit;

constexpr int kPlainThreads = 256;

/// Limits of the prefetch of AdapterSum's `next`. Bytes in all: as many as memory delivers while
/// the kernels before that product run. Bytes of each row: a multiple of kNextStep.
constexpr int64_t kNextBytes = int64_t{16} << 20, kNextStep = 128;
/// Rows of a weight per block of its product. With fewer rows per SM, there is no prefetch. Blocks
/// then share rows: most of them begin in the middle of a row, so they do not need the beginning of
/// the row.
constexpr int64_t kNextTile = 128;

bool aligned_to_16(const View& v) {
  const int64_t row = v.shape[1] * static_cast<int64_t>(size_of(v.dtype));
  return reinterpret_cast<uintptr_t>(v.data) % 16 == 0 && row % 16 == 0;
}

/// A warp computes an element of h.
template <class T>
__global__ void __launch_bounds__(kPlainThreads)
    plain_shrink_kernel(const ShrinkArguments<T> args) {
  const AdapterTile tile(args.lists, static_cast<int>(blockIdx.x));
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

/// A thread computes one column for all entries of a tile.
template <class T>
__global__ void __launch_bounds__(kPlainThreads)
    plain_expand_kernel(const ExpandArguments<T> args) {
  const AdapterTile tile(args.lists, static_cast<int>(blockIdx.x));
  if (tile.count == 0) return;
  int block = static_cast<int>(blockIdx.y), layer = 0;
  while (layer + 1 < args.layers && block >= args.turns[layer]) block -= args.turns[layer++];
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

/// A thread computes one column for all entries of a tile.
template <class T>
__global__ void __launch_bounds__(kPlainThreads)
    plain_sum_kernel(const SumArguments<T> args, int64_t columns, bool gated) {
  const AdapterTile tile(args.lists, static_cast<int>(blockIdx.x), -1);
  const int64_t column = int64_t{blockIdx.y} * kPlainThreads + threadIdx.x;
  if (tile.count == 0 || column >= columns) return;
  const auto value = [&](int64_t c, int row) {
    int layer = 0;
    while (layer + 1 < args.layers && c >= args.first[layer + 1]) ++layer;
    const T* const wide = args.wide + row * args.wide_stride;
    const int rank = tile.adapter < 0 ? 0 : valid_rank(args.ranks[layer][tile.adapter], args.most);
    if (rank == 0) return wide[c];
    const T* const h = args.inner_of(layer, tile.adapter) + row * args.wide_stride;
    const T* const b =
        args.b[layer] + (int64_t{tile.adapter} * args.m[layer] + c - args.first[layer]) * args.most;
    float sum = 0.f;
    for (int j = 0; j < rank; ++j) sum = fmaf(to_float(h[j]), to_float(b[j]), sum);
    return from_float<T>(to_float(wide[c]) + sum);
  };
  for (int entry = 0; entry < tile.count; ++entry) {
    const int row = tile.row(args.lists, entry);
    if (row < 0) continue;
    T x = value(column, row);
    if (gated)
      x = from_float<T>(unary_value<UnaryOp::silu>(to_float(x)) *
                        to_float(value(columns + column, row)));
    args.out[row * args.out_stride + column] = x;
  }
}

AdapterLists lists_of(const View& rows, const View& tiles, int64_t count, int64_t adapters) {
  return {rows.as<int>(), tiles.as<int>(), static_cast<int>(rows.shape[0]), static_cast<int>(count),
          static_cast<int>(adapters)};
}

unsigned pieces(int64_t size, int64_t piece) {
  return static_cast<unsigned>((size + piece - 1) / piece);
}

/// Returns the number of blocks that share the sums over k. It depends only on k, because it
/// determines the order of the sums.
int shrink_parts(int64_t k, const CudaContext& ctx) {
  if (ctx.code.architecture < 90) return 1;  // code without clusters
  return k >= 2048 ? kMostParts : k >= 1024 ? 4 : k >= 512 ? 2 : 1;
}

bool lists_settled(const CudaContext& ctx, const View& rows, const View& tiles) {
  return is_settled(ctx, rows.data) && is_settled(ctx, tiles.data);
}

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
  args.parts = shrink_parts(args.k, ctx);
  args.settled = lists_settled(ctx, op.rows, op.tiles);
  const auto layers = static_cast<unsigned>(op.h.shape[0]);
  bool packets = args.k % 8 == 0 && args.most % 8 == 0 && aligned_for<8>(args.x);
  for (unsigned p = 0; p < layers; ++p) {
    args.a[p] = factors[p]->as<T>();
    args.ranks[p] = ranks[p]->as<int>();
    args.settled = args.settled && is_settled(ctx, args.a[p]) && is_settled(ctx, args.ranks[p]);
    packets = packets && aligned_for<8>(args.a[p]);
  }
  const auto tiles = static_cast<unsigned>(op.tiles.shape[0]);
  if constexpr (!std::is_same_v<T, float>) {
    if (packets) {
      const auto parts = static_cast<unsigned>(args.parts);
      const dim3 grid(tiles * parts, pieces(args.most, 8 * kShrinkColumns), layers);
      launch_behind(ctx, {kOp, grid, dim3(kShrinkWarps * kWarp), ctx.stream, 0, parts},
                    shrink_kernel<T, kShrinkColumns, kShrinkWarps>, args);
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
  args.settled = lists_settled(ctx, op.rows, op.tiles);
  bool tensor_cores = args.most % 16 == 0 && aligned_for<4>(args.h);
  args.packets = true;
  for (int p = 0; p < args.layers; ++p) {
    args.b[p] = factors[p]->as<T>();
    args.ranks[p] = ranks[p]->as<int>();
    args.out[p] = outs[p]->as<T>();
    args.stride[p] = outs[p]->strides[0];
    args.m[p] = factors[p]->shape[1];
    args.turns[p] = static_cast<int>(pieces(args.m[p], kExpandWidth));
    args.all_turns += args.turns[p];
    args.settled = args.settled && is_settled(ctx, args.b[p]) && is_settled(ctx, args.ranks[p]);
    tensor_cores = tensor_cores && aligned_for<4>(args.b[p]);
    args.packets = args.packets && args.stride[p] % 8 == 0 && aligned_for<8>(args.out[p]);
  }
  if (args.all_turns == 0) return;
  const auto tiles = static_cast<unsigned>(op.tiles.shape[0]);
  const auto turns = static_cast<unsigned>(args.all_turns);
  if constexpr (!std::is_same_v<T, float>) {
    if (tensor_cores) {
      const auto wanted = static_cast<unsigned>(kExpandWaves * ctx.sm_count) / tiles;
      const dim3 grid(tiles, std::clamp(wanted, 1u, turns));
      launch_behind(ctx, {kOp, grid, dim3(kExpandWarps * kWarp), ctx.stream},
                    expand_kernel<T, kExpandUnits, kExpandWarps>, args);
      return;
    }
  }
  plain_expand_kernel<T><<<dim3(tiles, turns), kPlainThreads, 0, ctx.stream>>>(args);
  DS_CUDA_LAUNCHED(kOp);
}

template <class T>
void launch(const AdapterSum& op, CudaContext& ctx) {
  constexpr const char* kOp = "adapter_sum";
  const View* const factors[] = {&op.b, &op.b2, &op.b3};
  const View* const ranks[] = {&op.ranks, &op.ranks2, &op.ranks3};
  SumArguments<T> args = {};
  args.lists = lists_of(op.rows, op.tiles, op.wide.shape[0], op.b.shape[0]);
  args.wide = op.wide.as<T>();
  args.out = op.out.as<T>();
  args.wide_stride = op.wide.shape[1];
  args.out_stride = op.out.strides[0];
  args.most = static_cast<int>(op.b.shape[2]);
  args.layers = op.b3 ? 3 : op.b2 ? 2 : 1;
  args.in_place = op.out.data == op.wide.data;
  args.settled = lists_settled(ctx, op.rows, op.tiles);
  bool tensor_cores = args.most % 16 == 0 && args.wide_stride % 8 == 0 &&
                      args.out_stride % 8 == 0 && aligned_for<8>(args.wide) &&
                      aligned_for<8>(args.out);
  const int turn = kExpandWarps * kSumUnit * (op.gated ? 1 : 2);
  for (int p = 0; p < args.layers; ++p) {
    args.b[p] = factors[p]->as<T>();
    args.ranks[p] = ranks[p]->as<int>();
    args.first[p] = args.inner;
    args.m[p] = static_cast<int>(factors[p]->shape[1]);
    args.inner += args.m[p];
    args.turns[p] = static_cast<int>(pieces(args.m[p], turn));
    if (p == 0 || !op.gated) args.all_turns += args.turns[p];
    args.settled = args.settled && is_settled(ctx, args.b[p]) && is_settled(ctx, args.ranks[p]);
    tensor_cores = tensor_cores && args.m[p] % 8 == 0 && aligned_for<8>(args.b[p]);
  }
  if (args.all_turns == 0) return;
  const bool whole_rows = op.next && op.next.shape[0] >= kNextTile * ctx.sm_count;
  if (whole_rows && aligned_to_16(op.next)) {
    args.next = op.next.as<char>();
    args.next_rows = static_cast<int>(op.next.shape[0]);
    args.next_stride = op.next.shape[1] * static_cast<int64_t>(size_of(op.next.dtype));
    args.next_bytes = static_cast<int>(
        std::min(args.next_stride, kNextBytes / args.next_rows / kNextStep * kNextStep));
    if (args.next_bytes == 0) args.next_rows = 0;
  }
  const auto tiles = static_cast<unsigned>(op.tiles.shape[0]);
  if constexpr (!std::is_same_v<T, float>) {
    if (tensor_cores) {
      // Tiles of a step have about equal sizes.
      const bool few =
          op.gated && args.most == kGateRank && op.rows.shape[0] <= kFewRows * op.tiles.shape[0];
      const auto turns = static_cast<unsigned>(args.all_turns);
      const auto wanted =
          static_cast<unsigned>((few ? kGateBlocks : kSumBlocks) * ctx.sm_count) / tiles;
      const Launch how{kOp, dim3(tiles, std::clamp(wanted, 1u, turns)), dim3(kExpandWarps * kWarp),
                       ctx.stream, few ? kGateSharedBytes<kExpandWarps> : 0};
      if (few) launch_behind(ctx, how, gate_kernel<T, kExpandWarps>, args);
      else if (op.gated) launch_behind(ctx, how, sum_kernel<T, true, kExpandWarps>, args);
      else launch_behind(ctx, how, sum_kernel<T, false, kExpandWarps>, args);
      return;
    }
  }
  const int64_t columns = op.out.shape[1];
  plain_sum_kernel<T>
      <<<dim3(tiles, pieces(columns, kPlainThreads)), kPlainThreads, 0, ctx.stream>>>(args, columns,
                                                                                      op.gated);
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

void run(const AdapterSum& op, CudaContext& ctx) {
  if (op.tiles.shape[0] == 0 || op.out.numel() == 0) return;
  for_floating("adapter_sum", op.wide.dtype,
               [&](auto tag) { launch<typename decltype(tag)::type>(op, ctx); });
}

}  // namespace ds::cuda
