// Launches attention without tensor cores: the forward and all gradients.
#include "attention_plain.cuh"

#include "attention_kinds.cuh"

namespace ds::cuda {
namespace {

// The gradients of keys need the most shared memory.
static_assert(PlainTiles<32>::shared_bytes(6, 2, 64) <= kSharedMemoryOfAll);
static_assert(PlainTiles<16>::shared_bytes(6, 2, kPlainHeadDim) <= kSharedMemoryOfAll);

}  // namespace

template <class T>
void run_attention_plain(const ForwardArguments<T>& args, cudaStream_t stream) {
  with_hiding(args.filter.hiding, [&](auto hiding) {
    if (args.sizes.d <= 64) return launch_attention_plain<T, 32, hiding()>(args, stream);
    launch_attention_plain<T, 16, hiding()>(args, stream);
  });
}
template void run_attention_plain(const ForwardArguments<float>&, cudaStream_t);
template void run_attention_plain(const ForwardArguments<__nv_bfloat16>&, cudaStream_t);
template void run_attention_plain(const ForwardArguments<__half>&, cudaStream_t);

template <class T>
void run_attention_plain_backward(const BackwardArguments<T>& args, cudaStream_t stream) {
  with_hiding(args.filter.hiding, [&](auto hiding) {
    if (args.sizes.d <= 64) return launch_attention_plain_backward<T, 32, hiding()>(args, stream);
    launch_attention_plain_backward<T, 16, hiding()>(args, stream);
  });
}
template void run_attention_plain_backward(const BackwardArguments<float>&, cudaStream_t);
template void run_attention_plain_backward(const BackwardArguments<__nv_bfloat16>&, cudaStream_t);
template void run_attention_plain_backward(const BackwardArguments<__half>&, cudaStream_t);

}  // namespace ds::cuda
