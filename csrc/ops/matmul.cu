// Matmul on the GPU: cuBLASLt with a fused epilogue, or a plain product and a kernel that finishes
// it. A single row has a kernel of its own.
#include "matmul.h"

#include <algorithm>
#include <limits>

#include "../cuda/cuda_context.h"
#include "../cuda/cuda_device.h"
#include "../cuda/gemm.h"
#include "copy.h"
#include "one_row.cuh"
#include "unary_math.h"

namespace ds::cuda {

void run(const Copy& op, CudaContext& ctx);

namespace {

constexpr const char* kOp = "matmul";

/// Arguments of the kernel that completes `out` from a product without an epilogue.
template <class T>
struct Finish {
  const float* product;  // [total_rows, columns] contiguous; null means zeros
  const T* bias;         // [columns] or null
  T* aux;                // with the layout of out, or null
  T* out;
  int64_t total_rows, rows, columns;  // total_rows = batch * rows
  int64_t row_stride, batch_stride;   // strides of out and aux
  MatmulEpilogue epilogue;
  bool accumulate;
};

constexpr int kLanes = 32, kRowsPerBlock = 8;

/// Applies bias, epilogue and accumulation to a product in f32 (null: to zeros). A row of threads
/// per row of out.
template <class T>
__global__ void finish_kernel(Finish<T> f) {
  const int64_t step = int64_t{gridDim.x} * kRowsPerBlock;
  for (int64_t row = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.y; row < f.total_rows;
       row += step) {
    const int64_t first = row / f.rows * f.batch_stride + row % f.rows * f.row_stride;
    for (int64_t column = threadIdx.x; column < f.columns; column += kLanes) {
      const int64_t at = first + column;
      float z = f.product ? f.product[row * f.columns + column] : 0.0f;
      if (f.bias) z += to_float(f.bias[column]);
      if (f.epilogue == MatmulEpilogue::gelu) {
        if (f.aux) f.aux[at] = from_float<T>(z);
        z = unary_value<UnaryOp::gelu_tanh>(z);
      } else if (f.epilogue == MatmulEpilogue::gelu_grad) {
        z *= unary_derivative<UnaryOp::gelu_tanh>(to_float(f.aux[at]));
      }
      if (f.accumulate) z += to_float(f.out[at]);
      f.out[at] = from_float<T>(z);
    }
  }
}

void finish(const Matmul& op, const GemmProblem& p, const float* product, CudaContext& ctx) {
  for_floating(kOp, p.out_dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t total_rows = p.batch * p.rows;
    const Finish<T> f{
        product,   op.bias.as<T>(),  op.aux.as<T>(),     op.out.as<T>(), total_rows,   p.rows,
        p.columns, p.out_row_stride, p.out_batch_stride, op.epilogue,    op.accumulate};
    const int64_t wanted = (total_rows + kRowsPerBlock - 1) / kRowsPerBlock;
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(wanted, ctx.sm_count * 8));
    finish_kernel<<<blocks, dim3(kLanes, kRowsPerBlock), 0, ctx.stream>>>(f);
    DS_CUDA_LAUNCHED(kOp);
  });
}

int64_t batch_stride(const View& v) { return v.ndim == 3 && v.shape[0] > 1 ? v.strides[0] : 0; }

/// Returns the stride between rows, or the length of a single row.
int64_t row_stride(const View& v) { return v.size(-2) > 1 ? v.strides[v.ndim - 2] : v.size(-1); }

/// Returns shapes, strides and dtypes of the op. run_fused() sets alignments and the epilogue.
GemmProblem problem_of(const Matmul& op) {
  for_floating(kOp, op.a.dtype, [](auto) {});  // only the CPU has f64
  GemmProblem p{};
  p.rows = op.a.size(op.trans_a ? -1 : -2);
  p.inner = op.a.size(op.trans_a ? -2 : -1);
  p.columns = op.b.size(op.trans_b ? -2 : -1);
  p.batch = op.out.ndim == 3 ? op.out.shape[0] : 1;
  p.dtype = op.a.dtype;
  p.out_dtype = op.out.dtype;
  p.trans_a = op.trans_a;
  p.trans_b = op.trans_b;
  p.accumulate = op.accumulate;
  p.out_row_stride = row_stride(op.out);
  p.out_batch_stride = batch_stride(op.out);
  return p;
}

/// Returns v, or a contiguous copy if its rows overlap (broadcast or sliding windows), which
/// cuBLASLt rejects.
View with_separate_rows(const View& v, CudaContext& ctx) {
  if (row_stride(v) >= v.size(-1)) return v;
  View packed = v;
  int64_t stride = 1;
  for (int d = v.ndim - 1; d >= 0; --d) {
    packed.strides[d] = stride;
    stride *= v.shape[d];
  }
  packed.data = ctx.scratch(static_cast<size_t>(v.numel()) * size_of(v.dtype));
  run(Copy{v, packed}, ctx);
  return packed;
}

/// Converts a batch of consecutive matrices with the same b to one tall product.
void merge_batch(GemmProblem& p) {
  const bool tall = p.batch > 1 && !p.trans_a && p.b_batch_stride == 0 &&
                    p.a_batch_stride == p.rows * p.a_row_stride &&
                    p.out_batch_stride == p.rows * p.out_row_stride;
  if (!tall) return;
  p.rows *= p.batch;
  p.batch = 1;
  p.a_batch_stride = p.out_batch_stride = 0;
}

lt::Epilogue epilogue_of(const Matmul& op) {
  switch (op.epilogue) {
    case MatmulEpilogue::gelu:
      if (op.aux) return op.bias ? lt::Epilogue::gelu_aux_bias : lt::Epilogue::gelu_aux;
      return op.bias ? lt::Epilogue::gelu_bias : lt::Epilogue::gelu;
    case MatmulEpilogue::gelu_grad: return lt::Epilogue::gelu_grad;
    default: return op.bias ? lt::Epilogue::bias : lt::Epilogue::none;
  }
}

/// Returns true if cuBLASLt can fuse aux: it needs 16-byte alignment, and row and batch strides
/// that are multiples of 8.
bool aux_can_be_fused(const Matmul& op, const GemmProblem& p) {
  return !op.aux || (alignment_of(op.aux.data) == 16 && p.out_row_stride % 8 == 0 &&
                     p.out_batch_stride % 8 == 0);
}

bool run_fused(const Matmul& op, GemmProblem p, GemmOperands operands, CudaContext& ctx) {
  if (!aux_can_be_fused(op, p)) return false;
  p.epilogue = epilogue_of(op);
  p.out_alignment = alignment_of(op.out.data);
  p.bias_alignment = op.bias ? alignment_of(op.bias.data) : 0;
  p.aux_alignment = op.aux ? alignment_of(op.aux.data) : 0;
  return ctx.device.gemm().run(p, operands, ctx.stream);
}

/// Computes a single 16-bit row by the transpose of b, optionally with a bias. Returns false,
/// without a launch, for other problems and unaligned operands.
bool run_one_row(const Matmul& op, const GemmProblem& p, const GemmOperands& of, CudaContext& ctx) {
  const bool plain = p.rows == 1 && p.batch == 1 && !p.trans_a && p.trans_b && !p.accumulate &&
                     op.epilogue == MatmulEpilogue::none && !op.aux && p.dtype == p.out_dtype;
  if (!plain || p.dtype == DType::f32 || p.inner > (int64_t{1} << 30)) return false;
  if (p.inner % 8 != 0 || p.b_row_stride % 8 != 0) return false;
  if (p.a_alignment < 16 || p.b_alignment < 16) return false;
  const auto launch = [&](auto tag) {
    using T = decltype(tag);
    const auto place = [](const void* data) { return static_cast<const T*>(data); };
    const OneRow<T> row{place(of.b),
                        place(of.a),
                        place(of.bias),
                        static_cast<T*>(of.out),
                        p.columns,
                        p.b_row_stride,
                        static_cast<int>(p.inner),
                        is_settled(ctx, of.b)};
    if (!launch_warp_row(kOp, row, ctx)) launch_one_row<false>(kOp, row, ctx);
  };
  if (p.dtype == DType::bf16) launch(__nv_bfloat16{});
  else launch(__half{});
  return true;
}

/// Writes the product in f32 to scratch memory; finish_kernel completes it. The result is still
/// rounded once.
void run_in_two_steps(const Matmul& op, const GemmProblem& p, GemmOperands operands,
                      CudaContext& ctx) {
  GemmProblem plain = p;
  plain.out_dtype = DType::f32;
  plain.out_row_stride = p.columns;
  plain.out_batch_stride = p.batch > 1 ? p.rows * p.columns : 0;
  plain.out_alignment = 16;
  plain.epilogue = lt::Epilogue::none;
  plain.accumulate = false;
  float* product = ctx.scratch_of<float>(static_cast<size_t>(p.batch * p.rows * p.columns));
  operands.out = product;
  if (!ctx.device.gemm().run(plain, operands, ctx.stream)) {
    throw Error("DS_LIMIT", kOp, "a product that cuBLASLt can compute",
                text(op.a.describe(), op.trans_a ? "^T by " : " by ", op.b.describe(),
                     op.trans_b ? "^T" : ""),
                "Split the product, or make its operands contiguous.");
  }
  finish(op, p, product, ctx);
}

}  // namespace

void run(const Matmul& op, CudaContext& ctx) {
  GemmProblem p = problem_of(op);
  if (p.rows == 0 || p.columns == 0 || p.batch == 0) return;
  if (p.inner == 0) return finish(op, p, nullptr, ctx);
  const View a = with_separate_rows(op.a, ctx), b = with_separate_rows(op.b, ctx);
  p.a_row_stride = row_stride(a);
  p.b_row_stride = row_stride(b);
  p.a_batch_stride = batch_stride(a);
  p.b_batch_stride = batch_stride(b);
  p.a_alignment = alignment_of(a.data);
  p.b_alignment = alignment_of(b.data);
  merge_batch(p);
  if (p.batch > std::numeric_limits<int32_t>::max()) {
    throw Error("DS_LIMIT", kOp, "a batch below 2^31", text(p.batch));
  }
  const GemmOperands operands{
      .a = a.data, .b = b.data, .bias = op.bias.data, .aux = op.aux.data, .out = op.out.data};
  if (run_one_row(op, p, operands, ctx)) return;
  if (!run_fused(op, p, operands, ctx)) run_in_two_steps(op, p, operands, ctx);
}

}  // namespace ds::cuda
