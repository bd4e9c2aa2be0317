// RotaryAttention on the GPU: one kernel for a few sequences, otherwise its two ops.
#include "rotary_attention.h"

#include <algorithm>

#include "rotary_attention.cuh"

namespace ds::cuda {

void run(const RotaryStore& op, CudaContext& ctx);
void run(const PagedAttention& op, CudaContext& ctx);

namespace {

constexpr const char* kOp = "rotary_attention";

template <int kHeadDim>
using SmallBlocks = RotaryAttentionShape<kHeadDim, 4, 2>;
template <int kHeadDim>
using LargeBlocks = RotaryAttentionShape<kHeadDim, 8, 2>;

/// Up to kFewKeys keys, four small blocks are faster than fewer large ones.
constexpr int64_t kFewKeys = 512;
constexpr int kFewKeysSplits = 4;
/// With more keys in a large block, the two ops are faster than the kernel.
constexpr int64_t kKeysOfBlock = 512;

/// How a cluster of blocks splits the keys of a head. `splits` is 0 if two ops are faster.
struct Splits {
  bool small;
  int splits;
};

/// Returns the maximum number of keys of a sequence. The host knows the table, not the lengths.
int64_t most_keys(const RotaryAttention& op) {
  const int64_t all = op.tables.shape[1] * op.pool.shape[3];
  return op.window > 0 ? std::min(op.window + 1, all) : all;
}

bool takes_pairs(const View& v) {
  return aligned_for<2>(v.as<uint16_t>()) && v.strides[0] % 2 == 0 && v.strides[1] % 2 == 0;
}

bool angles_take_pairs(const View& v) { return reinterpret_cast<uintptr_t>(v.data) % 8 == 0; }

/// Splits the keys of each of `work` heads of sequences. All blocks must run at a time. Clusters of
/// four and more large blocks leave SMs idle, because a cluster runs on SMs of one part of the GPU.
Splits split(int64_t work, int64_t keys, const CudaContext& ctx) {
  if (ctx.code.architecture < 90 || work > ctx.sm_count) return {false, 0};
  if (keys <= kFewKeys && work * kFewKeysSplits <= ctx.sm_count) return {true, kFewKeysSplits};
  int splits = work * 2 <= ctx.sm_count ? 2 : 1;
  while (splits < kMostClustered && work * splits * 4 <= ctx.sm_count) splits *= 2;
  return {false, keys <= splits * kKeysOfBlock ? splits : 0};
}

Splits splits_of(const RotaryAttention& op, const CudaContext& ctx) {
  return split(std::max<int64_t>(1, op.tables.shape[0] * op.pool.shape[2]), most_keys(op), ctx);
}

/// Returns true if the kernel can compute the op.
bool suits(const RotaryAttention& op) {
  const int64_t d = op.q.shape[2];
  if (op.q.numel() == 0 || op.pool.numel() == 0) return false;
  if (size_of(op.q.dtype) != 2 || op.pool.dtype != op.q.dtype || (d != 64 && d != 128))
    return false;
  if (op.q_norm || op.scale <= 0 || op.q.shape[1] > 16 * op.pool.shape[2]) return false;
  return aligned_for<8>(op.pool.as<uint16_t>()) && takes_pairs(op.q) && takes_pairs(op.k) &&
         takes_pairs(op.v) && angles_take_pairs(op.cos) && angles_take_pairs(op.sin);
}

bool all_settled(const CudaContext& ctx, const RotaryAttention& op) {
  for (const View* v : {&op.cos, &op.sin, &op.positions, &op.slots, &op.pool, &op.tables,
                        &op.starts, &op.lengths, static_cast<const View*>(&op.sinks)})
    if (*v && !is_settled(ctx, v->data)) return false;
  return true;
}

template <class T>
RotaryAttentionArguments<T> arguments_of(const RotaryAttention& op, const CudaContext& ctx) {
  RotaryAttentionArguments<T> args{};
  PagedArguments<T>& a = args.attention;
  a.d = static_cast<int>(op.q.shape[2]);
  a.rows = paged_rows_of<T>(op.pool, op.tables);
  a.q = op.q.as<T>();
  a.out = op.out.as<T>();
  a.starts = op.starts.as<int>();
  a.lengths = op.lengths.as<int>();
  a.q_token = op.q.strides[0], a.q_head = op.q.strides[1];
  a.out_token = op.out.strides[0], a.out_head = op.out.strides[1];
  a.tokens = static_cast<int>(op.q.shape[0]);
  a.sequences = static_cast<int>(op.tables.shape[0]);
  a.heads = static_cast<int>(op.q.shape[1]);
  a.group = a.heads / a.rows.key_heads;
  a.window = static_cast<int>(std::min<int64_t>(op.window, 2147483647));
  a.scale_log2 = static_cast<float>(op.scale * 1.4426950408889634);
  a.cap = score_cap(op.cap, op.scale);
  a.sinks = op.sinks.as<T>();
  a.settled = all_settled(ctx, op);
  args.k = op.k.as<T>(), args.v = op.v.as<T>(), args.pool = op.pool.as<T>();
  args.k_token = op.k.strides[0], args.k_head = op.k.strides[1];
  args.v_token = op.v.strides[0], args.v_head = op.v.strides[1];
  args.cos = op.cos.as<float>(), args.sin = op.sin.as<float>();
  args.positions = op.positions.as<int>(), args.slots = op.slots.as<int>();
  args.angles = op.cos.shape[0];
  args.places = op.pool.shape[0] * op.pool.shape[3];
  return args;
}

template <class Shape, class T>
void launch(RotaryAttentionArguments<T> args, int splits, CudaContext& ctx) {
  PagedArguments<T>& a = args.attention;
  a.splits = splits;
  const auto blocks = static_cast<unsigned>(a.sequences * a.rows.key_heads * a.splits);
  launch_behind(ctx,
                {kOp, dim3(blocks), dim3(Shape::threads), ctx.stream, Shape::shared_bytes,
                 static_cast<unsigned>(a.splits)},
                rotary_attention_kernel<T, Shape>, args);
}

template <int kHeadDim, class T>
void launch_for_head(const RotaryAttentionArguments<T>& args, Splits how, CudaContext& ctx) {
  if (how.small) launch<SmallBlocks<kHeadDim>>(args, how.splits, ctx);
  else launch<LargeBlocks<kHeadDim>>(args, how.splits, ctx);
}

template <class T>
void run_one_kernel(const RotaryAttention& op, Splits how, CudaContext& ctx) {
  const RotaryAttentionArguments<T> args = arguments_of<T>(op, ctx);
  if (args.attention.d == 64) launch_for_head<64>(args, how, ctx);
  else launch_for_head<128>(args, how, ctx);
}

}  // namespace

/// Uses scratch for the rotated queries if it runs two ops.
void run(const RotaryAttention& op, CudaContext& ctx) {
  if (op.q.shape[0] == 0) return;
  if (const Splits how = splits_of(op, ctx); how.splits > 0 && suits(op)) {
    if (op.q.dtype == DType::bf16) run_one_kernel<__nv_bfloat16>(op, how, ctx);
    else run_one_kernel<__half>(op, how, ctx);
    return;
  }
  const auto bytes = static_cast<size_t>(op.q.numel()) * size_of(op.q.dtype);
  const View rotated = rotated_queries(op, ctx.scratch(bytes));
  run(store_of(op, rotated), ctx);
  run(attention_of(op, rotated), ctx);
}

}  // namespace ds::cuda
