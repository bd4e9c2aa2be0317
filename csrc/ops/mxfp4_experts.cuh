// MXFP4 experts on the GPU: mx_up_kernel computes the gated up projections, mx_down_kernel the
// weighted sum of down projections of the chosen experts. An SM runs one block of each. A block
// starts copies of codes, then puts x and scales into shared memory. After __syncthreads, warps
// multiply (mxfp4_digits.cuh) and each group adds its warps' sums. A lane reads only codes that it
// has copied itself. Arithmetic takes longer than reading: with the codes in the L2 cache, up
// projections of 35 MB still take 11.5 of 14.5 us on an H200.
#pragma once

#include <algorithm>

#include "../cuda/shared_memory.h"
#include "mxfp4_digits.cuh"

namespace ds::cuda {

/// Arguments of the up or the down projections: see Mxfp4Experts.
struct MxExperts {
  using T = __nv_bfloat16;
  const uint8_t *codes, *scales;  // [experts, outputs, inputs / 2] and [.., inputs / 32]
  const T* bias;                  // [experts, outputs], or null
  const int32_t* ids;             // [tokens, choices]
  const float* weights;           // [tokens, choices], for down projections
  const T* x;                     // [tokens, inputs], for up projections
  uint8_t* inner;                 // hidden channels, as MxInputs of each token and choice
  T* out;                         // [tokens, outputs], for down projections
  int experts, outputs, inputs, choices;
  float limit;
  bool alternate;

  __device__ __forceinline__ bool has(int expert) const { return expert >= 0 && expert < experts; }
  __device__ __forceinline__ float bias_of(int expert, int row) const {
    return bias == nullptr ? 0.f : to_float(bias[int64_t{expert} * outputs + row]);
  }
};

/// Warps of a group. A group computes 32 hidden channels (up) or 8 outputs (down).
constexpr int kMxGroupWarps = 4;

/// kGroups groups per block. A warp has copies of kSlots slots in flight; a slot has two steps.
template <int kGroups, int kSlots, int kBlocksPerSm>
struct MxShape {
  static constexpr int groups = kGroups, slots = kSlots, blocks_per_sm = kBlocksPerSm;
  static constexpr int warps = kMxGroupWarps * kGroups, threads = 32 * warps;
};

/// Outputs of a warp's tile of 16 rows, and bytes of a slot.
constexpr int kMxRowsOfTile = 8, kMxSlotBytes = kMxStepsOfSlot * 2 * 32 * 16;

/// A warp's cp.async pipeline: copies the codes of its 16 rows to shared memory, kSlots slots
/// ahead, for slots `first` to `end`.
template <int kSlots>
class MxPipe {
 public:
  /// `ring` has kSlots * kMxSlotBytes for this warp. `rows` are the first codes of this lane's two
  /// rows.
  __device__ __forceinline__ MxPipe(uint8_t* ring, const uint8_t* const (&rows)[2], int runs,
                                    int first, int end)
      : ring_(shared_address(ring) + threadIdx.x % 32 * 16), end_(end), first_(first) {
    const int lane_run = static_cast<int>(threadIdx.x) % 4;
    left_ = runs - lane_run - first * kMxRunsOfSlot;
#pragma unroll
    for (int r = 0; r < 2; ++r) rows_[r] = rows[r] + (first * kMxRunsOfSlot + lane_run) * 16;
#pragma unroll
    for (int u = 0; u < kSlots; ++u) fetch(u, first + u);
  }
  template <class Add>
  __device__ __forceinline__ void run(const Add& add) {
    for (int slot = first_; slot < end_; slot += kSlots)
#pragma unroll
      for (int u = 0; u < kSlots; ++u) {
        if (slot + u >= end_) break;
        cp_async_wait<kSlots - 1>();
        uint4 codes[kMxStepsOfSlot][2];
#pragma unroll
        for (int i = 0; i < kMxStepsOfSlot * 2; ++i) {
          uint4& c = codes[i / 2][i % 2];
          asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                       : "=r"(c.x), "=r"(c.y), "=r"(c.z), "=r"(c.w)
                       : "r"(ring_ + u * kMxSlotBytes + i * 512)
                       : "memory");
        }
        add(codes, (slot + u) * kMxStepsOfSlot);
        fetch(u, slot + u + kSlots);
      }
  }

 private:
  /// Starts the copy of slot `slot`. Slots must be consecutive.
  __device__ __forceinline__ void fetch(int u, int slot) {
#pragma unroll
    for (int i = 0; i < kMxStepsOfSlot * 2; ++i)
      if (slot < end_ && i / 2 * kMxRuns < left_)
        asm volatile(
            "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(ring_ + u * kMxSlotBytes + i * 512),
            "l"(rows_[i % 2] + i / 2 * kMxRuns * 16)
            : "memory");
    cp_async_commit();
    left_ -= kMxRunsOfSlot;
#pragma unroll
    for (int r = 0; r < 2; ++r) rows_[r] += kMxRunsOfSlot * 16;
  }
  const uint32_t ring_;
  const int end_, first_;
  int left_;  // runs from this lane's run of the next slot on
  const uint8_t* rows_[2];
};

/// The scales of 8 consecutive rows, converted to bf16 by mx_factors(). A packet is 8 scales, which
/// one lane loads.
template <int kEach>
class MxScales {
 public:
  /// Starts to load the first 32 * kEach packets. store() loads the others.
  __device__ __forceinline__ MxScales(const uint8_t* from, int runs) : from_(from), runs_(runs) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = i * 32 + static_cast<int>(threadIdx.x) % 32;
      packets_[i] = uint2{0, 0};
      if (at < runs) packets_[i] = __ldg(reinterpret_cast<const uint2*>(from) + at);
    }
  }
  __device__ __forceinline__ void store(uint16_t* to) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) store(to, i * 32 + threadIdx.x % 32, packets_[i]);
    for (int at = kEach * 32 + static_cast<int>(threadIdx.x) % 32; at < runs_; at += 32)
      store(to, at, __ldg(reinterpret_cast<const uint2*>(from_) + at));
  }

 private:
  __device__ __forceinline__ void store(uint16_t* to, int at, uint2 packet) const {
    if (at < runs_)
      reinterpret_cast<uint4*>(to)[at] = uint4{mx_factors<0>(packet.x), mx_factors<1>(packet.x),
                                               mx_factors<0>(packet.y), mx_factors<1>(packet.y)};
  }
  const uint8_t* from_;
  int runs_;
  uint2 packets_[kEach];
};

/// Packets that a lane loads ahead: enough for 8 rows of up to 3,072 inputs.
constexpr int kMxScalesAhead = 3;

/// Returns the bytes of the factors of 16 rows, with zeros behind them for the last step.
__host__ __device__ inline int mx_factor_bytes(int inputs) {
  return 2 * (2 * kMxRowsOfTile * (inputs / kMxRun) + kMxRunsOfSlot);
}

/// Returns the shared memory of a block in bytes: zeros, the digits of `rows` rows of x, the
/// factors of `tiles` tiles, and the slots.
template <class Shape>
size_t mx_shared_bytes(int inputs, int rows, int tiles) {
  return kMxZeros + size_t{1} * rows * MxInputs::bytes(mx_runs(inputs)) +
         size_t{1} * tiles * mx_factor_bytes(inputs) + Shape::warps * Shape::slots * kMxSlotBytes;
}

/// Waits for the warps of group `group` of the block.
__device__ __forceinline__ void mx_group_barrier(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(32 * kMxGroupWarps) : "memory");
}

/// Writes a run as digits. Lane l of the warp passes number l in `value`.
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

/// Writes zeros from run `past` on.
__device__ __forceinline__ void clear_mx_runs(const MxInputs& to, int past) {
  const int lane = threadIdx.x % 32;
  for (; past < to.runs; ++past) {
    reinterpret_cast<uint16_t*>(to.digits + past * kMxDigits)[lane] = 0;
    if (lane > 1) continue;
    to.factors[lane * to.runs + past] = 0.f;
    to.starts[lane * to.runs + past] = static_cast<int>(kMxRounder);
  }
}

/// Each group computes 32 hidden channels of a choice, 8 per warp, and writes them as digits for
/// mx_down_kernel. Group g of a block takes item g * gridDim.x + blockIdx.x.
template <class Shape, bool kPairs>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks_per_sm)
    mx_up_kernel(const __grid_constant__ MxExperts a) {
  extern __shared__ uint4 mx_shared[];
  __shared__ float2 partial[Shape::groups][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / kMxGroupWarps;
  const int tile = warp % kMxGroupWarps;
  const int hidden = a.outputs / 2, runs = mx_runs(a.inputs), own_runs = a.inputs / kMxRun;
  const int inner_runs = hidden / kMxRun;
  const int item = group * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  const bool has_item = item < a.choices * inner_runs;
  const int choice = has_item ? item / inner_runs : 0, run = has_item ? item % inner_runs : 0;
  const int64_t token = blockIdx.y;
  auto* const bytes = reinterpret_cast<uint8_t*>(mx_shared);
  const MxInputs x = MxInputs::at(bytes + kMxZeros, runs);
  uint8_t* const after = bytes + kMxZeros + MxInputs::bytes(runs);
  auto* const factors =
      reinterpret_cast<uint16_t*>(after + (group * 4 + tile) * mx_factor_bytes(a.inputs));
  uint8_t* const ring =
      after + Shape::groups * 4 * mx_factor_bytes(a.inputs) + warp * Shape::slots * kMxSlotBytes;
  if (threadIdx.x < kMxZeros / 16) mx_shared[threadIdx.x] = uint4{0, 0, 0, 0};
  if (lane < kMxRunsOfSlot) factors[2 * kMxRowsOfTile * own_runs + lane] = 0;
  await_previous();
  let_next_begin();
  const int expert = a.ids[token * a.choices + choice];
  MxInputPacket packet(a.x + token * a.inputs, a.inputs);
  const bool known = a.has(expert);
  const int n = run * kMxRun + tile * kMxRowsOfTile;  // first channel of the tile
  const int64_t base = int64_t{known ? expert : 0} * a.outputs;
  // Returns row g of half r of the tile. If halves alternate, their rows are consecutive.
  const auto row = [&](int r, int g) {
    return base + (a.alternate ? 2 * (n + g) + r : r * hidden + n + g);
  };
  const uint8_t* const rows[2] = {a.codes + row(0, lane / 4) * own_runs * 16,
                                  a.codes + row(1, lane / 4) * own_runs * 16};
  const int slots = has_item ? runs / kMxRunsOfSlot : 0;
  MxPipe<Shape::slots> pipe(ring, rows, own_runs, 0, slots);
  const int64_t second = a.alternate ? row(0, kMxRowsOfTile / 2) : row(1, 0);
  const MxScales<kMxScalesAhead> first_scales(a.scales + row(0, 0) * own_runs, own_runs);
  const MxScales<kMxScalesAhead> second_scales(a.scales + second * own_runs, own_runs);
  float bias[2] = {};
  if (a.bias)
#pragma unroll
    for (int r = 0; r < 2; ++r) bias[r] = to_float(a.bias[row(r, lane / 4)]);
  write_mx_inputs(x, a.x + token * a.inputs, a.inputs, packet);
  first_scales.store(factors);
  second_scales.store(factors + kMxRowsOfTile * own_runs);
  __syncthreads();
  if (!has_item) return;
  const int g = lane / 4;
  const MxColumns columns(x, bytes);
  const MxFactors<kPairs> of_rows(factors, own_runs, a.alternate ? 2 * g : g,
                                  a.alternate ? 2 * g + 1 : kMxRowsOfTile + g);
  float sums[2] = {};
  pipe.run([&](const uint4(&codes)[kMxStepsOfSlot][2], int step) {
#pragma unroll
    for (int s = 0; s < kMxStepsOfSlot; ++s) add_step(sums, codes[s], of_rows, columns, step + s);
  });
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], 1);
    sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], 2);
  }
  sums[0] += bias[0], sums[1] += bias[1];
  if (lane % 4 == 0) partial[group][tile * kMxRowsOfTile + g] = make_float2(sums[0], sums[1]);
  mx_group_barrier(group);
  if (tile != 0) return;
  float2 both = partial[group][lane];
  if (!known) both = make_float2(0.f, 0.f);
  const float value = to_float(from_float<MxExperts::T>(expert_gate(both.x, both.y, a.limit)));
  const int inner = mx_runs(hidden);
  const MxInputs to =
      MxInputs::at(a.inner + (token * a.choices + choice) * MxInputs::bytes(inner), inner);
  write_mx_run(to, run, value);
  if (run + 1 == inner_runs) clear_mx_runs(to, run + 1);
}

/// Each group computes 8 outputs of a token. A warp takes one pair of choices. If there are fewer
/// pairs than warps, the warps of a pair split its inputs.
template <class Shape, int kPairsOfChoices, bool kPairs>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks_per_sm)
    mx_down_kernel(const __grid_constant__ MxExperts a) {
  constexpr int kParts = kMxGroupWarps / kPairsOfChoices;
  extern __shared__ uint4 mx_shared[];
  __shared__ float partial[Shape::warps][2 * kMxRowsOfTile];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4;
  const int group = warp / kMxGroupWarps, pair = warp % kMxGroupWarps / kParts,
            part = warp % kParts;
  const int runs = mx_runs(a.inputs), own_runs = a.inputs / kMxRun, bytes = MxInputs::bytes(runs);
  const int64_t token = blockIdx.y;
  const int tiles = (a.outputs + kMxRowsOfTile - 1) / kMxRowsOfTile;
  const int item = group * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  const bool has_item = item < tiles;
  const int n = has_item ? item * kMxRowsOfTile : 0;
  auto* const shared = reinterpret_cast<uint8_t*>(mx_shared);
  uint8_t* const after = shared + kMxZeros + a.choices * bytes;
  const int factor_bytes = mx_factor_bytes(a.inputs);
  auto* const factors =
      reinterpret_cast<uint16_t*>(after + (group * kPairsOfChoices + pair) * factor_bytes);
  uint8_t* const ring =
      after + Shape::groups * kPairsOfChoices * factor_bytes + warp * Shape::slots * kMxSlotBytes;
  if (threadIdx.x < kMxZeros / 16) mx_shared[threadIdx.x] = uint4{0, 0, 0, 0};
  if (lane < kMxRunsOfSlot) factors[2 * kMxRowsOfTile * own_runs + lane] = 0;
  // An earlier kernel than the previous one wrote ids and weights, so they are complete.
  const int32_t* const ids = a.ids + token * a.choices;
  int expert[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) expert[r] = ids[min(2 * pair + r, a.choices - 1)];
  const auto row = [&](int r, int of) {
    return int64_t{a.has(expert[r]) ? expert[r] : 0} * a.outputs + n + of;
  };
  const uint8_t* const rows[2] = {a.codes + row(0, g) * own_runs * 16,
                                  a.codes + row(1, g) * own_runs * 16};
  const int slots = runs / kMxRunsOfSlot, each = (slots + kParts - 1) / kParts;
  const int end = has_item ? min(slots, part * each + each) : 0;
  MxPipe<Shape::slots> pipe(ring, rows, own_runs, min(end, part * each), end);
#pragma unroll
  for (int r = 0; r < 2; ++r)
    if (kParts == 1 || part == r)
      MxScales<kMxScalesAhead>(a.scales + row(r, 0) * own_runs, own_runs)
          .store(factors + r * kMxRowsOfTile * own_runs);
  // Each thread of the first warp has the weight of a choice for an output, and its bias.
  const int own = lane % kMxRowsOfTile;
  float weight[2] = {}, biases = 0.f;
  bool known[2] = {};
  if (warp % kMxGroupWarps == 0)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int choice = lane / kMxRowsOfTile + 4 * i;
      known[i] = choice < a.choices && a.has(ids[choice]);
      if (!known[i]) continue;
      weight[i] = a.weights[token * a.choices + choice];
      biases = fmaf(weight[i], a.bias_of(ids[choice], n + own), biases);
    }
  const auto numbers = [&](int choice) {
    return MxInputs::at(shared + kMxZeros + min(choice, a.choices - 1) * bytes, runs);
  };
  const MxColumns first(numbers(2 * pair), shared), second(numbers(2 * pair + 1), shared);
  await_previous();
  let_next_begin();
  const auto* const from = reinterpret_cast<const uint4*>(a.inner + token * a.choices * bytes);
#pragma unroll 5
  for (int i = threadIdx.x; i < a.choices * bytes / 16; i += Shape::threads)
    mx_shared[kMxZeros / 16 + i] = from[i];
  __syncthreads();
  if (!has_item) return;
  const MxFactors<kPairs> of_rows(factors, own_runs, g, kMxRowsOfTile + g);
  float sums[2] = {};
  pipe.run([&](const uint4(&codes)[kMxStepsOfSlot][2], int step) {
#pragma unroll
    for (int s = 0; s < kMxStepsOfSlot; ++s)
      add_step(sums, codes[s], of_rows, first, second, step + s);
  });
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], 1);
    sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], 2);
    if (lane % 4 == 0) partial[warp][r * kMxRowsOfTile + g] = sums[r];
  }
  mx_group_barrier(group);
  if (warp % kMxGroupWarps != 0) return;
  float sum = biases;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int choice = lane / kMxRowsOfTile + 4 * i;
    if (choice >= 2 * kPairsOfChoices) continue;
    float product = 0.f;
#pragma unroll
    for (int p = 0; p < kParts; ++p)
      product += partial[warp + choice / 2 * kParts + p][choice % 2 * kMxRowsOfTile + own];
    if (known[i]) sum = fmaf(weight[i], product, sum);
  }
  sum += __shfl_xor_sync(0xffffffffu, sum, 8);
  sum += __shfl_xor_sync(0xffffffffu, sum, 16);
  if (lane < kMxRowsOfTile && n + own < a.outputs)
    a.out[token * a.outputs + n + own] = from_float<MxExperts::T>(sum);
}

/// The largest number of inputs for 32-bit offsets.
constexpr int64_t kMostMxInputs = 1 << 20;

/// Returns true if each row has an even number of factors, which may then be read in pairs.
inline bool has_factor_pairs(const MxExperts& a) { return a.inputs / kMxRun % 2 == 0; }

/// Returns the number of blocks of `groups` items each: at least one per SM, if there are enough
/// items.
inline unsigned mx_blocks(int items, int groups, int tokens, const CudaContext& ctx) {
  const int few = (items + groups - 1) / groups;
  return static_cast<unsigned>(
      std::max(few, std::min(items, tokens > 1 ? 1 : static_cast<int>(ctx.sm_count))));
}
template <class Shape>
void launch_mx_up_shape(const MxExperts& a, int tokens, CudaContext& ctx) {
  const int items = a.choices * (a.outputs / 2 / kMxRun);
  const size_t bytes = mx_shared_bytes<Shape>(a.inputs, 1, 4 * Shape::groups);
  launch_behind(ctx,
                {"mxfp4_experts",
                 dim3(mx_blocks(items, Shape::groups, tokens, ctx), static_cast<unsigned>(tokens)),
                 dim3(Shape::threads), ctx.stream, bytes},
                has_factor_pairs(a) ? mx_up_kernel<Shape, true> : mx_up_kernel<Shape, false>, a);
}

template <class Shape, int kPairsOfChoices>
void launch_mx_down_shape(const MxExperts& a, int tokens, CudaContext& ctx) {
  const int items = a.outputs / kMxRowsOfTile;
  const size_t bytes = mx_shared_bytes<Shape>(a.inputs, a.choices, Shape::groups * kPairsOfChoices);
  launch_behind(ctx,
                {"mxfp4_experts",
                 dim3(mx_blocks(items, Shape::groups, tokens, ctx), static_cast<unsigned>(tokens)),
                 dim3(Shape::threads), ctx.stream, bytes},
                has_factor_pairs(a) ? mx_down_kernel<Shape, kPairsOfChoices, true>
                                    : mx_down_kernel<Shape, kPairsOfChoices, false>,
                a);
}

/// A large block has all work of an SM for a token. A small one allows more inputs.
using MxLargeUp = MxShape<3, 3, 2>;
using MxLargeDown = MxShape<3, 4, 1>;
using MxSmall = MxShape<1, 2, 4>;

inline int mx_pairs_of(int choices) { return choices <= 2 ? 1 : choices <= 4 ? 2 : 4; }

/// Returns the shared memory of a block of up projections. mx_down_bytes() returns that of down
/// projections.
template <class Shape>
size_t mx_up_bytes(int channels) {
  return mx_shared_bytes<Shape>(channels, 1, 4 * Shape::groups);
}
template <class Shape>
size_t mx_down_bytes(int hidden, int choices) {
  return mx_shared_bytes<Shape>(hidden, choices, Shape::groups * mx_pairs_of(choices));
}
inline size_t mx_most_bytes(const CudaContext& ctx) {
  return ctx.code.architecture == 90 ? 226 * 1024 : kSharedMemoryOfAll;
}

/// Returns true if the kernels support the sizes.
inline bool has_mx_shape(int channels, int hidden, int choices, const CudaContext& ctx) {
  return std::max(mx_up_bytes<MxSmall>(channels), mx_down_bytes<MxSmall>(hidden, choices)) <=
         mx_most_bytes(ctx);
}

inline void launch_mx_up(const MxExperts& a, int tokens, CudaContext& ctx) {
  if (mx_up_bytes<MxLargeUp>(a.inputs) <= mx_most_bytes(ctx))
    launch_mx_up_shape<MxLargeUp>(a, tokens, ctx);
  else launch_mx_up_shape<MxSmall>(a, tokens, ctx);
}

template <int kPairsOfChoices>
void launch_mx_down_of(const MxExperts& a, int tokens, CudaContext& ctx) {
  if (mx_down_bytes<MxLargeDown>(a.inputs, a.choices) <= mx_most_bytes(ctx))
    launch_mx_down_shape<MxLargeDown, kPairsOfChoices>(a, tokens, ctx);
  else launch_mx_down_shape<MxSmall, kPairsOfChoices>(a, tokens, ctx);
}

inline void launch_mx_down(const MxExperts& a, int tokens, CudaContext& ctx) {
  const int pairs = mx_pairs_of(a.choices);
  if (pairs == 1) launch_mx_down_of<1>(a, tokens, ctx);
  else if (pairs == 2) launch_mx_down_of<2>(a, tokens, ctx);
  else launch_mx_down_of<4>(a, tokens, ctx);
}

}  // namespace ds::cuda
