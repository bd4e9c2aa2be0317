// Weights of 8 and 4 bits on the GPU: up to 32 rows of x meet codes that become weights in
// registers, on tensor cores where x has 16 bits; more rows meet a matrix of weights made once.
#include "quantized_linear.h"

#include "../cuda/block_reduce.cuh"
#include "../cuda/mma.cuh"
#include "../cuda/vector.cuh"
#include "matmul.h"
#include "quantized_math.h"

namespace ds::cuda {

void run(const Matmul& op, CudaContext& ctx);

namespace {

constexpr const char* kOp = "quantized_linear";
constexpr int kThreads = 256, kWarps = kThreads / kWarp;
/// Rows of x beyond which weights are made once instead of in every block.
constexpr int64_t kFewRows = 32;

/// The matrix behind the operands of an op.
struct Weights {
  const uint32_t* packed;  // [outputs, words]
  const void* scale;       // [outputs, groups]
  DType dtype;             // of scale
  const uint8_t* zero;     // as scale, or null
  int64_t outputs, inputs, words, groups, group;

  __device__ __forceinline__ int64_t at(int64_t row, int64_t k) const {
    return row * groups + (groups == 1 ? 0 : k / group);
  }
  __device__ __forceinline__ float scale_at(int64_t at) const {
    if (dtype == DType::f16) return to_float(static_cast<const __half*>(scale)[at]);
    if (dtype == DType::bf16) return to_float(static_cast<const __nv_bfloat16*>(scale)[at]);
    return static_cast<const float*>(scale)[at];
  }
  template <int kBits>
  __device__ __forceinline__ float zero_at(int64_t at) const {
    return zero ? static_cast<float>(zero[at]) : middle_code(kBits);
  }
};

template <class Op>
Weights weights_of(const Op& op, int64_t outputs, int64_t inputs) {
  return {op.packed.template as<uint32_t>(),
          op.scale.data,
          op.scale.dtype,
          op.zero.template as<uint8_t>(),
          outputs,
          inputs,
          op.packed.shape[1],
          op.scale.shape[1],
          op.group};
}

unsigned blocks_for(int64_t items, int64_t each) {
  return static_cast<unsigned>((items + each - 1) / each);
}

/// A warp per group finds its step; its lanes make a word each.
template <class T, class S>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(const T* in, uint32_t* packed, S* scale, int64_t outputs, int64_t inputs,
                    int64_t words, int64_t groups, int64_t group, int bits) {
  const int64_t at = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (at >= outputs * groups) return;
  const int64_t row = at / groups, from = at % groups * group;
  const int64_t count = inputs - from < group ? inputs - from : group;
  const T* const x = in + row * inputs + from;
  const int lane = threadIdx.x % kWarp, codes = 32 / bits;
  float most = 0.0f;
  for (int64_t i = lane; i < count; i += kWarp) most = larger_magnitude(most, to_float(x[i]));
  most = warp_reduce(most, Max{});
  const float wanted = div_rn(most, half_range(bits));
  const S rounded = from_float<S>(wanted);
  const S chosen = step_at_least(rounded, to_float(rounded), wanted);
  if (lane == 0) scale[at] = chosen;
  const float step = to_float(chosen);
  uint32_t* const out = packed + row * words + from / codes;
  for (int64_t w = lane; w * codes < count; w += kWarp) {
    uint32_t word = 0;
    for (int j = 0; j < codes && w * codes + j < count; ++j)
      word |= code_of_value(to_float(x[w * codes + j]), step, bits) << (j * bits);
    out[w] = word;
  }
}

/// A thread per word. kVectors: rows of out are whole, aligned packets of a word's weights.
template <class T, int kBits, bool kVectors>
__global__ void __launch_bounds__(kThreads) dequantize_kernel(Weights w, T* out) {
  constexpr int kCodes = 32 / kBits;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= w.outputs * w.words) return;
  const int64_t row = i / w.words, k = i % w.words * kCodes, at = w.at(row, k);
  const uint32_t word = w.packed[i];
  const float step = w.scale_at(at), zero = w.zero_at<kBits>(at);
  Vector<T, kCodes> values;
#pragma unroll
  for (int j = 0; j < kCodes; ++j)
    values.v[j] =
        from_float<T>(value_of_code(word >> (j * kBits) & ((1u << kBits) - 1), zero, step));
  T* const place = out + row * w.inputs + k;
  if constexpr (kVectors) {
    store_vector(place, values);
  } else {
#pragma unroll
    for (int j = 0; j < kCodes; ++j)
      if (k + j < w.inputs) place[j] = values.v[j];
  }
}

template <class T>
void dequantize(const Weights& w, int64_t bits, T* out, CudaContext& ctx) {
  const int64_t count = w.outputs * w.words;
  if (count == 0) return;
  const bool four = bits == 4;
  const bool vectors =
      w.inputs % (32 / bits) == 0 && (four ? aligned_for<8>(out) : aligned_for<4>(out));
  const auto kernel =
      four ? (vectors ? dequantize_kernel<T, 4, true> : dequantize_kernel<T, 4, false>)
           : (vectors ? dequantize_kernel<T, 8, true> : dequantize_kernel<T, 8, false>);
  kernel<<<blocks_for(count, kThreads), kThreads, 0, ctx.stream>>>(w, out);
  DS_CUDA_LAUNCHED("dequantize_weights");
}

/// Rows of x that a warp of the plain kernel multiplies with the weights it has made.
constexpr int kTogether = 8;

/// Any shape and dtype: a warp per output, a word per lane.
template <class T, int kBits>
__global__ void __launch_bounds__(kThreads)
    plain_kernel(Weights w, const T* x, const T* bias, T* out, int64_t rows) {
  constexpr int kCodes = 32 / kBits;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (row >= w.outputs) return;
  const int lane = threadIdx.x % kWarp;
  for (int64_t first = 0; first < rows; first += kTogether) {
    float sums[kTogether] = {};
    for (int64_t i = lane; i < w.words; i += kWarp) {
      const int64_t k = i * kCodes, at = w.at(row, k);
      const uint32_t word = w.packed[row * w.words + i];
      const float step = w.scale_at(at), zero = w.zero_at<kBits>(at);
#pragma unroll
      for (int j = 0; j < kCodes; ++j) {
        if (k + j >= w.inputs) break;
        const float value = value_of_code(word >> (j * kBits) & ((1u << kBits) - 1), zero, step);
#pragma unroll
        for (int m = 0; m < kTogether; ++m)
          if (first + m < rows) sums[m] += value * to_float(x[(first + m) * w.inputs + k + j]);
      }
    }
#pragma unroll
    for (int m = 0; m < kTogether; ++m) {
      const float sum = warp_sum(sums[m]);
      if (lane != 0 || first + m >= rows) continue;
      out[(first + m) * w.outputs + row] = from_float<T>(bias ? sum + to_float(bias[row]) : sum);
    }
  }
}

/// 2^23 + the code in a byte of a word.
__device__ __forceinline__ float code_as_float(uint32_t word, int byte) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 | byte));
}

/// Weights of a word as left operands of mma: pairs p and p + 1 of the word are the two halves of
/// step p / 2. The pairs of a word with 4 bits a code are inputs (p, p + 4), else (2 p, 2 p + 1).
template <class T, int kBits>
struct Dequantized {
  static constexpr int kPairs = 16 / kBits;
  uint32_t pair[kPairs];

  Dequantized() = default;
  __device__ __forceinline__ Dequantized(uint32_t word, float zero, float step) {
    if constexpr (kBits == 4) {
      // A code in the low bits of a 16-bit float's mantissa adds to it: 128 in bf16, 1024 in f16.
      constexpr bool kBrain = std::is_same_v<T, __nv_bfloat16>;
      constexpr uint32_t kMagic = kBrain ? 0x43004300u : 0x64006400u;
      using T2 = std::conditional_t<kBrain, __nv_bfloat162, __half2>;
      const uint32_t offset =
          pack_pair<T>((kBrain ? 128.0f : 1024.0f) + zero, (kBrain ? 128.0f : 1024.0f) + zero);
      const uint32_t factor = pack_pair<T>(step, step);
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        const uint32_t codes = (word >> (4 * p) & 0x000f000fu) | kMagic;
        const T2 difference =
            __hsub2(*reinterpret_cast<const T2*>(&codes), *reinterpret_cast<const T2*>(&offset));
        const T2 product = __hmul2(difference, *reinterpret_cast<const T2*>(&factor));
        pair[p] = *reinterpret_cast<const uint32_t*>(&product);
      }
    } else {
      const float offset = 8388608.0f + zero;
#pragma unroll
      for (int p = 0; p < kPairs; ++p)
        pair[p] = pack_pair<T>((code_as_float(word, 2 * p) - offset) * step,
                               (code_as_float(word, 2 * p + 1) - offset) * step);
    }
  }
};

/// The inputs of a word, as right operands of mma in the order of Dequantized.
template <class T, int kBits>
struct Inputs {
  static constexpr int kCodes = 32 / kBits, kPairs = kCodes / 2;
  uint32_t pair[kPairs];

  __device__ __forceinline__ Inputs(const T* x, bool valid) {
    uint32_t given[kPairs] = {};
    if (valid) {
      const Vector<T, kCodes> values = load_vector<kCodes>(x);
#pragma unroll
      for (int p = 0; p < kPairs; ++p) given[p] = reinterpret_cast<const uint32_t*>(&values)[p];
    }
    if constexpr (kBits == 4) {
#pragma unroll
      for (int p = 0; p < kPairs; ++p)
        pair[p] = __byte_perm(given[p / 2], given[p / 2 + 2], p % 2 ? 0x7632 : 0x5410);
    } else {
#pragma unroll
      for (int p = 0; p < kPairs; ++p) pair[p] = given[p];
    }
  }
};

/// 16 kRowTiles outputs a block for up to 8 kColumnTiles rows of x, whose inputs the warps share.
/// In a step, each lane has 16 bytes of codes of two outputs a tile: mma sums over inputs in any
/// order, if both operands have the same one, so that lane t of four takes a run of its own. inputs
/// must be a multiple of a lane's codes, which lie in one group, and everything aligned to 16
/// bytes.
template <class T, int kBits, int kRowTiles, int kColumnTiles>
__global__ void __launch_bounds__(kThreads)
    tensor_core_kernel(Weights w, const T* x, const T* bias, T* out, int64_t rows) {
  constexpr int kCodes = 32 / kBits, kRun = 4 * kCodes, kOutputs = 16 * kRowTiles;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t first = int64_t{blockIdx.x} * kOutputs;
  float sums[kRowTiles][kColumnTiles][4] = {};
#pragma unroll 2
  for (int64_t step = warp; step * 4 * kRun < w.inputs; step += kWarps) {
    const int64_t k = (step * 4 + lane % 4) * kRun;
    const bool inside = k < w.inputs;
    uint4 codes[kRowTiles][2];
    float scale[kRowTiles][2], zero[kRowTiles][2];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t row = first + r * 16 + half * 8 + lane / 4;
        const bool valid = inside && row < w.outputs;
        const int64_t at = valid ? w.at(row, k) : 0;
        codes[r][half] =
            valid ? __ldcs(reinterpret_cast<const uint4*>(w.packed + row * w.words + k / kCodes))
                  : uint4{0, 0, 0, 0};
        scale[r][half] = valid && w.groups > 1 ? w.scale_at(at) : 1.0f;
        zero[r][half] = valid ? w.zero_at<kBits>(at) : 0.0f;
      }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Dequantized<T, kBits> left[kRowTiles][2];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          left[r][half] = Dequantized<T, kBits>(
              reinterpret_cast<const uint32_t*>(&codes[r][half])[i], zero[r][half], scale[r][half]);
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c) {
        const int64_t m = c * 8 + lane / 4;
        const Inputs<T, kBits> right(x + m * w.inputs + k + i * kCodes, inside && m < rows);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
          for (int p = 0; p < right.kPairs; p += 2) {
            const uint32_t a[4] = {left[r][0].pair[p], left[r][1].pair[p], left[r][0].pair[p + 1],
                                   left[r][1].pair[p + 1]};
            mma_16x8x16<T>(sums[r][c], a, right.pair[p], right.pair[p + 1]);
          }
      }
    }
  }

  __shared__ float partial[kWarps][8 * kColumnTiles][kOutputs + 1];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
    for (int c = 0; c < kColumnTiles; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        partial[warp][c * 8 + lane % 4 * 2 + e % 2][r * 16 + e / 2 * 8 + lane / 4] = sums[r][c][e];
  __syncthreads();
  for (int i = threadIdx.x; i < kOutputs * 8 * kColumnTiles; i += kThreads) {
    const int n = i % kOutputs, m = i / kOutputs;
    const int64_t row = first + n;
    if (row >= w.outputs || m >= rows) continue;
    float sum = 0.0f;
    for (int part = 0; part < kWarps; ++part) sum += partial[part][m][n];
    if (w.groups == 1) sum *= w.scale_at(row);
    if (bias) sum += to_float(bias[row]);
    out[m * w.outputs + row] = from_float<T>(sum);
  }
}

/// Whether the tensor-core kernel can read everything in its packets.
template <class T>
bool takes_packets(const QuantizedLinear& op, const Weights& w) {
  const int64_t run = 128 / op.bits;
  return w.inputs % run == 0 && (w.groups == 1 || w.group % run == 0) && w.inputs > 0 &&
         aligned_for<4>(w.packed) && aligned_for<8>(op.x.as<T>());
}

template <class T, int kBits>
void few_rows(const QuantizedLinear& op, const Weights& w, CudaContext& ctx) {
  const T *const x = op.x.as<T>(), *const bias = op.bias.as<T>();
  T* const out = op.out.as<T>();
  const int64_t rows = op.x.shape[0];
  if constexpr (!std::is_same_v<T, float>) {
    if (takes_packets<T>(op, w)) {
      const auto launch = [&](auto kernel, int64_t outputs) {
        kernel<<<blocks_for(w.outputs, outputs), kThreads, 0, ctx.stream>>>(w, x, bias, out, rows);
        DS_CUDA_LAUNCHED(kOp);
      };
      if (rows <= 8) return launch(tensor_core_kernel<T, kBits, 1, 1>, 16);
      if (rows <= 16) return launch(tensor_core_kernel<T, kBits, 2, 2>, 32);
      return launch(tensor_core_kernel<T, kBits, 2, 4>, 32);
    }
  }
  plain_kernel<T, kBits>
      <<<blocks_for(w.outputs, kWarps), kThreads, 0, ctx.stream>>>(w, x, bias, out, rows);
  DS_CUDA_LAUNCHED(kOp);
}

/// W in x's dtype, then one product.
template <class T>
void many_rows(const QuantizedLinear& op, const Weights& w, CudaContext& ctx) {
  T* const values = ctx.scratch_of<T>(static_cast<size_t>(w.outputs * w.inputs));
  dequantize(w, op.bits, values, ctx);
  View matrix = op.x;
  matrix.data = values;
  matrix.shape[0] = w.outputs;
  run(Matmul{op.x, matrix, op.bias, {}, op.out, false, true, MatmulEpilogue::none, false}, ctx);
}

__global__ void __launch_bounds__(kThreads)
    repack_kernel(const uint32_t* in, const int32_t* order, uint32_t* out, int64_t outputs,
                  int64_t words, int64_t width, int64_t inputs, int bits, bool awq) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= outputs * words) return;
  const int codes = 32 / bits;
  const int64_t row = i / words, from = i % words * codes;
  const uint32_t mask = (1u << bits) - 1;
  uint32_t word = 0;
  for (int j = 0; j < codes && from + j < inputs; ++j) {
    const int64_t k = order ? order[from + j] : from + j;
    if (k < 0 || k >= inputs) continue;
    const uint32_t code = awq ? in[k * width + row / 8] >> awq_shift(row)
                              : in[row * width + k / codes] >> (k % codes * bits);
    word |= (code & mask) << (j * bits);
  }
  out[i] = word;
}

}  // namespace

void run(const QuantizeWeights& op, CudaContext& ctx) {
  constexpr const char* kName = "quantize_weights";
  const int64_t outputs = op.in.shape[0], groups = op.scale.shape[1];
  if (outputs * groups == 0) return;
  for_floating(kName, op.in.dtype, [&](auto in) {
    for_floating(kName, op.scale.dtype, [&](auto scale) {
      using T = typename decltype(in)::type;
      using S = typename decltype(scale)::type;
      quantize_kernel<T, S><<<blocks_for(outputs * groups, kWarps), kThreads, 0, ctx.stream>>>(
          op.in.as<T>(), op.packed.as<uint32_t>(), op.scale.as<S>(), outputs, op.in.shape[1],
          op.packed.shape[1], groups, op.group, static_cast<int>(op.bits));
      DS_CUDA_LAUNCHED(kName);
    });
  });
}

void run(const DequantizeWeights& op, CudaContext& ctx) {
  const Weights w = weights_of(op, op.out.shape[0], op.out.shape[1]);
  for_floating("dequantize_weights", op.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    dequantize(w, op.bits, op.out.as<T>(), ctx);
  });
}

void run(const QuantizedLinear& op, CudaContext& ctx) {
  if (op.out.numel() == 0) return;
  const Weights w = weights_of(op, op.out.shape[1], op.x.shape[1]);
  for_floating(kOp, op.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (op.x.shape[0] > kFewRows) return many_rows<T>(op, w, ctx);
    if (op.bits == 4) return few_rows<T, 4>(op, w, ctx);
    few_rows<T, 8>(op, w, ctx);
  });
}

void run(const RepackCodes& op, CudaContext& ctx) {
  const int64_t outputs = op.out.shape[0], words = op.out.shape[1];
  if (outputs * words == 0) return;
  repack_kernel<<<blocks_for(outputs * words, kThreads), kThreads, 0, ctx.stream>>>(
      op.in.as<uint32_t>(), op.order.as<int32_t>(), op.out.as<uint32_t>(), outputs, words,
      op.in.shape[1], op.inputs, static_cast<int>(op.bits), op.layout == CodeLayout::awq);
  DS_CUDA_LAUNCHED("repack_codes");
}

}  // namespace ds::cuda
