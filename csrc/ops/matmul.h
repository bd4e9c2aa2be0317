// Matrix product with optional bias, GELU epilogue and accumulation: every GEMM of the library.
#pragma once

#include "../core/view.h"

namespace ds {

enum class MatmulEpilogue : int32_t {
  none,
  gelu,       // aux = z, out = gelu_tanh(z), where z = a b + bias
  gelu_grad,  // out = (a b) * gelu_tanh'(aux)
};

/// out = op(a) op(b) (+ bias), f32 accumulation (f64 for f64), one rounding; op transposes the last two
/// dims where trans_a / trans_b is true. With `accumulate`, out += (epilogue must be none).
/// On the GPU cuBLASLt with an algorithm timed once per shape; on the CPU OpenBLAS, f16 and bf16
/// through f32. M, N, K and the batch may be 0.
struct Matmul {
  View a;     // [M, K] or [batch, M, K] (before transposition [K, M]); last stride 1, any row stride
  View b;     // [K, N] or [batch, K, N] (before transposition [N, K]); batch stride may be 0
  View bias;  // optional [N], out's dtype
  View aux;   // optional, out's shape and strides and dtype; written by gelu, read by gelu_grad
  View out;   // [M, N] or [batch, M, N]; last stride 1, any row stride; dtype of a and b, or f32
  bool trans_a;
  bool trans_b;
  MatmulEpilogue epilogue;
  bool accumulate;
};

}  // namespace ds
