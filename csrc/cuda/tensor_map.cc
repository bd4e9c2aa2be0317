// Encodes tensor maps by the driver's function, without linking libcuda.
#include "tensor_map.h"

#include <cuda_runtime_api.h>

#include "cuda_error.h"

namespace ds::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode find_encode(const char* op) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  DS_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                           cudaEnableDefault, &found),
          op);
  if (found != cudaDriverEntryPointSuccess || entry == nullptr) DS_CUDA(cudaErrorNotSupported, op);
  return reinterpret_cast<Encode>(entry);
}

}  // namespace

TensorMap encode_tensor_map(const char* op, const HeadsLayout& x, int box_rows, int box_heads) {
  static const Encode encode = find_encode(op);
  TensorMap map;
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(x.columns), static_cast<cuuint64_t>(x.rows),
                               static_cast<cuuint64_t>(x.heads),
                               static_cast<cuuint64_t>(x.batches)};
  // A dim of size 1 may have any stride, but the driver requires a multiple of 16 bytes.
  const auto bytes = [](int64_t size, int64_t stride) {
    return size > 1 ? static_cast<cuuint64_t>(stride) * 2 : cuuint64_t{16};
  };
  const cuuint64_t strides[3] = {bytes(x.rows, x.row_stride), bytes(x.heads, x.head_stride),
                                 bytes(x.batches, x.batch_stride)};
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(box_rows),
                             static_cast<cuuint32_t>(box_heads), 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUresult status =
      encode(&map, x.bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
             const_cast<void*>(x.data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) DS_CUDA(cudaErrorInvalidValue, op);
  return map;
}

}  // namespace ds::cuda
