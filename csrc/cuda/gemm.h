// Row-major matrix products by cuBLASLt, with one cached descriptor and algorithm per problem.
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

/// The codes of an operand: its element type, or one of FP8 (csrc/ops/fp8.h).
enum class GemmCodes : uint8_t { none, e4m3, e5m2 };

/// The key of a plan: out[batch, rows, columns] (+)= op(a) op(b), with the inner size between them.
/// Strides are in elements; a row stride is at least the row's length. Alignments are in bytes (16
/// at most). Compared byte by byte, so the struct has no padding.
struct GemmProblem {
  int64_t rows, columns, inner, batch;
  int64_t a_row_stride, b_row_stride, out_row_stride;
  int64_t a_batch_stride, b_batch_stride, out_batch_stride;
  DType dtype, out_dtype;  // of a and b; of out, bias and aux
  bool trans_a, trans_b;
  bool accumulate;
  bool deterministic;  // set by Gemm from the device
  uint8_t a_alignment, b_alignment, out_alignment, bias_alignment, aux_alignment;
  uint8_t reserved = 0;
  lt::Epilogue epilogue;               // aux is laid out as out
  lt::ScaleMode a_scaling, b_scaling;  // of FP8 operands
  GemmCodes a_codes, b_codes;
  bool fast_accumulation;  // of FP8 operands
  uint8_t also_reserved[5] = {};

  bool operator==(const GemmProblem& other) const;
};

/// The memory of one call; bias and aux are null if the epilogue does not use them. Initialize it
/// by names: the first member lets the compiler refuse positions, which mistake one pointer for
/// another.
struct GemmOperands {
  struct ByName {
  } by_name = {};
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;
  void* aux = nullptr;
  void* out = nullptr;
  const void* a_scale = nullptr;  // of FP8 operands
  const void* b_scale = nullptr;
};

/// Returns the largest power of two, at most 16, that divides the address. Algorithms may depend on
/// alignment. With this limit, a standalone tensor gives the same bits as a 16-byte aligned part of
/// a flat buffer.
uint8_t alignment_of(const void* p);

/// One per device, used by one thread.
///
/// Choice of algorithm:
/// 1. cuBLASLt proposes up to 64 algorithms for a problem, best guess first. The request admits
///    only algorithms that sum the parts of a split inner dimension in a fixed order and in f32. So
///    each of them always gives the same bits.
/// 2. The first call times them on its operands, back to back (gemm_timing.h). The fastest stays
///    for the life of the process, and a later process may read it (gemm_choices.h). The first
///    proposal stays unless another is 1 % faster. Small problems take the first proposal without
///    timing.
/// 3. Timing may differ between processes, and another algorithm rounds differently. With
///    CudaDevice::set_deterministic_algorithms every problem takes the first proposal. It is a
///    function of the problem, the GPU model and the version of the library. With a workspace of
///    fixed size and the alignment rule above, separate processes then give the same bits.
class Gemm {
 public:
  explicit Gemm(CudaDevice& device);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  /// Enqueues the product on `stream`; all sizes must be positive. Returns false without any work
  /// if no algorithm supports the problem. The first call for a problem may wait for the stream
  /// (see above).
  bool run(const GemmProblem& problem, const GemmOperands& operands, cudaStream_t stream);

  /// Frees the workspace kept for `stream`.
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
