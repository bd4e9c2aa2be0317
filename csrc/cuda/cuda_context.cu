// CudaContext: scratch memory that is released at the end of an op, and counters.
#include "cuda_context.h"

#include <iterator>

#include "cuda_device.h"
#include "dependent_launch.cuh"

namespace ds::cuda {

CudaContext::CudaContext(CudaDevice& device, cudaStream_t stream)
    : device(device), stream(stream), sm_count(device.sm_count()), code(device.code()) {}

CudaContext::~CudaContext() {
  while (used_ > 0) {
    --used_;
    device.pool().release(blocks_[used_].data, blocks_[used_].bytes, stream);
  }
}

void* CudaContext::scratch(size_t bytes) {
  constexpr int kBlocks = static_cast<int>(std::size(decltype(blocks_){}));
  if (used_ == kBlocks) {
    throw Error("DS_LIMIT", "scratch", text("at most ", kBlocks, " scratch blocks in one op"),
                "more");
  }
  void* data = device.pool().allocate(bytes, stream);
  blocks_[used_++] = {data, bytes};
  return data;
}

/// In a recording, each launch gets its own counter, because a replay may overlap with launches of
/// the recording stream.
unsigned* CudaContext::counter() {
  if (!device.captures())
    if (unsigned* counter = device.counters().of(stream)) return counter;
  auto* counter = scratch_of<unsigned>(1);
  DS_CUDA(cudaMemsetAsync(counter, 0, sizeof *counter, stream), "counter");
  return counter;
}

bool is_settled(const CudaContext& ctx, const void* data) {
  return ctx.device.captures() && !ctx.device.pool().has_recorded(data);
}

}  // namespace ds::cuda
