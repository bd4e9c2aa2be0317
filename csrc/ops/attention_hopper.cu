// Launches of the attention kernels on wgmma and TMA (compute capability 9.0).
#include "attention_hopper.cuh"

#include <atomic>
#include <type_traits>

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
TensorMap tensor_map(const HeadsView<T>& view, const AttentionSizes& sizes, int heads, int rows,
                     int box_rows) {
  return encode_tensor_map("attention",
                           {view.data, std::is_same_v<T, __nv_bfloat16>, sizes.batches, heads, rows,
                            sizes.d, view.batch_stride, view.head_stride, view.row_stride},
                           box_rows);
}

/// Returns whether the current GPU has a body of the kernel, and allows that body its shared
/// memory. Code for other architectures than 90a has an empty body with a launch bound of 1 thread.
template <class Shape, Hiding kHiding, class Kernel>
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
  using Forward = HopperForwardShape<kD, 2, 128, 2, (kD > 64), 40>;
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

}  // namespace

template <class T>
bool run_hopper_forward(const ForwardArguments<T>& args, CudaContext& ctx) {
  const AttentionSizes& sizes = args.sizes;
  // TMA copies the rows behind a length too, and a NaN there would reach the output through 0 x
  // NaN.
  if (ctx.compute_capability != 90 || args.filter.key_lengths || sizes.d > 128) return false;
  if (!suits_tensor_map(args.q, sizes, sizes.heads, sizes.rows) ||
      !suits_tensor_map(args.k, sizes, sizes.key_heads, sizes.keys) ||
      !suits_tensor_map(args.v, sizes, sizes.key_heads, sizes.keys))
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

}  // namespace ds::cuda
