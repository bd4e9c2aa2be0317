// GatedLinear and QuantizedGatedLinear on the CPU: the product, then the gate.
#include "gated_linear.h"

#include <vector>

#include "../cpu/cpu_context.h"
#include "matmul.h"
#include "swiglu.h"

namespace ds::cpu {

void run(const Matmul& op, CpuContext& ctx);
void run(const QuantizedLinear& op, CpuContext& ctx);
void run(const Swiglu& op, CpuContext& ctx);

namespace {

/// Runs `product`, which fills [rows, 2 hidden], then the gate.
template <class Product>
void gate(const View& out, CpuContext& ctx, const Product& product) {
  if (out.numel() == 0) return;
  std::vector<std::byte> values(2 * static_cast<size_t>(out.numel()) * size_of(out.dtype));
  const GatedColumns columns(out, values.data());
  product(columns.both);
  run(Swiglu{columns.gate, columns.up, out}, ctx);
}

}  // namespace

void run(const GatedLinear& op, CpuContext& ctx) {
  gate(op.out, ctx, [&](const View& both) {
    run(Matmul{op.x, op.weight, op.bias, {}, both, false, true, MatmulEpilogue::none, false}, ctx);
  });
}

void run(const QuantizedGatedLinear& op, CpuContext& ctx) {
  gate(op.out, ctx, [&](const View& both) {
    run(QuantizedLinear{op.x, op.packed, op.scale, op.zero, op.bias, both, op.bits, op.group}, ctx);
  });
}

}  // namespace ds::cpu
