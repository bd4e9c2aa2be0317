// Adds 16-bit or f32 elements to an f32 sum on the GPU, by cuda/map.cuh.
#include "accumulate.h"

#include "../core/exact_math.h"
#include "../cuda/map.cuh"

namespace ds::cuda {
namespace {

template <class T>
struct AddWidened {
  static constexpr bool accumulate = true;
  template <int N>
  __device__ void operator()(Vector<float, N>& out, const Vector<T, N>& in) const {
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] = add_rn(out.v[i], to_float(in.v[i]));
  }
};

}  // namespace

void run(const Accumulate& op, CudaContext& ctx) {
  constexpr const char* kOp = "accumulate";
  for_floating(kOp, op.in.dtype, [&]<class T>(TypeTag<T>) {
    map<kPacket<T>, float, T>(kOp, ctx.stream, AddWidened<T>{}, op.out, op.in);
  });
}

}  // namespace ds::cuda
