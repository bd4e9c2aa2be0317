// Products of MXFP4 weights and a few tokens on int8 tensor cores (mma 16 x 8 x 32), at memory
// bandwidth. Two table look-ups turn four codes into four bytes. Converting codes to 16-bit floats
// would take twice the instructions, and longer than reading the codes.
//
// 1. Each number of x becomes two signed 8-bit digits, scaled by the largest magnitude of its run
//    of 32. The error is at most 2^-14 of that magnitude.
// 2. Left operand: 16 rows of weights by 32 bytes. Four lanes share a row; lane t of them has run t
//    of a step of four runs (128 inputs). A step takes four mma.
// 3. Right operand: column 4 d + t is digit d (0: high, 1: low) of run t, and 0 for other runs. So
//    each result has one scale of the weights and one scale of x.
#pragma once

#include "../cuda/mma.cuh"
#include "../cuda/vector.cuh"
#include "integer_row.cuh"
#include "mxfp4_inputs.cuh"
#include "mxfp4_math.h"

namespace ds::cuda {

/// Returns four of the eight bytes of `low` and `high`, one for each nibble of `selector`.
__device__ __forceinline__ uint32_t chosen_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
  return bytes;
}

/// Returns the bytes (kMxMiddle plus twice the value) of the lowest four codes of a word. Bit 3 of
/// a nibble makes prmt return the sign of a table's byte, which is 0. So of two look-ups, one
/// returns the byte, the other 0. `mad` adds them, because look-ups already fill the integer unit.
__device__ __forceinline__ uint32_t mx_bytes(uint32_t word) {
  const uint32_t positive = chosen_bytes(0x43424140u, 0x4c484644u, word);
  const uint32_t negative = chosen_bytes(0x3d3e3f40u, 0x34383a3cu, word ^ 0x88888888u);
  uint32_t bytes;
  asm("mad.lo.u32 %0, %1, 1, %2;" : "=r"(bytes) : "r"(positive), "r"(negative));
  return bytes;
}

/// Returns the left operand of mma i of a step. Packet r has the codes of this lane's run in row r.
__device__ __forceinline__ void mx_left(uint32_t (&bytes)[4], const uint4 (&codes)[2], int i) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint32_t words[4] = {codes[r].x, codes[r].y, codes[r].z, codes[r].w};
    bytes[r] = mx_bytes(words[i]), bytes[2 + r] = mx_bytes(words[i] >> 16);
  }
}

/// Runs mma i of the four of a step: adds the product with right operand {b0, b1} to c.
__device__ __forceinline__ void mx_multiply(int (&c)[4], const uint4 (&codes)[2], int i,
                                            uint32_t b0, uint32_t b1) {
  uint32_t left[4];
  mx_left(left, codes, i);
  mma_16x8x32(c, left, b0, b1);
}

/// Returns 2^(scale - 128) as bf16, or 0 for scales below 2, for the lower or upper two bytes of a
/// word.
template <int kHalf>
__device__ __forceinline__ uint32_t mx_factors(uint32_t word) {
  const uint32_t pair = chosen_bytes(word, 0, kHalf == 0 ? 0x4140u : 0x4342u);
  return (__vmaxu2(pair, 0x00010001u) - 0x00010001u) << 7;
}

/// Factors of the weights of a lane's two rows, in shared memory. kPairs: rows have an even number
/// of runs, so that two factors form a word.
template <bool kPairs>
class MxFactors {
 public:
  /// `first` and `second` are rows of `factors` [.., runs].
  __device__ MxFactors(const uint16_t* factors, int runs, int first, int second) {
    const int column = static_cast<int>(threadIdx.x) % 2 * 2;
    rows_[0] = factors + first * runs + column, rows_[1] = factors + second * runs + column;
  }
  /// Returns the factors of the two columns of row r.
  __device__ __forceinline__ float2 of(int r, int step) const {
    const uint16_t* const at = rows_[r] + step * kMxRuns;
    if constexpr (kPairs) {
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(at);
      return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
    }
    return {__uint_as_float(uint32_t{at[0]} << 16), __uint_as_float(uint32_t{at[1]} << 16)};
  }

 private:
  const uint16_t* rows_[2];
};

/// A lane's addresses in the digits of an x, in shared memory. right() reads its column of the
/// right operand; factors() and starts() read two numbers, for its two columns of the result.
class MxColumns {
 public:
  /// `zeros` are kMxZeros bytes of zeros.
  __device__ MxColumns(const MxInputs& x, const uint8_t* zeros) {
    const int lane = threadIdx.x % 32, column = lane / 4, digit = column / 4;
    const bool own = column % 4 == lane % 4;
    right_ = own ? x.digits + lane % 4 * kMxDigits + digit * kMxRun : zeros + (digit ? 0 : 32);
    step_ = own ? kMxRuns * kMxDigits : 0;
    const int first = lane % 4 / 2 * x.runs + lane % 2 * 2;
    factors_ = reinterpret_cast<const float2*>(x.factors + first);
    starts_ = reinterpret_cast<const int2*>(x.starts + first);
  }
  __device__ __forceinline__ void right(uint4 (&r)[2], int step) const {
    const auto* const from = reinterpret_cast<const uint4*>(right_ + step * step_);
    r[0] = from[0], r[1] = from[1];
  }
  __device__ __forceinline__ float2 factors(int step) const { return factors_[step * 2]; }
  __device__ __forceinline__ int2 starts(int step) const { return starts_[step * 2]; }

 private:
  const uint8_t* right_;
  int step_;
  const float2* factors_;
  const int2* starts_;
};

/// Adds two columns to a row's sum. c0 and c1 are float bits: kMxRounder plus an integer.
__device__ __forceinline__ void add_columns(float& sum, int c0, int c1, float2 x, float2 weights) {
  sum = fmaf((__int_as_float(c0) - 12582912.f) * x.x, weights.x, sum);
  sum = fmaf((__int_as_float(c1) - 12582912.f) * x.y, weights.y, sum);
}

/// Adds a step of products if both rows of a lane have the same x.
template <bool kPairs>
__device__ __forceinline__ void add_step(float (&sums)[2], const uint4 (&codes)[2],
                                         const MxFactors<kPairs>& rows, const MxColumns& x,
                                         int step) {
  uint4 right[2];
  x.right(right, step);
  const uint32_t words[8] = {right[0].x, right[0].y, right[0].z, right[0].w,
                             right[1].x, right[1].y, right[1].z, right[1].w};
  const int2 start = x.starts(step);
  int c[4] = {start.x, start.y, start.x, start.y};
#pragma unroll
  for (int i = 0; i < 4; ++i) mx_multiply(c, codes, i, words[2 * i], words[2 * i + 1]);
  const float2 factors = x.factors(step);
  add_columns(sums[0], c[0], c[1], factors, rows.of(0, step));
  add_columns(sums[1], c[2], c[3], factors, rows.of(1, step));
}

/// Adds a step of products if each row of a lane has its own x.
template <bool kPairs>
__device__ __forceinline__ void add_step(float (&sums)[2], const uint4 (&codes)[2],
                                         const MxFactors<kPairs>& rows, const MxColumns& first,
                                         const MxColumns& second, int step) {
  uint4 right[2], other[2];
  first.right(right, step), second.right(other, step);
  const uint32_t words[2][8] = {{right[0].x, right[0].y, right[0].z, right[0].w, right[1].x,
                                 right[1].y, right[1].z, right[1].w},
                                {other[0].x, other[0].y, other[0].z, other[0].w, other[1].x,
                                 other[1].y, other[1].z, other[1].w}};
  const int2 start = first.starts(step), begin = second.starts(step);
  int c[4] = {start.x, start.y, 0, 0}, e[4] = {0, 0, begin.x, begin.y};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    mx_multiply(c, codes, i, words[0][2 * i], words[0][2 * i + 1]);
    mx_multiply(e, codes, i, words[1][2 * i], words[1][2 * i + 1]);
  }
  add_columns(sums[0], c[0], c[1], first.factors(step), rows.of(0, step));
  add_columns(sums[1], e[2], e[3], second.factors(step), rows.of(1, step));
}

}  // namespace ds::cuda
