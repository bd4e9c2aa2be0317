// LayerNorm and RMSNorm on the GPU: checks operands and launches.
#include "norm.h"

#include <initializer_list>

#include "norm_backward.cuh"
#include "norm_forward.cuh"

namespace ds::cuda {
namespace {

template <class T>
T* pointer(const View& v) {
  return v ? v.as<T>() : nullptr;
}

/// [N, C] operands of x's shape and dtype, all contiguous; absent ones are skipped.
void require_rows(const char* op, const View& x, std::initializer_list<const View*> others) {
  DS_CHECK_SHAPE(x.ndim == 2, op, "[N, C]", x.describe());
  require_contiguous(op, x, "the input");
  for (const View* v : others) {
    if (!*v) continue;
    require_same_shape(op, x, *v);
    require_same_dtype(op, x, *v);
    require_contiguous(op, *v, "every [N, C] operand");
  }
}

void require_vectors(const char* op, int64_t size, DType dtype,
                     std::initializer_list<const View*> vectors) {
  for (const View* v : vectors) {
    if (!*v) continue;
    DS_CHECK_SHAPE(v->ndim == 1 && v->shape[0] == size, op, text("[", size, "]"), v->describe());
    if (v->dtype != dtype) throw Error("DS_DTYPE", op, name_of(dtype), v->describe());
    require_contiguous(op, *v, "every vector");
  }
}

template <bool kCentered, class Op>
void run_forward(const char* name, const Op& op, const View& bias, const View& mean,
                 CudaContext& ctx) {
  require_rows(name, op.x, {&op.residual, &op.sum, &op.out});
  const int64_t n = op.x.shape[0], c = op.x.shape[1];
  require_vectors(name, c, op.x.dtype, {&op.weight, &bias});
  require_vectors(name, n, DType::f32, {&mean, &op.rstd});
  DS_CHECK_SHAPE(!op.residual || op.sum, name, "sum beside a residual", "nothing");
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
                          static_cast<float>(op.eps)};
    launch_forward<kCentered>(name, f, ctx);
  });
}

template <bool kCentered, class Op>
void run_backward(const char* name, const Op& op, const View& dbias, const View& mean,
                  CudaContext& ctx) {
  require_rows(name, op.s, {&op.dout, &op.dsum, &op.dx});
  const int64_t n = op.s.shape[0], c = op.s.shape[1];
  require_vectors(name, c, op.s.dtype, {&op.weight, &op.dweight, &dbias});
  require_vectors(name, n, DType::f32, {&mean, &op.rstd});
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
        {pointer<T>(op.dweight), pointer<T>(dbias)}, c, 2 * c, op.accumulate};
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
