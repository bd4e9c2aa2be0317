// Checks at compile time that cublaslt.h agrees with cublasLt.h, if that is installed.
#if __has_include(<cublasLt.h>)

#include <cublasLt.h>

#include <cstddef>
#include <type_traits>

#include "cublaslt.h"

namespace ds::cuda {

namespace {

/// True if parameters A and B have the same size and kind, so that functions are compatible.
template <class A, class B>
constexpr bool same_kind = sizeof(A) == sizeof(B) && alignof(A) == alignof(B) &&
                           std::is_pointer_v<A> == std::is_pointer_v<B> &&
                           std::is_floating_point_v<A> == std::is_floating_point_v<B>;
template <class Ours, class Theirs>
constexpr bool same_call = false;
template <class R, class... A, class S, class... B>
  requires(sizeof...(A) == sizeof...(B))
constexpr bool same_call<R(A...), S(B...)> = same_kind<R, S> && (same_kind<A, B> && ...);

template <class Ours, class Theirs>
constexpr bool equal(Ours ours, Theirs theirs) {
  return static_cast<int64_t>(ours) == static_cast<int64_t>(theirs);
}

#define DS_CALL(ours, theirs) static_assert(same_call<lt::ours, decltype(theirs)>, #theirs)
DS_CALL(CreateFn, cublasLtCreate);
DS_CALL(DestroyFn, cublasLtDestroy);
DS_CALL(StatusStringFn, cublasLtGetStatusString);
DS_CALL(VersionFn, cublasLtGetVersion);
DS_CALL(DescCreateFn, cublasLtMatmulDescCreate);
DS_CALL(DescDestroyFn, cublasLtMatmulDescDestroy);
DS_CALL(DescSetFn, cublasLtMatmulDescSetAttribute);
DS_CALL(LayoutCreateFn, cublasLtMatrixLayoutCreate);
DS_CALL(LayoutDestroyFn, cublasLtMatrixLayoutDestroy);
DS_CALL(LayoutSetFn, cublasLtMatrixLayoutSetAttribute);
DS_CALL(PreferenceCreateFn, cublasLtMatmulPreferenceCreate);
DS_CALL(PreferenceDestroyFn, cublasLtMatmulPreferenceDestroy);
DS_CALL(PreferenceSetFn, cublasLtMatmulPreferenceSetAttribute);
DS_CALL(HeuristicFn, cublasLtMatmulAlgoGetHeuristic);
DS_CALL(AlgorithmCheckFn, cublasLtMatmulAlgoCheck);
DS_CALL(MatmulFn, cublasLtMatmul);

#define DS_VALUE(ours, theirs) static_assert(equal(lt::ours, theirs), #theirs)
DS_VALUE(Status::success, CUBLAS_STATUS_SUCCESS);
DS_VALUE(Status::alloc_failed, CUBLAS_STATUS_ALLOC_FAILED);
DS_VALUE(Status::invalid_value, CUBLAS_STATUS_INVALID_VALUE);
DS_VALUE(Status::not_supported, CUBLAS_STATUS_NOT_SUPPORTED);
DS_VALUE(ComputeType::f32, CUBLAS_COMPUTE_32F);
DS_VALUE(Operation::none, CUBLAS_OP_N);
DS_VALUE(Operation::transpose, CUBLAS_OP_T);
DS_VALUE(DescAttribute::trans_a, CUBLASLT_MATMUL_DESC_TRANSA);
DS_VALUE(DescAttribute::trans_b, CUBLASLT_MATMUL_DESC_TRANSB);
DS_VALUE(DescAttribute::epilogue, CUBLASLT_MATMUL_DESC_EPILOGUE);
DS_VALUE(DescAttribute::bias_pointer, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
DS_VALUE(DescAttribute::aux_pointer, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
DS_VALUE(DescAttribute::aux_row_stride, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
DS_VALUE(DescAttribute::aux_batch_stride, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE);
DS_VALUE(DescAttribute::a_scale_pointer, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
DS_VALUE(DescAttribute::b_scale_pointer, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
DS_VALUE(DescAttribute::fast_accumulation, CUBLASLT_MATMUL_DESC_FAST_ACCUM);
#if CUBLAS_VER_MAJOR > 12 || (CUBLAS_VER_MAJOR == 12 && CUBLAS_VER_MINOR >= 9)
DS_VALUE(DescAttribute::a_scale_mode, CUBLASLT_MATMUL_DESC_A_SCALE_MODE);
DS_VALUE(DescAttribute::b_scale_mode, CUBLASLT_MATMUL_DESC_B_SCALE_MODE);
DS_VALUE(ScaleMode::scalar, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F);
DS_VALUE(ScaleMode::outer_vector, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
DS_VALUE(ScaleMode::vector_128, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
DS_VALUE(ScaleMode::block_128x128, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
#endif
DS_VALUE(LayoutAttribute::batch_count, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
DS_VALUE(LayoutAttribute::batch_stride, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
DS_VALUE(PreferenceAttribute::workspace_bytes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
DS_VALUE(PreferenceAttribute::reduction_schemes, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
DS_VALUE(PreferenceAttribute::alignment_a, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
DS_VALUE(PreferenceAttribute::alignment_b, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
DS_VALUE(PreferenceAttribute::alignment_c, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
DS_VALUE(PreferenceAttribute::alignment_d, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
DS_VALUE(Epilogue::none, CUBLASLT_EPILOGUE_DEFAULT);
DS_VALUE(Epilogue::bias, CUBLASLT_EPILOGUE_BIAS);
DS_VALUE(Epilogue::gelu, CUBLASLT_EPILOGUE_GELU);
DS_VALUE(Epilogue::gelu_bias, CUBLASLT_EPILOGUE_GELU_BIAS);
DS_VALUE(Epilogue::gelu_aux, CUBLASLT_EPILOGUE_GELU_AUX);
DS_VALUE(Epilogue::gelu_aux_bias, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
DS_VALUE(Epilogue::gelu_grad, CUBLASLT_EPILOGUE_DGELU);
DS_VALUE(Reduction::none, CUBLASLT_REDUCTION_SCHEME_NONE);
DS_VALUE(Reduction::in_place, CUBLASLT_REDUCTION_SCHEME_INPLACE);
DS_VALUE(Reduction::compute_type, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
DS_VALUE(Reduction::output_type, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE);

static_assert(sizeof(lt::Algorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(lt::Heuristic) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(lt::Heuristic, workspace_bytes) ==
              offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(lt::Heuristic, status) == offsetof(cublasLtMatmulHeuristicResult_t, state));
static_assert(offsetof(lt::Heuristic, waves) ==
              offsetof(cublasLtMatmulHeuristicResult_t, wavesCount));

}  // namespace

}  // namespace ds::cuda

#elif defined(DS_REQUIRE_CUBLASLT_HEADER)
#error "cublasLt.h was not found, so cublaslt.h cannot be checked against it"
#endif
