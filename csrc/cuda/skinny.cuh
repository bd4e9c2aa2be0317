// Multiplies up to 32 rows by a matrix of coded weights on tensor cores. Each lane copies 16 bytes
// of codes through shared memory into the registers from which mma reads weights.
//
// mma may sum over inputs in any order, if it is the same for both operands. So each of the four
// lanes that share an output reads a run of consecutive inputs instead of every fourth pair. Then
// no lane needs data of another lane. The left operand has 16 outputs by 16 inputs of the weights.
// The columns of the right operand, at least 8, are the rows of x.
//
// Copies run several steps ahead of the sums, also across tiles of outputs, to keep memory busy.
// They start while the previous kernel still runs, if the weights do not depend on it.
#pragma once

#include <algorithm>

#include "dependent_launch.cuh"
#include "mma.cuh"
#include "shared_memory.h"
#include "vector.cuh"

namespace ds::cuda {

/// Shape of a block: tiles of 16 outputs, warps that split the inputs, and tiles of 8 rows of x.
template <int kTiles, int kParts, int kColumns>
struct SkinnyShape {
  static constexpr int tiles = kTiles, parts = kParts, columns = kColumns;
  static constexpr int threads = 32 * kParts, outputs = 16 * kTiles, rows = 8 * kColumns;
  static constexpr int stages = kTiles == 1 ? 6 : 3;  // steps in flight per warp
  static constexpr int ahead = kColumns > 1 ? 1 : 4;  // steps ahead of which scales are loaded
  static constexpr int blocks_per_sm = 2;
  static constexpr int buffers = kColumns == 1 ? 2 : 1;       // buffers of a tile's sums
  static constexpr int ring = 2 * kTiles * stages * threads;  // packets
  static constexpr size_t shared_bytes =
      size_t{16} * ring + sizeof(float) * buffers * kParts * rows * (outputs + 1);
  static_assert(threads % outputs == 0);
  static_assert(shared_bytes <= kSharedMemoryOfAll);
};

/// Arguments of the kernel. finish(m, n, sum) writes element n of row m. Weights has these members:
///
///     run              inputs of a packet
///     scales_steps     true if a packet's Step has a factor for its sums
///     packet(), step_of(), factor_of(), scale_of_row()
///     left(), right()  the pairs of a packet and of x, in the same order
template <class T, class Weights, class Finish>
struct SkinnyArguments {
  Weights weights;
  const T* x;
  int64_t x_stride;
  int rows, inputs;  // inputs: a multiple of Weights::run
  int64_t outputs;
  Finish finish;
  bool settled;  // weights may be read before the previous kernel has ended
};

/// Adds the products of one step to `sums`. This lane's packets begin at input k.
template <class Shape, class T, class Weights, class Finish>
__device__ __forceinline__ void multiply_step(
    const SkinnyArguments<T, Weights, Finish>& a, int k, const uint4 (&packets)[Shape::tiles][2],
    const typename Weights::Step (&steps)[Shape::tiles][2],
    float (&sums)[Shape::tiles][Shape::columns][4]) {
  const int lane = threadIdx.x % 32;
  const bool inside = k < a.inputs;
#pragma unroll
  for (int i = 0; i < Weights::run / 8; ++i) {
    uint32_t left[Shape::tiles][2][4];
#pragma unroll
    for (int r = 0; r < Shape::tiles; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        Weights::left(left[r][half], packets[r][half], i, steps[r][half]);
#pragma unroll
    for (int c = 0; c < Shape::columns; ++c) {
      // Rows beyond the last repeat it. Their sums are not stored.
      const int m = min(c * 8 + lane / 4, a.rows - 1);
      uint4 x{0, 0, 0, 0};
      if (inside) x = *reinterpret_cast<const uint4*>(a.x + m * a.x_stride + k + i * 8);
      uint32_t right[4];
      Weights::right(right, x);
#pragma unroll
      for (int r = 0; r < Shape::tiles; ++r)
#pragma unroll
        for (int p = 0; p < 4; p += 2) {
          const uint32_t pairs[4] = {left[r][0][p], left[r][1][p], left[r][0][p + 1],
                                     left[r][1][p + 1]};
          mma_16x8x16<T>(sums[r][c], pairs, right[p], right[p + 1]);
        }
    }
  }
}

/// Like multiply_step(), with a factor per output for this step's inputs.
template <class Shape, class T, class Weights, class Finish>
__device__ __forceinline__ void multiply_scaled_step(
    const SkinnyArguments<T, Weights, Finish>& a, int k, const uint4 (&packets)[Shape::tiles][2],
    const typename Weights::Step (&steps)[Shape::tiles][2],
    float (&sums)[Shape::tiles][Shape::columns][4]) {
  if constexpr (!Weights::scales_steps) {
    multiply_step<Shape>(a, k, packets, steps, sums);
  } else {
    float here[Shape::tiles][Shape::columns][4] = {};
    multiply_step<Shape>(a, k, packets, steps, here);
#pragma unroll
    for (int r = 0; r < Shape::tiles; ++r)
#pragma unroll
      for (int c = 0; c < Shape::columns; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          sums[r][c][e] = fmaf(here[r][c][e], Weights::factor_of(steps[r][e / 2]), sums[r][c][e]);
  }
}

/// Iterates over the weights of a warp: the steps of its part, for each tile of its block. A lane
/// copies only data that it uses, so no barrier is needed.
template <class Shape, class T, class Weights, class Finish>
class SkinnyWarp {
 public:
  using Arguments = SkinnyArguments<T, Weights, Finish>;
  using Details = typename Weights::Step[Shape::tiles][2];

  __device__ SkinnyWarp(const Arguments& a, uint4* ring)
      : a_(a),
        ring_(ring + threadIdx.x),
        each_((steps_of(a) + Shape::parts - 1) / Shape::parts),
        next_tile_(blockIdx.x) {}

  /// Steps of a warp per tile. The last may be beyond the inputs, where it adds nothing.
  __device__ int each() const { return each_; }
  __device__ int input(int step) const {
    return ((step * Shape::parts + static_cast<int>(threadIdx.x) / 32) * 4 + threadIdx.x % 4) *
           Weights::run;
  }
  /// Returns true if any lane has inputs in this step.
  __device__ bool exists(int step) const {
    return input(step) - static_cast<int>(threadIdx.x % 4) * Weights::run < a_.inputs;
  }
  /// Starts the copy of the next step if there is one.
  __device__ __forceinline__ void copy_next() {
    const int k = input(next_step_);
    const bool inside = k < a_.inputs && next_tile_ * Shape::outputs < a_.outputs;
#pragma unroll
    for (int i = 0; i < 2 * Shape::tiles; ++i)
      cp_async_16(slot(next_slot_, i),
                  a_.weights.packet(inside ? output(next_tile_, i) : 0, inside ? k : 0), inside);
    cp_async_commit();
    next_slot_ = next_slot_ + 1 == Shape::stages ? 0 : next_slot_ + 1;
    if (++next_step_ < each_) return;
    next_step_ = 0;
    next_tile_ += gridDim.x;
  }
  /// Returns the packets of the oldest step in flight and starts the copy of another one.
  __device__ __forceinline__ void take(uint4 (&packets)[Shape::tiles][2]) {
    cp_async_wait<Shape::stages - 1>();
#pragma unroll
    for (int i = 0; i < 2 * Shape::tiles; ++i) packets[i / 2][i % 2] = *slot(next_slot_, i);
    copy_next();
  }
  __device__ __forceinline__ void load_details(int64_t tile, int step, Details& details) const {
    const int k = min(input(step), a_.inputs - 1);
#pragma unroll
    for (int i = 0; i < 2 * Shape::tiles; ++i)
      details[i / 2][i % 2] = a_.weights.step_of(output(tile, i), k);
  }

 private:
  static __device__ int steps_of(const Arguments& a) {
    return (a.inputs + 4 * Weights::run - 1) / (4 * Weights::run);
  }
  /// Outputs beyond the last repeat it. Their sums are not stored.
  __device__ __forceinline__ int64_t output(int64_t tile, int i) const {
    const int64_t n = tile * Shape::outputs + i * 8 + threadIdx.x % 32 / 4;
    return n < a_.outputs ? n : a_.outputs - 1;
  }
  __device__ __forceinline__ uint4* slot(int stage, int i) const {
    return ring_ + (stage * 2 * Shape::tiles + i) * Shape::threads;
  }

  const Arguments& a_;
  uint4* const ring_;
  const int each_;
  int64_t next_tile_;
  int next_step_ = 0, next_slot_ = 0;
};

/// Adds the sums of a tile's warps in order and calls finish().
template <class Shape, class T, class Weights, class Finish>
__device__ __forceinline__ void finish_sums(
    const SkinnyArguments<T, Weights, Finish>& a, int64_t tile, float scale,
    const float (&sums)[Shape::tiles][Shape::columns][4],
    float (&partial)[Shape::parts][Shape::rows][Shape::outputs + 1]) {
  const int lane = threadIdx.x % 32, part = threadIdx.x / 32;
#pragma unroll
  for (int r = 0; r < Shape::tiles; ++r)
#pragma unroll
    for (int c = 0; c < Shape::columns; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        partial[part][c * 8 + lane % 4 * 2 + e % 2][r * 16 + e / 2 * 8 + lane / 4] = sums[r][c][e];
  __syncthreads();
  const int n = threadIdx.x % Shape::outputs;
  const int64_t output = tile * Shape::outputs + n;
  for (int m = threadIdx.x / Shape::outputs; m < min(Shape::rows, a.rows);
       m += Shape::threads / Shape::outputs) {
    float sum = 0.f;
#pragma unroll
    for (int p = 0; p < Shape::parts; ++p) sum += partial[p][m][n];
    if (output < a.outputs) a.finish(m, output, sum * scale);
  }
}

/// Launches as many blocks as run at once, which loop over tiles. The next kernel must not start
/// early, because its blocks would take resources of attention's clusters. (A layer of Llama 8B
/// with 32 rows of 4-bit codes would take 279 us instead of 243.)
template <class Shape, class T, class Weights, class Finish>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks_per_sm)
    skinny_kernel(const __grid_constant__ SkinnyArguments<T, Weights, Finish> a) {
  using Warp = SkinnyWarp<Shape, T, Weights, Finish>;
  using Sums = float[Shape::parts][Shape::rows][Shape::outputs + 1];
  extern __shared__ uint4 skinny_ring[];
  Sums* const partial = reinterpret_cast<Sums*>(skinny_ring + Shape::ring);
  Warp warp(a, skinny_ring);
  typename Warp::Details next[Shape::ahead];
  if (!a.settled) await_previous();
  for (int i = 0; i < Shape::stages; ++i) warp.copy_next();
#pragma unroll
  for (int u = 0; u < Shape::ahead; ++u) warp.load_details(blockIdx.x, u, next[u]);
  if (a.settled) await_previous();

  const int64_t tiles = (a.outputs + Shape::outputs - 1) / Shape::outputs;
  int turn = 0;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t own = tile * Shape::outputs + threadIdx.x % Shape::outputs;
    const float scale = a.weights.scale_of_row(min(own, a.outputs - 1));
    float sums[Shape::tiles][Shape::columns][4] = {};
    for (int step = 0; step < warp.each(); step += Shape::ahead) {
      typename Warp::Details details[Shape::ahead];
      const bool ends = step + Shape::ahead >= warp.each();
#pragma unroll
      for (int u = 0; u < Shape::ahead; ++u) {
#pragma unroll
        for (int i = 0; i < 2 * Shape::tiles; ++i) details[u][i / 2][i % 2] = next[u][i / 2][i % 2];
        warp.load_details(ends ? tile + gridDim.x : tile, ends ? u : step + Shape::ahead + u,
                          next[u]);
      }
#pragma unroll
      for (int u = 0; u < Shape::ahead; ++u) {
        if (step + u >= warp.each()) break;
        uint4 packets[Shape::tiles][2];
        warp.take(packets);
        if (warp.exists(step + u))
          multiply_scaled_step<Shape>(a, warp.input(step + u), packets, details[u], sums);
      }
    }
    if (Shape::buffers == 1) __syncthreads();
    finish_sums<Shape>(a, tile, scale, sums, partial[turn % Shape::buffers]);
    ++turn;
  }
}

template <class Shape, class T, class Weights, class Finish>
void launch_skinny_shape(const char* op, const SkinnyArguments<T, Weights, Finish>& a,
                         CudaContext& ctx) {
  const int64_t tiles = (a.outputs + Shape::outputs - 1) / Shape::outputs;
  const int64_t blocks = std::min<int64_t>(tiles, int64_t{ctx.sm_count} * Shape::blocks_per_sm);
  const auto kernel = skinny_kernel<Shape, T, Weights, Finish>;
  launch_behind(ctx,
                {op, dim3(static_cast<unsigned>(blocks)), dim3(Shape::threads), ctx.stream,
                 Shape::shared_bytes},
                kernel, a);
}

/// The largest number of rows for skinny_kernel.
constexpr int kSkinnyRows = 32;

/// Launches the product of 1 to kSkinnyRows rows, with at least one output and one input. Packets
/// of weights and of 8 elements of x must be 16-byte aligned.
template <class T, class Weights, class Finish>
void launch_skinny(const char* op, const SkinnyArguments<T, Weights, Finish>& a, CudaContext& ctx) {
  if (a.rows <= 8) return launch_skinny_shape<SkinnyShape<1, 8, 1>>(op, a, ctx);
  if (a.rows <= 16) return launch_skinny_shape<SkinnyShape<2, 8, 2>>(op, a, ctx);
  launch_skinny_shape<SkinnyShape<2, 8, 4>>(op, a, ctx);
}

}  // namespace ds::cuda
