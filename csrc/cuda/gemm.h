// Row-major matrix products by cuBLASLt. Descriptors and algorithms are cached per problem.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "../core/dtype.h"
#include "cublaslt.h"

namespace ds::cuda {

class CudaDevice;
class GemmChoices;

/// How an operand is encoded: in its dtype, or as FP8 (csrc/ops/fp8.h).
enum class GemmCodes : uint8_t { none, e4m3, e5m2 };

/// A problem, the key of a plan: out[batch, rows, columns] (+)= op(a) op(b) with inner size
/// `inner`. Strides are in elements; a row stride is at least the length of a row. Alignments are
/// in bytes, at most 16. Compared byte by byte, so the struct must not have padding.
struct GemmProblem {
  int64_t rows, columns, inner, batch;
  int64_t a_row_stride, b_row_stride, out_row_stride;
  int64_t a_batch_stride, b_batch_stride, out_batch_stride;
  DType dtype, out_dtype;  // dtype of a and b; dtype of out, bias and aux
  bool trans_a, trans_b;
  bool accumulate;
  bool deterministic;  // set by Gemm from the device
  uint8_t a_alignment, b_alignment, out_alignment, bias_alignment, aux_alignment;
  uint8_t reserved = 0;
  lt::Epilogue epilogue;               // aux has the layout of out
  lt::ScaleMode a_scaling, b_scaling;  // FP8 operands only
  GemmCodes a_codes, b_codes;
  bool fast_accumulation;  // FP8 operands only
  uint8_t also_reserved[5] = {};

  bool operator==(const GemmProblem& other) const;
};

/// The memory of a call. `bias` and `aux` are null unless the epilogue uses them. Initialize
/// members by name: positional initialization could swap pointers, so the first member makes it a
/// compile error.
struct GemmOperands {
  struct ByName {
  } by_name = {};
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;
  void* aux = nullptr;
  void* out = nullptr;
  const void* a_scale = nullptr;  // FP8 operands only
  const void* b_scale = nullptr;
};

/// Returns the largest power of two, at most 16, that divides the address. The choice of algorithm
/// may depend on alignment. Because of the limit, a tensor of its own and a 16-byte aligned part of
/// a flat buffer give the same bits.
uint8_t alignment_of(const void* p);

/// The matrix products of a device, used by one thread.
///
/// Choice of the algorithm:
/// 1. cuBLASLt proposes up to 64 algorithms for a problem, best guess first. The request excludes
///    algorithms that add the parts of a split inner dimension in varying order or below f32. So
///    each proposal always gives the same bits.
/// 2. The first call times the proposals on its operands (gemm_timing.h) and keeps the fastest for
///    the life of the process. It prefers the first proposal unless another is 1 % faster. Later
///    processes may read the choice (gemm_choices.h). Small problems take the first proposal.
/// 3. Timing may select different algorithms, which round differently, in different processes. With
///    CudaDevice::set_deterministic_algorithms, all problems take the first proposal, which depends
///    only on the problem, the GPU model and the library's version. The workspace has a fixed size
///    and alignments are limited as above, so separate processes give the same bits.
class Gemm {
 public:
  explicit Gemm(CudaDevice& device);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  /// Enqueues the product on `stream`. All sizes must be positive. Returns false, without any work,
  /// if no algorithm supports the problem. The first call for a problem may wait for the stream
  /// (see above).
  bool run(const GemmProblem& problem, const GemmOperands& operands, cudaStream_t stream);

  /// Frees the workspace of `stream`.
  void forget(cudaStream_t stream);

  struct Hash {
    size_t operator()(const GemmProblem& problem) const;
  };

  const CublasLt& library() const { return library_; }
  GemmChoices& choices() { return *choices_; }

 private:
  struct Plan;

  bool serves(const Plan& plan, const lt::Algorithm& algorithm) const;
  Plan& plan_for(const GemmProblem& problem, const GemmOperands& operands, cudaStream_t stream);
  std::vector<lt::Algorithm> candidates(const Plan& plan, const GemmProblem& problem) const;
  size_t fastest(const Plan& plan, const std::vector<lt::Algorithm>& algorithms,
                 const GemmOperands& operands, cudaStream_t stream);
  lt::Status enqueue(const Plan& plan, const lt::Algorithm& algorithm, const GemmOperands& operands,
                     void* result, cudaStream_t stream);
  void* workspace(cudaStream_t stream);

  CudaDevice& device_;
  CublasLt library_;
  lt::Handle handle_ = nullptr;
  std::unique_ptr<GemmChoices> choices_;
  int timed_problems_ = 0;
  std::unordered_map<GemmProblem, std::unique_ptr<Plan>, Hash> plans_;
  std::unordered_map<cudaStream_t, void*> workspaces_;
};

}  // namespace ds::cuda
