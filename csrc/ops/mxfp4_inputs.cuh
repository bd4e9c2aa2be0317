// A row of inputs as signed 8-bit digits, the right operand of the MXFP4 experts.
#pragma once

#include "../cuda/mma.cuh"
#include "../cuda/vector.cuh"
#include "mxfp4_math.h"

namespace ds::cuda {

/// Inputs of a run and of a step, runs of a step, and bytes of the digits of a run: 32 high, 32
/// low.
constexpr int kMxRun = 32, kMxRuns = 4, kMxStep = kMxRun * kMxRuns, kMxDigits = 64;
/// Steps and runs that a warp copies at a time.
constexpr int kMxStepsOfSlot = 2, kMxRunsOfSlot = kMxStepsOfSlot * kMxRuns;
/// Bytes of zeros in shared memory, before the digits of x.
constexpr int kMxZeros = 128;
/// Codes become 64 plus twice their value.
constexpr int kMxMiddle = 64;
/// Bits of the float 1.5 * 2^23. Adding an integer below 2^22 to the bits adds it to the float.
constexpr uint32_t kMxRounder = 0x4b400000u;

/// The digits of a row of x by steps, in shared or global memory.
struct MxInputs {
  uint8_t* digits;  // [runs, 64]
  float* factors;   // [2, runs]: factor of a sum of products with the high or low digits
  int* starts;      // [2, runs]: start of such a sum, so that it ends at kMxRounder plus sum
  int runs;         // a multiple of kMxRunsOfSlot

  static __host__ __device__ __forceinline__ int bytes(int runs) { return runs * (kMxDigits + 16); }
  static __device__ __forceinline__ MxInputs at(void* data, int runs) {
    auto* const bytes = static_cast<uint8_t*>(data);
    auto* const floats = reinterpret_cast<float*>(bytes + runs * kMxDigits);
    return {bytes, floats, reinterpret_cast<int*>(floats + 2 * runs), runs};
  }
};

__host__ __device__ inline int mx_runs(int inputs) {
  constexpr int kEach = kMxStep * kMxStepsOfSlot;
  return (inputs + kEach - 1) / kEach * kMxRunsOfSlot;
}

/// The scale of a run, from the bits of its largest magnitude. It scales numbers to integers below
/// 2^14.
struct MxScale {
  float inverse, factor;  // factor is NaN if a number is not finite

  __device__ explicit MxScale(float largest) {
    const auto exponent = max(static_cast<int>(__float_as_uint(largest) >> 23), 14);
    factor = exponent == 255 ? NAN : __uint_as_float(static_cast<uint32_t>(exponent - 13) << 23);
    inverse = __uint_as_float(static_cast<uint32_t>(267 - min(exponent, 254)) << 23);
  }
  /// Returns the integer plus 128. Its bytes are the low digit plus 128, and the high digit.
  __device__ __forceinline__ uint32_t raised(float x) const {
    return __float_as_uint(fmaf(x, inverse, 12582912.f)) + (0x80u - kMxRounder);
  }
  /// Writes the factors and starts of a run, from the sums of its digits.
  __device__ __forceinline__ void put(const MxInputs& to, int run, int high, int low) const {
    to.factors[run] = 256.f * factor, to.factors[to.runs + run] = factor;
    to.starts[run] = static_cast<int>(kMxRounder) - kMxMiddle * high;
    to.starts[to.runs + run] = static_cast<int>(kMxRounder) - kMxMiddle * low;
  }
};

/// The first 8 numbers of x [inputs] of a thread, loaded early for write_mx_inputs().
struct MxInputPacket {
  uint4 packet{0, 0, 0, 0};
  __device__ __forceinline__ MxInputPacket(const __nv_bfloat16* x, int inputs) {
    if (static_cast<int>(threadIdx.x) * 8 < inputs)
      packet = reinterpret_cast<const uint4*>(x)[threadIdx.x];
  }
};

/// Writes all runs of x [inputs] as digits, with zeros beyond the end. All threads of the block
/// call it and work in groups of four.
__device__ __forceinline__ void write_mx_inputs(const MxInputs& to, const __nv_bfloat16* x,
                                                int inputs, const MxInputPacket& own) {
  for (int first = 0; first < to.runs * 4; first += static_cast<int>(blockDim.x)) {
    const int at = first + static_cast<int>(threadIdx.x);  // packet of 8 numbers
    uint4 packet = own.packet;
    if (first > 0) packet = uint4{0, 0, 0, 0};
    if (first > 0 && at * 8 < inputs) packet = *reinterpret_cast<const uint4*>(x + at * 8);
    constexpr uint32_t kMagnitudes = 0x7fff7fffu;
    uint32_t most = __vmaxu2(packet.x & kMagnitudes, packet.y & kMagnitudes);
    most = __vmaxu2(most, __vmaxu2(packet.z & kMagnitudes, packet.w & kMagnitudes));
    most = __vmaxu2(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = __vmaxu2(most, __shfl_xor_sync(0xffffffffu, most, 2));
    const MxScale scale(__uint_as_float(max(most & 0xffffu, most >> 16) << 16));
    const uint32_t words[4] = {packet.x, packet.y, packet.z, packet.w};
    uint32_t high[2], low[2];
    int highs = 0, lows = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t r[4];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        r[2 * j] = scale.raised(__uint_as_float(words[2 * h + j] << 16));
        r[2 * j + 1] = scale.raised(__uint_as_float(words[2 * h + j] & 0xffff0000u));
      }
      const uint32_t a = __byte_perm(r[0], r[1], 0x5140), b = __byte_perm(r[2], r[3], 0x5140);
      low[h] = __byte_perm(a, b, 0x5410) ^ 0x80808080u;
      high[h] = __byte_perm(a, b, 0x7632);
      highs = __dp4a(static_cast<int>(high[h]), 0x01010101, highs);
      lows = __dp4a(static_cast<int>(low[h]), 0x01010101, lows);
    }
    highs += __shfl_xor_sync(0xffffffffu, highs, 1), lows += __shfl_xor_sync(0xffffffffu, lows, 1);
    highs += __shfl_xor_sync(0xffffffffu, highs, 2), lows += __shfl_xor_sync(0xffffffffu, lows, 2);
    const int run = at / 4, part = at % 4;
    if (run >= to.runs) continue;
    uint8_t* const digits = to.digits + run * kMxDigits + part * 8;
    *reinterpret_cast<uint2*>(digits) = uint2{high[0], high[1]};
    *reinterpret_cast<uint2*>(digits + kMxRun) = uint2{low[0], low[1]};
    if (part == 0) scale.put(to, run, highs, lows);
  }
}

}  // namespace ds::cuda
