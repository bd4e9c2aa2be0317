// The experts of a few tokens in MXFP4 at memory bandwidth, in integer arithmetic on tensor cores.
// A code becomes a byte by two table look-ups. Weights in 16-bit floats take twice the instructions
// and longer than reading the codes.
//
// 1. A number of x is two signed 8-bit digits, scaled by the largest magnitude of its run of 32.
//    The error is at most 2^-14 of that magnitude.
// 2. The left operand of mma has 16 rows of weights by 32 bytes. Four lanes share a row; lane t has
//    run t of a step of 128 inputs.
// 3. Column 4 d + t of the right operand is digit d of run t, zeros for the other runs. So a result
//    belongs to one scale of the weights and one scale of x.
#pragma once

#include "../cuda/mma.cuh"
#include "../cuda/vector.cuh"
#include "integer_row.cuh"
#include "mxfp4_inputs.cuh"
#include "mxfp4_math.h"

namespace ds::cuda {

__device__ __forceinline__ uint32_t chosen_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
  return bytes;
}

/// The bytes of the lowest four codes of a word. A set sign selects the sign of a table's byte,
/// which is 0: so one look-up gives the byte and the other 0.
__device__ __forceinline__ uint32_t mx_bytes(uint32_t word) {
  return chosen_bytes(0x43424140u, 0x4c484644u, word) |
         chosen_bytes(0x3d3e3f40u, 0x34383a3cu, word ^ 0x88888888u);
}

/// A lane's run of its two rows for one step.
struct MxPackets {
  uint4 codes[2];
  uint32_t scales[2];  // of this lane's two columns

  /// The left operand of product i of 4.
  __device__ __forceinline__ void left(uint32_t (&bytes)[4], int i) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t words[4] = {codes[r].x, codes[r].y, codes[r].z, codes[r].w};
      bytes[r] = mx_bytes(words[i]), bytes[2 + r] = mx_bytes(words[i] >> 16);
    }
  }
  /// 2^(scale - 128) of the two columns of row r; 0 for scales below 2.
  __device__ __forceinline__ float2 factors(int r) const {
    const uint32_t pair = __vmaxu2(chosen_bytes(scales[r], 0, 0x4140), 0x00010001u) - 0x00010001u;
    return {__uint_as_float(pair << 23), __uint_as_float(pair << 7 & 0x7f800000u)};
  }
};

/// This lane's view of the digits of one x in shared memory: its column of the right operand, and
/// the factors of its two columns of the result.
class MxColumns {
 public:
  /// `zeros`: kMxZeros bytes of zeros.
  __device__ MxColumns(const MxInputs& x, const uint8_t* zeros) {
    const int lane = threadIdx.x % 32, column = lane / 4, digit = column / 4;
    const bool own = column % 4 == lane % 4;
    right_ = own ? x.digits + lane % 4 * kMxDigits + digit * kMxRun : zeros + (digit ? 0 : 32);
    step_ = own ? kMxRuns * kMxDigits : 0;
    const int first = lane % 4 / 2 * x.runs + lane % 2 * 2;
    factors_ = reinterpret_cast<const float2*>(x.factors + first);
    starts_ = reinterpret_cast<const int2*>(x.starts + first);
  }
  __device__ __forceinline__ void right(uint4 (&r)[2], int step) const {
    const auto* const from = reinterpret_cast<const uint4*>(right_ + step * step_);
    r[0] = from[0], r[1] = from[1];
  }
  __device__ __forceinline__ float2 factors(int step) const { return factors_[step * 2]; }
  __device__ __forceinline__ int2 starts(int step) const { return starts_[step * 2]; }

 private:
  const uint8_t* right_;
  int step_;
  const float2* factors_;
  const int2* starts_;
};

/// Adds a result to the sum of a row.
__device__ __forceinline__ void add_columns(float& sum, int c0, int c1, float2 x, float2 weights) {
  sum = fmaf((__int_as_float(c0) - 12582912.f) * x.x, weights.x, sum);
  sum = fmaf((__int_as_float(c1) - 12582912.f) * x.y, weights.y, sum);
}

/// Both rows of a lane have the same x.
__device__ __forceinline__ void add_step(float (&sums)[2], const MxPackets& packets,
                                         const MxColumns& x, int step) {
  uint4 right[2];
  x.right(right, step);
  const uint32_t words[8] = {right[0].x, right[0].y, right[0].z, right[0].w,
                             right[1].x, right[1].y, right[1].z, right[1].w};
  const int2 start = x.starts(step);
  int c[4] = {start.x, start.y, start.x, start.y};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t left[4];
    packets.left(left, i);
    mma_16x8x32(c, left, words[2 * i], words[2 * i + 1]);
  }
  const float2 factors = x.factors(step);
  add_columns(sums[0], c[0], c[1], factors, packets.factors(0));
  add_columns(sums[1], c[2], c[3], factors, packets.factors(1));
}

/// The two rows of a lane have an x each.
__device__ __forceinline__ void add_step(float (&sums)[2], const MxPackets& packets,
                                         const MxColumns& first, const MxColumns& second,
                                         int step) {
  uint4 right[2], other[2];
  first.right(right, step), second.right(other, step);
  const uint32_t words[2][8] = {{right[0].x, right[0].y, right[0].z, right[0].w, right[1].x,
                                 right[1].y, right[1].z, right[1].w},
                                {other[0].x, other[0].y, other[0].z, other[0].w, other[1].x,
                                 other[1].y, other[1].z, other[1].w}};
  const int2 start = first.starts(step), begin = second.starts(step);
  int c[4] = {start.x, start.y, 0, 0}, e[4] = {0, 0, begin.x, begin.y};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t left[4];
    packets.left(left, i);
    mma_16x8x32(c, left, words[0][2 * i], words[0][2 * i + 1]);
    mma_16x8x32(e, left, words[1][2 * i], words[1][2 * i + 1]);
  }
  add_columns(sums[0], c[0], c[1], first.factors(step), packets.factors(0));
  add_columns(sums[1], e[2], e[3], second.factors(step), packets.factors(1));
}

/// Where a lane's runs of its two rows lie. A row without weights is zeros.
struct MxRows {
  const uint4* codes[2];
  const uint8_t* scales[2];
  int runs;

  __device__ __forceinline__ void point(int r, const uint8_t* all_codes, const uint8_t* all_scales,
                                        int64_t row) {
    codes[r] = reinterpret_cast<const uint4*>(all_codes) + row * runs;
    scales[r] = all_scales + row * runs;
  }
  /// kPairs: scales may be read two at a time.
  template <bool kPairs>
  __device__ __forceinline__ void load(MxPackets& to, int step) const {
    const int lane = threadIdx.x % 32, run = step * kMxRuns + lane % 4;
    const int column = step * kMxRuns + lane % 2 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      to.codes[r] = uint4{0, 0, 0, 0};
      to.scales[r] = 0;
      if (codes[r] == nullptr) continue;
      if (run < runs) to.codes[r] = load_once_16(codes[r] + run);
      if constexpr (kPairs) {
        if (column < runs)
          to.scales[r] = __ldg(reinterpret_cast<const uint16_t*>(scales[r] + column));
      } else {
        if (column < runs) to.scales[r] = __ldg(scales[r] + column);
        if (column + 1 < runs) to.scales[r] |= uint32_t{__ldg(scales[r] + column + 1)} << 8;
      }
    }
  }
};

/// The products of one kind of matrix: see Mxfp4Experts.
struct MxExperts {
  using T = __nv_bfloat16;
  const uint8_t *codes, *scales;  // [experts, outputs, inputs / 2] and [.., inputs / 32]
  const T* bias;                  // [experts, outputs], or null
  const int32_t* ids;             // [tokens, choices]
  const float* weights;           // [tokens, choices], of down projections
  const T* x;                     // [tokens, inputs], of up projections
  uint8_t* inner;                 // MxInputs of each choice of each token: hidden channels
  T* out;                         // [tokens, outputs], of down projections
  int experts, outputs, inputs, choices;
  float limit;
  bool alternate;

  __device__ __forceinline__ bool has(int expert) const { return expert >= 0 && expert < experts; }
  __device__ __forceinline__ float bias_of(int expert, int row) const {
    return bias == nullptr ? 0.f : to_float(bias[int64_t{expert} * outputs + row]);
  }
};

/// kParts warps share the inputs of 8 outputs; each has kAhead steps in flight.
template <int kParts, int kAhead, int kBlocksPerSm>
struct MxShape {
  static constexpr int parts = kParts, ahead = kAhead, blocks_per_sm = kBlocksPerSm;
};

constexpr int kMxTiles = 4, kMxRowsOfTile = 8;  // a block of up projections has 32 channels

/// Multiplies steps `first` to `end` of the rows; `add` adds a step.
template <int kAhead, bool kPairs, class Add>
class MxPipe {
 public:
  __device__ MxPipe(const MxRows& rows, int first, int end)
      : rows_(rows), first_(first), end_(end) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) load(u, first + u);
  }
  __device__ __forceinline__ void run(const Add& add) {
    for (int step = first_; step < end_; step += kAhead)
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        if (step + u >= end_) break;
        add(packets_[u], step + u);
        load(u, step + u + kAhead);
      }
  }

 private:
  __device__ __forceinline__ void load(int u, int step) {
    if (step < end_) rows_.load<kPairs>(packets_[u], step);
  }
  const MxRows& rows_;
  const int first_, end_;
  MxPackets packets_[kAhead];
};

/// The steps of a warp.
struct MxPart {
  int first, end;
  __device__ MxPart(int inputs, int part, int parts) {
    const int steps = (inputs + kMxStep - 1) / kMxStep, each = (steps + parts - 1) / parts;
    first = min(steps, part * each), end = min(steps, first + each);
  }
};

/// Sums of the four lanes of each row, in the lanes with t = 0.
__device__ __forceinline__ void store_rows(float* partial, float (&sums)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], 1);
    sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], 2);
    if (threadIdx.x % 4 == 0) partial[r * kMxRowsOfTile + threadIdx.x % 32 / 4] = sums[r];
  }
}

/// Writes a run as digits: a warp has a number a lane.
__device__ __forceinline__ void write_mx_run(const MxInputs& to, int run, float value) {
  const int lane = threadIdx.x % 32;
  const uint32_t largest = __reduce_max_sync(0xffffffffu, __float_as_uint(value) & 0x7fffffffu);
  const MxScale scale(__uint_as_float(largest));
  const uint32_t raised = scale.raised(value);
  const auto high = static_cast<int8_t>(raised >> 8), low = static_cast<int8_t>(raised ^ 0x80u);
  to.digits[run * kMxDigits + lane] = static_cast<uint8_t>(high);
  to.digits[run * kMxDigits + kMxRun + lane] = static_cast<uint8_t>(low);
  const int highs = __reduce_add_sync(0xffffffffu, static_cast<int>(high));
  const int lows = __reduce_add_sync(0xffffffffu, static_cast<int>(low));
  if (lane == 0) scale.put(to, run, highs, lows);
}

/// Zeros from run `past` on.
__device__ __forceinline__ void clear_mx_runs(const MxInputs& to, int past) {
  const int lane = threadIdx.x % 32;
  for (; past < to.runs; ++past) {
    reinterpret_cast<uint16_t*>(to.digits + past * kMxDigits)[lane] = 0;
    if (lane > 1) continue;
    to.factors[lane * to.runs + past] = 0.f;
    to.starts[lane * to.runs + past] = static_cast<int>(kMxRounder);
  }
}

/// A block computes 32 hidden channels of one choice, and writes them as digits.
template <class Shape, bool kPairs>
__global__ void __launch_bounds__(32 * kMxTiles * Shape::parts, Shape::blocks_per_sm)
    mx_up_kernel(const __grid_constant__ MxExperts a) {
  extern __shared__ uint4 mx_shared[];
  __shared__ float partial[kMxTiles * Shape::parts][2 * kMxRowsOfTile];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int tile = warp / Shape::parts, hidden = a.outputs / 2, runs = mx_runs(a.inputs);
  const int choice = static_cast<int>(blockIdx.x) / (hidden / kMxRun);
  const int run = static_cast<int>(blockIdx.x) % (hidden / kMxRun);
  const int64_t token = blockIdx.y;
  await_previous();
  let_next_begin();
  const int expert = a.ids[token * a.choices + choice];
  const bool known = a.has(expert);
  MxRows rows{{nullptr, nullptr}, {nullptr, nullptr}, a.inputs / kMxRun};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int n = run * kMxRun + tile * kMxRowsOfTile + lane / 4;
    const int row = a.alternate ? 2 * n + r : r * hidden + n;
    if (known) rows.point(r, a.codes, a.scales, int64_t{expert} * a.outputs + row);
  }
  const MxPart part(a.inputs, warp % Shape::parts, Shape::parts);
  const MxInputs x = MxInputs::at(mx_shared + kMxZeros / 16, runs);
  const auto* const zeros = reinterpret_cast<const uint8_t*>(mx_shared);
  if (threadIdx.x < kMxZeros / 16) mx_shared[threadIdx.x] = uint4{0, 0, 0, 0};
  float sums[2] = {};
  const MxColumns columns(x, zeros);
  const auto adding = [&sums, columns](const MxPackets& packets, int step) {
    add_step(sums, packets, columns, step);
  };
  MxPipe<Shape::ahead, kPairs, decltype(adding)> pipe(rows, part.first, part.end);
  write_mx_inputs(x, a.x + token * a.inputs, a.inputs);
  __syncthreads();
  pipe.run(adding);
  store_rows(partial[warp], sums);
  __syncthreads();
  if (warp != 0) return;
  float both[2] = {};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int p = 0; p < Shape::parts; ++p)
      both[r] += partial[lane / kMxRowsOfTile * Shape::parts + p]
                        [r * kMxRowsOfTile + lane % kMxRowsOfTile];
    const int n = run * kMxRun + lane;
    if (known) both[r] += a.bias_of(expert, a.alternate ? 2 * n + r : r * hidden + n);
  }
  const float value = to_float(from_float<MxExperts::T>(expert_gate(both[0], both[1], a.limit)));
  const int inner = mx_runs(hidden);
  const MxInputs to =
      MxInputs::at(a.inner + (token * a.choices + choice) * MxInputs::bytes(inner), inner);
  write_mx_run(to, run, value);
  if (run + 1 == hidden / kMxRun) clear_mx_runs(to, run + 1);
}

/// A block computes 8 outputs of a token: its warps have pairs of choices and parts of the inputs.
template <class Shape, int kPairsOfChoices, bool kPairs>
__global__ void __launch_bounds__(32 * kPairsOfChoices * Shape::parts, Shape::blocks_per_sm)
    mx_down_kernel(const __grid_constant__ MxExperts a) {
  extern __shared__ uint4 mx_shared[];
  __shared__ float partial[kPairsOfChoices * Shape::parts][2 * kMxRowsOfTile];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, pair = warp / Shape::parts;
  const int runs = mx_runs(a.inputs), bytes = MxInputs::bytes(runs);
  const int64_t token = blockIdx.y;
  const int32_t* const ids = a.ids + token * a.choices;
  const int n = static_cast<int>(blockIdx.x) * kMxRowsOfTile + lane / 4;
  // The kernel before the previous one wrote ids and weights.
  MxRows rows{{nullptr, nullptr}, {nullptr, nullptr}, a.inputs / kMxRun};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int choice = 2 * pair + r;
    if (choice >= a.choices || n >= a.outputs || !a.has(ids[choice])) continue;
    rows.point(r, a.codes, a.scales, int64_t{ids[choice]} * a.outputs + n);
  }
  const MxPart part(a.inputs, warp % Shape::parts, Shape::parts);
  const auto* const zeros = reinterpret_cast<const uint8_t*>(mx_shared);
  if (threadIdx.x < kMxZeros / 16) mx_shared[threadIdx.x] = uint4{0, 0, 0, 0};
  const auto numbers = [&](int choice) {
    return MxInputs::at(reinterpret_cast<uint8_t*>(mx_shared) + kMxZeros + choice * bytes, runs);
  };
  const MxColumns first(numbers(min(2 * pair, a.choices - 1)), zeros);
  const MxColumns second(numbers(min(2 * pair + 1, a.choices - 1)), zeros);
  float sums[2] = {};
  const auto adding = [&sums, first, second](const MxPackets& packets, int step) {
    add_step(sums, packets, first, second, step);
  };
  MxPipe<Shape::ahead, kPairs, decltype(adding)> pipe(rows, part.first, part.end);
  await_previous();
  const auto* const from = reinterpret_cast<const uint4*>(a.inner + token * a.choices * bytes);
  for (int i = threadIdx.x; i < a.choices * bytes / 16; i += static_cast<int>(blockDim.x))
    mx_shared[kMxZeros / 16 + i] = from[i];
  __syncthreads();
  pipe.run(adding);
  store_rows(partial[warp], sums);
  __syncthreads();
  const int own = static_cast<int>(blockIdx.x) * kMxRowsOfTile + static_cast<int>(threadIdx.x);
  if (threadIdx.x >= kMxRowsOfTile || own >= a.outputs) return;
  float sum = 0.f;
  for (int j = 0; j < a.choices; ++j) {
    const int expert = ids[j];
    if (!a.has(expert)) continue;
    float product = a.bias_of(expert, own);
#pragma unroll
    for (int p = 0; p < Shape::parts; ++p)
      product += partial[j / 2 * Shape::parts + p][j % 2 * kMxRowsOfTile + threadIdx.x];
    sum = fmaf(a.weights[token * a.choices + j], product, sum);
  }
  a.out[token * a.outputs + own] = from_float<MxExperts::T>(sum);
}

/// Inputs for which 32-bit offsets suffice.
constexpr int64_t kMostMxInputs = 1 << 20;

/// Zeros and the numbers of so many rows.
inline size_t mx_shared_bytes(int inputs, int rows) {
  return kMxZeros + size_t{1} * rows * MxInputs::bytes(mx_runs(inputs));
}

/// Scales may be read two at a time if every row begins at an even address.
inline bool has_scale_pairs(const MxExperts& a) {
  return a.inputs / kMxRun % 2 == 0 && aligned_for<2>(a.scales);
}

inline void launch_mx_up(const MxExperts& a, int tokens, CudaContext& ctx) {
  using Shape = MxShape<2, 2, 3>;
  const auto blocks = static_cast<unsigned>(a.choices * (a.outputs / 2 / kMxRun));
  const size_t bytes = mx_shared_bytes(a.inputs, 1);
  launch_behind(ctx,
                {"mxfp4_experts", dim3(blocks, static_cast<unsigned>(tokens)),
                 dim3(32 * kMxTiles * Shape::parts), ctx.stream, bytes},
                has_scale_pairs(a) ? mx_up_kernel<Shape, true> : mx_up_kernel<Shape, false>, a);
}

template <int kPairsOfChoices, int kParts, int kAhead, int kBlocksPerSm>
void launch_mx_down_shape(const MxExperts& a, int tokens, CudaContext& ctx) {
  using Shape = MxShape<kParts, kAhead, kBlocksPerSm>;
  const auto blocks = static_cast<unsigned>((a.outputs + kMxRowsOfTile - 1) / kMxRowsOfTile);
  const size_t bytes = mx_shared_bytes(a.inputs, a.choices);
  launch_behind(ctx,
                {"mxfp4_experts", dim3(blocks, static_cast<unsigned>(tokens)),
                 dim3(32 * kPairsOfChoices * Shape::parts), ctx.stream, bytes},
                has_scale_pairs(a) ? mx_down_kernel<Shape, kPairsOfChoices, true>
                                   : mx_down_kernel<Shape, kPairsOfChoices, false>,
                a);
}

inline void launch_mx_down(const MxExperts& a, int tokens, CudaContext& ctx) {
  if (a.choices <= 2) return launch_mx_down_shape<1, 8, 2, 3>(a, tokens, ctx);
  if (a.choices <= 4) return launch_mx_down_shape<2, 4, 2, 3>(a, tokens, ctx);
  launch_mx_down_shape<4, 2, 2, 3>(a, tokens, ctx);
}

}  // namespace ds::cuda
