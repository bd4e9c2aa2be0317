// Gemm: caches a plan per problem, times cuBLASLt's algorithms and runs the fastest.
#include "gemm.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "../core/error.h"
#include "cuda_device.h"
#include "cuda_error.h"
#include "gemm_choices.h"
#include "gemm_timing.h"

namespace ds::cuda {

namespace {

constexpr const char* kOp = "matmul";
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kCandidates = 64;
constexpr float kClearlyFaster = 0.99f;  // relative to the time of the first proposal
constexpr double kTimedFlops =
    1e9;  // below this, a launch costs as much as a better algorithm saves
constexpr size_t kTimingScratch = size_t{256} << 20;
constexpr int kTimedProblems = 512;  // limits the time spent on programs that never repeat a shape

static_assert(std::has_unique_object_representations_v<GemmProblem>);

cudaDataType library_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return CUDA_R_32F;
    case DType::f16: return CUDA_R_16F;
    case DType::bf16: return CUDA_R_16BF;
    default: unsupported(kOp, dtype, "f32, f16 or bf16");
  }
}

cudaDataType library_type(DType dtype, GemmCodes codes) {
  switch (codes) {
    case GemmCodes::e4m3: return CUDA_R_8F_E4M3;
    case GemmCodes::e5m2: return CUDA_R_8F_E5M2;
    default: return library_type(dtype);
  }
}

double flops(const GemmProblem& p) {
  return 2.0 * static_cast<double>(p.rows) * static_cast<double>(p.columns) *
         static_cast<double>(p.inner) * static_cast<double>(p.batch);
}

/// Returns the bytes from the first to the end of the last element of `out`.
size_t out_extent(const GemmProblem& p) {
  const int64_t elements =
      (p.batch - 1) * p.out_batch_stride + (p.rows - 1) * p.out_row_stride + p.columns;
  return static_cast<size_t>(elements) * size_of(p.out_dtype);
}

bool uses_bias(lt::Epilogue e) {
  return e == lt::Epilogue::bias || e == lt::Epilogue::gelu_bias ||
         e == lt::Epilogue::gelu_aux_bias;
}
bool uses_aux(lt::Epilogue e) {
  return e == lt::Epilogue::gelu_aux || e == lt::Epilogue::gelu_aux_bias ||
         e == lt::Epilogue::gelu_grad;
}

}  // namespace

uint8_t alignment_of(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return static_cast<uint8_t>(((address | 16) & (~(address | 16) + 1)));
}

bool GemmProblem::operator==(const GemmProblem& other) const {
  return std::memcmp(this, &other, sizeof(*this)) == 0;
}

size_t Gemm::Hash::operator()(const GemmProblem& problem) const {
  static_assert(sizeof(GemmProblem) % sizeof(uint64_t) == 0);
  uint64_t words[sizeof(GemmProblem) / sizeof(uint64_t)];
  std::memcpy(words, &problem, sizeof(problem));
  uint64_t hash = 0;
  for (const uint64_t word : words) hash = (hash ^ word ^ (hash >> 29)) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 32);
}

/// Descriptors of a problem. cuBLASLt is column-major, where a row-major matrix appears as its
/// transpose. So the plan computes out^T = op(b)^T op(a)^T: b is cuBLASLt's first operand, a its
/// second.
struct Gemm::Plan {
  Plan(const CublasLt& library, const GemmProblem& problem) : library(library), problem(problem) {}
  ~Plan() {
    if (desc) library.desc_destroy(desc);
    for (lt::Layout l : {a, b, out})
      if (l) library.layout_destroy(l);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  /// Creates the descriptor and the layouts. It is separate from the constructor, so that the
  /// destructor frees them if a later step throws.
  void describe() {
    const GemmProblem& p = problem;
    library.check(library.desc_create(&desc, lt::ComputeType::f32, CUDA_R_32F),
                  "cublasLtMatmulDescCreate");
    set(lt::DescAttribute::trans_a, p.trans_b ? lt::Operation::transpose : lt::Operation::none);
    set(lt::DescAttribute::trans_b, p.trans_a ? lt::Operation::transpose : lt::Operation::none);
    set(lt::DescAttribute::epilogue, p.epilogue);
    if (uses_aux(p.epilogue)) {
      set(lt::DescAttribute::aux_row_stride, p.out_row_stride);
      set(lt::DescAttribute::aux_batch_stride, p.out_batch_stride);
    }
    if (p.a_codes != GemmCodes::none) describe_scales();
    const cudaDataType out_type = library_type(p.out_dtype);
    a = layout(library_type(p.dtype, p.a_codes), p.trans_a ? p.inner : p.rows,
               p.trans_a ? p.rows : p.inner, p.a_row_stride, p.a_batch_stride);
    b = layout(library_type(p.dtype, p.b_codes), p.trans_b ? p.columns : p.inner,
               p.trans_b ? p.inner : p.columns, p.b_row_stride, p.b_batch_stride);
    out = layout(out_type, p.rows, p.columns, p.out_row_stride, p.out_batch_stride);
  }

  template <class T>
  void set(lt::DescAttribute attribute, const T& value) const {
    library.check(library.desc_set(desc, attribute, &value, sizeof(value)),
                  "cublasLtMatmulDescSetAttribute");
  }

  /// Sets the epilogue's pointers, which cuBLASLt keeps in the descriptor.
  void bind(const GemmOperands& operands) const {
    if (uses_bias(problem.epilogue)) set(lt::DescAttribute::bias_pointer, operands.bias);
    if (uses_aux(problem.epilogue)) set(lt::DescAttribute::aux_pointer, operands.aux);
    if (problem.a_codes == GemmCodes::none) return;
    set(lt::DescAttribute::a_scale_pointer, operands.b_scale);
    set(lt::DescAttribute::b_scale_pointer, operands.a_scale);
  }

  const CublasLt& library;
  const GemmProblem problem;
  lt::Desc desc = nullptr;
  lt::Layout a = nullptr, b = nullptr, out = nullptr;
  bool supported = false;
  lt::Algorithm algorithm{};

 private:
  /// Sets FP8 scale modes. Older libraries support only one scale per operand, without an
  /// attribute.
  void describe_scales() const {
    const GemmProblem& p = problem;
    set(lt::DescAttribute::fast_accumulation, static_cast<int8_t>(p.fast_accumulation));
    if (p.a_scaling == lt::ScaleMode::scalar && p.b_scaling == lt::ScaleMode::scalar) return;
    set(lt::DescAttribute::a_scale_mode, p.b_scaling);
    set(lt::DescAttribute::b_scale_mode, p.a_scaling);
  }

  lt::Layout layout(cudaDataType type, int64_t rows, int64_t columns, int64_t row_stride,
                    int64_t batch_stride) const {
    lt::Layout created = nullptr;
    library.check(library.layout_create(&created, type, static_cast<uint64_t>(columns),
                                        static_cast<uint64_t>(rows), row_stride),
                  "cublasLtMatrixLayoutCreate");
    if (problem.batch == 1) return created;
    const auto count = static_cast<int32_t>(problem.batch);
    lt::Status status =
        library.layout_set(created, lt::LayoutAttribute::batch_count, &count, sizeof(count));
    if (status == lt::Status::success) {
      status = library.layout_set(created, lt::LayoutAttribute::batch_stride, &batch_stride,
                                  sizeof(batch_stride));
    }
    if (status != lt::Status::success) library.layout_destroy(created);
    library.check(status, "cublasLtMatrixLayoutSetAttribute");
    return created;
  }
};

Gemm::Gemm(CudaDevice& device)
    : device_(device), choices_(std::make_unique<GemmChoices>(library_.version())) {
  library_.check(library_.create(&handle_), "cublasLtCreate");
}

Gemm::~Gemm() {
  plans_.clear();
  library_.destroy(handle_);
  for (const auto& [stream, data] : workspaces_)
    device_.pool().release(data, kWorkspaceBytes, stream);
}

void* Gemm::workspace(cudaStream_t stream) {
  void*& data = workspaces_[stream];
  if (!data) data = device_.pool().allocate(kWorkspaceBytes, stream);
  return data;
}

void Gemm::forget(cudaStream_t stream) {
  const auto found = workspaces_.find(stream);
  if (found == workspaces_.end()) return;
  device_.pool().release(found->second, kWorkspaceBytes, stream);
  workspaces_.erase(found);
}

std::vector<lt::Algorithm> Gemm::candidates(const Plan& plan, const GemmProblem& problem) const {
  lt::Preference preference = nullptr;
  library_.check(library_.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
  lt::Status status = lt::Status::success;
  const auto prefer = [&](lt::PreferenceAttribute attribute, auto value) {
    if (status != lt::Status::success) return;
    status = library_.preference_set(preference, attribute, &value, sizeof(value));
  };
  prefer(lt::PreferenceAttribute::workspace_bytes, uint64_t{kWorkspaceBytes});
  prefer(lt::PreferenceAttribute::reduction_schemes, lt::Reduction::compute_type);
  prefer(lt::PreferenceAttribute::alignment_a, uint32_t{problem.b_alignment});
  prefer(lt::PreferenceAttribute::alignment_b, uint32_t{problem.a_alignment});
  prefer(lt::PreferenceAttribute::alignment_c, uint32_t{problem.out_alignment});
  prefer(lt::PreferenceAttribute::alignment_d, uint32_t{problem.out_alignment});
  lt::Heuristic results[kCandidates];
  int found = 0;
  if (status == lt::Status::success) {
    status = library_.heuristic(handle_, plan.desc, plan.b, plan.a, plan.out, plan.out, preference,
                                kCandidates, results, &found);
  }
  library_.preference_destroy(preference);
  std::vector<lt::Algorithm> algorithms;
  if (status == lt::Status::not_supported || status == lt::Status::invalid_value) return algorithms;
  library_.check(status, "cublasLtMatmulAlgoGetHeuristic");
  for (int i = 0; i < found; ++i) {
    if (results[i].status == lt::Status::success) algorithms.push_back(results[i].algorithm);
  }
  return algorithms;
}

lt::Status Gemm::enqueue(const Plan& plan, const lt::Algorithm& algorithm,
                         const GemmOperands& operands, void* result, cudaStream_t stream) {
  const float alpha = 1, beta = plan.problem.accumulate ? 1 : 0;
  return library_.matmul(handle_, plan.desc, &alpha, operands.b, plan.b, operands.a, plan.a, &beta,
                         operands.out, plan.out, result, plan.out, &algorithm, workspace(stream),
                         kWorkspaceBytes, stream);
}

/// Returns true if the library can run an algorithm that another process selected.
bool Gemm::serves(const Plan& plan, const lt::Algorithm& algorithm) const {
  lt::Heuristic result{};
  return library_.algorithm_check(handle_, plan.desc, plan.b, plan.a, plan.out, plan.out,
                                  &algorithm, &result) == lt::Status::success &&
         result.workspace_bytes <= kWorkspaceBytes;
}

/// Times the algorithms and returns the index of the one to keep. Timing writes to `operands.out`
/// only if the real call overwrites it and reads neither it nor an alias. Otherwise timing writes
/// to scratch memory. Without scratch memory, it returns 0, the first proposal.
size_t Gemm::fastest(const Plan& plan, const std::vector<lt::Algorithm>& algorithms,
                     const GemmOperands& operands, cudaStream_t stream) {
  const GemmProblem& problem = plan.problem;
  if (algorithms.size() < 2 || timed_problems_ >= kTimedProblems) return 0;
  if (device_.captures()) return 0;  // the host cannot wait for a stream that records
  const bool preserve = problem.accumulate || problem.epilogue == lt::Epilogue::gelu_grad;
  const size_t extent = preserve ? out_extent(problem) : 0;
  void* scratch = nullptr;
  if (preserve) {
    if (extent > kTimingScratch) return 0;
    scratch = device_.pool().try_allocate(extent, stream);
    if (!scratch) return 0;
  }
  ++timed_problems_;
  void* result = preserve ? scratch : operands.out;
  std::vector<float> times;
  try {
    times = time_algorithms(stream, algorithms.size(), [&](size_t i) {
      return enqueue(plan, algorithms[i], operands, result, stream) == lt::Status::success;
    });
  } catch (...) {
    device_.pool().release(scratch, extent, stream);
    throw;
  }
  device_.pool().release(scratch, extent, stream);
  auto winner = static_cast<size_t>(std::min_element(times.begin(), times.end()) - times.begin());
  if (times[winner] >= kClearlyFaster * times[0]) winner = 0;
  if (times[winner] < kNeverRuns)
    choices_->add(problem, {algorithms[winner], times[winner], times[0]});
  return winner;
}

Gemm::Plan& Gemm::plan_for(const GemmProblem& problem, const GemmOperands& operands,
                           cudaStream_t stream) {
  const auto found = plans_.find(problem);
  if (found != plans_.end()) return *found->second;
  auto plan = std::make_unique<Plan>(library_, problem);
  plan->describe();
  plan->bind(operands);
  const bool timed = !problem.deterministic && flops(problem) >= kTimedFlops;
  const GemmChoice* const known = timed ? choices_->find(problem) : nullptr;
  if (known && serves(*plan, known->algorithm)) {
    plan->supported = true;
    plan->algorithm = known->algorithm;
  } else if (const auto algorithms = candidates(*plan, problem); !algorithms.empty()) {
    plan->supported = true;
    plan->algorithm = algorithms[timed ? fastest(*plan, algorithms, operands, stream) : 0];
  }
  return *plans_.emplace(problem, std::move(plan)).first->second;
}

bool Gemm::run(const GemmProblem& problem, const GemmOperands& operands, cudaStream_t stream) {
  GemmProblem key = problem;
  key.deterministic = device_.deterministic_algorithms();
  const Plan& plan = plan_for(key, operands, stream);
  if (!plan.supported) return false;
  plan.bind(operands);
  library_.check(enqueue(plan, plan.algorithm, operands, operands.out, stream), "cublasLtMatmul");
  return true;
}

}  // namespace ds::cuda
