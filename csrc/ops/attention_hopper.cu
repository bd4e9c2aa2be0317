// Launches of the attention kernels on wgmma and TMA (compute capability 9.0).
#include "attention_hopper.cuh"

#include <atomic>
#include <type_traits>

#include "attention_hopper_backward.cuh"
#include "attention_hopper_forward.cuh"

namespace ds::cuda {
namespace {

constexpr int64_t kTurnBytes = 32 << 20;  // keys and values that may share the L2 cache

/// Whether the tensor maps can describe an operand of `rows` rows.
template <class T>
bool suits_tensor_map(const HeadsView<T>& view, const AttentionSizes& sizes, int heads, int rows) {
  const auto strided = [](int64_t size, int64_t stride) { return size < 2 || stride > 0; };
  return view.vectors && rows > 0 && strided(rows, view.row_stride) &&
         strided(heads, view.head_stride) && strided(sizes.batches, view.batch_stride);
}

template <class T>
bool suits_queries(const HeadsView<T>& view, const AttentionSizes& sizes) {
  return suits_tensor_map(view, sizes, sizes.heads, sizes.rows);
}
template <class T>
bool suits_keys(const HeadsView<T>& view, const AttentionSizes& sizes) {
  return suits_tensor_map(view, sizes, sizes.key_heads, sizes.keys);
}

template <class T>
TensorMap tensor_map(const HeadsView<T>& view, const AttentionSizes& sizes, int heads, int rows,
                     int box_rows) {
  return encode_tensor_map("attention",
                           {view.data, std::is_same_v<T, __nv_bfloat16>, sizes.batches, heads, rows,
                            sizes.d, view.batch_stride, view.head_stride, view.row_stride},
                           box_rows);
}

/// Returns whether the current GPU has a body of the kernel, and allows that body its shared
/// memory. Code for other architectures than 90a has an empty body with a launch bound of 1 thread.
template <class Shape, Hiding kHiding, bool kByKey = false, class Kernel>
bool hopper_serves(Kernel* kernel, int threads, size_t shared_bytes, const char* op) {
  constexpr int kDevices = 64;
  static std::atomic<signed char> known[kDevices];  // 0: unknown; one array for each kernel
  int device = 0;
  DS_CUDA(cudaGetDevice(&device), op);
  if (device >= kDevices) return false;
  if (known[device] == 0) {
    cudaFuncAttributes attributes{};
    const auto* entry = reinterpret_cast<const void*>(kernel);
    const bool serves = cudaFuncGetAttributes(&attributes, entry) == cudaSuccess &&
                        attributes.maxThreadsPerBlock >= threads;
    if (!serves) static_cast<void>(cudaGetLastError());
    if (serves) allow_shared_memory(kernel, shared_bytes, op);
    known[device] = serves ? 1 : -1;
  }
  return known[device] == 1;
}

// The fastest measured on one H200, causal: at D 64 T 1024 and 16384, at D 128 T 2048 and 8192.
// Filters need blocks of 128 queries and more registers for the producer's list of tiles.
template <int kD, Hiding kHiding>
struct Shapes {
  using Forward = HopperForwardShape<kD, 2, 128, (kD > 64 ? 2 : 3), true, 40>;
};
template <>
struct Shapes<64, Hiding::causal> {
  using Forward = HopperForwardShape<64, 3, 128, 2, true>;
};
template <>
struct Shapes<128, Hiding::causal> {
  using Forward = HopperForwardShape<128, 2, 128, 2, true>;
};

template <class T, class Shape, Hiding kHiding>
bool launch_forward(ForwardArguments<T> args, CudaContext& ctx) {
  const char* op = "attention";
  AttentionSizes& sizes = args.sizes;
  const auto kernel = hopper_attention_forward_kernel<T, Shape, kHiding>;
  constexpr size_t kBytes = hopper_forward_bytes<T, Shape>;
  if (!hopper_serves<Shape, kHiding>(kernel, Shape::threads, kBytes, op)) return false;
  const int64_t heads = int64_t{sizes.batches} * sizes.heads;
  const int64_t head_bytes = int64_t{sizes.keys} * sizes.d * 4 / sizes.group();
  sizes.heads_in_turn = heads_in_even_turns(heads, kTurnBytes / std::max<int64_t>(1, head_bytes));
  const HopperForwardArguments<T> all{
      tensor_map(args.q, sizes, sizes.heads, sizes.rows, Shape::rows),
      tensor_map(args.k, sizes, sizes.key_heads, sizes.keys, Shape::keys),
      tensor_map(args.v, sizes, sizes.key_heads, sizes.keys, Shape::keys), args, ctx.counter()};
  const int64_t units = (sizes.rows + Shape::rows - 1) / Shape::rows * heads;
  const auto grid = static_cast<unsigned>(std::min<int64_t>(units, ctx.sm_count));
  kernel<<<grid, Shape::threads, kBytes, ctx.stream>>>(all);
  DS_CUDA_LAUNCHED(op);
  return true;
}

template <class T, Hiding kHiding>
bool launch_forward(const ForwardArguments<T>& args, CudaContext& ctx) {
  if (args.sizes.d <= 64)
    return launch_forward<T, typename Shapes<64, kHiding>::Forward, kHiding>(args, ctx);
  return launch_forward<T, typename Shapes<128, kHiding>::Forward, kHiding>(args, ctx);
}

template <int kD, Hiding kHiding>
struct BackwardShapes {
  using Keys = HopperBackwardShape<kD, 2, (kD > 64 ? 64 : 128), 3, 40>;
  using Queries = HopperBackwardShape<kD, 2, 128, (kD > 64 ? 2 : 3), 40>;
};
template <>
struct BackwardShapes<64, Hiding::causal> {
  using Keys = HopperBackwardShape<64, 2, 64, 4>;
  using Queries = HopperBackwardShape<64, 3, 64, 3>;
};
template <>
struct BackwardShapes<128, Hiding::causal> {
  using Keys = HopperBackwardShape<128, 2, 64, 3>;
  using Queries = HopperBackwardShape<128, 2, 64, 4>;
};

/// Launches the kernel of dk and dv, or with kByKey false the one of dq.
template <class T, class Shape, Hiding kHiding, bool kByKey>
void launch_gradient(BackwardArguments<T> args, CudaContext& ctx) {
  const char* op = "attention_backward";
  AttentionSizes& sizes = args.sizes;
  const auto kernel = hopper_attention_backward_kernel<T, Shape, kHiding, kByKey>;
  const int own_rows = kByKey ? sizes.keys : sizes.rows;
  const int64_t heads = int64_t{sizes.batches} * (kByKey ? sizes.key_heads : sizes.heads);
  const int64_t head_bytes = int64_t{kByKey ? sizes.rows : sizes.keys} * sizes.d * 4;
  sizes.heads_in_turn = heads_in_even_turns(
      heads, kTurnBytes / std::max<int64_t>(
                              1, kByKey ? head_bytes * sizes.group() : head_bytes / sizes.group()));
  const auto queries = [&](const HeadsView<T>& view, int box) {
    return tensor_map(view, sizes, sizes.heads, sizes.rows, box);
  };
  const auto keys = [&](const HeadsView<T>& view, int box) {
    return tensor_map(view, sizes, sizes.key_heads, sizes.keys, box);
  };
  constexpr int kOwn = Shape::rows, kTile = Shape::tile;
  const HopperBackwardArguments<T> all =
      kByKey ? HopperBackwardArguments<T>{{keys(args.k, kOwn), keys(args.v, kOwn)},
                                          {queries(args.q, kTile), queries(args.dout, kTile)},
                                          args,
                                          ctx.counter()}
             : HopperBackwardArguments<T>{{queries(args.q, kOwn), queries(args.dout, kOwn)},
                                          {keys(args.k, kTile), keys(args.v, kTile)},
                                          args,
                                          ctx.counter()};
  const int64_t units = (own_rows + Shape::rows - 1) / Shape::rows * heads;
  const auto grid = static_cast<unsigned>(std::min<int64_t>(units, ctx.sm_count));
  kernel<<<grid, Shape::threads, hopper_backward_bytes<T, Shape, kByKey>, ctx.stream>>>(all);
  DS_CUDA_LAUNCHED(op);
}

template <class T, int kD, Hiding kHiding>
bool launch_backward(const BackwardArguments<T>& args, CudaContext& ctx) {
  using Keys = typename BackwardShapes<kD, kHiding>::Keys;
  using Queries = typename BackwardShapes<kD, kHiding>::Queries;
  const char* op = "attention_backward";
  if (!hopper_serves<Keys, kHiding, true>(hopper_attention_backward_kernel<T, Keys, kHiding, true>,
                                          Keys::threads, hopper_backward_bytes<T, Keys, true>,
                                          op) ||
      !hopper_serves<Queries, kHiding>(hopper_attention_backward_kernel<T, Queries, kHiding, false>,
                                       Queries::threads, hopper_backward_bytes<T, Queries, false>,
                                       op))
    return false;
  launch_gradient<T, Keys, kHiding, true>(args, ctx);
  launch_gradient<T, Queries, kHiding, false>(args, ctx);
  return true;
}

template <class T, Hiding kHiding>
bool launch_backward(const BackwardArguments<T>& args, CudaContext& ctx) {
  if (args.sizes.d <= 64) return launch_backward<T, 64, kHiding>(args, ctx);
  return launch_backward<T, 128, kHiding>(args, ctx);
}

}  // namespace

template <class T>
bool run_hopper_forward(const ForwardArguments<T>& args, CudaContext& ctx) {
  const AttentionSizes& sizes = args.sizes;
  // TMA copies the rows behind a length too, and a NaN there would reach the output through 0 x
  // NaN.
  if (ctx.compute_capability != 90 || args.filter.key_lengths || sizes.d > 128) return false;
  if (!suits_queries(args.q, sizes) || !suits_keys(args.k, sizes) || !suits_keys(args.v, sizes))
    return false;
  switch (args.filter.hiding) {
    case Hiding::causal: return launch_forward<T, Hiding::causal>(args, ctx);
    case Hiding::tiles: return launch_forward<T, Hiding::tiles>(args, ctx);
    case Hiding::elements: return false;
  }
  return false;
}
template bool run_hopper_forward(const ForwardArguments<__nv_bfloat16>&, CudaContext&);
template bool run_hopper_forward(const ForwardArguments<__half>&, CudaContext&);

template <class T>
bool run_hopper_backward(const BackwardArguments<T>& args, CudaContext& ctx) {
  const AttentionSizes& sizes = args.sizes;
  if (ctx.compute_capability != 90 || args.filter.key_lengths || sizes.d > 128) return false;
  if (sizes.d <= 32) return false;  // the kernels of D 32 on mma.sync are as fast
  if (!suits_queries(args.q, sizes) || !suits_queries(args.dout, sizes) ||
      !suits_keys(args.k, sizes) || !suits_keys(args.v, sizes))
    return false;
  switch (args.filter.hiding) {
    case Hiding::causal: return launch_backward<T, Hiding::causal>(args, ctx);
    case Hiding::tiles: return launch_backward<T, Hiding::tiles>(args, ctx);
    case Hiding::elements: return false;
  }
  return false;
}
template bool run_hopper_backward(const BackwardArguments<__nv_bfloat16>&, CudaContext&);
template bool run_hopper_backward(const BackwardArguments<__half>&, CudaContext&);

}  // namespace ds::cuda
