// Tensor maps: descriptions of global tensors that Hopper's copy engine (TMA) reads.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace ds::cuda {

using TensorMap = CUtensorMap;

/// A [B, H, rows, D] operand of 16-bit elements with last stride 1; strides in elements.
struct HeadsLayout {
  const void* data;  // 16-byte aligned
  bool bf16;
  int64_t batches, heads, rows, columns;
  int64_t batch_stride, head_stride, row_stride;  // multiples of 8
};

/// Encodes boxes of `box_heads` x `box_rows` x 64 elements in the 128-byte swizzle. Elements
/// outside the tensor read as 0. Throws DS_CUDA if the driver refuses.
TensorMap encode_tensor_map(const char* op, const HeadsLayout& layout, int box_rows,
                            int box_heads = 1);

}  // namespace ds::cuda
