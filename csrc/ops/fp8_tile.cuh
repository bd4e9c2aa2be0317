// A tile of 128 x 128 elements in registers, by rows and by columns, and its cast to FP8 codes.
#pragma once

#include "../cuda/vector.cuh"
#include "fp8.h"

namespace ds::cuda {

constexpr int kFp8Tile = static_cast<int>(kFp8Group), kFp8Threads = 256, kFp8Quarter = kFp8Tile / 4;
/// Packets of 16 codes in a group of 128.
constexpr int kFp8Chunks = kFp8Tile / 16;
constexpr int kFp8RowThreads = 512;

/// Returns two codes; x is first in memory.
template <Fp8Format kFormat>
__device__ __forceinline__ uint32_t two_codes(float x, float y) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t codes;
  if constexpr (kFormat == Fp8Format::e4m3)
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(y), "f"(x));
  else asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(y), "f"(x));
  return codes;
#else
  return fp8_code<kFormat>(x) | static_cast<uint32_t>(fp8_code<kFormat>(y)) << 8;
#endif
}

/// Returns the codes of four elements times `by`; x[0] is first in memory.
template <Fp8Format kFormat>
__device__ __forceinline__ uint32_t four_codes(const float (&x)[4], float by) {
  return two_codes<kFormat>(mul_rn(x[0], by), mul_rn(x[1], by)) |
         two_codes<kFormat>(mul_rn(x[2], by), mul_rn(x[3], by)) << 16;
}

/// Magnitudes of a packet as four words of one or two elements. They are ordered like integers,
/// with NaN above infinity.
template <class T>
struct Fp8Magnitudes {
  static constexpr bool kPairs = sizeof(T) == 2;
  uint32_t word[4] = {};

  Fp8Magnitudes() = default;
  __device__ __forceinline__ explicit Fp8Magnitudes(const Vector<T, kPacket<T>>& x) {
#pragma unroll
    for (int i = 0; i < 4; ++i) word[i] = of(reinterpret_cast<const uint32_t*>(&x)[i]);
  }
  static __device__ __forceinline__ uint32_t of(uint32_t elements) {
    return elements & (kPairs ? 0x7fff7fffu : 0x7fffffffu);
  }
  static __device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) {
    if constexpr (kPairs) return __vmaxu2(a, b);
    else return max(a, b);
  }
  /// Returns the largest `word` of kLanes consecutive threads of a warp.
  template <int kLanes>
  static __device__ __forceinline__ uint32_t largest_of(uint32_t word) {
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2)
      word = larger(word, __shfl_xor_sync(0xffffffffu, word, step));
    return word;
  }
  /// Returns fp8_magnitude() of element i of a word.
  static __device__ __forceinline__ uint32_t of_element(uint32_t word, int i) {
    if constexpr (!kPairs) return word;
    else {
      const uint16_t bits = static_cast<uint16_t>(i ? word >> 16 : word);
      return fp8_magnitude(to_float(reinterpret_cast<const T&>(bits)));
    }
  }
  /// Returns the largest fp8_magnitude() of a word.
  static __device__ __forceinline__ uint32_t of_word(uint32_t word) {
    return of_element(kPairs ? max(word & 0xffffu, word >> 16) : word, 0);
  }
  __device__ __forceinline__ uint32_t largest_with(uint32_t other) const {
    return larger(other, larger(larger(word[0], word[1]), larger(word[2], word[3])));
  }
  __device__ __forceinline__ void include(const Fp8Magnitudes& other) {
#pragma unroll
    for (int i = 0; i < 4; ++i) word[i] = larger(word[i], other.word[i]);
  }
};

/// Returns the largest `bits` of the block to all threads. Call it at most once per kernel.
__device__ __forceinline__ uint32_t largest_of_block(uint32_t bits) {
  __shared__ uint32_t largest[32];
  bits = __reduce_max_sync(0xffffffffu, bits);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0) largest[threadIdx.x / 32] = bits;
  __syncthreads();
  return __reduce_max_sync(0xffffffffu, lane * 32 < blockDim.x ? largest[lane] : 0);
}

/// The matrix, and the magnitudes of whole rows and columns, or of the matrix.
template <class T>
struct Fp8Source {
  const T* data;
  int64_t rows, columns, row_stride;
  int64_t tiles_across;
  bool in_packets;       // rows consist of aligned packets
  uint32_t* of_rows;     // [rows]; [1] for Fp8Scaling::tensor
  uint32_t* of_columns;  // [columns]

  /// Returns a packet. Elements outside of the matrix are 0. With kFull there are none.
  template <bool kFull = false>
  __device__ __forceinline__ Vector<T, kPacket<T>> packet(int64_t row, int64_t column) const {
    constexpr int kWidth = kPacket<T>;
    const T* const from = data + row * row_stride + column;
    if constexpr (kFull) return load_vector<kWidth>(from);
    if (row < rows && in_packets && column + kWidth <= columns) return load_vector<kWidth>(from);
    Vector<T, kWidth> x;
#pragma unroll
    for (int j = 0; j < kWidth; ++j)
      x.v[j] = row < rows && column + j < columns ? from[j] : from_float<T>(0.0f);
    return x;
  }
};

/// Returns the position of 16 codes of a column in shared memory. Consecutive threads, which hold
/// every second column or parts of a column, use different banks.
__device__ __forceinline__ int staged(int column, int chunk) {
  return column * kFp8Chunks + (chunk ^ (column / 2 % kFp8Chunks));
}

/// The packets of a thread in a tile. Packet i is at row `down + i * kDown`, column `across`.
template <class T>
struct Fp8TilePart {
  static constexpr int kWidth = kPacket<T>, kAcross = kFp8Tile / kWidth,
                       kDown = kFp8Threads / kAcross, kPackets = kFp8Tile / kDown;
  Vector<T, kWidth> x[kPackets];
  int down, across;

  template <bool kFull>
  __device__ __forceinline__ void load(const Fp8Source<T>& in, int64_t row, int64_t column) {
    across = static_cast<int>(threadIdx.x) % kAcross * kWidth;
    down = static_cast<int>(threadIdx.x) / kAcross;
#pragma unroll
    for (int i = 0; i < kPackets; ++i)
      x[i] = in.template packet<kFull>(row + down + i * kDown, column + across);
  }
  __device__ __forceinline__ void put(T* tile) const {
#pragma unroll
    for (int i = 0; i < kPackets; ++i)
      store_vector(tile + (down + i * kDown) * kFp8Tile + across, x[i]);
  }
};

/// Two consecutive columns in a quarter of the rows of a tile in shared memory.
template <class T>
struct Fp8ColumnPair {
  int column, quarter;
  const T* from;

  __device__ __forceinline__ explicit Fp8ColumnPair(const T* tile)
      : column(static_cast<int>(threadIdx.x) % (kFp8Tile / 2) * 2),
        quarter(static_cast<int>(threadIdx.x) / (kFp8Tile / 2)),
        from(tile + quarter * kFp8Quarter * kFp8Tile + column) {}
  __device__ __forceinline__ Vector<T, 2> operator[](int row) const {
    return load_vector<2>(from + row * kFp8Tile);
  }
  /// Writes fp8_magnitude() of the largest element of each column.
  __device__ __forceinline__ void largest(uint32_t (&bits)[2]) const {
    using Magnitudes = Fp8Magnitudes<T>;
    constexpr int kWords = sizeof(Vector<T, 2>) / 4;
    uint32_t words[kWords] = {};
#pragma unroll
    for (int i = 0; i < kFp8Quarter; ++i) {
      const Vector<T, 2> x = (*this)[i];
#pragma unroll
      for (int k = 0; k < kWords; ++k)
        words[k] =
            Magnitudes::larger(words[k], Magnitudes::of(reinterpret_cast<const uint32_t*>(&x)[k]));
    }
#pragma unroll
    for (int j = 0; j < 2; ++j)
      bits[j] = kWords == 2 ? words[j % kWords] : Magnitudes::of_element(words[0], j);
  }
};

}  // namespace ds::cuda
