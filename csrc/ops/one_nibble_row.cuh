// The product of one row with 4-bit codes, in 16-bit floats on tensor cores, for small groups and
// rows that do not fit integer_row.cuh. Codes go from memory to registers directly. (skinny.cuh,
// for several rows, needs shared memory.)
//
// mma takes 16 outputs by 16 inputs on the left and 8 columns on the right. All 8 columns are the
// same row: the seven unused columns cost less than scalar multiplications. Converting codes to
// weights is the bottleneck, so it has few instructions.
#pragma once

#include "../cuda/shared_memory.h"
#include "one_row.cuh"
#include "quantized_codes.cuh"

namespace ds::cuda {

/// Computes out [outputs] = x [inputs] by weights + bias, or gated out [outputs / 2]: see OneRow.
template <class T>
struct OneNibbleRow {
  CodedWeights<T, 4, ScaleTime::weight> weights;  // no zero points, scales of T
  const T *x, *bias;                              // bias may be null
  T* out;
  bool settled;  // codes may be read before the previous kernel has ended
};

/// A block has 16 outputs. Its kWarps warps split the inputs into steps, each with kAhead steps in
/// flight.
template <bool kGated, int kWarps, int kAhead, int kBlocksPerSm>
struct NibbleShape {
  static constexpr bool gated = kGated;
  static constexpr int warps = kWarps, threads = 32 * kWarps, ahead = kAhead;
  static constexpr int blocks_per_sm = kBlocksPerSm;
};

constexpr int kNibbleOutputs = 16;                    // outputs of a block
constexpr int kNibbleRun = 32, kNibbleSpan = 4 * 32;  // inputs of a lane's packet, and of a step
/// Elements between runs of x in shared memory. The runs of 4 lanes are in different banks.
constexpr int kNibblePitch = kNibbleRun + 8;

/// Returns output r of this block, gates first, or an index beyond the end.
template <bool kGated>
__device__ __forceinline__ int nibble_output(int outputs, int r) {
  const int block = static_cast<int>(blockIdx.x);
  if constexpr (!kGated) return block * kNibbleOutputs + r;
  constexpr int kPairs = kNibbleOutputs / 2;
  const int half = outputs / 2, pair = block * kPairs + r % kPairs;
  return pair < half ? pair + r / kPairs * half : outputs;
}

/// The packets of a lane's two outputs for a step. Four lanes share two outputs; lane t has run t.
template <class T>
struct NibblePackets {
  using Weights = CodedWeights<T, 4, ScaleTime::weight>;
  uint4 codes[2];
  T scales[2];

  /// Adds the products with `x`, this lane's run in the order of right(), to the sums.
  __device__ __forceinline__ void add_to(float (&sums)[2], const T* x) const {
    float here[4] = {};
#pragma unroll
    for (int i = 0; i < kNibbleRun / 8; ++i) {
      const uint4 eight = *reinterpret_cast<const uint4*>(x + i * 8);
      const uint32_t right[4] = {eight.x, eight.y, eight.z, eight.w};
      uint32_t left[2][4];
#pragma unroll
      for (int r = 0; r < 2; ++r)
        Weights::left(left[r], codes[r], i, {to_float(scales[r]), middle_code(4)});
#pragma unroll
      for (int p = 0; p < 4; p += 2) {
        const uint32_t pairs[4] = {left[0][p], left[1][p], left[0][p + 1], left[1][p + 1]};
        mma_16x8x16<T>(here, pairs, right[p], right[p + 1]);
      }
    }
    sums[0] += here[0], sums[1] += here[2];
  }
};

/// Reads a lane's packets.
template <bool kGated, class T>
class NibbleRows {
 public:
  /// `last` is the first run of x after the warp's runs.
  __device__ NibbleRows(const CodeMatrix& w, int last)
      : shift_(w.groups == 1 ? 31 : w.shift), last_(last) {
    const int outputs = static_cast<int>(w.outputs);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // Lanes beyond the last output read it again. Their sums are not stored.
      const int64_t own =
          min(nibble_output<kGated>(outputs, r * 8 + threadIdx.x % 32 / 4), outputs - 1);
      codes_[r] = reinterpret_cast<const uint4*>(w.packed + own * w.words);
      scales_[r] = static_cast<const T*>(w.scale) + own * w.groups;
    }
  }
  /// Loads run `index` if it belongs to the warp.
  __device__ __forceinline__ void load(NibblePackets<T>& to, int index) const {
    if (index >= last_) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      to.codes[r] = load_once_16(codes_[r] + index);
      to.scales[r] = scales_[r][index * kNibbleRun >> shift_];
    }
  }

 private:
  const int shift_, last_;
  const uint4* codes_[2];
  const T* scales_[2];
};

/// Writes the warp's part of x, steps `first` to `end`, to shared memory in the order of the right
/// operand. Positions beyond the inputs are 0, which cancels padding codes.
template <class Weights, class T>
__device__ __forceinline__ void order_inputs(T* to, const T* x, int inputs, int first, int end) {
  const int lane = threadIdx.x % 32;
  for (int k = first * kNibbleSpan + lane * 8; k < end * kNibbleSpan; k += 256) {
    uint4 eight{0, 0, 0, 0};
    if (k < inputs) eight = *reinterpret_cast<const uint4*>(x + k);
    uint32_t pairs[4];
    Weights::right(pairs, eight);
    *reinterpret_cast<uint4*>(to + k / kNibbleRun * kNibblePitch + k % kNibbleRun) =
        uint4{pairs[0], pairs[1], pairs[2], pairs[3]};
  }
  __syncwarp();
}

/// Adds the partial sums of the warps and writes the block's outputs.
template <class Shape, class T>
__device__ __forceinline__ void finish_row(const OneNibbleRow<T>& a,
                                           const float (&partial)[Shape::warps][kNibbleOutputs]) {
  constexpr int kFinished = Shape::gated ? kNibbleOutputs / 2 : kNibbleOutputs;
  const int r = threadIdx.x, outputs = static_cast<int>(a.weights.matrix.outputs);
  if (r >= kFinished) return;
  const int n = nibble_output<Shape::gated>(outputs, r);
  if (n >= outputs) return;
  const auto total = [&](int row, int of) {
    float sum = 0.f;
#pragma unroll
    for (int p = 0; p < Shape::warps; ++p) sum += partial[p][row];
    return a.bias ? sum + to_float(a.bias[of]) : sum;
  };
  if constexpr (Shape::gated)
    a.out[n] = gated<T>(total(r, n), total(r + kFinished, n + outputs / 2));
  else a.out[n] = from_float<T>(total(r, n));
}

/// The next kernel must not start early: see one_row_kernel.
template <class Shape, class T>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks_per_sm)
    one_nibble_row_kernel(const __grid_constant__ OneNibbleRow<T> a) {
  extern __shared__ uint4 nibble_row_inputs[];
  __shared__ float partial[Shape::warps][kNibbleOutputs];
  const CodeMatrix& w = a.weights.matrix;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, inputs = static_cast<int>(w.inputs);
  const int steps = (inputs + kNibbleSpan - 1) / kNibbleSpan;
  const int each = (steps + Shape::warps - 1) / Shape::warps;
  const int first = warp * each, end = min(steps, first + each);
  const NibbleRows<Shape::gated, T> rows(w, min(end * 4, inputs / kNibbleRun));
  NibblePackets<T> packets[Shape::ahead] = {};
  if (!a.settled) await_previous();
#pragma unroll
  for (int u = 0; u < Shape::ahead; ++u) rows.load(packets[u], (first + u) * 4 + lane % 4);
  if (a.settled) await_previous();
  T* const x = reinterpret_cast<T*>(nibble_row_inputs);
  order_inputs<CodedWeights<T, 4, ScaleTime::weight>>(x, a.x, inputs, first, end);
  float sums[2] = {};
  for (int step = first; step < end; step += Shape::ahead)
#pragma unroll
    for (int u = 0; u < Shape::ahead; ++u) {
      if (step + u >= end) break;
      const int index = (step + u) * 4 + lane % 4;
      packets[u].add_to(sums, x + index * kNibblePitch);
      rows.load(packets[u], index + Shape::ahead * 4);
    }
#pragma unroll
  for (int r = 0; r < 2; ++r)
    if (lane % 4 == 0) partial[warp][r * 8 + lane / 4] = sums[r];
  __syncthreads();
  finish_row<Shape>(a, partial);
}

/// The largest number of inputs for which shared memory has room.
constexpr int64_t kMostNibbleInputs = 32768;

template <class Shape, class T>
void launch_nibble_shape(const char* name, const OneNibbleRow<T>& a, CudaContext& ctx) {
  const CodeMatrix& w = a.weights.matrix;
  const auto blocks = static_cast<unsigned>((w.outputs + kNibbleOutputs - 1) / kNibbleOutputs);
  constexpr size_t kRun = sizeof(T) * kNibblePitch;  // bytes
  static_assert(kRun * 4 * (kMostNibbleInputs / kNibbleSpan) <= kSharedMemoryOfAll);
  const int64_t runs = (w.inputs + kNibbleSpan - 1) / kNibbleSpan * 4;
  const size_t bytes = kRun * static_cast<size_t>(runs);
  launch_behind(ctx, {name, dim3(blocks), dim3(Shape::threads), ctx.stream, bytes},
                one_nibble_row_kernel<Shape, T>, a);
}

/// Returns true if one_nibble_row_kernel supports the codes. A group must be 2^n packets, or the
/// whole row.
inline bool takes_nibble_row(const CodeMatrix& w) {
  return w.inputs <= kMostNibbleInputs && (w.groups == 1 || w.shift >= 5);
}

/// With many outputs, blocks have few warps, so that blocks start and end less often. With few
/// outputs, blocks have enough warps to use all SMs.
template <bool kGated, class T>
void launch_one_nibble_row(const char* name, const OneNibbleRow<T>& a, CudaContext& ctx) {
  if (a.weights.matrix.outputs >= int64_t{8} * kNibbleOutputs * ctx.sm_count)
    return launch_nibble_shape<NibbleShape<kGated, 4, 2, 8>>(name, a, ctx);
  launch_nibble_shape<NibbleShape<kGated, 8, 3, 3>>(name, a, ctx);
}

}  // namespace ds::cuda
