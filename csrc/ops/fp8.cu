// FP8 on the GPU: tiles of 128 x 128 are cast and transposed; cuBLASLt multiplies the codes.
#include "fp8.h"

#include <algorithm>

#include "../cuda/cuda_context.h"
#include "../cuda/cuda_device.h"
#include "../cuda/gemm.h"
#include "fp8_tile.cuh"

namespace ds::cuda {
namespace {

/// Magnitudes of whole rows and columns (Fp8Scaling::row), or of the matrix.
template <class T, bool kOne>
__global__ void __launch_bounds__(kFp8Threads) magnitudes_kernel(Fp8Source<T> in) {
  extern __shared__ __align__(16) unsigned char shared[];
  using Part = Fp8TilePart<T>;
  const int64_t row = int64_t{blockIdx.x} / in.tiles_across * kFp8Tile;
  const int64_t column = int64_t{blockIdx.x} % in.tiles_across * kFp8Tile;
  Part part;
  part.load(in, row, column);
  if constexpr (kOne) {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < Part::kPackets; ++i) bits = max(bits, part.largest(i));
    bits = largest_of<32>(bits);
    if (threadIdx.x % 32 == 0) atomicMax(in.of_rows, bits);
    return;
  }
  if (in.of_rows) {
#pragma unroll
    for (int i = 0; i < Part::kPackets; ++i) {
      const uint32_t bits = largest_of<Part::kAcross>(part.largest(i));
      const int64_t r = row + part.down + i * Part::kDown;
      if (part.across == 0 && r < in.rows) atomicMax(in.of_rows + r, bits);
    }
  }
  if (!in.of_columns) return;
  T* const tile = reinterpret_cast<T*>(shared);
  part.put(tile);
  __syncthreads();
  Fp8ColumnPair<T> pair;
  pair.load(tile);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int64_t c = column + pair.column + j;
    if (c < in.columns) atomicMax(in.of_columns + c, pair.largest(j));
  }
}

/// Where codes and scales go; null pointers are skipped.
struct Codes {
  uint8_t* out;
  uint8_t* transposed;
  float* scale;
  float* transposed_scale;
  int64_t pitch, transposed_pitch;              // of rows of codes
  int64_t scale_pitch, transposed_scale_pitch;  // of groups or squares
};

template <class T, Fp8Format kFormat, Fp8Scaling kScaling>
__global__ void __launch_bounds__(kFp8Threads) cast_kernel(Fp8Source<T> in, Codes to) {
  extern __shared__ __align__(16) unsigned char shared[];
  using Part = Fp8TilePart<T>;
  __shared__ uint32_t largest[4][kFp8Tile];
  const int64_t down = int64_t{blockIdx.x} / in.tiles_across;
  const int64_t across = int64_t{blockIdx.x} % in.tiles_across;
  const int64_t row = down * kFp8Tile, column = across * kFp8Tile;
  const auto multiplier = [](uint32_t bits) { return fp8_multiplier(bits, kFormat, kScaling); };
  Part part;
  part.load(in, row, column);
  T* const tile = reinterpret_cast<T*>(shared);
  if (to.transposed) part.put(tile);

  float of_all = 0.0f;
  if constexpr (kScaling == Fp8Scaling::tensor) {
    of_all = multiplier(*in.of_rows);
    if (blockIdx.x == 0 && threadIdx.x == 0) *to.scale = fp8_scale_of(of_all);
  }
  if constexpr (kScaling == Fp8Scaling::square) {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < Part::kPackets; ++i) bits = max(bits, part.largest(i));
    bits = largest_of<32>(bits);
    if (threadIdx.x % 32 == 0) largest[0][threadIdx.x / 32] = bits;
    __syncthreads();
    bits = 0;
#pragma unroll
    for (int i = 0; i < kFp8Threads / 32; ++i) bits = max(bits, largest[0][i]);
    of_all = multiplier(bits);
    if (threadIdx.x == 0) {
      if (to.scale) to.scale[down * to.scale_pitch + across] = fp8_scale_of(of_all);
      if (to.transposed_scale)
        to.transposed_scale[across * to.transposed_scale_pitch + down] = fp8_scale_of(of_all);
    }
  }

  if (to.out) {
#pragma unroll
    for (int i = 0; i < Part::kPackets; ++i) {
      const int64_t r = row + part.down + i * Part::kDown, c = column + part.across;
      float by = of_all;
      if constexpr (kScaling == Fp8Scaling::group) {
        by = multiplier(largest_of<Part::kAcross>(part.largest(i)));
        if (part.across == 0 && r < to.scale_pitch)
          to.scale[across * to.scale_pitch + r] = fp8_scale_of(by);
      }
      if (r >= in.rows) continue;
      if constexpr (kScaling == Fp8Scaling::row) {
        by = multiplier(in.of_rows[r]);
        if (c == 0) to.scale[r] = fp8_scale_of(by);
      }
      if (c >= to.pitch) continue;
      uint32_t codes[Part::kWidth / 4];
#pragma unroll
      for (int j = 0; j < Part::kWidth; j += 4) {
        const float x[4] = {to_float(part.x[i].v[j]), to_float(part.x[i].v[j + 1]),
                            to_float(part.x[i].v[j + 2]), to_float(part.x[i].v[j + 3])};
        codes[j / 4] = four_codes<kFormat>(x, by);
      }
      // Pads stay 0 beside codes of NaN.
      if (c + Part::kWidth > in.columns) {
#pragma unroll
        for (int j = 0; j < Part::kWidth; ++j)
          if (c + j >= in.columns) codes[j / 4] &= ~(0xffu << j % 4 * 8);
      }
      uint8_t* const at = to.out + r * to.pitch + c;
      if constexpr (Part::kWidth == 8)
        *reinterpret_cast<uint2*>(at) = make_uint2(codes[0], codes[1]);
      else *reinterpret_cast<uint32_t*>(at) = codes[0];
    }
  }

  if (!to.transposed) return;
  __syncthreads();
  Fp8ColumnPair<T> pair;
  pair.load(tile);
  if constexpr (kScaling == Fp8Scaling::group) {
    largest[pair.quarter][pair.column] = pair.largest(0);
    largest[pair.quarter][pair.column + 1] = pair.largest(1);
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int64_t c = column + pair.column + j;
    float by = of_all;
    if constexpr (kScaling == Fp8Scaling::group) {
      const int at = pair.column + j;
      by =
          multiplier(max(max(largest[0][at], largest[1][at]), max(largest[2][at], largest[3][at])));
      if (pair.quarter == 0 && c < to.transposed_scale_pitch)
        to.transposed_scale[down * to.transposed_scale_pitch + c] = fp8_scale_of(by);
    }
    if (c >= in.columns) continue;
    if constexpr (kScaling == Fp8Scaling::row) {
      by = multiplier(in.of_columns[c]);
      if (down == 0 && pair.quarter == 0) to.transposed_scale[c] = fp8_scale_of(by);
    }
    const int64_t first = row + pair.quarter * kFp8Quarter;
    uint8_t* const at = to.transposed + c * to.transposed_pitch + first;
#pragma unroll
    for (int i = 0; i < kFp8Quarter; i += 16) {
      if (first + i >= to.transposed_pitch) break;
      uint32_t codes[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int from = i + k * 4;
        const float x[4] = {to_float(pair.x[from].v[j]), to_float(pair.x[from + 1].v[j]),
                            to_float(pair.x[from + 2].v[j]), to_float(pair.x[from + 3].v[j])};
        codes[k] = four_codes<kFormat>(x, by);
      }
      if (first + i + 16 > in.rows) {
#pragma unroll
        for (int k = 0; k < 16; ++k)
          if (first + i + k >= in.rows) codes[k / 4] &= ~(0xffu << k % 4 * 8);
      }
      *reinterpret_cast<uint4*>(at + i) = make_uint4(codes[0], codes[1], codes[2], codes[3]);
    }
  }
}

/// Squares beyond the last have no tile: their scales are pads.
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

/// Allows a kernel `bytes` of shared memory, once a process.
void allow(const void* kernel, size_t bytes) {
  if (bytes <= 48 * 1024) return;
  DS_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes)),
          kQuantize);
}

template <class T>
void measure(const Fp8Quantize& op, Fp8Source<T>& in, int64_t tiles, size_t bytes,
             CudaContext& ctx) {
  const bool one = op.scaling == Fp8Scaling::tensor;
  const int64_t rows = one ? 1 : op.out ? in.rows : 0;
  const int64_t columns = !one && op.transposed ? in.columns : 0;
  uint32_t* const all = ctx.scratch_of<uint32_t>(static_cast<size_t>(rows + columns));
  DS_CUDA(cudaMemsetAsync(all, 0, static_cast<size_t>(rows + columns) * 4, ctx.stream), kQuantize);
  in.of_rows = rows ? all : nullptr;
  in.of_columns = columns ? all + rows : nullptr;
  const auto blocks = static_cast<unsigned>(tiles);
  if (one) {
    magnitudes_kernel<T, true><<<blocks, kFp8Threads, 0, ctx.stream>>>(in);
  } else {
    allow(reinterpret_cast<const void*>(&magnitudes_kernel<T, false>), bytes);
    magnitudes_kernel<T, false><<<blocks, kFp8Threads, bytes, ctx.stream>>>(in);
  }
  DS_CUDA_LAUNCHED(kQuantize);
}

void pad_squares(const View& scale, int64_t squares, Fp8Format format, CudaContext& ctx) {
  const int64_t pitch = scale.shape[1];
  if (pitch == squares || scale.shape[0] == 0) return;
  const float value = fp8_scale_of(fp8_multiplier(0, format, Fp8Scaling::square));
  pad_squares_kernel<<<1, kFp8Threads, 0, ctx.stream>>>(scale.as<float>(), scale.shape[0], squares,
                                                        pitch, value);
  DS_CUDA_LAUNCHED(kQuantize);
}

/// One thread an element: for sizes and devices that the library does not multiply.
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

/// Which scale elements [128 g, 128 (g + 1)) of a row have.
__device__ int64_t scale_at(Fp8Scaling scaling, int64_t row, int64_t g, int64_t rows, int64_t k) {
  if (scaling == Fp8Scaling::tensor) return 0;
  if (scaling == Fp8Scaling::row) return row;
  if (scaling == Fp8Scaling::group) return g * ((rows + 3) / 4 * 4) + row;
  const int64_t groups = (k + kFp8Tile - 1) / kFp8Tile;
  return row / kFp8Tile * ((groups + 3) / 4 * 4) + g;
}

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

/// Returns false for products that cuBLASLt does not compute.
bool run_library(const Fp8Matmul& op, CudaContext& ctx) {
  const int64_t m = op.out.shape[0], n = op.out.shape[1], k = op.a.shape[1];
  const bool blocks = op.a_scaling >= Fp8Scaling::group;
  if (ctx.device.compute_capability() < (op.a_scaling == Fp8Scaling::tensor ? 89 : 90))
    return false;
  // The library's rules: whole packets of outputs, and of rows with a scale for each group.
  if (n % 16 != 0 || (blocks && m % 8 != 0)) return false;
  // The library adds a bias in bf16 to an f32 result, and multiplies no e5m2 by e5m2.
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
  p.fast_accumulation = op.fast;
  const GemmOperands operands{op.a.data,   op.b.data,       op.bias.data,   nullptr,
                              op.out.data, op.a_scale.data, op.b_scale.data};
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
    const size_t bytes = op.transposed ? kFp8Tile * kFp8Tile * sizeof(T) : 0;
    if (op.scaling < Fp8Scaling::group) measure(op, in, tiles, bytes, ctx);
    Codes to{};
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
    of_format(op.format, [&](auto format) {
      of_scaling(op.scaling, [&](auto scaling) {
        const auto kernel = cast_kernel<T, format.value, scaling.value>;
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
