// The context that the CUDA body of an op receives, launch checks, and the GPU's element types.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "../core/view.h"
#include "cuda_error.h"
#include "running_code.h"

namespace ds::cuda {

class CudaDevice;

/// The GPU's types for the dtype switch of core/dtype.h. Only the CPU has f64.
struct CudaTypes {
  using f16 = __half;
  using bf16 = __nv_bfloat16;
  static constexpr bool has_f64 = false;
};

/// Calls f with the GPU's type of a floating dtype. Throws DS_DTYPE for other dtypes.
template <class F>
void for_floating(const char* op, DType t, F&& f) {
  dispatch_floating<CudaTypes>(op, t, f);
}
/// Calls f with the GPU's type of any dtype that it supports.
template <class F>
void for_all(const char* op, DType t, F&& f) {
  dispatch_all<CudaTypes>(op, t, f);
}

/// The device as an op's body uses it. Kernels must be launched on `stream`.
struct CudaContext {
  CudaDevice& device;
  cudaStream_t stream;
  int sm_count;
  RunningCode code;  // the architecture of this library's code that the GPU runs

  /// Returns scratch memory, 256-byte aligned, released in stream order when the op's run()
  /// returns.
  void* scratch(size_t bytes);
  template <class T>
  T* scratch_of(size_t count) {
    return static_cast<T*>(scratch(count * sizeof(T)));
  }
  /// Returns a counter with the value 0. The kernel must reset it to 0.
  unsigned* counter();

  CudaContext(CudaDevice& device, cudaStream_t stream);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

 private:
  struct Block {
    void* data;
    size_t bytes;
  };
  Block blocks_[8];
  int used_ = 0;
};

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

}  // namespace ds::cuda
