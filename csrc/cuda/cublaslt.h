// The part of cuBLASLt that this back end uses. Declared here, so that the build does not need its
// headers.
#pragma once

#include <cuda_runtime_api.h>
#include <library_types.h>

#include <cstddef>
#include <cstdint>

#include "../core/dynamic_library.h"

namespace ds::cuda {

// Names, values and layouts are those of cublasLt.h in CUDA 12 and 13. If that header is installed,
// cublaslt_check.cc compares them with it.
namespace lt {

enum class Status : int32_t {
  success = 0,
  alloc_failed = 3,
  invalid_value = 7,
  not_supported = 15
};
enum class ComputeType : int32_t { f32 = 68 };  // CUBLAS_COMPUTE_32F: no TF32, no emulation
enum class Operation : int32_t { none = 0, transpose = 1 };
enum class DescAttribute : int32_t {
  trans_a = 3,
  trans_b = 4,
  epilogue = 7,
  bias_pointer = 8,
  aux_pointer = 11,
  aux_row_stride = 12,
  aux_batch_stride = 13,
  a_scale_pointer = 17,
  b_scale_pointer = 18,
  fast_accumulation = 25,
  a_scale_mode = 31,  // since cuBLAS 12.9
  b_scale_mode = 32
};
enum class LayoutAttribute : int32_t { batch_count = 5, batch_stride = 6 };
enum class PreferenceAttribute : int32_t {
  workspace_bytes = 1,
  reduction_schemes = 3,
  alignment_a = 5,
  alignment_b = 6,
  alignment_c = 7,
  alignment_d = 8
};
enum class Epilogue : int32_t {
  none = 1,
  bias = 4,
  gelu = 32,
  gelu_bias = 36,
  gelu_aux = 160,
  gelu_aux_bias = 164,
  gelu_grad = 192
};
/// Which elements of an FP8 operand share a scale.
enum class ScaleMode : int32_t { scalar = 0, outer_vector = 3, vector_128 = 4, block_128x128 = 5 };
/// How the parts of a split inner dimension are added. A bit set.
enum class Reduction : uint32_t { none = 0, in_place = 1, compute_type = 2, output_type = 4 };

using Handle = struct HandleStruct*;
using Desc = struct DescStruct*;
using Layout = struct LayoutStruct*;
using Preference = struct PreferenceStruct*;

/// An algorithm. Its content is opaque.
struct Algorithm {
  uint64_t data[8];
};
/// A proposed algorithm, with the workspace that it needs.
struct Heuristic {
  Algorithm algorithm;
  size_t workspace_bytes;
  Status status;
  float waves;
  int32_t reserved[4];
};

using CreateFn = Status(Handle*);
using DestroyFn = Status(Handle);
using StatusStringFn = const char*(Status);
using VersionFn = size_t();
using DescCreateFn = Status(Desc*, ComputeType, cudaDataType);
using DescDestroyFn = Status(Desc);
using DescSetFn = Status(Desc, DescAttribute, const void*, size_t);
using LayoutCreateFn = Status(Layout*, cudaDataType, uint64_t rows, uint64_t columns,
                              int64_t stride);
using LayoutDestroyFn = Status(Layout);
using LayoutSetFn = Status(Layout, LayoutAttribute, const void*, size_t);
using PreferenceCreateFn = Status(Preference*);
using PreferenceDestroyFn = Status(Preference);
using PreferenceSetFn = Status(Preference, PreferenceAttribute, const void*, size_t);
using HeuristicFn = Status(Handle, Desc, Layout a, Layout b, Layout c, Layout d, Preference,
                           int wanted, Heuristic* results, int* found);
using AlgorithmCheckFn = Status(Handle, Desc, Layout a, Layout b, Layout c, Layout d,
                                const Algorithm*, Heuristic* result);
using MatmulFn = Status(Handle, Desc, const void* alpha, const void* a, Layout, const void* b,
                        Layout, const void* beta, const void* c, Layout, void* d, Layout,
                        const Algorithm*, void* workspace, size_t workspace_bytes, cudaStream_t);

}  // namespace lt

/// The functions of libcublasLt. The destructor closes the library.
struct CublasLt {
  /// Opens the library. Throws DS_LIBRARY with the names of the files that it tried.
  CublasLt();

  DynamicLibrary library;
  lt::CreateFn* create;
  lt::DestroyFn* destroy;
  lt::StatusStringFn* status_string;
  lt::VersionFn* version;
  lt::DescCreateFn* desc_create;
  lt::DescDestroyFn* desc_destroy;
  lt::DescSetFn* desc_set;
  lt::LayoutCreateFn* layout_create;
  lt::LayoutDestroyFn* layout_destroy;
  lt::LayoutSetFn* layout_set;
  lt::PreferenceCreateFn* preference_create;
  lt::PreferenceDestroyFn* preference_destroy;
  lt::PreferenceSetFn* preference_set;
  lt::HeuristicFn* heuristic;
  lt::AlgorithmCheckFn* algorithm_check;
  lt::MatmulFn* matmul;

  /// Throws DS_CUBLAS with the library's text, or DS_OUT_OF_MEMORY, unless `status` is success.
  void check(lt::Status status, const char* what) const;
};

}  // namespace ds::cuda
