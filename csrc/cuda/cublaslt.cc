// Opens libcublasLt and finds its functions.
#include "cublaslt.h"

#include "../core/error.h"

namespace ds::cuda {

namespace {

LibraryRequest request() {
  return {"cuBLASLt",
          {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so",
           "/usr/local/cuda/lib64/libcublasLt.so"},
          "Matrix products on a GPU need cuBLAS 12 or 13: install it with the CUDA toolkit (for "
          "example the package libcublas-13-0) and put its folder on LD_LIBRARY_PATH, or use the "
          "CPU device."};
}

}  // namespace

CublasLt::CublasLt()
    : library(DynamicLibrary::open(request())),
      create(library.symbol<lt::CreateFn*>("cublasLtCreate")),
      destroy(library.symbol<lt::DestroyFn*>("cublasLtDestroy")),
      status_string(library.symbol<lt::StatusStringFn*>("cublasLtGetStatusString")),
      version(library.symbol<lt::VersionFn*>("cublasLtGetVersion")),
      desc_create(library.symbol<lt::DescCreateFn*>("cublasLtMatmulDescCreate")),
      desc_destroy(library.symbol<lt::DescDestroyFn*>("cublasLtMatmulDescDestroy")),
      desc_set(library.symbol<lt::DescSetFn*>("cublasLtMatmulDescSetAttribute")),
      layout_create(library.symbol<lt::LayoutCreateFn*>("cublasLtMatrixLayoutCreate")),
      layout_destroy(library.symbol<lt::LayoutDestroyFn*>("cublasLtMatrixLayoutDestroy")),
      layout_set(library.symbol<lt::LayoutSetFn*>("cublasLtMatrixLayoutSetAttribute")),
      preference_create(library.symbol<lt::PreferenceCreateFn*>("cublasLtMatmulPreferenceCreate")),
      preference_destroy(
          library.symbol<lt::PreferenceDestroyFn*>("cublasLtMatmulPreferenceDestroy")),
      preference_set(library.symbol<lt::PreferenceSetFn*>("cublasLtMatmulPreferenceSetAttribute")),
      heuristic(library.symbol<lt::HeuristicFn*>("cublasLtMatmulAlgoGetHeuristic")),
      algorithm_check(library.symbol<lt::AlgorithmCheckFn*>("cublasLtMatmulAlgoCheck")),
      matmul(library.symbol<lt::MatmulFn*>("cublasLtMatmul")) {}

void CublasLt::check(lt::Status status, const char* what) const {
  if (status == lt::Status::success) return;
  const ErrorCode code =
      status == lt::Status::alloc_failed ? ErrorCode("DS_OUT_OF_MEMORY") : ErrorCode("DS_CUDA");
  throw Error(code, "matmul", text(what, " of cuBLASLt ", version(), " to succeed"),
              status_string(status));
}

}  // namespace ds::cuda
