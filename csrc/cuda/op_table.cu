// The table of CUDA ops: calls the body of an op by its id.
#include "../ops/all_ops.generated.h"
#include "cuda_context.h"
#include "cuda_device.h"

namespace ds::cuda {

#define DS_ROW(name) void run(const name&, CudaContext&);
DS_OP_LIST(DS_ROW)
#undef DS_ROW

namespace {

using Body = void (*)(const void*, CudaContext&);
constexpr Body kBodies[] = {
#define DS_ROW(name) \
  [](const void* args, CudaContext& context) { run(*static_cast<const name*>(args), context); },
    DS_OP_LIST(DS_ROW)
#undef DS_ROW
};
static_assert(sizeof(kBodies) / sizeof(Body) == static_cast<size_t>(OpId::count));

}  // namespace

void run_op(OpId op, const void* args, CudaDevice& device, cudaStream_t stream) {
  CudaContext context(device, stream);
  kBodies[static_cast<int>(op)](args, context);
}

}  // namespace ds::cuda
