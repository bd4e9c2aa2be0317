// Products of up to 32 rows with a matrix of coded weights on tensor cores: 16 bytes of codes a
// lane go from memory to the registers in which mma takes the weights. Weights of 16 bits are
// cuBLASLt's: it was measured 18 to 40 % faster with them.
//
// mma sums over inputs in any order, if both operands have the same one. So lane t of the four that
// share an output takes a run of neighbouring inputs of its own instead of every fourth pair, and
// no weight passes through shared memory. Weights are the left operand, 16 outputs by 16 inputs;
// rows of x are the columns of the right one, of which 8 are the fewest.
#pragma once

#include "dependent_launch.cuh"
#include "mma.cuh"
#include "vector.cuh"

namespace ds::cuda {

/// 16 bytes that nobody reads again: they leave the L1 cache to what is shared.
__device__ __forceinline__ uint4 load_once_16(const void* p) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(p));
  return x;
}

/// Asks for a line of memory that a later load will find in the L2 cache.
__device__ __forceinline__ void prefetch_to_l2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/// Row tiles of 16 outputs a warp, warps over outputs, warps that share the inputs of an output,
/// and tiles of 8 rows of x.
template <int kTiles, int kOutputWarps, int kParts, int kColumns>
struct SkinnyShape {
  static constexpr int tiles = kTiles, parts = kParts, columns = kColumns;
  static constexpr int threads = 32 * kOutputWarps * kParts;
  static constexpr int outputs = 16 * kTiles * kOutputWarps, rows = 8 * kColumns;
  static constexpr int unroll = 4 / kTiles;  // packets of an output in flight
  static constexpr int blocks_per_sm = (kColumns == 1 ? 768 : 512) / threads;
};

/// `finish(m, n, sum)` writes element n of row m.
/// Weights has: run, the inputs of a packet; scales_steps, whether a packet's Step has a factor for
/// its sums; packet(), step_of(), left() and right(), the pairs of a packet and of x in one order;
/// and factor_of() and scale_of_row().
template <class T, class Weights, class Finish>
struct SkinnyArguments {
  Weights weights;
  const T* x;
  int64_t x_stride;
  int rows, inputs;  // inputs: a multiple of Weights::run
  int64_t outputs;
  Finish finish;
};

/// Adds the products of one step's packets, which lie at input k of this lane, to `sums`.
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
      // Rows behind the last one are it again: their sums are nobody's.
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

/// The same, where each output has a factor for this step's inputs.
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

/// Adds up what the warps of an output have, in their order, and hands it on.
template <class Shape, class T, class Weights, class Finish>
__device__ __forceinline__ void finish_sums(const SkinnyArguments<T, Weights, Finish>& a,
                                            int64_t first, int part, int warp_output,
                                            const float (&sums)[Shape::tiles][Shape::columns][4]) {
  __shared__ float partial[Shape::parts][Shape::rows][Shape::outputs + 1];
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < Shape::tiles; ++r)
#pragma unroll
    for (int c = 0; c < Shape::columns; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        partial[part][c * 8 + lane % 4 * 2 + e % 2][warp_output + r * 16 + e / 2 * 8 + lane / 4] =
            sums[r][c][e];
  __syncthreads();
  for (int i = threadIdx.x; i < Shape::outputs * Shape::rows; i += Shape::threads) {
    const int n = i % Shape::outputs, m = i / Shape::outputs;
    if (first + n >= a.outputs || m >= a.rows) continue;
    float sum = 0.f;
#pragma unroll
    for (int p = 0; p < Shape::parts; ++p) sum += partial[p][m][n];
    a.finish(m, first + n, sum * a.weights.scale_of_row(first + n));
  }
}

template <class Shape, class T, class Weights, class Finish>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks_per_sm)
    skinny_kernel(const __grid_constant__ SkinnyArguments<T, Weights, Finish> a) {
  constexpr int kRun = Weights::run;
  // Sums of a step beside those of a row leave fewer registers for packets.
  constexpr int kUnroll = Weights::scales_steps && Shape::columns > 2 ? 1 : Shape::unroll;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int part = warp % Shape::parts, warp_output = warp / Shape::parts * 16 * Shape::tiles;
  const int64_t first = int64_t{blockIdx.x} * Shape::outputs;
  // Outputs behind the last one are it again: their sums are nobody's.
  const auto output = [&](int r, int half) {
    const int64_t n = first + warp_output + r * 16 + half * 8 + lane / 4;
    return n < a.outputs ? n : a.outputs - 1;
  };
  const auto input = [&](int step) { return (step * 4 + lane % 4) * kRun; };
  const int steps = (a.inputs + 4 * kRun - 1) / (4 * kRun);
  let_next_begin();
#pragma unroll
  for (int u = 0; u < kUnroll; ++u)
#pragma unroll
    for (int i = 0; i < 2 * Shape::tiles; ++i) {
      const int k = input(part + u * Shape::parts);
      if (k < a.inputs) prefetch_to_l2(a.weights.packet(output(i / 2, i % 2), k));
    }
  await_previous();

  float sums[Shape::tiles][Shape::columns][4] = {};
  for (int base = part; base < steps; base += Shape::parts * kUnroll) {
    uint4 packets[kUnroll][Shape::tiles][2];
    typename Weights::Step details[kUnroll][Shape::tiles][2];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int k = input(base + u * Shape::parts);
#pragma unroll
      for (int r = 0; r < Shape::tiles; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          packets[u][r][half] = uint4{0, 0, 0, 0};
          if (k < a.inputs)
            packets[u][r][half] = load_once_16(a.weights.packet(output(r, half), k));
          details[u][r][half] = a.weights.step_of(output(r, half), min(k, a.inputs - 1));
        }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int step = base + u * Shape::parts;
      if (step < steps) multiply_scaled_step<Shape>(a, input(step), packets[u], details[u], sums);
    }
  }
  finish_sums<Shape>(a, first, part, warp_output, sums);
}

template <class Shape, class T, class Weights, class Finish>
void launch_skinny_shape(const char* op, const SkinnyArguments<T, Weights, Finish>& a,
                         CudaContext& ctx) {
  const auto grid = static_cast<unsigned>((a.outputs + Shape::outputs - 1) / Shape::outputs);
  const Launch launch{op, dim3(grid), dim3(Shape::threads), ctx.stream};
  launch_behind(ctx, launch, skinny_kernel<Shape, T, Weights, Finish>, a);
}

/// Rows of x that skinny_kernel takes.
constexpr int kSkinnyRows = 32;

/// At most kSkinnyRows rows, at least one of them, one output and one input; packets of weights and
/// 8 elements of x aligned to 16 bytes.
template <class T, class Weights, class Finish>
void launch_skinny(const char* op, const SkinnyArguments<T, Weights, Finish>& a, CudaContext& ctx) {
  if (a.rows <= 8) return launch_skinny_shape<SkinnyShape<1, 1, 8, 1>>(op, a, ctx);
  if (a.rows <= 16) return launch_skinny_shape<SkinnyShape<2, 1, 8, 2>>(op, a, ctx);
  launch_skinny_shape<SkinnyShape<2, 1, 8, 4>>(op, a, ctx);
}

}  // namespace ds::cuda
