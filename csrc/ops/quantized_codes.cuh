// 8- and 4-bit codes as operands of tensor cores: converts packets of 16 bytes to weights in
// registers.
#pragma once

#include "../cuda/dependent_launch.cuh"
#include "../cuda/mma.cuh"
#include "../cuda/vector.cuh"
#include "quantized_math.h"

namespace ds::cuda {

/// The code matrix of an op.
struct CodeMatrix {
  const uint32_t* packed;  // [outputs, words]
  const void* scale;       // [outputs, groups]
  DType dtype;             // dtype of scale
  const uint8_t* zero;     // like scale, or null
  int64_t outputs, inputs, words, groups, group;
  int shift;  // log2 of the group size, or -1

  __device__ __forceinline__ int64_t at(int64_t row, int64_t k) const {
    if (groups == 1) return row;
    const auto place = static_cast<uint32_t>(k);
    return row * groups + (shift >= 0 ? place >> shift : place / static_cast<uint32_t>(group));
  }
  __device__ __forceinline__ float scale_at(int64_t at) const {
    if (dtype == DType::f16) return to_float(static_cast<const __half*>(scale)[at]);
    if (dtype == DType::bf16) return to_float(static_cast<const __nv_bfloat16*>(scale)[at]);
    return static_cast<const float*>(scale)[at];
  }
  template <int kBits>
  __device__ __forceinline__ float zero_at(int64_t at) const {
    return zero ? static_cast<float>(zero[at]) : middle_code(kBits);
  }
};

/// Returns the matrix of an op with the fields packed, scale, zero and group.
template <class Op>
CodeMatrix codes_of(const Op& op, int64_t outputs, int64_t inputs) {
  const bool shifts = op.group > 0 && (op.group & (op.group - 1)) == 0;
  return {op.packed.template as<uint32_t>(),
          op.scale.data,
          op.scale.dtype,
          op.zero.template as<uint8_t>(),
          outputs,
          inputs,
          op.packed.shape[1],
          op.scale.shape[1],
          op.group,
          shifts ? __builtin_ctzll(static_cast<uint64_t>(op.group)) : -1};
}

constexpr int64_t kMostInputs = int64_t{1} << 30;  // on tensor cores, indices of inputs are int32

/// Returns true if skinny_kernel can read the operands in packets with a single scale each.
template <class T, class Op>
bool takes_packets(const Op& op, const CodeMatrix& w) {
  const int64_t run = 128 / op.bits;
  return w.inputs % run == 0 && w.inputs > 0 && w.inputs < kMostInputs &&
         (w.groups == 1 || w.group % run == 0) && aligned_for<4>(w.packed) &&
         aligned_for<8>(op.x.template as<T>());
}

/// Returns true if codes may be read before the previous kernel has ended.
template <class Op>
bool codes_are_settled(const Op& op, const CudaContext& ctx) {
  return is_settled(ctx, op.packed.data) && is_settled(ctx, op.scale.data) &&
         (!op.zero || is_settled(ctx, op.zero.data));
}

/// Returns 2^23 plus the code in a byte of a word.
__device__ __forceinline__ float code_as_float(uint32_t word, int byte) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 | byte));
}

/// The power of two at which the last mantissa bit of T counts 1, so that its lowest four bits can
/// hold a code.
template <class T>
constexpr float kNibbleBase = std::is_same_v<T, __half> ? 1024.f : 128.f;

/// Converts the codes in the lowest four bits of both halves of a word to T, each plus kNibbleBase,
/// by one instruction that the compiler does not find.
template <class T>
__device__ __forceinline__ uint32_t raised_nibbles(uint32_t word) {
  uint32_t pair;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;"  // (word & mask) | base
      : "=r"(pair)
      : "r"(word), "r"(0x000f000fu), "r"(std::is_same_v<T, __half> ? 0x64006400u : 0x43004300u));
  return pair;
}

/// When products are multiplied by the scale.
enum class ScaleTime {
  weight,   // each weight, which is then rounded: groups of a packet or more
  packets,  // the sum of 4 packets, which share a group
  row,      // the sum of a row with one group
};

/// The latest exact ScaleTime for these groups.
template <int kBits>
constexpr ScaleTime kLateTime = kBits == 4 ? ScaleTime::packets : ScaleTime::row;
template <int kBits>
bool scales_late(const CodeMatrix& w) {
  return w.groups == 1 || (kBits == 4 && w.group % (4 * 128 / kBits) == 0);
}

/// Codes for skinny_kernel.
template <class T, int kBits, ScaleTime kTime>
struct CodedWeights {
  static constexpr int run = 128 / kBits;
  static constexpr bool scales_steps = kTime == ScaleTime::packets;
  struct Step {
    float scale, zero;
  };

  CodeMatrix matrix;

  __device__ const void* packet(int64_t output, int k) const {
    return matrix.packed + output * matrix.words + k / (32 / kBits);
  }
  /// If the scale multiplies sums of 4 packets, their inputs share it.
  __device__ Step step_of(int64_t output, int k) const {
    const int64_t at = matrix.at(output, scales_steps ? k / (4 * run) * (4 * run) : k);
    return {kTime == ScaleTime::row ? 1.f : matrix.scale_at(at), matrix.zero_at<kBits>(at)};
  }
  __device__ static float factor_of(const Step& step) { return step.scale; }
  __device__ float scale_of_row(int64_t output) const {
    return kTime == ScaleTime::row ? matrix.scale_at(output) : 1.f;
  }

  /// With 8 bits, pairs are the inputs (2 p, 2 p + 1); with 4 bits (p, p + 4).
  __device__ __forceinline__ static void left(uint32_t (&pairs)[4], const uint4& packet, int i,
                                              const Step& step) {
    const uint32_t words[4] = {packet.x, packet.y, packet.z, packet.w};
    if constexpr (kBits == 4) of_nibbles(pairs, words[i], step);
    else {
      of_bytes(pairs[0], pairs[1], words[2 * i], step);
      of_bytes(pairs[2], pairs[3], words[2 * i + 1], step);
    }
  }
  __device__ __forceinline__ static void right(uint32_t (&pairs)[4], const uint4& x) {
    if constexpr (kBits == 4) {
      pairs[0] = __byte_perm(x.x, x.z, 0x5410), pairs[1] = __byte_perm(x.x, x.z, 0x7632);
      pairs[2] = __byte_perm(x.y, x.w, 0x5410), pairs[3] = __byte_perm(x.y, x.w, 0x7632);
    } else {
      pairs[0] = x.x, pairs[1] = x.y, pairs[2] = x.z, pairs[3] = x.w;
    }
  }

 private:
  __device__ __forceinline__ static void of_nibbles(uint32_t (&pairs)[4], uint32_t word,
                                                    const Step& step) {
    using T2 = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
    const float zero = kNibbleBase<T> + step.zero;
    const uint32_t offset = pack_pair<T>(zero, zero);
    const uint32_t factor = pack_pair<T>(step.scale, step.scale);
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const uint32_t codes = raised_nibbles<T>(word >> (4 * p));
      T2 value =
          __hsub2(*reinterpret_cast<const T2*>(&codes), *reinterpret_cast<const T2*>(&offset));
      if constexpr (kTime == ScaleTime::weight)
        value = __hmul2(value, *reinterpret_cast<const T2*>(&factor));
      pairs[p] = *reinterpret_cast<const uint32_t*>(&value);
    }
  }
  __device__ __forceinline__ static void of_bytes(uint32_t& low, uint32_t& high, uint32_t word,
                                                  const Step& step) {
    float values[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      values[j] = code_as_float(word, j) - (8388608.f + step.zero);
      if constexpr (kTime == ScaleTime::weight) values[j] *= step.scale;
    }
    low = pack_pair<T>(values[0], values[1]);
    high = pack_pair<T>(values[2], values[3]);
  }
};

}  // namespace ds::cuda
