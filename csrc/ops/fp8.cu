// FP8 on the GPU: kernels cast and transpose tiles of 128 x 128; cuBLASLt multiplies codes.
#include "fp8.h"

#include <algorithm>

#include "../cuda/cuda_context.h"
#include "../cuda/cuda_device.h"
#include "../cuda/gemm.h"
#include "../cuda/shared_memory.h"
#include "fp8_cast.cuh"

namespace ds::cuda {
namespace {

/// Writes the scales of padding squares, which have no tile.
__global__ void pad_squares_kernel(float* scale, int64_t rows, int64_t columns, int64_t pitch,
                                   float value) {
  const int64_t pads = pitch - columns;
  for (int64_t i = threadIdx.x; i < rows * pads; i += blockDim.x)
    scale[i / pads * pitch + columns + i % pads] = value;
}

template <class F>
void of_format(Fp8Format format, F&& f) {
  if (format == Fp8Format::e4m3) f(std::integral_constant<Fp8Format, Fp8Format::e4m3>{});
  else f(std::integral_constant<Fp8Format, Fp8Format::e5m2>{});
}

template <class F>
void of_scaling(Fp8Scaling scaling, F&& f) {
  switch (scaling) {
    case Fp8Scaling::tensor: return f(std::integral_constant<Fp8Scaling, Fp8Scaling::tensor>{});
    case Fp8Scaling::row: return f(std::integral_constant<Fp8Scaling, Fp8Scaling::row>{});
    case Fp8Scaling::group: return f(std::integral_constant<Fp8Scaling, Fp8Scaling::group>{});
    default: return f(std::integral_constant<Fp8Scaling, Fp8Scaling::square>{});
  }
}

constexpr const char* kQuantize = "fp8_quantize";
constexpr const char* kMatmul = "fp8_matmul";

constexpr size_t kStaticBytes = 8 * 1024;  // largest static shared memory of a kernel

/// Allows a kernel `bytes` of dynamic shared memory.
void allow(const void* kernel, size_t bytes) {
  if (bytes <= 40 * 1024) return;
  DS_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes)),
          kQuantize);
}

template <class T>
void measure(const Fp8Quantize& op, Fp8Source<T>& in, CudaContext& ctx) {
  const bool one = op.scaling == Fp8Scaling::tensor;
  const int64_t rows = one ? 1 : op.out ? in.rows : 0;
  const int64_t columns = !one && op.transposed ? in.columns : 0;
  uint32_t* const all = ctx.scratch_of<uint32_t>(static_cast<size_t>(rows + columns));
  DS_CUDA(cudaMemsetAsync(all, 0, static_cast<size_t>(rows + columns) * 4, ctx.stream), kQuantize);
  in.of_rows = rows ? all : nullptr;
  in.of_columns = columns ? all + rows : nullptr;
  if (in.rows == 0 || in.columns == 0) return;
  const int64_t n = in.rows * in.columns, most = int64_t{ctx.sm_count} * 8;
  if (one && aligned_for<kPacket<T>>(in.data) && (in.rows == 1 || in.row_stride == in.columns)) {
    const int64_t steps = n / (kFp8Threads * 4 * kPacket<T>)+1;
    fp8_largest_kernel<T>
        <<<static_cast<unsigned>(std::min(steps, most)), kFp8Threads, 0, ctx.stream>>>(in.data, n,
                                                                                       in.of_rows);
  } else {
    const int64_t span = 32 * kPacket<T>, spans = (in.columns + span - 1) / span;
    // Few blocks per column, because a block has an atomic operation for each of its columns.
    const int64_t each = (in.rows * spans + most - 1) / most;
    const int64_t rows_each = (each + kFp8RowStep - 1) / kFp8RowStep * kFp8RowStep;
    const auto blocks = static_cast<unsigned>((in.rows + rows_each - 1) / rows_each * spans);
    const bool full = in.in_packets && in.rows % kFp8RowStep == 0 && in.columns % span == 0;
    const auto kernel = one    ? fp8_largest_lines_kernel<T, true, false>
                        : full ? fp8_largest_lines_kernel<T, false, true>
                               : fp8_largest_lines_kernel<T, false, false>;
    kernel<<<blocks, kFp8Threads, 0, ctx.stream>>>(in, rows_each);
  }
  DS_CUDA_LAUNCHED(kQuantize);
}

/// Casts rows in one pass. Returns false if the op needs columns, or a row exceeds the registers of
/// a block.
template <class T>
bool cast_rows(const Fp8Quantize& op, const Fp8Source<T>& in, const Fp8Codes& to,
               CudaContext& ctx) {
  const int64_t packets = (to.pitch + kPacket<T> - 1) / kPacket<T>;
  if (op.scaling != Fp8Scaling::row || op.transposed || in.rows > INT32_MAX) return false;
  if (packets > kFp8RowThreads * 8) return false;
  const bool many = packets > kFp8RowThreads * 4;
  const int64_t each = many ? 8 : 4;
  const auto threads = static_cast<unsigned>(((packets + each - 1) / each + 31) / 32 * 32);
  of_format(op.format, [&](auto format) {
    const auto kernel =
        many ? fp8_rows_kernel<T, format.value, 8> : fp8_rows_kernel<T, format.value, 4>;
    kernel<<<static_cast<unsigned>(in.rows), threads, 0, ctx.stream>>>(in, to);
    DS_CUDA_LAUNCHED(kQuantize);
  });
  return true;
}

void pad_squares(const View& scale, int64_t squares, Fp8Format format, CudaContext& ctx) {
  const int64_t pitch = scale.shape[1];
  if (pitch == squares || scale.shape[0] == 0) return;
  const float value = fp8_scale_of(fp8_multiplier(0, format, Fp8Scaling::square));
  pad_squares_kernel<<<1, kFp8Threads, 0, ctx.stream>>>(scale.as<float>(), scale.shape[0], squares,
                                                        pitch, value);
  DS_CUDA_LAUNCHED(kQuantize);
}

/// The product for sizes and devices that cuBLASLt does not support, a thread per element.
template <class T>
struct PlainProduct {
  const uint8_t *a, *b;
  const float *a_scale, *b_scale;
  const T* bias;
  T* out;
  int64_t m, n, k, row_stride;
  Fp8Format a_format, b_format;
  Fp8Scaling a_scaling, b_scaling;
  bool accumulate;
};

/// Returns the index of the scale of elements [128 g, 128 (g + 1)) of a row.
__device__ int64_t scale_at(Fp8Scaling scaling, int64_t row, int64_t g, int64_t rows, int64_t k) {
  if (scaling == Fp8Scaling::tensor) return 0;
  if (scaling == Fp8Scaling::row) return row;
  if (scaling == Fp8Scaling::group) return g * ((rows + 3) / 4 * 4) + row;
  const int64_t groups = (k + kFp8Tile - 1) / kFp8Tile;
  return row / kFp8Tile * ((groups + 3) / 4 * 4) + g;
}

/// Computes the product without tensor cores, for shapes that the library refuses. A thread per
/// element of out, in steps of the grid. Sums each group of 128 products, and then scales it.
template <class T>
__global__ void __launch_bounds__(kFp8Threads) plain_kernel(PlainProduct<T> p) {
  const int64_t step = int64_t{gridDim.x} * kFp8Threads;
  for (int64_t i = int64_t{blockIdx.x} * kFp8Threads + threadIdx.x; i < p.m * p.n; i += step) {
    const int64_t row = i / p.n, column = i % p.n;
    float sum = 0.0f;
    for (int64_t first = 0; first < p.k; first += kFp8Tile) {
      const int64_t g = first / kFp8Tile, end = min(p.k, first + kFp8Tile);
      float part = 0.0f;
      for (int64_t k = first; k < end; ++k)
        part += fp8_value(p.a[row * p.k + k], p.a_format) *
                fp8_value(p.b[column * p.k + k], p.b_format);
      sum += part * p.a_scale[scale_at(p.a_scaling, row, g, p.m, p.k)] *
             p.b_scale[scale_at(p.b_scaling, column, g, p.n, p.k)];
    }
    T* const out = p.out + row * p.row_stride + column;
    if (p.bias) sum += to_float(p.bias[column]);
    if (p.accumulate) sum += to_float(*out);
    *out = from_float<T>(sum);
  }
}

lt::ScaleMode mode_of(Fp8Scaling scaling) {
  switch (scaling) {
    case Fp8Scaling::tensor: return lt::ScaleMode::scalar;
    case Fp8Scaling::row: return lt::ScaleMode::outer_vector;
    case Fp8Scaling::group: return lt::ScaleMode::vector_128;
    default: return lt::ScaleMode::block_128x128;
  }
}

GemmCodes codes_of(Fp8Format format) {
  return format == Fp8Format::e4m3 ? GemmCodes::e4m3 : GemmCodes::e5m2;
}

/// Returns false, without a launch, for products that cuBLASLt does not support.
bool run_library(const Fp8Matmul& op, CudaContext& ctx) {
  const int64_t m = op.out.shape[0], n = op.out.shape[1], k = op.a.shape[1];
  const bool blocks = op.a_scaling >= Fp8Scaling::group;
  if (ctx.device.compute_capability() < (op.a_scaling == Fp8Scaling::tensor ? 89 : 90))
    return false;
  // Limits of cuBLASLt: whole packets of outputs, and of rows if each group has a scale.
  if (n % 16 != 0 || (blocks && m % 8 != 0)) return false;
  // cuBLASLt adds a bias in bf16 to an f32 result, and does not multiply e5m2 by e5m2.
  if (op.bias && op.out.dtype == DType::f32) return false;
  if (op.a_format == Fp8Format::e5m2 && op.b_format == Fp8Format::e5m2) return false;
  constexpr size_t kVectorScales = 120900;
  if (op.a_scaling != Fp8Scaling::tensor && ctx.device.gemm().library().version() < kVectorScales) {
    throw Error("DS_LIBRARY", kMatmul, "cuBLAS 12.9 or newer for more than one scale of an operand",
                text(ctx.device.gemm().library().version()),
                "Update cuBLAS, or use the recipe \"tensorwise\".");
  }
  GemmProblem p{};
  p.rows = m;
  p.columns = n;
  p.inner = k;
  p.batch = 1;
  p.a_row_stride = p.b_row_stride = k;
  p.out_row_stride = m > 1 ? op.out.strides[0] : n;
  p.dtype = p.out_dtype = op.out.dtype;
  p.trans_b = true;
  p.accumulate = op.accumulate;
  p.a_alignment = p.b_alignment = 16;
  p.out_alignment = alignment_of(op.out.data);
  p.bias_alignment = op.bias ? alignment_of(op.bias.data) : 0;
  p.epilogue = op.bias ? lt::Epilogue::bias : lt::Epilogue::none;
  p.a_codes = codes_of(op.a_format);
  p.b_codes = codes_of(op.b_format);
  p.a_scaling = mode_of(op.a_scaling);
  p.b_scaling = mode_of(op.b_scaling);
  // If each 128 codes have a scale, cuBLASLt sums them separately and has no fast accumulation.
  p.fast_accumulation = op.fast && !blocks;
  const GemmOperands operands{.a = op.a.data,
                              .b = op.b.data,
                              .bias = op.bias.data,
                              .out = op.out.data,
                              .a_scale = op.a_scale.data,
                              .b_scale = op.b_scale.data};
  return ctx.device.gemm().run(p, operands, ctx.stream);
}

}  // namespace

void run(const Fp8Quantize& op, CudaContext& ctx) {
  for_floating(kQuantize, op.in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t rows = op.in.shape[0], columns = op.in.shape[1];
    Fp8Source<T> in{};
    in.data = op.in.as<T>();
    in.rows = rows;
    in.columns = columns;
    in.row_stride = op.in.strides[0];
    in.tiles_across = std::max<int64_t>(1, fp8_groups(columns));
    in.in_packets =
        aligned_for<kPacket<T>>(in.data) && (rows <= 1 || in.row_stride % kPacket<T> == 0);
    // An empty matrix has scales too.
    const int64_t tiles = std::max<int64_t>(1, fp8_groups(rows)) * in.tiles_across;
    if (tiles > int64_t{1} << 30) throw Error("DS_LIMIT", kQuantize, "2^30 tiles", text(tiles));
    const size_t bytes = op.transposed ? kFp8CastBytes<T> : 0;
    const bool full = in.in_packets && rows % kFp8Tile == 0 && columns % kFp8Tile == 0;
    Fp8Codes to{};
    to.out = op.out.as<uint8_t>();
    to.transposed = op.transposed.as<uint8_t>();
    to.scale = op.scale.as<float>();
    to.transposed_scale = op.transposed_scale.as<float>();
    to.pitch = fp8_padded(columns);
    to.transposed_pitch = fp8_padded(rows);
    if (op.scale && op.scale.ndim == 2) to.scale_pitch = op.scale.shape[1];
    if (op.transposed_scale && op.transposed_scale.ndim == 2)
      to.transposed_scale_pitch = op.transposed_scale.shape[1];
    if (op.scaling == Fp8Scaling::square) {
      if (op.scale) pad_squares(op.scale, fp8_groups(columns), op.format, ctx);
      if (op.transposed_scale) pad_squares(op.transposed_scale, fp8_groups(rows), op.format, ctx);
    }
    if (rows == 0 || columns == 0) {
      if (op.scaling != Fp8Scaling::tensor) return;
    }
    if (cast_rows(op, in, to, ctx)) return;
    if (op.scaling < Fp8Scaling::group) measure(op, in, ctx);
    of_format(op.format, [&](auto format) {
      of_scaling(op.scaling, [&](auto scaling) {
        static_assert(kFp8CastBytes<T> + kStaticBytes <= kSharedMemoryOfAll);
        const auto kernel = full ? fp8_cast_kernel<T, format.value, scaling.value, true>
                                 : fp8_cast_kernel<T, format.value, scaling.value, false>;
        allow(reinterpret_cast<const void*>(kernel), bytes);
        kernel<<<static_cast<unsigned>(tiles), kFp8Threads, bytes, ctx.stream>>>(in, to);
        DS_CUDA_LAUNCHED(kQuantize);
      });
    });
  });
}

void run(const Fp8Matmul& op, CudaContext& ctx) {
  const int64_t m = op.out.shape[0], n = op.out.shape[1], k = op.a.shape[1];
  if (m == 0 || n == 0) return;
  if (k > 0 && run_library(op, ctx)) return;
  for_floating(kMatmul, op.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const PlainProduct<T> p{op.a.as<uint8_t>(),
                            op.b.as<uint8_t>(),
                            op.a_scale.as<float>(),
                            op.b_scale.as<float>(),
                            op.bias.as<T>(),
                            op.out.as<T>(),
                            m,
                            n,
                            k,
                            m > 1 ? op.out.strides[0] : n,
                            op.a_format,
                            op.b_format,
                            op.a_scaling,
                            op.b_scaling,
                            op.accumulate};
    const int64_t blocks =
        std::min<int64_t>((m * n + kFp8Threads - 1) / kFp8Threads, ctx.sm_count * 8);
    plain_kernel<<<static_cast<unsigned>(blocks), kFp8Threads, 0, ctx.stream>>>(p);
    DS_CUDA_LAUNCHED(kMatmul);
  });
}

}  // namespace ds::cuda
