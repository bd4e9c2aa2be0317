// Tensor maps: descriptions of tensors for Hopper's copy engine (TMA).
#pragma once

#include <cuda.h>

#include <cstdint>

namespace ds::cuda {

using TensorMap = CUtensorMap;

/// An operand [B, H, rows, D] of 16-bit elements with last stride 1. Strides are in elements.
struct HeadsLayout {
  const void* data;  // 16-byte aligned
  bool bf16;
  int64_t batches, heads, rows, columns;
  int64_t batch_stride, head_stride, row_stride;  // multiples of 8
};

/// Returns a map of boxes of `box_heads` x `box_rows` x 64 elements in the 128-byte swizzle.
/// Elements outside of the tensor read as 0. Throws DS_CUDA if the driver refuses.
TensorMap encode_tensor_map(const char* op, const HeadsLayout& layout, int box_rows,
                            int box_heads = 1);

}  // namespace ds::cuda
