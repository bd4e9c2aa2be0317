// The experts of a few tokens in MXFP4 at memory bandwidth: a decoding step. Codes go from memory
// to registers, become bf16 weights there, and meet x on tensor cores. Each choice of a token reads
// its expert once.
//
// mma takes 16 rows of weights. A warp has two halves of 8 rows: the gates and the ups of 8 hidden
// channels, or 8 outputs of two experts. Four lanes share a row; lane t has the block of 32 inputs
// number t of a step. The columns of mma are one x for all rows, or x of the first and of the
// second expert in turns.
#pragma once

#include "../cuda/mma.cuh"
#include "../cuda/vector.cuh"
#include "mxfp4_math.h"
#include "one_row.cuh"

namespace ds::cuda {

/// The products of one kind of matrix: see Mxfp4Experts.
struct ExpertRows {
  using T = __nv_bfloat16;
  const uint8_t *codes, *scales;  // [experts, outputs, inputs / 2] and [.., inputs / 32]
  const T* bias;                  // [experts, outputs], or null
  const T* x;                     // [tokens, inputs]; of down projections [tokens, choices, inputs]
  const int32_t* ids;             // [tokens, choices]
  const float* weights;           // [tokens, choices], of down projections
  T* out;                         // [tokens, choices, outputs / 2], or [tokens, outputs]
  int experts, outputs, inputs, choices;
  float limit;
  bool alternate;
  bool begun;  // ids and weights may be read before the previous kernel has ended
};

/// Up projections have no pairs of experts. Of down projections, kPairs pairs of experts share the
/// warps of a block. The other warps split the inputs; each has kAhead steps in flight. With
/// kEarly the next kernel may begin as soon as all blocks have begun.
template <int kPairs, int kWarps, int kAhead, int kBlocksPerSm, bool kEarly = false>
struct ExpertShape {
  static constexpr bool down = kPairs > 0, early = kEarly;
  static constexpr int pairs = down ? kPairs : 1, warps = kWarps, threads = 32 * kWarps;
  static constexpr int parts = kWarps / pairs, ahead = kAhead, blocks_per_sm = kBlocksPerSm;
  static constexpr int arrays = down ? 2 * kPairs : 1;  // of x
  static constexpr int choices = down ? 2 * kPairs : 1;
  static_assert(kWarps % pairs == 0);
};

constexpr int kExpertOutputs = 8;                     // of a tile
constexpr int kExpertRun = 32, kExpertSpan = 4 * 32;  // inputs of a packet, and of a step
/// Elements between runs of x in shared memory, so that runs of 4 lanes lie in different banks.
constexpr int kExpertPitch = kExpertRun + 8;

/// Elements of one x in shared memory; neighbouring ones lie 16 banks apart.
__host__ __device__ inline int expert_array(int inputs) {
  const int bytes = (inputs + kExpertSpan - 1) / kExpertSpan * 4 * kExpertPitch * 2;
  return ((bytes + 127) / 128 * 128 + 64) / 2;
}

/// The factor of weights that fp4_pairs has left at 2^-126 of their value, twice in a register.
/// A scale above 128 needs a second factor.
__device__ __forceinline__ uint32_t expert_factor(uint32_t scale) {
  return min(scale + 126u, 254u) * 0x00800080u;
}
__device__ __forceinline__ uint32_t second_factor(uint32_t scale) {
  return (max(scale, 128u) - 1u) * 0x00800080u;
}

__device__ __forceinline__ uint32_t multiply_pair(uint32_t a, uint32_t b) {
  const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                         *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const uint32_t*>(&product);
}

/// The weights of a word as pairs of inputs (p, p + 4). A code in the sign, the lowest two bits of
/// the exponent and the highest bit of the mantissa is its value times 2^-126, also if subnormal.
template <bool kLarge>
__device__ __forceinline__ void fp4_pairs(uint32_t (&pairs)[4], uint32_t word, uint32_t factor,
                                          uint32_t second) {
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    const uint32_t at = word << (12 - 4 * p);
    const uint32_t small = (at & 0x80008000u) | ((at >> 6) & 0x01c001c0u);
    pairs[p] = multiply_pair(small, factor);
    if constexpr (kLarge) pairs[p] = multiply_pair(pairs[p], second);
  }
}

/// A lane's blocks of its two rows for one step.
struct ExpertPackets {
  uint4 codes[2];
  uint32_t scales[2];

  template <bool kLarge>
  __device__ __forceinline__ void add(float (&sums)[2], const __nv_bfloat16* x) const {
    float here[4] = {};
    uint32_t factor[2], second[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      factor[r] = expert_factor(scales[r]);
      second[r] = kLarge ? second_factor(scales[r]) : 0;
    }
#pragma unroll
    for (int i = 0; i < kExpertRun / 8; ++i) {
      const uint4 right = *reinterpret_cast<const uint4*>(x + i * 8);
      uint32_t left[2][4];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t words[4] = {codes[r].x, codes[r].y, codes[r].z, codes[r].w};
        fp4_pairs<kLarge>(left[r], words[i], factor[r], second[r]);
      }
      const uint32_t low[4] = {left[0][0], left[1][0], left[0][1], left[1][1]};
      const uint32_t high[4] = {left[0][2], left[1][2], left[0][3], left[1][3]};
      mma_16x8x16<__nv_bfloat16>(here, low, right.x, right.y);
      mma_16x8x16<__nv_bfloat16>(here, high, right.z, right.w);
    }
    sums[0] += here[0], sums[1] += here[3];
  }

  /// Adds the products with `x`, this lane's run in the order of the pairs, to the sums.
  __device__ __forceinline__ void add_to(float (&sums)[2], const __nv_bfloat16* x) const {
    if (__any_sync(0xffffffffu, max(scales[0], scales[1]) > 128)) add<true>(sums, x);
    else add<false>(sums, x);
  }
};

/// The blocks of a lane, step after step and tile after tile.
template <class Shape>
class ExpertCursor {
 public:
  __device__ ExpertCursor(const ExpertRows& a, const int32_t* ids, int tiles, int first, int end)
      : a_(a), ids_(ids), tiles_(tiles), first_(first), end_(end), step_(first), tile_(blockIdx.x) {
    stop_ = first + (end - first + Shape::ahead - 1) / Shape::ahead * Shape::ahead;
    find_rows();
  }

  /// Loads the blocks of the next step, zeros past the inputs.
  __device__ __forceinline__ void load(ExpertPackets& to) {
    const int index = step_ * 4 + static_cast<int>(threadIdx.x % 4);
    const bool inside = step_ < end_ && index < a_.inputs / kExpertRun;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      to.codes[r] = uint4{0, 0, 0, 0};
      to.scales[r] = 0;
      if (!inside || codes_[r] == nullptr) continue;
      to.codes[r] = load_once_16(codes_[r] + index);
      to.scales[r] = __ldg(scales_[r] + index);
    }
    if (++step_ < stop_) return;
    step_ = first_;
    tile_ += gridDim.x;
    find_rows();
  }

 private:
  __device__ __forceinline__ void find_rows() {
    const int lane = threadIdx.x % 32, hidden = a_.outputs / 2;
    const int height = Shape::down ? a_.outputs : hidden;
    const int each = (height + kExpertOutputs - 1) / kExpertOutputs;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int choice =
          Shape::down ? 2 * (static_cast<int>(threadIdx.x) / 32 / Shape::parts) + r : tile_ / each;
      const int n = (Shape::down ? tile_ : tile_ % each) * kExpertOutputs + lane / 4;
      codes_[r] = nullptr;
      if (tile_ >= tiles_ || n >= height || choice >= a_.choices) continue;
      const int expert = ids_[choice];
      if (expert < 0 || expert >= a_.experts) continue;
      const int row = Shape::down ? n : a_.alternate ? 2 * n + r : r * hidden + n;
      const int64_t block = (int64_t{expert} * a_.outputs + row) * (a_.inputs / kExpertRun);
      codes_[r] = reinterpret_cast<const uint4*>(a_.codes) + block;
      scales_[r] = a_.scales + block;
    }
  }

  const ExpertRows& a_;
  const int32_t* const ids_;
  const int tiles_, first_, end_;
  int step_, stop_, tile_;
  const uint4* codes_[2];
  const uint8_t* scales_[2];
};

/// Writes steps `first` to `end` of x to shared memory in the order of the pairs, zeros past the
/// inputs.
__device__ __forceinline__ void order_expert_inputs(__nv_bfloat16* to, const __nv_bfloat16* x,
                                                    int inputs, int first, int end) {
  const int lane = threadIdx.x % 32;
  for (int k = first * kExpertSpan + lane * 8; k < end * kExpertSpan; k += 256) {
    uint4 eight{0, 0, 0, 0};
    if (x != nullptr && k < inputs) eight = *reinterpret_cast<const uint4*>(x + k);
    *reinterpret_cast<uint4*>(to + k / kExpertRun * kExpertPitch + k % kExpertRun) =
        uint4{__byte_perm(eight.x, eight.z, 0x5410), __byte_perm(eight.x, eight.z, 0x7632),
              __byte_perm(eight.y, eight.w, 0x5410), __byte_perm(eight.y, eight.w, 0x7632)};
  }
}

/// The output of thread n < kExpertOutputs in a tile, and the biases of its rows.
template <class Shape>
struct ExpertOutput {
  int place = -1;  // in out; -1: none
  float bias[Shape::choices + 1], weights[Shape::choices];

  __device__ ExpertOutput(const ExpertRows& a, const int32_t* ids, const float* weights_of,
                          int tile) {
    const int hidden = a.outputs / 2, height = Shape::down ? a.outputs : hidden;
    const int each = (height + kExpertOutputs - 1) / kExpertOutputs;
    const int n = (Shape::down ? tile : tile % each) * kExpertOutputs + threadIdx.x;
    if (threadIdx.x >= kExpertOutputs || n >= height) return;
    const auto bias_of = [&](int expert, int row) {
      if (a.bias == nullptr || expert < 0 || expert >= a.experts) return 0.f;
      return to_float(a.bias[int64_t{expert} * a.outputs + row]);
    };
    if constexpr (Shape::down) {
      place = n;
#pragma unroll
      for (int j = 0; j < Shape::choices; ++j) {
        weights[j] = bias[j] = 0.f;
        if (j >= a.choices) continue;
        const int expert = ids[j];
        if (expert < 0 || expert >= a.experts) continue;
        weights[j] = weights_of[j];
        bias[j] = bias_of(expert, n);
      }
    } else {
      place = tile / each * hidden + n;
      const int expert = ids[tile / each];
      bias[0] = bias_of(expert, a.alternate ? 2 * n : n);
      bias[1] = bias_of(expert, a.alternate ? 2 * n + 1 : hidden + n);
    }
  }

  /// Adds the partial sums of the warps in order, and writes the output.
  __device__ __forceinline__ void write(const ExpertRows& a, ExpertRows::T* out,
                                        const float (*partial)[2 * kExpertOutputs]) const {
    if (place < 0) return;
    const auto total = [&](int pair, int row) {
      float sum = 0.f;
#pragma unroll
      for (int p = 0; p < Shape::parts; ++p) sum += partial[pair * Shape::parts + p][row];
      return sum;
    };
    const int r = threadIdx.x;
    if constexpr (Shape::down) {
      float sum = 0.f;
#pragma unroll
      for (int j = 0; j < Shape::choices; ++j)
        sum += weights[j] * (total(j / 2, j % 2 * kExpertOutputs + r) + bias[j]);
      out[place] = from_float<ExpertRows::T>(sum);
    } else {
      out[place] = from_float<ExpertRows::T>(
          expert_gate(total(0, r) + bias[0], total(0, kExpertOutputs + r) + bias[1], a.limit));
    }
  }
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks_per_sm)
    expert_rows_kernel(const __grid_constant__ ExpertRows a) {
  using T = ExpertRows::T;
  extern __shared__ uint4 expert_inputs[];
  __shared__ float partial[2][Shape::warps][2 * kExpertOutputs];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = warp % Shape::parts;
  const int height = Shape::down ? a.outputs : a.outputs / 2;
  const int each_tile = (height + kExpertOutputs - 1) / kExpertOutputs;
  const int tiles = Shape::down ? each_tile : each_tile * a.choices;
  const int steps = (a.inputs + kExpertSpan - 1) / kExpertSpan;
  const int each = (steps + Shape::parts - 1) / Shape::parts;
  const int first = min(steps, part * each), end = min(steps, first + each);
  const int padded = (end - first + Shape::ahead - 1) / Shape::ahead * Shape::ahead;
  const int token = blockIdx.y;
  const int32_t* const ids = a.ids + token * a.choices;
  const float* const weights = Shape::down ? a.weights + token * a.choices : nullptr;
  if (!a.begun) await_previous();
  if constexpr (Shape::early) let_next_begin();
  ExpertCursor<Shape> cursor(a, ids, tiles, first, end);
  ExpertPackets packets[Shape::ahead];
#pragma unroll
  for (int u = 0; u < Shape::ahead; ++u) cursor.load(packets[u]);
  if (a.begun) await_previous();

  // A warp reads only what it has written itself.
  T* const shared = reinterpret_cast<T*>(expert_inputs);
  const int array = expert_array(a.inputs), pair = warp / Shape::parts;
  const T* right = shared;
  if constexpr (Shape::down) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int choice = 2 * pair + r;
      const T* const x =
          choice < a.choices ? a.x + (int64_t{token} * a.choices + choice) * a.inputs : nullptr;
      order_expert_inputs(shared + choice * array, x, a.inputs, first, end);
    }
    right += (2 * pair + lane / 4 % 2) * array;
    __syncwarp();
  } else {
    order_expert_inputs(shared, a.x + int64_t{token} * a.inputs, a.inputs, first, end);
    __syncwarp();
  }
  T* const out = a.out + int64_t{token} * (Shape::down ? a.outputs : a.choices * (a.outputs / 2));
  int turn = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, turn ^= 1) {
    const ExpertOutput<Shape> output(a, ids, weights, tile);
    float sums[2] = {};
    for (int step = first; step < first + padded; step += Shape::ahead)
#pragma unroll
      for (int u = 0; u < Shape::ahead; ++u) {
        if (step + u < end)
          packets[u].add_to(sums, right + ((step + u) * 4 + lane % 4) * kExpertPitch);
        cursor.load(packets[u]);
      }
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (lane % 4 == 0) partial[turn][warp][r * kExpertOutputs + lane / 4] = sums[r];
    __syncthreads();
    output.write(a, out, partial[turn]);
  }
}

/// Launches blocks for at most `most` tiles of each token at once; 0: a block for each tile.
template <class Shape>
void launch_expert_rows(const char* op, const ExpertRows& a, int tokens, int most,
                        CudaContext& ctx) {
  const int height = Shape::down ? a.outputs : a.outputs / 2;
  const int each = (height + kExpertOutputs - 1) / kExpertOutputs;
  const int tiles = Shape::down ? each : each * a.choices;
  const int blocks = most > 0 && most < tiles ? most : tiles;
  const size_t bytes = size_t{2} * Shape::arrays * static_cast<size_t>(expert_array(a.inputs));
  launch_behind(ctx,
                {op, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(tokens)),
                 dim3(Shape::threads), ctx.stream, bytes},
                expert_rows_kernel<Shape>, a);
}

}  // namespace ds::cuda
