// Launches the kernels of LayerNorm and RMSNorm.
#include "norm.h"

#include "norm_backward.cuh"
#include "norm_forward.cuh"

namespace ds::cuda {
namespace {

/// Returns the elements, or null for an absent view.
template <class T>
T* pointer(const View& v) {
  return v ? v.as<T>() : nullptr;
}

template <bool kCentered, class Op>
void run_forward(const char* name, const Op& op, const View& bias, const View& mean,
                 CudaContext& ctx) {
  const int64_t n = op.x.shape[0], c = op.x.shape[1];
  if (n == 0 || c == 0) return;
  for_floating(name, op.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const NormForward<T> f = {op.x.template as<T>(),
                              pointer<T>(op.residual),
                              op.weight.template as<T>(),
                              pointer<T>(bias),
                              pointer<T>(op.sum),
                              op.out.template as<T>(),
                              pointer<float>(mean),
                              op.rstd.template as<float>(),
                              n,
                              c,
                              static_cast<float>(op.eps),
                              is_settled(ctx, op.weight.data)};
    launch_forward<kCentered>(name, f, ctx);
  });
}

template <bool kCentered, class Op>
void run_backward(const char* name, const Op& op, const View& dbias, const View& mean,
                  CudaContext& ctx) {
  const int64_t n = op.s.shape[0], c = op.s.shape[1];
  if (c == 0) return;
  for_floating(name, op.s.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    NormBackward<T> b = {op.s.template as<T>(),
                         op.weight.template as<T>(),
                         op.dout.template as<T>(),
                         pointer<T>(op.dsum),
                         pointer<T>(op.dx),
                         pointer<float>(mean),
                         op.rstd.template as<float>(),
                         nullptr,
                         n,
                         c};
    const bool weights = op.dweight || dbias;
    const int64_t rows = n == 0 ? 0 : launch_backward<kCentered>(name, b, weights, ctx);
    if (!weights) return;
    const ColumnTotals<T> totals = {
        {pointer<T>(op.dweight), pointer<T>(dbias)}, c, kParts<kCentered> * c, op.accumulate};
    join_columns(name, ctx, totals, b.partials, rows);
  });
}

}  // namespace

void run(const LayerNorm& op, CudaContext& ctx) {
  run_forward<true>("layer_norm", op, op.bias, op.mean, ctx);
}
void run(const RmsNorm& op, CudaContext& ctx) {
  run_forward<false>("rms_norm", op, View{}, View{}, ctx);
}

void run(const LayerNormBackward& op, CudaContext& ctx) {
  run_backward<true>("layer_norm_backward", op, op.dbias, op.mean, ctx);
}
void run(const RmsNormBackward& op, CudaContext& ctx) {
  run_backward<false>("rms_norm_backward", op, View{}, View{}, ctx);
}

}  // namespace ds::cuda
