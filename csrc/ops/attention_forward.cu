// Launches the forward of attention on mma.sync.
#include "attention_forward.cuh"

#include "attention_kinds.cuh"

namespace ds::cuda {
namespace {

template <int kD, bool kFiltered>
using Forward = ForwardShape<kD, 128, (kFiltered ? 32 : 64), 4, 2, (kD <= 64)>;

/// At D = 128 and this many queries, 256 queries per thread block are 8 % faster, if they fit.
using LongForward = ForwardShape<128, 256, 64, 8, 1, false>;
constexpr int kLongRows = 2048;

bool fits_shared_memory(size_t bytes) {
  int device = 0, limit = 0;
  DS_CUDA(cudaGetDevice(&device), "attention");
  DS_CUDA(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
          "attention");
  return bytes <= static_cast<size_t>(limit);
}

}  // namespace

template <class T>
void run_attention_forward(const ForwardArguments<T>& args, cudaStream_t stream) {
  const AttentionSizes& sizes = args.sizes;
  if (args.filter.hiding == Hiding::causal && sizes.d > 96 && sizes.rows >= kLongRows &&
      fits_shared_memory(LongForward::shared_bytes))
    return launch_attention_forward<T, LongForward, Hiding::causal>(args, stream);
  with_hiding(args.filter.hiding, [&](auto hiding) {
    with_head_dim(sizes.d, [&](auto d) {
      using Shape = Forward<d(), hiding() != Hiding::causal>;
      static_assert(Shape::shared_bytes <= kSharedMemoryOfAll);
      launch_attention_forward<T, Shape, hiding()>(args, stream);
    });
  });
}
template void run_attention_forward(const ForwardArguments<__nv_bfloat16>&, cudaStream_t);
template void run_attention_forward(const ForwardArguments<__half>&, cudaStream_t);

}  // namespace ds::cuda
