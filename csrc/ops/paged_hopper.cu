// Launches paged attention on wgmma and TMA for prompts, if it is the faster kernel.
#include "paged_hopper.cuh"

#include <algorithm>
#include <type_traits>

#include "paged_hopper_tiles.cuh"

namespace ds::cuda {
namespace {

template <int kD>
struct PagedHopperShape : HopperForwardShape<kD, 2, 128, 2, true> {};
template <>
struct PagedHopperShape<256> : HopperForwardShape<256, 2, 64, 2, true, 24, 1> {};

constexpr int kMostGroup = 64;  // heads per key head: half of a tile of rows

/// Returns true if this kernel is faster. On an H200 at D = 128, it is faster with 32 units after
/// 8k keys, and with 8 tokens of 16 sequences. It is slower with a prompt of 64 tokens. Above D =
/// 128 the other kernel does not use tensor cores.
bool suits_rows(const PagedAttention& op, int group, int64_t units, const CudaContext& ctx) {
  const int64_t rows = op.q.shape[0] * group, sequences = op.tables.shape[0];
  if (op.q.shape[2] > 128) return rows >= 16 * sequences;
  return 6 * units >= ctx.sm_count && rows >= 32 * sequences;
}

/// Returns the rows of keys that a copy moves into a tile of `keys` rows, or 0 if blocks do not fit
/// the tile.
int piece_of(int block, int keys) {
  if (block % 8 != 0) return 0;
  if (block <= keys) return keys % block == 0 ? block : 0;
  return block % keys == 0 ? keys : 0;
}

template <class Shape, class T>
bool launch(const PagedArguments<T>& a, const PagedAttention& op, CudaContext& ctx) {
  constexpr const char* kOp = "paged_attention";
  constexpr size_t kBytes = paged_hopper_bytes<T, Shape>;
  static_assert(kBytes <= 227 * 1024, "the shared memory of a thread block");
  const int tile_tokens = Shape::rows / a.group, piece = piece_of(a.rows.block, Shape::keys);
  if (piece == 0) return false;
  const int64_t sequences = a.sequences, longest = std::max<int64_t>(1, op.longest);
  const int64_t tiles = std::min(sequences * ((longest + tile_tokens - 1) / tile_tokens),
                                 a.tokens / tile_tokens + sequences);
  const int64_t units = tiles * a.rows.key_heads;
  if (units >= 2147483647 || !suits_rows(op, a.group, units, ctx)) return false;
  constexpr auto kernel = paged_hopper_kernel<T, Shape>;
  DS_CUDA(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes)),
      kOp);
  constexpr bool bf16 = std::is_same_v<T, __nv_bfloat16>;
  const int64_t rows = a.rows.block, key_heads = a.rows.key_heads, d = a.d;
  const PagedHopperArguments<T> all{
      encode_tensor_map(
          kOp,
          {a.q, bf16, 1, a.tokens, a.heads, d, int64_t{a.tokens} * a.q_token, a.q_token, a.q_head},
          a.group, tile_tokens),
      encode_tensor_map(kOp,
                        {a.rows.pool, bf16, 2 * a.rows.blocks, key_heads, rows, d,
                         key_heads * rows * d, rows * d, d},
                        piece),
      a,
      ctx.counter(),
      static_cast<unsigned>(units),
      tile_tokens,
      piece};
  const auto grid = static_cast<unsigned>(std::min<int64_t>(units, ctx.sm_count));
  kernel<<<grid, Shape::threads, kBytes, ctx.stream>>>(all);
  DS_CUDA_LAUNCHED(kOp);
  return true;
}

}  // namespace

template <class T>
bool run_paged_hopper(const PagedArguments<T>& a, const PagedAttention& op, CudaContext& ctx) {
  const auto strided = [](int64_t size, int64_t stride) { return size < 2 || stride > 0; };
  if (!ctx.code.hopper || op.invariant || op.sinks || a.scale_log2 <= 0.f) return false;
  if (!a.vectors || !a.row_vectors || a.group > kMostGroup) return false;
  if (!strided(a.tokens, a.q_token) || !strided(a.heads, a.q_head)) return false;
  if (a.d <= 64) return launch<PagedHopperShape<64>>(a, op, ctx);
  if (a.d <= 128) return launch<PagedHopperShape<128>>(a, op, ctx);
  return launch<PagedHopperShape<256>>(a, op, ctx);
}
template bool run_paged_hopper(const PagedArguments<__nv_bfloat16>&, const PagedAttention&,
                               CudaContext&);
template bool run_paged_hopper(const PagedArguments<__half>&, const PagedAttention&, CudaContext&);

}  // namespace ds::cuda
