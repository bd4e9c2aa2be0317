// The product of one row with 8- or 4-bit codes, in integer arithmetic on tensor cores. Codes are
// used as stored, because converting them to weights takes as long as reading them.
//
// A number of x is split into three signed 8-bit digits, scaled by the largest magnitude of its
// segment. So products and sums are exact.
// 1. The left operand of mma is 16 by 32 bytes: 8 consecutive segments of two outputs. A lane reads
//    16 bytes of each output, a warp 512 bytes.
// 2. The columns of the right operand are one digit of the same segments of x.
// 3. The result is the diagonal, a value per segment. The other seven eighths of the products are
//    unused, which costs less time than reading the outputs in shorter pieces.
#pragma once

#include <algorithm>

#include "../cuda/shared_memory.h"
#include "one_row.cuh"
#include "quantized_codes.cuh"

namespace ds::cuda {

/// Computes out [outputs] = x [inputs] by weights + bias, or gated out [outputs / 2]: see OneRow.
template <class T>
struct IntegerRow {
  CodeMatrix codes;   // without zero points, scales of type T
  const T *x, *bias;  // bias may be null
  T* out;
  bool settled;  // codes may be read before the previous kernel has ended
};

constexpr int kDigits = 3;
constexpr int kPieceBytes = 512;  // bytes of an output's codes that a warp reads, in 8 segments
constexpr int kRoundPairs = 32;   // pairs of outputs for which shared memory holds sums

/// Shape of a kernel's blocks: a warp per piece of an output, or per two pieces.
template <bool kGated, int kPieces, int kAhead, int kMostWarps, int kBlocksPerSm>
struct IntegerShape {
  static constexpr bool gated = kGated;
  static constexpr int pieces = kPieces;  // pieces of an output per warp
  static constexpr int ahead = kAhead;    // pairs of outputs in flight
  static constexpr int most_warps = kMostWarps, blocks_per_sm = kBlocksPerSm;
};

/// Returns 16 * (code - middle code) of the four 4-bit codes in the upper halves of bytes, by one
/// instruction that the compiler does not find: see raised_nibbles.
__device__ __forceinline__ uint32_t upper_nibbles(uint32_t word) {
  uint32_t bytes;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;"  // (word & mask) ^ middle
      : "=r"(bytes)
      : "r"(word), "r"(0xf0f0f0f0u), "r"(0x80808080u));
  return bytes;
}

/// Computes q + 128 (1 + 2^8 + 2^16) for 8 numbers, where q is the number times `inverse`, as an
/// integer. The bytes are the digits plus 128.
template <class T>
__device__ __forceinline__ void raise_digits(uint32_t (&raised)[8], const uint4& packet,
                                             float inverse) {
  constexpr float kRounder = 12582912.f;  // 1.5 * 2^23
  constexpr uint32_t kRounderBits = 0x4b400000u;
  const auto& eight = reinterpret_cast<const Vector<T, 8>&>(packet);
#pragma unroll
  for (int j = 0; j < 8; ++j)
    raised[j] =
        __float_as_uint(fmaf(to_float(eight.v[j]), inverse, kRounder)) + (0x808080u - kRounderBits);
}

/// A lane's part of a segment of x, as the right operand of its products.
template <int kBits, class T>
struct RowDigits {
  static constexpr int run = 128 / kBits, products = run / 8;
  uint32_t pairs[kDigits][products][2];
  float factor;  // scale of sums of the lowest digit; NaN if the segment has a number that is not
                 // finite

  /// Loads the digits. Numbers beyond the end are 0. All lanes of a segment must call it. If
  /// magnitudes are below 2^-105, the lowest digit is at least 2^-127.
  __device__ __forceinline__ void load(const T* x, int k, int inputs) {
    uint4 packets[products];
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < products; ++i) {
      packets[i] = uint4{0, 0, 0, 0};
      if (k < inputs) packets[i] = *reinterpret_cast<const uint4*>(x + k + i * 8);
    }
#pragma unroll
    for (int i = 0; i < products; ++i) {
      constexpr uint32_t kMagnitudes = 0x7fff7fffu;
      most = __vmaxu2(most, __vmaxu2(packets[i].x & kMagnitudes, packets[i].y & kMagnitudes));
      most = __vmaxu2(most, __vmaxu2(packets[i].z & kMagnitudes, packets[i].w & kMagnitudes));
    }
    most = __vmaxu2(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = __vmaxu2(most, __shfl_xor_sync(0xffffffffu, most, 2));
    const auto largest = static_cast<unsigned short>(max(most & 0xffffu, most >> 16));
    const uint32_t bits = __float_as_uint(to_float(reinterpret_cast<const T&>(largest)));
    // The largest magnitude is below 2^22 factors.
    const int exponent = max(static_cast<int>(bits >> 23), 22);
    factor = exponent == 255 ? NAN : __uint_as_float(static_cast<uint32_t>(exponent - 21) << 23);
    const auto inverse = static_cast<uint32_t>(275 - min(exponent, 254)) << 23;
    if (kBits == 4) factor *= 0.0625f;  // see upper_nibbles
#pragma unroll
    for (int i = 0; i < products; ++i) put(i, packets[i], __uint_as_float(inverse));
  }

 private:
  /// Packs four numbers into a register: consecutive ones for 8 bits, even or odd ones for 4 bits.
  __device__ __forceinline__ void put(int i, const uint4& packet, float inverse) {
    constexpr uint32_t kMiddles = 0x80808080u;
    constexpr int kStep = kBits == 4 ? 2 : 1;
    uint32_t raised[8];
    raise_digits<T>(raised, packet, inverse);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t* const q = raised + (kBits == 4 ? half : 4 * half);
      const uint32_t a = q[0], b = q[kStep], c = q[2 * kStep], d = q[3 * kStep];
      const uint32_t low = __byte_perm(a, b, 0x5140), high = __byte_perm(c, d, 0x5140);
      pairs[0][i][half] = __byte_perm(low, high, 0x5410) ^ kMiddles;
      pairs[1][i][half] = __byte_perm(low, high, 0x7632) ^ kMiddles;
      const uint32_t tops = __byte_perm(a, b, 0x0062), others = __byte_perm(c, d, 0x0062);
      pairs[2][i][half] = __byte_perm(tops, others, 0x5410) ^ kMiddles;
    }
  }
};

/// A lane's codes of a pair of outputs.
template <int kBits, bool kGrouped, class T>
struct PairCodes {
  uint4 codes[2];
  T scales[2];  // of the segment, if an output has several scales

  /// Adds the sums of a segment. Only lanes with diagonal_lane() have them.
  __device__ __forceinline__ void add_to(float (&sums)[2], const RowDigits<kBits, T>& x) const {
    int c[kDigits][4] = {};
#pragma unroll
    for (int i = 0; i < RowDigits<kBits, T>::products; ++i) {
      uint32_t left[4];
      bytes_of(left, i);
#pragma unroll
      for (int d = 0; d < kDigits; ++d) mma_16x8x32(c[d], left, x.pairs[d][i][0], x.pairs[d][i][1]);
    }
    const bool odd = threadIdx.x / 4 % 2;  // the segment is the second of a lane's two columns
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto digit = [&](int d) { return odd ? c[d][2 * r + 1] : c[d][2 * r]; };
      const float sum = fmaf(static_cast<float>(digit(2)), 65536.f,
                             static_cast<float>(digit(0) + digit(1) * 256));
      sums[r] = fmaf(sum, kGrouped ? x.factor * to_float(scales[r]) : x.factor, sums[r]);
    }
  }

 private:
  /// Returns the left operand of product i: rows are segments of the first output, then of the
  /// second.
  __device__ __forceinline__ void bytes_of(uint32_t (&left)[4], int i) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t words[4] = {codes[r].x, codes[r].y, codes[r].z, codes[r].w};
      if constexpr (kBits == 4) {
        left[r] = upper_nibbles(words[i] << 4), left[2 + r] = upper_nibbles(words[i]);
      } else {
        left[r] = words[2 * i] ^ 0x80808080u, left[2 + r] = words[2 * i + 1] ^ 0x80808080u;
      }
    }
  }
};

/// Returns true if this lane holds elements of the diagonal of a result.
__device__ __forceinline__ bool diagonal_lane() {
  const int lane = threadIdx.x % 32;
  return lane % 4 == lane / 8;
}

/// Returns output r of a pair: a gate and its up projection, or two consecutive outputs.
template <bool kGated>
__device__ __forceinline__ int output_of_pair(int outputs, int pair, int r) {
  return kGated ? pair + r * (outputs / 2) : min(2 * pair + r, outputs - 1);
}

/// Reads a warp's codes.
template <class Shape, int kBits, bool kGrouped, class T>
class IntegerCodes {
 public:
  using Pair = PairCodes<kBits, kGrouped, T>[Shape::pieces];

  __device__ IntegerCodes(const CodeMatrix& w, int end) : w_(w), end_(end) {}

  /// Returns the first input of this lane in a piece of the warp.
  static __device__ __forceinline__ int input(int piece) {
    return static_cast<int>(piece * blockDim.x + threadIdx.x) * RowDigits<kBits, T>::run;
  }
  /// Loads the codes of `pair` if it belongs to the block.
  __device__ __forceinline__ void load(Pair& to, int pair) const {
    if (pair >= end_) return;
#pragma unroll
    for (int i = 0; i < Shape::pieces; ++i) {
      const int k = input(i);
      if (k >= w_.inputs) continue;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int64_t n = output_of_pair<Shape::gated>(static_cast<int>(w_.outputs), pair, r);
        to[i].codes[r] = load_once_16(w_.packed + n * w_.words + k / (32 / kBits));
        if constexpr (kGrouped)
          to[i].scales[r] = static_cast<const T*>(w_.scale)[n * w_.groups + (k >> w_.shift)];
      }
    }
  }

 private:
  const CodeMatrix& w_;
  const int end_;
};

/// Adds the sums of segments for the pairs from `from` on and writes outputs, by 8 threads per
/// output.
template <class Shape, bool kGrouped, class T>
__device__ __forceinline__ void finish_pairs(const IntegerRow<T>& a, const float* sums, int from,
                                             int until) {
  const int segments = static_cast<int>(blockDim.x) / 4, lead = threadIdx.x % 8;
  const int outputs = static_cast<int>(a.codes.outputs);
  const auto total = [&](int row, int of) {
    float sum = 0.f;
    for (int j = lead; j < segments; j += 8) sum += sums[row * (segments + 1) + j];
#pragma unroll
    for (int d = 1; d < 8; d *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    // An explicit fma, so that kernels with and without gates give the same bits.
    return fmaf(sum, kGrouped ? 1.f : to_float(static_cast<const T*>(a.codes.scale)[of]),
                a.bias ? to_float(a.bias[of]) : 0.f);
  };
  const int count = (until - from) * (Shape::gated ? 1 : 2);
  const int each = static_cast<int>(blockDim.x) / 8;
  for (int first = 0; first < count; first += each) {
    // Threads beyond the last output compute it again, because shuffles need all lanes. They do not
    // store.
    const int own = first + static_cast<int>(threadIdx.x) / 8, i = min(own, count - 1);
    const int n = Shape::gated ? from + i : min(2 * from + i, outputs - 1);
    T value;
    if constexpr (Shape::gated)
      value = gated<T>(total(2 * i, n), total(2 * i + 1, n + outputs / 2));
    else value = from_float<T>(total(i, n));
    if (lead == 0 && own < count) a.out[n] = value;
  }
}

/// As many blocks as run at once, each with an equal number of pairs of outputs, so that no wave
/// has a tail. The next kernel may start at the point that is fastest for a layer of Llama 8B:
///
///     gates          at once: the next product can load its codes
///     other, 4 bits  when the sums are complete
///     other, 8 bits  at the end of the kernel
///
///     us per layer   this rule   no early start   all early
///     4 bits            54.0          56.9           56.2
///     8 bits            72.0          73.2           76.4
template <class Shape, int kBits, bool kGrouped, class T>
__global__ void __launch_bounds__(32 * Shape::most_warps, Shape::blocks_per_sm)
    integer_row_kernel(const __grid_constant__ IntegerRow<T> a) {
  extern __shared__ float integer_row_sums[];  // [2 kRoundPairs, segments + 1]
  using Codes = IntegerCodes<Shape, kBits, kGrouped, T>;
  const int64_t pairs = (a.codes.outputs + 1) / 2;
  const int first = static_cast<int>(pairs * blockIdx.x / gridDim.x);
  const int end = static_cast<int>(pairs * (blockIdx.x + 1) / gridDim.x);
  const Codes codes(a.codes, end);
  typename Codes::Pair ring[Shape::ahead] = {};
  if (!a.settled) await_previous();
#pragma unroll
  for (int u = 0; u < Shape::ahead; ++u) codes.load(ring[u], first + u);
  if (a.settled) await_previous();
  if constexpr (Shape::gated) let_next_begin();

  RowDigits<kBits, T> x[Shape::pieces];
#pragma unroll
  for (int i = 0; i < Shape::pieces; ++i)
    x[i].load(a.x, Codes::input(i), static_cast<int>(a.codes.inputs));
  const int segments = static_cast<int>(blockDim.x) / 4;
  static_assert(kRoundPairs % Shape::ahead == 0);
  for (int from = first; from < end; from += kRoundPairs) {
    const int until = min(end, from + kRoundPairs);
    float* own = integer_row_sums + threadIdx.x / 4;
    for (int pair = from; pair < until; pair += Shape::ahead)
#pragma unroll
      for (int u = 0; u < Shape::ahead; ++u) {
        if (pair + u >= until) break;
        float sums[2] = {};
#pragma unroll
        for (int i = 0; i < Shape::pieces; ++i) ring[u][i].add_to(sums, x[i]);
        codes.load(ring[u], pair + u + Shape::ahead);
        if (diagonal_lane()) own[0] = sums[0], own[segments + 1] = sums[1];
        own += 2 * (segments + 1);
      }
    if (!Shape::gated && kBits == 4 && until == end) let_next_begin();
    __syncthreads();
    finish_pairs<Shape, kGrouped>(a, integer_row_sums, from, until);
    if (until < end) __syncthreads();
  }
}

/// Largest number of pieces of an output.
template <int kBits>
constexpr int64_t kMostPieces = kBits == 4 ? 28 : 56;

template <class Shape, int kBits, bool kGrouped, class T>
void launch_integer_shape(const char* name, const IntegerRow<T>& a, CudaContext& ctx) {
  const int64_t pieces = (a.codes.words * 4 + kPieceBytes - 1) / kPieceBytes;
  const int64_t warps = (pieces + Shape::pieces - 1) / Shape::pieces;
  const int64_t places = Shape::blocks_per_sm * Shape::most_warps / warps * ctx.sm_count;
  const int64_t blocks = std::min<int64_t>(places, (a.codes.outputs + 1) / 2);
  constexpr size_t kPiece = sizeof(float) * 2 * kRoundPairs;  // bytes
  static_assert(kPiece * (8 * Shape::most_warps + 1) <= kSharedMemoryOfAll);
  const size_t bytes = kPiece * static_cast<size_t>(8 * warps + 1);
  launch_behind(ctx,
                {name, dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(32 * warps)),
                 ctx.stream, bytes},
                integer_row_kernel<Shape, kBits, kGrouped, T>, a);
}

/// Launches a row with up to kMostPieces pieces, and one scale per output or per 2^n segments.
template <int kBits, bool kGrouped, bool kGated, class T>
void launch_integer_row(const char* name, const IntegerRow<T>& a, CudaContext& ctx) {
  // For many pairs of short rows, more registers keep more loads in flight.
  using Short = std::conditional_t<
      kBits == 8, IntegerShape<kGated, 1, 2, 8, 4>,
      std::conditional_t<kGated, IntegerShape<true, 1, 4, 4, 5>, IntegerShape<false, 1, 2, 4, 6>>>;
  using Long = std::conditional_t<kBits == 8, IntegerShape<kGated, 2, 1, 28, 1>,
                                  IntegerShape<kGated, 1, 2, 28, 1>>;
  if (a.codes.words * 4 <= int64_t{Short::most_warps} * kPieceBytes)
    return launch_integer_shape<Short, kBits, kGrouped>(name, a, ctx);
  launch_integer_shape<Long, kBits, kGrouped>(name, a, ctx);
}

}  // namespace ds::cuda
