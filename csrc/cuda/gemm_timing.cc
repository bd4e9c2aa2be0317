// Times algorithms in batches between events.
#include "gemm_timing.h"

#include <algorithm>
#include <numeric>

#include "cuda_error.h"

namespace ds::cuda {

namespace {

constexpr const char* kOp = "matmul";
constexpr int kFirstRuns = 2, kRounds = 3;
constexpr float kBatchMilliseconds = 2;
constexpr int kMostRuns = 64;
constexpr float kContender = 1.15f;  // relative to the fastest first run
constexpr size_t kContenders = 8;

/// Timed events that separate consecutive batches.
class Marks {
 public:
  explicit Marks(size_t count) : events_(count) {
    for (cudaEvent_t& event : events_) DS_CUDA(cudaEventCreate(&event), kOp);
  }
  ~Marks() {
    for (cudaEvent_t event : events_)
      if (event) cudaEventDestroy(event);
  }
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;

  void record(size_t mark, cudaStream_t stream) const {
    DS_CUDA(cudaEventRecord(events_[mark], stream), kOp);
  }
  void await(size_t mark) const { DS_CUDA(cudaEventSynchronize(events_[mark]), kOp); }
  float milliseconds(size_t from, size_t to) const {
    float elapsed = 0;
    DS_CUDA(cudaEventElapsedTime(&elapsed, events_[from], events_[to]), kOp);
    return elapsed;
  }

 private:
  std::vector<cudaEvent_t> events_;
};

}  // namespace

std::vector<float> time_algorithms(cudaStream_t stream, size_t count,
                                   const std::function<bool(size_t)>& run) {
  std::vector<float> times(count, kNeverRuns);
  std::vector<size_t> order;
  for (size_t i = 0; i < count; ++i)
    if (run(i)) order.push_back(i);  // the first run also loads the algorithm's code
  if (order.empty()) return times;
  const Marks marks(order.size() + 1);
  /// Times runs(i) calls of each algorithm in `order` as a batch. Keeps its shortest mean.
  const auto measure = [&](const auto& runs) {
    marks.record(0, stream);
    for (size_t k = 0; k < order.size(); ++k) {
      for (int n = runs(order[k]); n > 0; --n) run(order[k]);
      marks.record(k + 1, stream);
    }
    marks.await(order.size());
    for (size_t k = 0; k < order.size(); ++k) {
      float& best = times[order[k]];
      best = std::min(best, marks.milliseconds(k, k + 1) / static_cast<float>(runs(order[k])));
    }
  };
  measure([](size_t) { return kFirstRuns; });
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return times[a] < times[b]; });
  const float limit = kContender * times[order[0]];
  size_t kept = 1;
  while (kept < std::min(order.size(), kContenders) && times[order[kept]] <= limit) ++kept;
  const std::vector<float> first = times;
  const bool has_first = std::find(order.begin(), order.begin() + kept, 0) != order.begin() + kept;
  for (size_t k = kept; k < order.size(); ++k) times[order[k]] = std::max(first[order[k]], limit);
  order.resize(kept);
  if (!has_first && first[0] < kNeverRuns) order.push_back(0);  // the reference
  for (const size_t i : order) times[i] = kNeverRuns;
  const auto runs = [&](size_t i) {
    return std::clamp(static_cast<int>(kBatchMilliseconds / std::max(first[i], 1e-3f)), 2,
                      kMostRuns);
  };
  for (int round = 0; round < kRounds; ++round) measure(runs);
  return times;
}

}  // namespace ds::cuda
