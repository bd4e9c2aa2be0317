// Entry points of the attention kernels on mma.sync and without tensor cores. Each has a .cu file
// of its own, because together they took the longest to compile.
#pragma once

#include <type_traits>

#include "../cuda/shared_memory.h"
#include "attention_backward.cuh"
#include "attention_forward.cuh"

namespace ds::cuda {

constexpr int kPlainHeadDim = 256;  // largest head dim of the kernels without tensor cores

/// The forward on mma.sync, for head dims up to 128 and a positive scale. T is __nv_bfloat16 or
/// __half.
template <class T>
void run_attention_forward(const ForwardArguments<T>& args, cudaStream_t stream);

/// dk and dv on mma.sync, after the row statistics.
template <class T>
void run_attention_key_gradient(const BackwardArguments<T>& args, cudaStream_t stream);

/// dq on mma.sync, after the row statistics.
template <class T>
void run_attention_query_gradient(const BackwardArguments<T>& args, cudaStream_t stream);

/// The forward without tensor cores, for any scale. T is float, __nv_bfloat16 or __half.
template <class T>
void run_attention_plain(const ForwardArguments<T>& args, cudaStream_t stream);

/// dq, dk and dv without tensor cores, after the row statistics.
template <class T>
void run_attention_plain_backward(const BackwardArguments<T>& args, cudaStream_t stream);

/// Calls f with `hiding` as a compile-time constant.
template <class F>
void with_hiding(Hiding hiding, F&& f) {
  switch (hiding) {
    case Hiding::causal: return f(std::integral_constant<Hiding, Hiding::causal>{});
    case Hiding::tiles: return f(std::integral_constant<Hiding, Hiding::tiles>{});
    case Hiding::elements: return f(std::integral_constant<Hiding, Hiding::elements>{});
  }
}

/// Calls f with the smallest head dim of the mma.sync kernels that is at least d. Tile sizes fit
/// the 99 KiB of shared memory of smaller devices. Of such sizes, they were the fastest on an H200
/// (causal, T = 1024 at D = 64 and 4096 at D = 128). Kernels that hide scores have smaller tiles if
/// they would run out of registers.
template <class F>
void with_head_dim(int d, F&& f) {
  if (d <= 32) return f(std::integral_constant<int, 32>{});
  if (d <= 64) return f(std::integral_constant<int, 64>{});
  if (d <= 96) return f(std::integral_constant<int, 96>{});
  f(std::integral_constant<int, 128>{});
}

}  // namespace ds::cuda
