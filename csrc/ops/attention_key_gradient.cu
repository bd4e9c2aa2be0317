// Launches the kernels of dk and dv on mma.sync.
#include "attention_key_gradient.cuh"

#include "attention_kinds.cuh"

namespace ds::cuda {
namespace {

template <int kD, bool kFiltered>
struct Shape {
  using type = KeyGradientShape<kD, 64, 64, 4, 2, 32, false, false>;
};
template <bool kFiltered>
struct Shape<32, kFiltered> {
  using type = KeyGradientShape<32, 128, 64, 4, 2, 32, true, true>;
};
template <>
struct Shape<64, false> {
  using type = KeyGradientShape<64, 128, 64, 4, 2, 32, false, false>;
};

}  // namespace

template <class T>
void run_attention_key_gradient(const BackwardArguments<T>& args, cudaStream_t stream) {
  with_hiding(args.filter.hiding, [&](auto hiding) {
    with_head_dim(args.sizes.d, [&](auto d) {
      using Keys = typename Shape<d(), hiding() != Hiding::causal>::type;
      static_assert(Keys::shared_bytes <= kSharedMemoryOfAll);
      launch_attention_key_gradient<T, Keys, hiding()>(args, stream);
    });
  });
}
template void run_attention_key_gradient(const BackwardArguments<__nv_bfloat16>&, cudaStream_t);
template void run_attention_key_gradient(const BackwardArguments<__half>&, cudaStream_t);

}  // namespace ds::cuda
