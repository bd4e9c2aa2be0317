// Which kernel multiplies one row with codes of 8 or 4 bits, if one does.
#pragma once

#include "one_byte_row.cuh"
#include "one_nibble_row.cuh"

namespace ds::cuda {

/// Whether one is for this op: one row, symmetric codes, scales of x's dtype, of a row or of 2^n
/// packets of 4 bits. `Op` is QuantizedLinear or what has its operands.
template <int kBits, class T, class Op>
bool is_one_coded_row(const Op& op, const CodeMatrix& w) {
  if (op.x.shape[0] != 1 || op.zero || op.scale.dtype != op.x.dtype) return false;
  if (!takes_packets<T>(op, w)) return false;
  if (kBits == 8) return w.groups == 1;
  return w.inputs <= kMostNibbleInputs && w.outputs < 1 << 30 && (w.groups == 1 || w.shift >= 5);
}

template <int kBits, bool kGated, class T, class Op>
void launch_one_coded_row(const char* name, const Op& op, const CodeMatrix& w, CudaContext& ctx) {
  if constexpr (kBits == 8) launch_one_byte_row<kGated, T>(name, op, w, ctx);
  else if (scales_late<kBits>(w))
    launch_one_nibble_row<ScaleTime::packets, kGated, T>(name, op, w, ctx);
  else launch_one_nibble_row<ScaleTime::weight, kGated, T>(name, op, w, ctx);
}

}  // namespace ds::cuda
