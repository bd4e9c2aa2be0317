// Times the algorithms of a product back to back, as training runs them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace ds::cuda {

constexpr float kNeverRuns = 1e30f;  // the time of an algorithm that fails

/// Returns the milliseconds of each of `count` algorithms. run(i) enqueues algorithm i on `stream`
/// and returns false if that fails. Waits for the stream.
///
/// First, all algorithms run twice. Then the fastest ones run in rounds of batches of a few
/// milliseconds, and the fastest batch counts. So the GPU is as busy and as warm as in training.
/// With single calls its clocks would be higher.
std::vector<float> time_algorithms(cudaStream_t stream, size_t count,
                                   const std::function<bool(size_t)>& run);

}  // namespace ds::cuda
