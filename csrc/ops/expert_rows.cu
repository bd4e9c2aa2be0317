// Rows sorted by expert on the GPU: a stable counting sort in two passes, and sums per token.
#include "expert_rows.h"

#include "../cuda/block_reduce.cuh"
#include "../cuda/vector.cuh"

namespace ds::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kChunk = kThreads;  // choices of a block
constexpr int kMost = static_cast<int>(kMostExperts);

/// Arguments of the GroupRows kernels.
struct Choices {
  const int32_t* ids;
  int32_t *offsets, *rows, *places;
  int32_t* counts;  // [chunks, groups]; null if there is one chunk
  int64_t first, count;
  int groups, k;

  /// Returns the group of choice i, or -1.
  __device__ __forceinline__ int group(int64_t i) const {
    if (i >= count) return -1;
    const int64_t g = ids[i] - first;
    return g >= 0 && g < groups ? static_cast<int>(g) : -1;
  }
};

/// Counts this block's choices per warp and group. Returns the number of earlier choices of the
/// same group in the warp. The first lane of a group writes its count.
__device__ __forceinline__ int count_chunk(int (&by_warp)[kWarps][kMost], int groups, int group) {
  for (int i = threadIdx.x; i < kWarps * groups; i += kThreads) by_warp[i / groups][i % groups] = 0;
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  const uint32_t peers = __match_any_sync(0xffffffffu, group);
  const int before = __popc(peers & ((1u << lane) - 1));
  if (group >= 0 && before == 0) by_warp[threadIdx.x / kWarp][group] = __popc(peers);
  __syncthreads();
  return before;
}

/// Writes counts[chunk, group]: how many choices of a chunk are in each group. A block per chunk.
__global__ void __launch_bounds__(kThreads) count_kernel(Choices c) {
  __shared__ int by_warp[kWarps][kMost];
  count_chunk(by_warp, c.groups, c.group(int64_t{blockIdx.x} * kChunk + threadIdx.x));
  for (int g = threadIdx.x; g < c.groups; g += kThreads) {
    int sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += by_warp[w][g];
    c.counts[int64_t{blockIdx.x} * c.groups + g] = sum;
  }
}

/// Writes the row of each choice to `places`, the tokens in the order of groups to `rows`, and the
/// offsets. A block per chunk. `counts` is null if there is only one chunk.
__global__ void __launch_bounds__(kThreads) place_kernel(Choices c) {
  __shared__ int by_warp[kWarps][kMost];
  __shared__ int start[kMost + 1];  // start of each group, then of its choices in this chunk
  const int64_t i = int64_t{blockIdx.x} * kChunk + threadIdx.x;
  const int group = c.group(i);
  const int before = count_chunk(by_warp, c.groups, group);
  int earlier[kMost / kThreads] = {};  // choices of a group in earlier chunks
#pragma unroll
  for (int n = 0; n < kMost / kThreads; ++n) {
    const int g = n * kThreads + threadIdx.x;
    if (g >= c.groups) continue;
    int total = 0;
    for (int w = 0; w < kWarps; ++w) {
      const int count = by_warp[w][g];
      by_warp[w][g] = total;
      total += count;
    }
    if (c.counts) {
      total = 0;
      for (unsigned chunk = 0; chunk < gridDim.x; ++chunk) {
        if (chunk == blockIdx.x) earlier[n] = total;
        total += c.counts[int64_t{chunk} * c.groups + g];
      }
    }
    start[g + 1] = total;
  }
  if (threadIdx.x == 0) start[0] = 0;
  __syncthreads();
  if (threadIdx.x < kWarp) {  // running sums of the groups' totals
    int carry = 0;
    for (int from = 1; from <= c.groups; from += kWarp) {
      const int g = from + threadIdx.x;
      int sum = g <= c.groups ? start[g] : 0;
#pragma unroll
      for (int offset = 1; offset < kWarp; offset *= 2) {
        const int left = __shfl_up_sync(0xffffffffu, sum, offset);
        if (static_cast<int>(threadIdx.x) >= offset) sum += left;
      }
      if (g <= c.groups) start[g] = carry + sum;
      carry += __shfl_sync(0xffffffffu, sum, kWarp - 1);
    }
  }
  __syncthreads();
  if (blockIdx.x == 0)
    for (int g = threadIdx.x; g <= c.groups; g += kThreads) c.offsets[g] = start[g];
  const int total = start[c.groups];
  __syncthreads();
#pragma unroll
  for (int n = 0; n < kMost / kThreads; ++n) {
    const int g = n * kThreads + threadIdx.x;
    if (g < c.groups) start[g] += earlier[n];
  }
  __syncthreads();
  if (i >= c.count) return;
  if (i >= total) c.rows[i] = -1;
  const int row = group < 0 ? -1 : start[group] + by_warp[threadIdx.x / kWarp][group] + before;
  c.places[i] = row;
  if (row >= 0) c.rows[row] = static_cast<int32_t>(i / c.k);
}

/// A thread computes kWidth consecutive elements of a token.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const T* y, const int32_t* places, const float* weights, T* out, int64_t items,
                   int64_t rows, int64_t width, int k, bool accumulate) {
  const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (item >= items) return;
  const int64_t per_row = width / kWidth, token = item / per_row;
  const int64_t at = item % per_row * kWidth;
  float sum[kWidth] = {};
  if (accumulate) {
    const Vector<T, kWidth> old = load_vector<kWidth>(out + token * width + at);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) sum[e] = to_float(old.v[e]);
  }
  for (int j = 0; j < k; ++j) {
    const int64_t place = places[token * k + j];
    if (place < 0 || place >= rows) continue;
    const float weight = weights ? weights[token * k + j] : 1.0f;
    const Vector<T, kWidth> row = load_vector<kWidth>(y + place * width + at);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) sum[e] += weight * to_float(row.v[e]);
  }
  Vector<T, kWidth> result;
#pragma unroll
  for (int e = 0; e < kWidth; ++e) result.v[e] = from_float<T>(sum[e]);
  store_vector(out + token * width + at, result);
}

/// A block computes the gradients of a choice.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    combine_backward_kernel(const T* y, const int32_t* places, const float* weights, const T* dout,
                            T* dy, float* dweights, int64_t rows, int64_t width, int k) {
  const int64_t choice = blockIdx.x, token = choice / k, place = places[choice];
  if (place < 0 || place >= rows) {
    if (threadIdx.x == 0) dweights[choice] = 0.0f;
    return;
  }
  const float weight = weights[choice];
  float slope = 0.0f;
  for (int64_t c = threadIdx.x * kWidth; c < width; c += kThreads * kWidth) {
    const Vector<T, kWidth> grad = load_vector<kWidth>(dout + token * width + c);
    const Vector<T, kWidth> row = load_vector<kWidth>(y + place * width + c);
    Vector<T, kWidth> result;
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      slope += to_float(grad.v[e]) * to_float(row.v[e]);
      result.v[e] = from_float<T>(weight * to_float(grad.v[e]));
    }
    store_vector(dy + place * width + c, result);
  }
  slope = block_sum(slope);
  if (threadIdx.x == 0) dweights[choice] = slope;
}

/// Calls body(width) with the widest packet that rows of `width` elements and all pointers allow.
template <class T, class Body, class... Pointers>
void in_packets(int64_t width, Body&& body, const Pointers*... pointers) {
  const bool wide = width % kPacket<T> == 0 && (aligned_for<kPacket<T>>(pointers) && ...);
  if (wide) body(std::integral_constant<int, kPacket<T>>{});
  else body(std::integral_constant<int, 1>{});
}

}  // namespace

void run(const GroupRows& op, CudaContext& ctx) {
  constexpr const char* kOp = "group_rows";
  Choices c = {op.ids.as<int32_t>(),
               op.offsets.as<int32_t>(),
               op.rows.as<int32_t>(),
               op.places.as<int32_t>(),
               nullptr,
               op.first,
               op.ids.numel(),
               static_cast<int>(op.offsets.shape[0] - 1),
               static_cast<int>(op.ids.shape[1])};
  const int64_t chunks = c.count == 0 ? 1 : (c.count + kChunk - 1) / kChunk;
  const unsigned blocks = static_cast<unsigned>(chunks);
  if (chunks > 1) {
    c.counts = ctx.scratch_of<int32_t>(static_cast<size_t>(chunks * c.groups));
    count_kernel<<<blocks, kThreads, 0, ctx.stream>>>(c);
    DS_CUDA_LAUNCHED(kOp);
  }
  place_kernel<<<blocks, kThreads, 0, ctx.stream>>>(c);
  DS_CUDA_LAUNCHED(kOp);
}

void run(const CombineRows& op, CudaContext& ctx) {
  constexpr const char* kOp = "combine_rows";
  if (op.out.numel() == 0) return;
  const int64_t width = op.out.shape[1], rows = op.y.shape[0];
  for_floating(kOp, op.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* const y = op.y.as<T>();
    T* const out = op.out.as<T>();
    const auto launch = [&](auto packet) {
      const int64_t items = op.out.numel() / packet.value;
      const unsigned blocks = static_cast<unsigned>((items + kThreads - 1) / kThreads);
      combine_kernel<T, packet.value><<<blocks, kThreads, 0, ctx.stream>>>(
          y, op.places.as<int32_t>(), op.weights.as<float>(), out, items, rows, width,
          static_cast<int>(op.places.shape[1]), op.accumulate);
      DS_CUDA_LAUNCHED(kOp);
    };
    in_packets<T>(width, launch, y, static_cast<const T*>(out));
  });
}

void run(const CombineRowsBackward& op, CudaContext& ctx) {
  constexpr const char* kOp = "combine_rows_backward";
  if (op.places.numel() == 0) return;
  const int64_t width = op.dout.shape[1];
  for_floating(kOp, op.dout.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T *const y = op.y.as<T>(), *const dout = op.dout.as<T>();
    T* const dy = op.dy.as<T>();
    const auto launch = [&](auto packet) {
      combine_backward_kernel<T, packet.value>
          <<<static_cast<unsigned>(op.places.numel()), kThreads, 0, ctx.stream>>>(
              y, op.places.as<int32_t>(), op.weights.as<float>(), dout, dy, op.dweights.as<float>(),
              op.y.shape[0], width, static_cast<int>(op.places.shape[1]));
      DS_CUDA_LAUNCHED(kOp);
    };
    in_packets<T>(width, launch, y, dout, static_cast<const T*>(dy));
  });
}

}  // namespace ds::cuda
