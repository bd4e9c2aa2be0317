// Dropout on the GPU: each thread draws the Philox blocks of its elements, the CPU's mask exactly.
#include "dropout.h"

#include "../core/exact_math.h"
#include "../cuda/vector.cuh"

namespace ds::cuda {
namespace {

constexpr int kWords = 4, kThreads = 256;

/// The elements of one thread: 16 bytes, so one or two Philox blocks.
template <class T, bool kVectors>
__global__ void __launch_bounds__(kThreads)
    dropout_kernel(const T* in, T* out, int64_t n, float p, uint64_t seed, uint64_t offset,
                   bool accumulate) {
  constexpr int N = kPacket<T>;
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
    const Philox4 words = philox(seed, offset, static_cast<uint64_t>(first / kWords + block));
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
  require_same_shape(kOp, op.in, op.out);
  require_same_dtype(kOp, op.in, op.out);
  require_contiguous(kOp, op.in, "in");
  require_contiguous(kOp, op.out, "out");
  if (!(op.p >= 0 && op.p < 1)) throw Error("DS_ARGUMENT", kOp, "p in [0, 1)", text(op.p));
  const int64_t n = op.in.numel();
  for_floating(kOp, op.in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (n == 0) return;
    constexpr int N = kPacket<T>;
    const bool vectors = aligned_for<N>(op.in.as<T>()) && aligned_for<N>(op.out.as<T>());
    const auto kernel = vectors ? dropout_kernel<T, true> : dropout_kernel<T, false>;
    const int64_t blocks = (n + N * kThreads - 1) / (N * kThreads);
    kernel<<<static_cast<unsigned>(blocks), kThreads, 0, ctx.stream>>>(
        op.in.as<T>(), op.out.as<T>(), n, static_cast<float>(op.p), static_cast<uint64_t>(op.seed),
        static_cast<uint64_t>(op.offset), op.accumulate);
    DS_CUDA_LAUNCHED(kOp);
  });
}

}  // namespace ds::cuda
