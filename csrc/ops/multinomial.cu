// Draws categories on the GPU, with the same bits as on the CPU: weights and keys are exact, and
// sums are of integers.
#include "multinomial.h"

#include "../cuda/block_reduce.cuh"
#include "../cuda/vector.cuh"
#include "multinomial_math.h"
#include "scan.h"
#include "sort.h"

namespace ds::cuda {

void run(const Scan& op, CudaContext& ctx);
void run(const Sort& op, CudaContext& ctx);

namespace {

constexpr const char* kOp = "multinomial";
constexpr int kThreads = 256;

struct Stream {
  uint64_t seed, offset;
  __device__ __forceinline__ Philox4 words(int64_t block) const {
    return philox(seed, offset, static_cast<uint64_t>(block));
  }
};

/// Writes integers proportional to a row's values, or zeros if one of them is not a valid
/// probability. A block per row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    weights_kernel(const T* in, int64_t* weights, int64_t columns) {
  const int64_t first = blockIdx.x * columns;
  float largest = 0.0f;
  int bad = 0;
  for (int64_t c = threadIdx.x; c < columns; c += kThreads) {
    const float p = to_float(in[first + c]);
    bad |= !is_probability(p);
    largest = p > largest ? p : largest;
  }
  largest = block_reduce(largest, Max{});
  bad = __syncthreads_or(bad);
  for (int64_t c = threadIdx.x; c < columns; c += kThreads)
    weights[first + c] = bad ? 0 : weight_of(to_float(in[first + c]), largest);
}

/// Finds the first category with a running sum above the draw. A thread per draw.
__global__ void __launch_bounds__(kThreads)
    draw_kernel(const int64_t* sums, int64_t* index, int64_t columns, int64_t draws, int64_t n,
                Stream stream) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= n) return;
  const int64_t* const row = sums + at / draws * columns;
  const int64_t total = row[columns - 1];
  if (total == 0) {
    index[at] = -1;
    return;
  }
  const Philox4 words = stream.words(at);
  const int64_t target = below(total, words.v[0], words.v[1]);
  int64_t low = 0, high = columns - 1;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (row[middle] > target) high = middle;
    else low = middle + 1;
  }
  index[at] = low;
}

/// Writes the keys of the race, four elements per thread. An invalid probability gives NaN.
template <class T>
__global__ void __launch_bounds__(kThreads)
    race_kernel(const T* in, float* keys, int64_t n, Stream stream) {
  const int64_t block = int64_t{blockIdx.x} * kThreads + threadIdx.x, first = block * 4;
  if (first >= n) return;
  const Philox4 words = stream.words(block);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (first + i >= n) break;
    const float p = to_float(in[first + i]);
    keys[first + i] = is_probability(p) ? race_key(p, words.v[i]) : NAN;
  }
}

/// Rejects draws with key 0, and all draws of a row with a NaN, which sorts first.
__global__ void __launch_bounds__(kThreads)
    reject_kernel(const float* keys, int64_t* index, int64_t draws, int64_t n) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= n) return;
  const float first = keys[at / draws * draws];
  if (!(keys[at] > 0.0f) || first != first) index[at] = -1;
}

unsigned blocks_for(int64_t items) {
  return static_cast<unsigned>((items + kThreads - 1) / kThreads);
}

/// Returns a contiguous view [rows, columns].
View matrix_of(void* data, DType dtype, int64_t rows, int64_t columns) {
  return {data, dtype, 2, {rows, columns}, {columns, 1}};
}

template <class T>
void draw_with_replacement(const Multinomial& op, const Stream& stream, CudaContext& ctx) {
  const int64_t rows = op.in.shape[0], columns = op.in.shape[1], n = op.index.numel();
  int64_t* const weights = ctx.scratch_of<int64_t>(static_cast<size_t>(rows * columns));
  int64_t* const sums = ctx.scratch_of<int64_t>(static_cast<size_t>(rows * columns));
  weights_kernel<<<static_cast<unsigned>(rows), kThreads, 0, ctx.stream>>>(op.in.as<T>(), weights,
                                                                           columns);
  DS_CUDA_LAUNCHED(kOp);
  run(Scan{matrix_of(weights, DType::i64, rows, columns),
           matrix_of(sums, DType::i64, rows, columns), 1, ScanOp::sum, false, false},
      ctx);
  draw_kernel<<<blocks_for(n), kThreads, 0, ctx.stream>>>(sums, op.index.as<int64_t>(), columns,
                                                          op.index.shape[1], n, stream);
  DS_CUDA_LAUNCHED(kOp);
}

template <class T>
void draw_without_replacement(const Multinomial& op, const Stream& stream, CudaContext& ctx) {
  const int64_t rows = op.in.shape[0], columns = op.in.shape[1], draws = op.index.shape[1];
  float* const keys = ctx.scratch_of<float>(static_cast<size_t>(rows * columns));
  float* const best = ctx.scratch_of<float>(static_cast<size_t>(rows * draws));
  race_kernel<<<blocks_for((rows * columns + 3) / 4), kThreads, 0, ctx.stream>>>(
      op.in.as<T>(), keys, rows * columns, stream);
  DS_CUDA_LAUNCHED(kOp);
  run(Sort{matrix_of(keys, DType::f32, rows, columns), matrix_of(best, DType::f32, rows, draws),
           op.index, true},
      ctx);
  reject_kernel<<<blocks_for(rows * draws), kThreads, 0, ctx.stream>>>(best, op.index.as<int64_t>(),
                                                                       draws, rows * draws);
  DS_CUDA_LAUNCHED(kOp);
}

}  // namespace

void run(const Multinomial& op, CudaContext& ctx) {
  if (op.index.numel() == 0) return;
  const Stream stream = {static_cast<uint64_t>(op.seed), static_cast<uint64_t>(op.offset)};
  for_floating(kOp, op.in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (op.replacement) draw_with_replacement<T>(op, stream, ctx);
    else draw_without_replacement<T>(op, stream, ctx);
  });
}

}  // namespace ds::cuda
