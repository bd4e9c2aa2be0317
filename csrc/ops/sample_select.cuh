// Radix selection of candidates by value, for the sampler. It uses counts and integer weights, so
// the order of sums does not matter.
#pragma once

#include "../cuda/block_reduce.cuh"

namespace ds::cuda {
namespace {

constexpr int kThreads = 1024;  // threads of a block, which processes a row
constexpr float kOut = -INFINITY;

// -------------------------------------------------------------------------------------------------
// Orders

/// Returns an unsigned number that is ordered like floats without NaN. -0 is 0.
__device__ __forceinline__ uint32_t ascending_key(float x) {
  const uint32_t bits = x == 0.0f ? 0u : __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float value_of(uint32_t ascending) {
  return __uint_as_float(ascending & 0x80000000u ? ascending & 0x7fffffffu : ~ascending);
}

/// Returns a 64-bit rank: larger for larger values, then for lower columns.
__device__ __forceinline__ uint64_t ranked(float x, uint32_t column) {
  return uint64_t{ascending_key(x)} << 32 | ~column;
}

__device__ __forceinline__ uint32_t column_in(uint64_t rank) {
  return ~static_cast<uint32_t>(rank);
}

/// The last candidate to keep, in descending order of values, then of columns.
struct Boundary {
  uint32_t key = 0;     // ascending
  uint32_t column = 0;  // among equal keys, this column and larger ones are kept

  __device__ __forceinline__ bool keeps(float y, uint32_t c) const {
    const uint32_t k = ascending_key(y);
    return k > key || (k == key && c >= column);
  }
};

// -------------------------------------------------------------------------------------------------
// Radix selection over weights

constexpr int kDigit = 11, kBins = 1 << kDigit;

/// The result of find_bin(): the bin, the weight still wanted in it, and its total weight.
struct Found {
  uint64_t wanted, inside;
  uint32_t bin;
};

/// Finds the bin with the `wanted`-th unit of weight, counted from bin 0. Starts and ends with a
/// barrier.
__device__ inline Found find_bin(const uint64_t* bins, uint64_t wanted) {
  __shared__ uint64_t sums[kThreads / 32];
  __shared__ Found answer;
  constexpr int kEach = kBins / kThreads;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();
  uint64_t own[kEach], total = 0;
#pragma unroll
  for (int u = 0; u < kEach; ++u) total += own[u] = bins[threadIdx.x * kEach + u];
  unsigned long long upto = total;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const unsigned long long below = __shfl_up_sync(0xffffffffu, upto, distance);
    if (lane >= distance) upto += below;
  }
  if (lane == 31) sums[warp] = upto;
  __syncthreads();
  uint64_t before = upto - total;
  for (uint32_t w = 0; w < warp; ++w) before += sums[w];
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    if (before < wanted && wanted <= before + own[u])
      answer = {wanted - before, own[u], threadIdx.x * kEach + u};
    before += own[u];
  }
  __syncthreads();
  return answer;
}

__device__ __forceinline__ void add_weight(uint64_t* bin, uint64_t weight) {
  atomicAdd(reinterpret_cast<unsigned long long*>(bin), static_cast<unsigned long long>(weight));
}

/// Returns a bin of width 1/64, from the largest value, 0, downwards. Near 0, these bins spread
/// values more evenly than the bits of a float, and keep the order of keys.
__device__ __forceinline__ uint32_t coarse_bin(float y) {
  const float at = mul_rn(-y, 64.0f);
  return at < kBins - 1 ? static_cast<uint32_t>(at) : kBins - 1;
}

/// The candidates of a row: y [count], and their columns, which are the indices if null.
struct Candidates {
  const float* y;
  const uint32_t* columns;  // null if y is indexed by column
  uint32_t count;

  __device__ __forceinline__ uint32_t column(uint32_t i) const { return columns ? columns[i] : i; }
};

/// A pass of a selection: adds the weight of each candidate for which `holds` is true to bin
/// `digit`.
template <class Weight, class Holds, class Digit>
__device__ __forceinline__ Found pass(const Candidates& from, uint64_t* bins, uint64_t wanted,
                                      Weight weight, Holds holds, Digit digit) {
  __syncthreads();
  for (int b = threadIdx.x; b < kBins; b += kThreads) bins[b] = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < from.count; i += kThreads) {
    const float y = from.y[i];
    if (y == kOut || !holds(i, y)) continue;
    const uint64_t w = weight(y);
    if (w > 0) add_weight(&bins[digit(i, y)], w);
  }
  return find_bin(bins, wanted);
}

/// Returns the candidate with the `wanted`-th unit of weight, counted from the largest value.
/// `wanted` is at most the sum of weights. Without `by_column`, the boundary includes all
/// candidates with an equal value.
template <class Weight>
__device__ Boundary select(const Candidates& from, uint64_t* bins, uint64_t wanted, bool by_column,
                           Weight weight) {
  Found found = pass(
      from, bins, wanted, weight, [](uint32_t, float) { return true; },
      [](uint32_t, float y) { return coarse_bin(y); });
  const uint32_t coarse = found.bin;
  Boundary last;
  // Bits of the key from the highest on. Larger keys have lower bins.
  uint32_t known = 0, mask = 0;
  for (int left = 32; left > 0;) {
    const int taken = min(kDigit, left), shift = left - taken;
    const uint32_t digit_mask = (1u << taken) - 1;
    found = pass(
        from, bins, found.wanted, weight,
        [&](uint32_t, float y) {
          return coarse_bin(y) == coarse && (~ascending_key(y) & mask) == known;
        },
        [&](uint32_t, float y) { return ~ascending_key(y) >> shift & digit_mask; });
    known |= found.bin << shift;
    mask |= digit_mask << shift;
    left -= taken;
  }
  last.key = ~known;
  const uint64_t each = weight(value_of(last.key));
  if (!by_column || found.inside == each) return last;
  // Among equal keys, larger columns come first.
  uint32_t known_column = 0;
  mask = 0;
  for (int left = 24; left > 0;) {
    const int taken = min(kDigit, left), shift = left - taken;
    const uint32_t digit_mask = (1u << taken) - 1;
    const auto downwards = [&](uint32_t i) { return ~from.column(i) & 0xffffffu; };
    found = pass(
        from, bins, found.wanted, weight,
        [&](uint32_t i, float y) {
          return ascending_key(y) == last.key && (downwards(i) & mask) == known_column;
        },
        [&](uint32_t i, float) { return downwards(i) >> shift & digit_mask; });
    known_column |= found.bin << shift;
    mask |= digit_mask << shift;
    left -= taken;
  }
  last.column = ~known_column & 0xffffffu;
  return last;
}

}  // namespace
}  // namespace ds::cuda
