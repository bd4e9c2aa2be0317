// Selects the kernel that multiplies one row by 8- or 4-bit codes, if there is one.
#pragma once

#include "integer_row.cuh"
#include "one_nibble_row.cuh"

namespace ds::cuda {

/// Returns true if integer_row_kernel supports these codes: each segment has one scale.
template <int kBits>
bool has_scaled_segments(const CodeMatrix& w) {
  constexpr int kShift = kBits == 4 ? 7 : 6;  // log2 of a segment's inputs
  return w.words * 4 <= kMostPieces<kBits> * kPieceBytes && (w.groups == 1 || w.shift >= kShift);
}

/// Returns true if a kernel supports the op: one row, symmetric codes, and scales of x's dtype, one
/// per output or per 2^n inputs. `Op` is QuantizedLinear or has its operands.
template <int kBits, class T, class Op>
bool is_one_coded_row(const Op& op, const CodeMatrix& w) {
  if (op.x.shape[0] != 1 || op.zero || op.scale.dtype != op.x.dtype) return false;
  if (!takes_packets<T>(op, w) || w.outputs >= 1 << 30) return false;
  return has_scaled_segments<kBits>(w) || (kBits == 4 && takes_nibble_row(w));
}

template <int kBits, bool kGated, class T, class Op>
void launch_one_coded_row(const char* name, const Op& op, const CodeMatrix& w, CudaContext& ctx) {
  const bool settled = codes_are_settled(op, ctx);
  const auto x = op.x.template as<T>(), bias = op.bias.template as<T>();
  const auto out = op.out.template as<T>();
  if (has_scaled_segments<kBits>(w)) {
    const IntegerRow<T> a{w, x, bias, out, settled};
    if (w.groups == 1) return launch_integer_row<kBits, false, kGated>(name, a, ctx);
    return launch_integer_row<kBits, true, kGated>(name, a, ctx);
  }
  if constexpr (kBits == 4)
    launch_one_nibble_row<kGated>(name, OneNibbleRow<T>{{w}, x, bias, out, settled}, ctx);
}

}  // namespace ds::cuda
