// Row-major matrix products by cuBLASLt, with descriptors and algorithm kept per problem.
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

/// What a plan depends on: out[batch, rows, columns] (+)= op(a) op(b), with the inner size between
/// them. Strides are in elements, a row stride is at least the row's length, alignments are in
/// bytes (16 at most). Compared byte by byte, so it has no padding.
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
  lt::Epilogue epilogue;  // aux is laid out as out

  bool operator==(const GemmProblem& other) const;
};

/// The memory of one call; bias and aux are null where the epilogue has none.
struct GemmOperands {
  const void* a;
  const void* b;
  const void* bias;
  void* aux;
  void* out;
};

/// The largest power of two, at most 16, that divides the address. Algorithms may depend on
/// alignment; the limit lets a tensor behave alike alone and inside a flat buffer of 16-byte
/// aligned parts.
uint8_t alignment_of(const void* p);

/// One per device, used from one thread.
///
/// Choice of algorithm. The library proposes up to 16 algorithms for a problem, best guess first;
/// only those that sum the parts of a split inner dimension in a fixed order and in f32 are asked
/// for, so that each of them always gives the same bits. Normally they are timed once, on the first
/// call's operands, and the fastest is kept for the life of the process (the first one unless
/// another is 2 % faster; small problems take the first untimed). Timing can come out differently
/// in another process, and another algorithm rounds differently: with
/// CudaDevice::set_deterministic_algorithms the first proposal is taken, which is a function of the
/// problem, the GPU model and the version of the library alone. That, a workspace of fixed size and
/// the alignment rule above are what make separate processes agree.
class Gemm {
 public:
  explicit Gemm(CudaDevice& device);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  /// Enqueues the product on `stream`; all sizes must be positive. False, with nothing done, when
  /// no algorithm supports the problem. The first call for a problem may wait for the stream (see
  /// above).
  bool run(const GemmProblem& problem, const GemmOperands& operands, cudaStream_t stream);

  /// Returns the workspace kept for `stream`.
  void forget(cudaStream_t stream);

  const CublasLt& library() const { return library_; }

 private:
  struct Plan;
  struct Hash {
    size_t operator()(const GemmProblem& problem) const;
  };

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
  int timed_problems_ = 0;
  std::unordered_map<GemmProblem, std::unique_ptr<Plan>, Hash> plans_;
  std::unordered_map<cudaStream_t, void*> workspaces_;
};

}  // namespace ds::cuda
