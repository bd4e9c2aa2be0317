// Chooses tile sizes and launches Hopper's attention kernels. A .cu file per Hiding includes it.
#pragma once

#include <atomic>
#include <type_traits>

#include "attention_hopper.cuh"
#include "attention_hopper_backward.cuh"
#include "attention_hopper_forward.cuh"
#include "attention_hopper_product.cuh"
#include "../cuda/cuda_device.h"

namespace ds::cuda {

constexpr int64_t kHopperTurnBytes = 32 << 20;  // bytes of keys and values that fit the L2 cache

template <class T>
TensorMap hopper_map(const HeadsView<T>& view, const AttentionSizes& sizes, int heads, int rows,
                     int box_rows) {
  return encode_tensor_map("attention",
                           {view.data, std::is_same_v<T, __nv_bfloat16>, sizes.batches, heads, rows,
                            sizes.d, view.batch_stride, view.head_stride, view.row_stride},
                           box_rows);
}

/// Returns true if the current GPU has code for the kernel, and raises its shared-memory limit.
/// Architectures other than 90a compile an empty body with a launch bound of 1 thread.
template <auto kKernel, int kThreads, size_t kBytes>
bool hopper_serves(const char* op) {
  static_assert(kBytes <= 227 * 1024, "the shared memory of a thread block");
  constexpr int kDevices = 64;
  static std::atomic<signed char> known[kDevices];  // by device: 1 yes, -1 no, 0 unknown
  int device = 0;
  DS_CUDA(cudaGetDevice(&device), op);
  if (device >= kDevices) return false;
  if (known[device] == 0) {
    cudaFuncAttributes attributes{};
    const auto* entry = reinterpret_cast<const void*>(kKernel);
    const bool serves = cudaFuncGetAttributes(&attributes, entry) == cudaSuccess &&
                        attributes.maxThreadsPerBlock >= kThreads;
    if (!serves) static_cast<void>(cudaGetLastError());
    if (serves) allow_shared_memory(kKernel, kBytes, op);
    known[device] = serves ? 1 : -1;
  }
  return known[device] == 1;
}

// The fastest shapes measured on an H200, causal: D = 64 at T = 1024 and 16384, D = 128 at T = 2048
// and 8192. With filters, a block has 128 queries, and the producer needs more registers for its
// list of tiles. With filters at D = 64, tiles have 64 rows: the fastest at T = 1024 with 16
// documents or a window of 128. Hiding::elements takes 64 keys per stage, because more would spill
// registers.
template <int kD, Hiding kHiding>
struct HopperShapes {
  using Forward = HopperForwardShape<kD, 2, (kD > 64 ? 128 : 64), (kD > 64 ? 2 : 4), true, 40>;
  using Keys = HopperBackwardShape<kD, 2, 64, (kD > 64 ? 3 : 4), 24>;
  using Queries = HopperBackwardShape<kD, 2, 64, 4, 40>;
};
template <int kD>
struct HopperShapes<kD, Hiding::causal> {
  using Forward = HopperForwardShape<kD, 2, 128, 2, true>;
  using Keys = HopperBackwardShape<kD, 2, 64, 3>;
  using Queries = HopperBackwardShape<kD, 2, 64, 4>;
};
template <int kD>
struct HopperShapes<kD, Hiding::elements> {
  using Forward = HopperForwardShape<kD, 2, 64, 3, false, 40>;
  using Keys = HopperBackwardShape<kD, 2, (kD > 64 ? 32 : 64), 4, 24>;
  using Queries = HopperBackwardShape<kD, 2, 64, 4, 40>;
};
template <>
struct HopperShapes<64, Hiding::causal> {
  using Forward = HopperForwardShape<64, 3, 128, 2, true>;
  using Keys = HopperBackwardShape<64, 2, 64, 4>;
  using Queries = HopperBackwardShape<64, 3, 64, 3>;
};
// At D = 256, the registers of a consumer hold one gradient of 64 keys, so kSplit: see HopperRole.
template <>
struct HopperShapes<256, Hiding::causal> {
  using Forward = HopperForwardShape<256, 2, 64, 2, true, 24, 1>;
  using Keys = HopperBackwardShape<256, 2, 64, 2, 24, true>;
  using Queries = HopperBackwardShape<256, 2, 32, 2>;
};
template <>
struct HopperShapes<256, Hiding::tiles> {
  using Forward = HopperForwardShape<256, 2, 64, 2, true, 40, 1>;
  using Keys = HopperBackwardShape<256, 2, 64, 2, 24, true>;
  using Queries = HopperBackwardShape<256, 2, 32, 2, 40>;
};
template <>
struct HopperShapes<256, Hiding::elements> {
  using Forward = HopperForwardShape<256, 2, 64, 2, false, 40, 1>;
  using Keys = HopperBackwardShape<256, 2, 32, 3, 24, true>;
  using Queries = HopperBackwardShape<256, 2, 32, 2, 40>;
};

/// Calls f with the smallest head dim of a kernel that is at least `d`, as a constant. Only kernels
/// without filters have shapes for 80 and 96.
template <Hiding kHiding, class F>
bool with_hopper_dim(int d, F&& f) {
  if (d <= 64) return f(std::integral_constant<int, 64>{});
  if constexpr (kHiding == Hiding::causal) {
    if (d <= 80) return f(std::integral_constant<int, 80>{});
    if (d <= 96) return f(std::integral_constant<int, 96>{});
  }
  if (d <= 128) return f(std::integral_constant<int, 128>{});
  return f(std::integral_constant<int, 256>{});
}

template <class T, class Shape, Hiding kHiding>
bool launch_hopper_forward(ForwardArguments<T> args, CudaContext& ctx) {
  const char* op = "attention";
  AttentionSizes& sizes = args.sizes;
  constexpr auto kernel = hopper_attention_forward_kernel<T, Shape, kHiding>;
  constexpr size_t kBytes = hopper_forward_bytes<T, Shape>;
  if (!hopper_serves<kernel, Shape::threads, kBytes>(op)) return false;
  const int64_t heads = int64_t{sizes.batches} * sizes.heads;
  const int64_t head_bytes = int64_t{sizes.keys} * sizes.d * 4 / sizes.group();
  sizes.heads_in_turn =
      heads_in_even_turns(heads, kHopperTurnBytes / std::max<int64_t>(1, head_bytes));
  const HopperForwardArguments<T> all{
      hopper_map(args.q, sizes, sizes.heads, sizes.rows, Shape::rows),
      hopper_map(args.k, sizes, sizes.key_heads, sizes.keys, Shape::keys),
      hopper_map(args.v, sizes, sizes.key_heads, sizes.keys, Shape::keys), args, ctx.counter()};
  const int64_t units = (sizes.rows + Shape::rows - 1) / Shape::rows * heads;
  const auto grid = static_cast<unsigned>(std::min<int64_t>(units, ctx.sm_count));
  kernel<<<grid, Shape::threads, kBytes, ctx.stream>>>(all);
  DS_CUDA_LAUNCHED(op);
  return true;
}

template <class T, Hiding kHiding>
bool launch_hopper_forward(const ForwardArguments<T>& args, CudaContext& ctx) {
  return with_hopper_dim<kHiding>(args.sizes.d, [&](auto d) {
    using Shape = typename HopperShapes<d(), kHiding>::Forward;
    return launch_hopper_forward<T, Shape, kHiding>(args, ctx);
  });
}

/// Launches the kernel of dk and dv, or of dq if not kByKey. With kKeeps, it stores dS in `kept`.
template <class T, class Shape, Hiding kHiding, bool kByKey, bool kKeeps = false>
void launch_hopper_gradient(BackwardArguments<T> args, CudaContext& ctx, KeptSlopes kept = {}) {
  const char* op = "attention_backward";
  AttentionSizes& sizes = args.sizes;
  const auto kernel = hopper_attention_backward_kernel<T, Shape, kHiding, kByKey, kKeeps>;
  const int own_rows = kByKey ? sizes.keys : sizes.rows;
  const int64_t heads = int64_t{sizes.batches} * (kByKey ? sizes.key_heads : sizes.heads);
  const int64_t head_bytes = int64_t{kByKey ? sizes.rows : sizes.keys} * sizes.d * 4;
  sizes.heads_in_turn = heads_in_even_turns(
      heads, kHopperTurnBytes / std::max<int64_t>(1, kByKey ? head_bytes * sizes.group()
                                                            : head_bytes / sizes.group()));
  const auto queries = [&](const HeadsView<T>& view, int box) {
    return hopper_map(view, sizes, sizes.heads, sizes.rows, box);
  };
  const auto keys = [&](const HeadsView<T>& view, int box) {
    return hopper_map(view, sizes, sizes.key_heads, sizes.keys, box);
  };
  constexpr int kOwn = Shape::rows, kTile = Shape::tile;
  const HopperBackwardArguments<T> all =
      kByKey ? HopperBackwardArguments<T>{{keys(args.k, kOwn), keys(args.v, kOwn)},
                                          {queries(args.q, kTile), queries(args.dout, kTile)},
                                          args,
                                          ctx.counter(),
                                          kept}
             : HopperBackwardArguments<T>{{queries(args.q, kOwn), queries(args.dout, kOwn)},
                                          {keys(args.k, kTile), keys(args.v, kTile)},
                                          args,
                                          ctx.counter(),
                                          kept};
  const int64_t units = (own_rows + Shape::rows - 1) / Shape::rows * heads;
  const auto grid = static_cast<unsigned>(std::min<int64_t>(units, ctx.sm_count));
  kernel<<<grid, Shape::threads, hopper_backward_bytes<T, Shape, kByKey>, ctx.stream>>>(all);
  DS_CUDA_LAUNCHED(op);
}

/// Limits for storing dS: head dims, the largest memory in bytes, and the fewest rows. With fewer
/// rows, computing dS again is faster.
template <int kD, Hiding kHiding>
constexpr bool keeps_slopes = kHiding == Hiding::causal && (kD == 64 || kD == 128);
constexpr int64_t kKeptBytes = int64_t{5} << 28;
constexpr int kKeptRows = 2048;

template <int kD>
using HopperProduct =
    std::conditional_t<kD <= 64, HopperProductShape<64, 4, 6>, HopperProductShape<128, 3, 4>>;

/// Owns pool memory for dS and releases it in stream order. data() is null if the pool is short.
class KeptMemory {
 public:
  KeptMemory(CudaContext& ctx, size_t bytes)
      : ctx_(ctx), bytes_(bytes), data_(ctx.device.pool().try_allocate(bytes, ctx.stream)) {}
  ~KeptMemory() {
    if (data_) ctx_.device.pool().release(data_, bytes_, ctx_.stream);
  }
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;
  uint4* data() const { return static_cast<uint4*>(data_); }

 private:
  CudaContext& ctx_;
  size_t bytes_;
  void* data_;
};

/// Computes dk, dv and dS, then dq = dS k. Returns false, without a launch, if dS exceeds
/// kKeptBytes, the pool has no memory at once, or the sizes or the GPU do not allow it.
template <class T, int kD>
bool launch_hopper_kept(BackwardArguments<T> args, CudaContext& ctx) {
  const char* op = "attention_backward";
  using Keys = typename HopperShapes<kD, Hiding::causal>::Keys;
  using Product = HopperProduct<kD>;
  AttentionSizes& sizes = args.sizes;
  const int64_t heads = int64_t{sizes.batches} * sizes.heads;
  const int64_t packets = heads * KeptSlopes::tiles_of(sizes.rows) * kKeptPackets;
  constexpr int64_t kPacketBytes = sizeof(uint4);
  if (!sizes.causal || sizes.rows != sizes.keys || sizes.rows < kKeptRows ||
      packets > kKeptBytes / kPacketBytes)
    return false;
  constexpr auto kernel = hopper_attention_product_kernel<T, Product>;
  constexpr size_t kKeyBytes = hopper_backward_bytes<T, Keys, true>;
  constexpr size_t kBytes = hopper_product_bytes<T, Product>;
  if (!hopper_serves<hopper_attention_backward_kernel<T, Keys, Hiding::causal, true, true>,
                     Keys::threads, kKeyBytes>(op) ||
      !hopper_serves<kernel, Product::threads, kBytes>(op))
    return false;
  const KeptMemory memory(ctx, static_cast<size_t>(packets * kPacketBytes));
  if (!memory.data()) return false;
  const KeptSlopes kept{memory.data()};
  launch_hopper_gradient<T, Keys, Hiding::causal, true, true>(args, ctx, kept);
  const int64_t head_bytes = int64_t{sizes.keys} * sizes.d * 2 / sizes.group();
  sizes.heads_in_turn =
      heads_in_even_turns(heads, kHopperTurnBytes / std::max<int64_t>(1, head_bytes));
  const HopperProductArguments<T> all{
      hopper_map(args.k, sizes, sizes.key_heads, sizes.keys, kKeptTile), args.dq, sizes, kept,
      ctx.counter()};
  const int64_t units = (sizes.rows + Product::rows - 1) / Product::rows * heads;
  const auto grid = static_cast<unsigned>(std::min<int64_t>(units, ctx.sm_count));
  kernel<<<grid, Product::threads, kBytes, ctx.stream>>>(all);
  DS_CUDA_LAUNCHED(op);
  return true;
}

template <class T, int kD, Hiding kHiding>
bool launch_hopper_backward(const BackwardArguments<T>& args, CudaContext& ctx) {
  if constexpr (keeps_slopes<kD, kHiding>) {
    if (launch_hopper_kept<T, kD>(args, ctx)) return true;
  }
  using Keys = typename HopperShapes<kD, kHiding>::Keys;
  using Queries = typename HopperShapes<kD, kHiding>::Queries;
  const char* op = "attention_backward";
  constexpr size_t kKeyBytes = hopper_backward_bytes<T, Keys, true>;
  constexpr size_t kQueryBytes = hopper_backward_bytes<T, Queries, false>;
  if (!hopper_serves<hopper_attention_backward_kernel<T, Keys, kHiding, true, false>, Keys::threads,
                     kKeyBytes>(op) ||
      !hopper_serves<hopper_attention_backward_kernel<T, Queries, kHiding, false, false>,
                     Queries::threads, kQueryBytes>(op))
    return false;
  launch_hopper_gradient<T, Keys, kHiding, true>(args, ctx);
  launch_hopper_gradient<T, Queries, kHiding, false>(args, ctx);
  return true;
}

template <class T, Hiding kHiding>
bool launch_hopper_backward(const BackwardArguments<T>& args, CudaContext& ctx) {
  return with_hopper_dim<kHiding>(
      args.sizes.d, [&](auto d) { return launch_hopper_backward<T, d(), kHiding>(args, ctx); });
}

}  // namespace ds::cuda
