// The times of several algorithms of one product, measured as training runs them: back to back.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace ds::cuda {

constexpr float kNeverRuns = 1e30f;  // the time of an algorithm that fails

/// Returns the milliseconds of each of `count` algorithms; run(i) enqueues algorithm i on `stream`
/// and returns whether it succeeded. The host waits for the stream.
///
/// All algorithms run twice. Those that are close to the fastest then run in batches of a few
/// milliseconds, round by round, and the fastest batch counts. So the GPU is as busy and as warm as
/// in training, where single calls would let its clocks rise.
std::vector<float> time_algorithms(cudaStream_t stream, size_t count,
                                   const std::function<bool(size_t)>& run);

}  // namespace ds::cuda
