// Paged attention on the GPU: selects the kernel and the number of splits. Also stores keys and
// values.
#include "paged_attention.h"

#include <algorithm>

#include "../cuda/shared_memory.h"
#include "paged_hopper.cuh"
#include "paged_plain.cuh"
#include "paged_single.cuh"
#include "paged_tiles.cuh"

namespace ds::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxHead = 256;      // 32 lanes of 8 channels
constexpr int kMaxTileHead = 128;  // largest head dim on tensor cores
constexpr int64_t kMostSplits = 128;

/// Properties of a kernel that determine the number of splits.
struct PagedKernel {
  int rows;  // query rows of a thread block
  int threads;
  size_t shared_bytes;
  int64_t fewest_keys;  // fewest keys of a split
  bool clusters;        // a cluster of blocks can reduce its splits
};

/// Keys of a split above which more splits and a second launch are faster than a cluster.
constexpr int64_t kLongSplit = 256;

/// Single tokens: with fewer blocks per SM than this, several blocks split the keys of a sequence.
/// One or two blocks per SM do not load at memory bandwidth, and the longest sequences end late.
constexpr int64_t kFewBlocks = 4;

/// Launches a kernel. If there are few blocks, several blocks split the keys of a sequence. Their
/// partial results are then reduced: for up to kMostClustered splits by the cluster of these
/// blocks, otherwise by a second kernel. The number of splits depends only on values known to the
/// host.
template <class T, class P, class Kernel>
void launch(Kernel* kernel, const PagedKernel& shape, PagedArguments<T, P> a,
            const PagedAttention& op, CudaContext& ctx) {
  constexpr const char* kOp = "paged_attention";
  const int64_t rows = std::max<int64_t>(1, op.longest) * a.group;
  const int64_t tiles = (rows + shape.rows - 1) / shape.rows;
  const int64_t work = tiles * a.sequences * a.rows.key_heads, processors = ctx.sm_count;
  const int64_t context = int64_t{a.rows.most} * a.rows.block;
  const bool several = op.longest <= 1 && work >= processors;
  const int64_t aim = processors * (several ? kFewBlocks : 2);
  const bool whole = op.invariant || work >= (several ? aim : processors);
  const int64_t wanted = whole ? 1 : (aim + work - 1) / work;
  const int64_t possible = (context + shape.fewest_keys - 1) / shape.fewest_keys;
  a.splits =
      static_cast<int>(std::max<int64_t>(1, std::min<int64_t>({wanted, possible, kMostSplits})));
  if (shape.clusters && ctx.code.architecture >= 90 && a.splits > 1 &&
      context <= kMostClustered * kLongSplit) {
    int blocks = 2;  // blocks of a cluster, a power of 2
    while (blocks < std::min(a.splits, kMostClustered)) blocks *= 2;
    a.splits = blocks;
    a.clustered = true;
  }
  a.settled = is_settled(ctx, op.tables.data) && is_settled(ctx, op.starts.data) &&
              is_settled(ctx, op.lengths.data) && is_settled(ctx, op.pool.data);
  DS_CHECK_SHAPE(work * a.splits < 2147483647, kOp,
                 "fewer than 2^31 tiles of rows over all sequences and heads",
                 text(work * a.splits));
  if (a.splits > 1 && !a.clustered) {
    a.sums = ctx.scratch_of<float>(static_cast<size_t>(a.splits * a.total * a.d));
    a.marks = ctx.scratch_of<float2>(static_cast<size_t>(a.splits * a.total));
  }
  const dim3 grid(static_cast<unsigned>(work * a.splits));
  const auto cluster = static_cast<unsigned>(a.clustered ? a.splits : 1);
  launch_behind(ctx,
                {kOp, grid, dim3(static_cast<unsigned>(shape.threads)), ctx.stream,
                 shape.shared_bytes, cluster},
                kernel, a);
  if (a.splits == 1 || a.clustered) return;
  constexpr int64_t kWarps = kCombineThreads / 32;
  const auto blocks = static_cast<unsigned>((a.total + kWarps - 1) / kWarps);
  launch_behind(ctx, {kOp, dim3(blocks), dim3(kCombineThreads), ctx.stream},
                paged_combine_kernel<T, P>, a);
}

template <int kLanes, int kRows, class T, class P>
void launch_plain(const PagedArguments<T, P>& a, const PagedAttention& op, CudaContext& ctx) {
  launch(paged_plain_kernel<kLanes, kRows, T, P>, {kRows, kPlainThreads, 0, 64, false}, a, op, ctx);
}

template <int kRows, class T, class P>
void launch_for_head(const PagedArguments<T, P>& a, const PagedAttention& op, CudaContext& ctx) {
  if constexpr (sizeof(T) == 4) {  // of 16-bit dtypes, only wide heads use this kernel
    if (a.d <= 4 * kPart) return launch_plain<4, kRows>(a, op, ctx);
    if (a.d <= 8 * kPart) return launch_plain<8, kRows>(a, op, ctx);
    if (a.d <= 16 * kPart) return launch_plain<16, kRows>(a, op, ctx);
  }
  launch_plain<32, kRows>(a, op, ctx);
}

template <class Shape, class T, class P>
void launch_tiles(int64_t fewest_keys, const PagedArguments<T, P>& a, const PagedAttention& op,
                  CudaContext& ctx) {
  static_assert(Shape::shared_bytes <= kSharedMemoryOfAll);
  launch(paged_tile_kernel<T, P, Shape>,
         {Shape::rows, Shape::threads, Shape::shared_bytes, fewest_keys, Shape::key_warps > 1}, a,
         op, ctx);
}

/// Launches paged_single_kernel, or returns false if it does not take the call. With few items, the
/// kernel of tiles is faster, because several blocks split the keys of an item.
template <class Shape, class T, class P>
bool launch_single(const PagedArguments<T, P>& a, const PagedAttention& op, CudaContext& ctx) {
  const int64_t items = int64_t{a.sequences} * a.rows.key_heads;
  const int64_t blocks = int64_t{ctx.sm_count} * Shape::blocks_per_sm;
  if (ctx.code.architecture < 90 || op.invariant || op.longest > 1) return false;
  if (a.group > Shape::queries || a.d != Shape::head_dim || a.rows.block % kKeyTile != 0)
    return false;
  if (!a.vectors || !a.row_vectors || items < kFewBlocks * ctx.sm_count || items >= 2147483647)
    return false;
  PagedArguments<T, P> all = a;
  all.splits = 1;
  all.settled = is_settled(ctx, op.tables.data) && is_settled(ctx, op.starts.data) &&
                is_settled(ctx, op.lengths.data) && is_settled(ctx, op.pool.data);
  launch_behind(ctx,
                {"paged_attention", dim3(static_cast<unsigned>(blocks)), dim3(Shape::threads),
                 ctx.stream, Shape::shared_bytes},
                paged_single_kernel<T, P, Shape>, all);
  return true;
}

/// Selects the tiles. Single tokens split their keys over warps. Short prompts have tiles of 64
/// rows, which use more SMs.
template <int kD, class T, class P>
void launch_tiles_of(const PagedArguments<T, P>& a, const PagedAttention& op, CudaContext& ctx) {
  if (op.invariant) return launch_tiles<PagedShape<kD, 4, 1, 1, 2, true>>(512, a, op, ctx);
  const int64_t rows = std::max<int64_t>(1, op.longest) * a.group;
  if (rows <= 16) {
    if (launch_single<SingleShape<kD, 128 / kD * 2, 3>>(a, op, ctx)) return;
    return launch_tiles<PagedShape<kD, 1, 1, 4, 3>>(64, a, op, ctx);
  }
  const int64_t blocks = (rows + 127) / 128 * a.sequences * a.rows.key_heads;
  if (blocks < 2 * int64_t{ctx.sm_count})
    return launch_tiles<PagedShape<kD, 4, 1, 1, 2>>(512, a, op, ctx);
  launch_tiles<PagedShape<kD, 4, 2, 1, 2>>(512, a, op, ctx);
}

bool rows_divide(const View& v, int64_t n) {
  return (v.shape[0] < 2 || v.strides[0] % n == 0) && (v.shape[1] < 2 || v.strides[1] % n == 0);
}

/// Returns true if rows of 16-bit elements can be read by 16 bytes.
template <class T>
bool rows_take_packets(const View& v) {
  return aligned_for<kPart>(v.as<T>()) && rows_divide(v, kPart);
}

template <class T, class P>
PagedArguments<T, P> arguments_of(const PagedAttention& op) {
  const int d = static_cast<int>(op.q.shape[2]), heads = static_cast<int>(op.q.shape[1]);
  const int key_heads = static_cast<int>(op.pool.shape[2]);
  PagedArguments<T, P> a{};
  a.rows = paged_rows_of<P>(op.pool, op.tables);
  a.q = op.q.as<T>();
  a.out = op.out.as<T>();
  a.starts = op.starts.as<int>();
  a.lengths = op.lengths.as<int>();
  a.q_token = op.q.strides[0];
  a.q_head = op.q.strides[1];
  a.out_token = op.out.strides[0];
  a.out_head = op.out.strides[1];
  a.tokens = static_cast<int>(op.q.shape[0]);
  a.sequences = static_cast<int>(op.tables.shape[0]);
  a.heads = heads;
  a.group = heads / key_heads;
  a.d = d;
  a.window = static_cast<int>(std::min<int64_t>(op.window, 2147483647));
  a.scale_log2 = static_cast<float>(op.scale * 1.4426950408889634);
  a.cap = score_cap(op.cap, op.scale);
  a.vectors = d % kPart == 0 && aligned_for<kPart>(op.pool.as<P>());
  a.row_vectors = d % kPart == 0 && rows_take_packets<T>(op.q) && rows_take_packets<T>(op.out);
  a.total = op.q.shape[0] * heads;
  a.lse = op.lse.as<float>();
  a.sinks = op.sinks.as<T>();
  a.invariant = op.invariant;
  return a;
}

template <class T, class P>
struct StoreArguments {
  const T *k, *v;
  const int* slots;
  P* pool;
  int64_t k_token, k_head, v_token, v_head, items, places;  // places: slots of the pool
  int heads, block, d;
};

/// Stores item i: packet i % (D / N) of head i / (D / N) % heads of a token. N divides D.
template <int N, class T, class P>
__global__ void __launch_bounds__(kThreads) paged_store_kernel(StoreArguments<T, P> a) {
  const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (item >= a.items) return;
  const int64_t packets = a.d / N, row = item / packets, column = (item - row * packets) * N;
  const int64_t token = row / a.heads, head = row - token * a.heads;
  const int slot = a.slots[token];
  if (slot < 0 || slot >= a.places) return;
  const int64_t b = slot / a.block, half = int64_t{a.heads} * a.block * a.d;
  P* to = a.pool + b * 2 * half + (head * a.block + (slot - b * a.block)) * a.d + column;
  store_to_pool(to, load_vector<N>(a.k + token * a.k_token + head * a.k_head + column));
  store_to_pool(to + half, load_vector<N>(a.v + token * a.v_token + head * a.v_head + column));
}

}  // namespace

void run(const PagedStore& op, CudaContext& ctx) {
  constexpr const char* kOp = "paged_store";
  if (op.k.numel() == 0) return;
  for_floating(kOp, op.k.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_pool<T>(op.pool, [&]<class P>(P*) {
      constexpr int N = kPacket<T>;
      const int64_t* const pool = op.pool.shape;
      StoreArguments<T, P> a{op.k.as<T>(),
                             op.v.as<T>(),
                             op.slots.as<int>(),
                             op.pool.as<P>(),
                             op.k.strides[0],
                             op.k.strides[1],
                             op.v.strides[0],
                             op.v.strides[1],
                             0,
                             pool[0] * pool[3],
                             static_cast<int>(pool[2]),
                             static_cast<int>(pool[3]),
                             static_cast<int>(pool[4])};
      const bool vectors = a.d % N == 0 && aligned_for<N>(a.k) && aligned_for<N>(a.v) &&
                           aligned_for<N>(a.pool) && rows_divide(op.k, N) && rows_divide(op.v, N);
      a.items = op.k.numel() / (vectors ? N : 1);
      const auto kernel = vectors ? paged_store_kernel<N, T, P> : paged_store_kernel<1, T, P>;
      const auto blocks = static_cast<unsigned>((a.items + kThreads - 1) / kThreads);
      kernel<<<blocks, kThreads, 0, ctx.stream>>>(a);
      DS_CUDA_LAUNCHED(kOp);
    });
  });
}

/// Uses scratch for D + 2 floats per query row and split of the keys. Only calls with few rows have
/// several splits. Throws DS_SHAPE for heads above 256 channels.
void run(const PagedAttention& op, CudaContext& ctx) {
  constexpr const char* kOp = "paged_attention";
  if (op.out.numel() == 0) return;
  DS_CHECK_SHAPE(op.q.shape[2] <= kMaxHead, kOp, text("a head dim D up to ", kMaxHead),
                 text("D = ", op.q.shape[2]));
  for_floating(kOp, op.q.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_pool<T>(op.pool, [&]<class P>(P*) {
      const PagedArguments<T, P> a = arguments_of<T, P>(op);
      if constexpr (sizeof(T) == 2 && sizeof(P) == 2)
        if (run_paged_hopper(a, op, ctx)) return;
      if constexpr (sizeof(T) == 2) {
        if (a.d <= kMaxTileHead && a.scale_log2 > 0.f)
          return a.d <= 64 ? launch_tiles_of<64>(a, op, ctx) : launch_tiles_of<128>(a, op, ctx);
      }
      const int64_t rows = op.longest * a.group;
      if (op.invariant) return launch_for_head<4>(a, op, ctx);
      if (rows <= 1) return launch_for_head<1>(a, op, ctx);
      if (rows <= 4) return launch_for_head<4>(a, op, ctx);
      launch_for_head<8>(a, op, ctx);
    });
  });
}

}  // namespace ds::cuda
