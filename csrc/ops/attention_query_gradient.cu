// Launches the kernels of dq on mma.sync.
#include "attention_query_gradient.cuh"

#include "attention_kinds.cuh"

namespace ds::cuda {
namespace {

template <int kD, bool kFiltered>
struct Shape;
template <bool kFiltered>
struct Shape<32, kFiltered> {
  using type = QueryGradientShape<32, 128, 64, 4, 2, 32, true>;
};
template <bool kFiltered>
struct Shape<64, kFiltered> {
  using type = QueryGradientShape<64, 128, 64, 4, 2, (kFiltered ? 32 : 64), false>;
};
template <bool kFiltered>
struct Shape<96, kFiltered> {
  using type = QueryGradientShape<96, 64, 64, 4, 2, 32, true>;
};
template <bool kFiltered>
struct Shape<128, kFiltered> {
  using type = QueryGradientShape<128, (kFiltered ? 64 : 128), 32, 4, 2, 32, false>;
};

}  // namespace

template <class T>
void run_attention_query_gradient(const BackwardArguments<T>& args, cudaStream_t stream) {
  with_hiding(args.filter.hiding, [&](auto hiding) {
    with_head_dim(args.sizes.d, [&](auto d) {
      using Queries = typename Shape<d(), hiding() != Hiding::causal>::type;
      static_assert(Queries::shared_bytes <= kSharedMemoryOfAll);
      launch_attention_query_gradient<T, Queries, hiding()>(args, stream);
    });
  });
}
template void run_attention_query_gradient(const BackwardArguments<__nv_bfloat16>&, cudaStream_t);
template void run_attention_query_gradient(const BackwardArguments<__half>&, cudaStream_t);

}  // namespace ds::cuda
