// Sign compression on the GPU: a block per chunk for the levels, then a thread per byte of bits.
#include <algorithm>

#include "../cuda/segment_sum.cuh"
#include "sign_pack_rule.h"

namespace ds::cuda {
namespace {

constexpr int kThreads = 256;

/// Writes the kSums sums of value + error over the chunk of the block to partials[block, kSums].
template <SignLevels kKind>
__global__ void __launch_bounds__(kSegmentThreads)
    measure_kernel(const float* value, const float* error, const int64_t* starts,
                   const int64_t* counts, int64_t segments, const float* control,
                   double* partials) {
  constexpr int kSums = kSignSums<kKind>;
  if (control[1] == 0) return;
  const SegmentChunk chunk = counted_chunk(starts, counts, segments, blockIdx.x);
  const bool whole = packets_at(value + chunk.begin) && packets_at(error + chunk.begin);
  double a[kSums][kSegmentWidth] = {};
  for_packets(chunk, [&](int64_t at, int64_t valid) {
    const SegmentPacket<float> v = load_segment(value + at, valid, whole);
    const SegmentPacket<float> e = load_segment(error + at, valid, whole);
#pragma unroll
    for (int i = 0; i < kSegmentWidth; ++i) {
      if (i >= valid) continue;
      double term[kSums];
      sign_terms<kKind>(add_rn(v.v[i], e.v[i]), term);
#pragma unroll
      for (int s = 0; s < kSums; ++s) a[s][i] += term[s];
    }
  });
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    const double sum = block_sum((a[s][0] + a[s][1]) + (a[s][2] + a[s][3]));
    if (threadIdx.x == 0) partials[int64_t{blockIdx.x} * kSums + s] = sum;
  }
}

/// Computes the levels of a segment per block, in a loop over the grid.
template <SignLevels kKind>
__global__ void __launch_bounds__(kSegmentThreads)
    levels_kernel(const double* partials, const int64_t* starts, const int64_t* counts,
                  int64_t segments, const float* control, float* levels) {
  constexpr int kSums = kSignSums<kKind>;
  for (int64_t segment = blockIdx.x; segment < segments; segment += gridDim.x) {
    double sum[kSums];
#pragma unroll
    for (int s = 0; s < kSums; ++s)
      sum[s] = control[1] == 0 ? 0.0 : segment_sum(partials + s, kSums, starts, segment);
    if (threadIdx.x != 0) continue;
    if (control[1] == 0) levels[2 * segment] = levels[2 * segment + 1] = 0.0f;
    else sign_levels<kKind>(sum, counts[segment], levels + 2 * segment);
  }
}

/// Walks over the segments of the elements of a byte.
struct SegmentWalk {
  const int64_t *starts, *counts;
  int64_t segments, segment;

  /// For the bytes of this block from `first` on. The thread's elements begin at `at`.
  __device__ __forceinline__ SegmentWalk(const int64_t* starts, const int64_t* counts,
                                         int64_t segments, int64_t first, int64_t at)
      : starts(starts), counts(counts), segments(segments) {
    __shared__ int64_t of_block;
    __syncthreads();
    if (threadIdx.x == 0) of_block = segment_at(starts, 0, segments, first);
    __syncthreads();
    segment = of_block;
    // With short segments, many begin inside a block, so steps double.
    while (segment + 1 < segments && starts[segment + 1] <= at) {
      int64_t stride = 1;
      while (segment + 2 * stride < segments && starts[segment + 2 * stride] <= at) stride *= 2;
      segment += stride;
    }
  }

  /// Returns the segment of element `at`, or -1 between segments. `at` must not decrease from call
  /// to call.
  __device__ __forceinline__ int64_t of(int64_t at) {
    while (segment + 1 < segments && starts[segment + 1] <= at) ++segment;
    return at < starts[segment] + counts[segment] ? segment : -1;
  }
};

/// Writes 8 signs per thread and step, the first one in the highest bit, and updates the error of
/// each element.
__global__ void __launch_bounds__(kThreads)
    pack_kernel(const float* value, float* error, const int64_t* starts, const int64_t* counts,
                int64_t segments, const float* levels, const float* control, uint8_t* bits,
                int64_t n) {
  const int64_t bytes = (n + 7) / 8;
  for (int64_t first = int64_t{blockIdx.x} * kThreads; first < bytes;
       first += int64_t{gridDim.x} * kThreads) {
    const int64_t byte = first + threadIdx.x, begin = byte * 8;
    SegmentWalk walk(starts, counts, segments, first * 8, begin < n ? begin : n - 1);
    if (byte >= bytes) continue;
    unsigned packed = 0;
    if (control[1] != 0) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int64_t at = begin + i;
        if (at >= n) break;
        const int64_t segment = walk.of(at);
        if (segment < 0) continue;
        const float x = add_rn(value[at], error[at]);
        const bool positive = !(x < 0.0f);
        error[at] = sub_rn(x, levels[2 * segment + positive]);
        packed |= static_cast<unsigned>(positive) << (7 - i);
      }
    }
    bits[byte] = static_cast<uint8_t>(packed);
  }
}

/// Writes the mean over ranks of 8 elements per thread and step. It adds the ranks in order.
__global__ void __launch_bounds__(kThreads)
    average_kernel(const uint8_t* bits, int64_t bits_apart, const float* levels,
                   int64_t levels_apart, int64_t ranks, const int64_t* starts,
                   const int64_t* counts, int64_t segments, float inverse, float* out, int64_t n) {
  const int64_t bytes = (n + 7) / 8;
  for (int64_t first = int64_t{blockIdx.x} * kThreads; first < bytes;
       first += int64_t{gridDim.x} * kThreads) {
    const int64_t byte = first + threadIdx.x, begin = byte * 8;
    SegmentWalk walk(starts, counts, segments, first * 8, begin < n ? begin : n - 1);
    if (byte >= bytes) continue;
    int64_t of[8];
    float sum[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      of[i] = begin + i < n ? walk.of(begin + i) : -1;
      sum[i] = 0;
    }
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const unsigned packed = bits[rank * bits_apart + byte];
      const float* const own = levels + rank * levels_apart;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (of[i] < 0) continue;
        const float q = own[2 * of[i] + (packed >> (7 - i) & 1)];
        sum[i] = rank == 0 ? q : add_rn(sum[i], q);
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (begin + i < n) out[begin + i] = ranks == 1 ? sum[i] : mul_rn(sum[i], inverse);
  }
}

unsigned blocks_of(int64_t count, int64_t each) {
  return static_cast<unsigned>(std::min<int64_t>((count + each - 1) / each, int64_t{1} << 30));
}

template <SignLevels kKind>
void find_levels(const SignCompress& op, CudaContext& ctx) {
  constexpr const char* kOp = "sign_compress";
  const int64_t segments = op.starts.numel() - 1;
  const int64_t slots = slot_count(op.value.numel(), segments);
  double* const partials = ctx.scratch_of<double>(kSignSums<kKind> * static_cast<size_t>(slots));
  const auto *const starts = op.starts.as<int64_t>(), *const counts = op.counts.as<int64_t>();
  const float* const control = op.control.as<float>();
  measure_kernel<kKind><<<static_cast<unsigned>(slots), kSegmentThreads, 0, ctx.stream>>>(
      op.value.as<float>(), op.error.as<float>(), starts, counts, segments, control, partials);
  DS_CUDA_LAUNCHED(kOp);
  levels_kernel<kKind><<<blocks_of(segments, 1), kSegmentThreads, 0, ctx.stream>>>(
      partials, starts, counts, segments, control, op.levels.as<float>());
  DS_CUDA_LAUNCHED(kOp);
}

}  // namespace

void run(const SignCompress& op, CudaContext& ctx) {
  const int64_t n = op.value.numel(), segments = op.starts.numel() - 1;
  if (segments > 0) {
    if (op.kind == SignLevels::rms) find_levels<SignLevels::rms>(op, ctx);
    else find_levels<SignLevels::means>(op, ctx);
  }
  if (n == 0) return;
  pack_kernel<<<blocks_of((n + 7) / 8, kThreads), kThreads, 0, ctx.stream>>>(
      op.value.as<float>(), op.error.as<float>(), op.starts.as<int64_t>(), op.counts.as<int64_t>(),
      segments, op.levels.as<float>(), op.control.as<float>(), op.bits.as<uint8_t>(), n);
  DS_CUDA_LAUNCHED("sign_compress");
}

void run(const SignAverage& op, CudaContext& ctx) {
  const int64_t n = op.out.numel(), ranks = op.bits.size(0);
  if (n == 0) return;
  average_kernel<<<blocks_of((n + 7) / 8, kThreads), kThreads, 0, ctx.stream>>>(
      op.bits.as<uint8_t>(), op.bits.strides[0], op.levels.as<float>(), op.levels.strides[0], ranks,
      op.starts.as<int64_t>(), op.counts.as<int64_t>(), op.starts.numel() - 1,
      static_cast<float>(1.0 / static_cast<double>(ranks)), op.out.as<float>(), n);
  DS_CUDA_LAUNCHED("sign_average");
}

}  // namespace ds::cuda
