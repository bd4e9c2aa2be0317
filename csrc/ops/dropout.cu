// Dropout on the GPU: each thread draws the Philox blocks of its elements. The mask equals the
// CPU's.
#include "dropout.h"

#include "../core/exact_math.h"
#include "../cuda/vector.cuh"

namespace ds::cuda {
namespace {

constexpr int kWords = 4, kThreads = 256;

/// Parameters of the kernel.
struct Draw {
  uint64_t seed, offset;
  int64_t sample, rank, ranks;
  Part part;
  float p;
  bool accumulate;
};

/// Returns the words of elements first to first + 3. With kBlocks they are a Philox block, because
/// samples and rows of a part are multiples of 4.
template <bool kBlocks>
__device__ __forceinline__ Philox4 words_of(const Draw& d, int64_t first) {
  const auto place = [&](int64_t i) {
    return static_cast<uint64_t>(dropout_place(d.part.place(i), d.sample, d.rank, d.ranks));
  };
  if (kBlocks) return philox(d.seed, d.offset, place(first) / kWords);
  Philox4 words;
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const uint64_t at = place(first + w);
    const Philox4 block = philox(d.seed, d.offset, at / kWords);
    const int word = at % kWords;
    words.v[w] = word < 2 ? block.v[word == 1] : block.v[2 + (word == 3)];
  }
  return words;
}

/// Processes 16 bytes per thread, which need one or two Philox blocks.
template <class T, bool kVectors, bool kBlocks>
__global__ void __launch_bounds__(kThreads)
    dropout_kernel(const T* in, T* out, int64_t n, Draw draw) {
  constexpr int N = kPacket<T>;
  const float p = draw.p;
  const bool accumulate = draw.accumulate;
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (first >= n) return;
  const bool whole = kVectors && first + N <= n;
  Vector<T, N> x = {}, y = {};
  if (whole) {
    x = load_vector<N>(in + first);
    if (accumulate) y = load_vector<N>(out + first);
  } else {
    for (int i = 0; i < N; ++i)
      if (first + i < n) {
        x.v[i] = in[first + i];
        if (accumulate) y.v[i] = out[first + i];
      }
  }
  const float keep = sub_rn(1.0f, p);
#pragma unroll
  for (int block = 0; block < N / kWords; ++block) {
    const Philox4 words = words_of<kBlocks>(draw, first + block * kWords);
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const int i = block * kWords + w;
      const float kept = unit_float(words.v[w]) >= p ? div_rn(to_float(x.v[i]), keep) : 0.0f;
      y.v[i] = from_float<T>(accumulate ? add_rn(to_float(y.v[i]), kept) : kept);
    }
  }
  if (whole) return store_vector(out + first, y);
  for (int i = 0; i < N; ++i)
    if (first + i < n) out[first + i] = y.v[i];
}

}  // namespace

void run(const Dropout& op, CudaContext& ctx) {
  constexpr const char* kOp = "dropout";
  const int64_t n = op.in.numel();
  for_floating(kOp, op.in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (n == 0) return;
    constexpr int N = kPacket<T>;
    const bool vectors = aligned_for<N>(op.in.as<T>()) && aligned_for<N>(op.out.as<T>());
    const Part part = part_of(op);
    const bool in_blocks = part.keeps_fours() && (op.ranks == 1 || op.sample % kWords == 0);
    const auto kernel =
        in_blocks ? vectors ? dropout_kernel<T, true, true> : dropout_kernel<T, false, true>
                  : dropout_kernel<T, false, false>;
    const Draw draw = {static_cast<uint64_t>(op.seed),
                       static_cast<uint64_t>(op.offset),
                       op.sample,
                       op.rank,
                       op.ranks,
                       part,
                       static_cast<float>(op.p),
                       op.accumulate};
    const int64_t blocks = (n + N * kThreads - 1) / (N * kThreads);
    kernel<<<static_cast<unsigned>(blocks), kThreads, 0, ctx.stream>>>(op.in.as<T>(),
                                                                       op.out.as<T>(), n, draw);
    DS_CUDA_LAUNCHED(kOp);
  });
}

}  // namespace ds::cuda
