// Selects the attention kernels on wgmma and TMA if the operands allow it.
#include "attention_hopper.cuh"

namespace ds::cuda {
namespace {

constexpr int kHopperHeadDim = 256;

/// Returns true if tensor maps can describe an operand of `rows` rows.
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

/// Returns true if the GPU runs code for 90a and the scale is positive, as the running maximum
/// needs.
bool hopper_takes(const AttentionSizes& sizes, const CudaContext& ctx) {
  return ctx.code.hopper && sizes.d <= kHopperHeadDim && sizes.scale > 0.f;
}

}  // namespace

template <class T>
bool run_hopper_forward(const ForwardArguments<T>& args, CudaContext& ctx) {
  const AttentionSizes& sizes = args.sizes;
  if (!hopper_takes(sizes, ctx)) return false;
  if (!suits_queries(args.q, sizes) || !suits_keys(args.k, sizes) || !suits_keys(args.v, sizes))
    return false;
  switch (args.filter.hiding) {
    case Hiding::causal: return launch_hopper_forward<T, Hiding::causal>(args, ctx);
    case Hiding::tiles: return launch_hopper_forward<T, Hiding::tiles>(args, ctx);
    case Hiding::elements: return launch_hopper_forward<T, Hiding::elements>(args, ctx);
  }
  return false;
}
template bool run_hopper_forward(const ForwardArguments<__nv_bfloat16>&, CudaContext&);
template bool run_hopper_forward(const ForwardArguments<__half>&, CudaContext&);

template <class T>
bool run_hopper_backward(const BackwardArguments<T>& args, CudaContext& ctx) {
  const AttentionSizes& sizes = args.sizes;
  if (!hopper_takes(sizes, ctx)) return false;
  if (sizes.d <= 32) return false;  // for D = 32, the mma.sync kernels are as fast
  if (!suits_queries(args.q, sizes) || !suits_queries(args.dout, sizes) ||
      !suits_keys(args.k, sizes) || !suits_keys(args.v, sizes))
    return false;
  switch (args.filter.hiding) {
    case Hiding::causal: return launch_hopper_backward<T, Hiding::causal>(args, ctx);
    case Hiding::tiles: return launch_hopper_backward<T, Hiding::tiles>(args, ctx);
    case Hiding::elements: return launch_hopper_backward<T, Hiding::elements>(args, ctx);
  }
  return false;
}
template bool run_hopper_backward(const BackwardArguments<__nv_bfloat16>&, CudaContext&);
template bool run_hopper_backward(const BackwardArguments<__half>&, CudaContext&);

}  // namespace ds::cuda
