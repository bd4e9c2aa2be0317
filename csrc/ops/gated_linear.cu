// GatedLinear and QuantizedGatedLinear on the GPU: one kernel for a single row, otherwise the
// product and then the gate.
#include "gated_linear.h"

#include "matmul.h"
#include "one_coded_row.cuh"
#include "quantized_codes.cuh"
#include "swiglu.h"

namespace ds::cuda {

void run(const Matmul& op, CudaContext& ctx);
void run(const QuantizedLinear& op, CudaContext& ctx);
void run(const Swiglu& op, CudaContext& ctx);

namespace {

/// Runs `product`, which fills [rows, 2 hidden], then the gate.
template <class Product>
void in_two_steps(const View& out, CudaContext& ctx, const Product& product) {
  const GatedColumns columns(
      out, ctx.scratch(2 * static_cast<size_t>(out.numel()) * size_of(out.dtype)));
  product(columns.both);
  run(Swiglu{columns.gate, columns.up, out}, ctx);
}

template <class T>
bool run_one_row(const GatedLinear& op, CudaContext& ctx) {
  const int64_t inputs = op.x.shape[1];
  if (op.x.shape[0] != 1 || inputs % kPacket<T> != 0 || inputs > kMostInputs) return false;
  if (!aligned_for<kPacket<T>>(op.x.as<T>()) || !aligned_for<kPacket<T>>(op.weight.as<T>()))
    return false;
  launch_one_row<true, T>(
      "gated_linear",
      {op.weight.as<T>(), op.x.as<T>(), op.bias.as<T>(), op.out.as<T>(), op.weight.shape[0], inputs,
       static_cast<int>(inputs), is_settled(ctx, op.weight.data)},
      ctx);
  return true;
}

template <class T, int kBits>
bool run_one_row(const QuantizedGatedLinear& op, CudaContext& ctx) {
  const CodeMatrix w = codes_of(op, 2 * op.out.shape[1], op.x.shape[1]);
  if (!is_one_coded_row<kBits, T>(op, w)) return false;
  launch_one_coded_row<kBits, true, T>("quantized_gated_linear", op, w, ctx);
  return true;
}

}  // namespace

void run(const GatedLinear& op, CudaContext& ctx) {
  if (op.out.numel() == 0) return;
  if (op.x.dtype == DType::bf16 && run_one_row<__nv_bfloat16>(op, ctx)) return;
  if (op.x.dtype == DType::f16 && run_one_row<__half>(op, ctx)) return;
  in_two_steps(op.out, ctx, [&](const View& both) {
    run(Matmul{op.x, op.weight, op.bias, {}, both, false, true, MatmulEpilogue::none, false}, ctx);
  });
}

void run(const QuantizedGatedLinear& op, CudaContext& ctx) {
  if (op.out.numel() == 0) return;
  const bool four = op.bits == 4;
  if (op.x.dtype == DType::bf16 &&
      (four ? run_one_row<__nv_bfloat16, 4>(op, ctx) : run_one_row<__nv_bfloat16, 8>(op, ctx)))
    return;
  if (op.x.dtype == DType::f16 &&
      (four ? run_one_row<__half, 4>(op, ctx) : run_one_row<__half, 8>(op, ctx)))
    return;
  in_two_steps(op.out, ctx, [&](const View& both) {
    run(QuantizedLinear{op.x, op.packed, op.scale, op.zero, op.bias, both, op.bits, op.group}, ctx);
  });
}

}  // namespace ds::cuda
