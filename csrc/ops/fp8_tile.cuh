// A tile of 128 x 128 elements in registers, by rows and by columns, and the cast to codes of FP8.
#pragma once

#include "../cuda/vector.cuh"
#include "fp8.h"

namespace ds::cuda {

constexpr int kFp8Tile = static_cast<int>(kFp8Group), kFp8Threads = 256, kFp8Quarter = kFp8Tile / 4;

/// Two neighbouring codes; x comes first in memory.
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

template <Fp8Format kFormat>
__device__ __forceinline__ uint32_t four_codes(const float (&x)[4], float by) {
  return two_codes<kFormat>(mul_rn(x[0], by), mul_rn(x[1], by)) |
         two_codes<kFormat>(mul_rn(x[2], by), mul_rn(x[3], by)) << 16;
}

/// Returns the largest of `bits` over kLanes neighbouring threads of a warp.
template <int kLanes>
__device__ __forceinline__ uint32_t largest_of(uint32_t bits) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2)
    bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, step));
  return bits;
}

/// The matrix, and the magnitudes of whole rows and columns, or of all of it.
template <class T>
struct Fp8Source {
  const T* data;
  int64_t rows, columns, row_stride;
  int64_t tiles_across;
  bool in_packets;       // rows consist of aligned packets
  uint32_t* of_rows;     // [rows]; with Fp8Scaling::tensor [1]
  uint32_t* of_columns;  // [columns]
};

/// The thread's packets of a tile: packet i is at row `down + i * kDown`, column `across`.
template <class T>
struct Fp8TilePart {
  static constexpr int kWidth = kPacket<T>, kAcross = kFp8Tile / kWidth,
                       kDown = kFp8Threads / kAcross, kPackets = kFp8Tile / kDown;
  Vector<T, kWidth> x[kPackets];
  int down, across;

  /// Elements outside the matrix are 0.
  __device__ __forceinline__ void load(const Fp8Source<T>& in, int64_t row, int64_t column) {
    across = static_cast<int>(threadIdx.x) % kAcross * kWidth;
    down = static_cast<int>(threadIdx.x) / kAcross;
    const int64_t c = column + across;
#pragma unroll
    for (int i = 0; i < kPackets; ++i) {
      const int64_t r = row + down + i * kDown;
      const T* const from = in.data + r * in.row_stride + c;
      if (r < in.rows && in.in_packets && c + kWidth <= in.columns) {
        x[i] = load_vector<kWidth>(from);
        continue;
      }
#pragma unroll
      for (int j = 0; j < kWidth; ++j)
        x[i].v[j] = r < in.rows && c + j < in.columns ? from[j] : from_float<T>(0.0f);
    }
  }
  __device__ __forceinline__ uint32_t largest(int i) const {
    uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) bits = max(bits, fp8_magnitude(to_float(x[i].v[j])));
    return bits;
  }
  __device__ __forceinline__ void put(T* tile) const {
#pragma unroll
    for (int i = 0; i < kPackets; ++i)
      store_vector(tile + (down + i * kDown) * kFp8Tile + across, x[i]);
  }
};

/// Two neighbouring columns in a quarter of the rows of a tile in shared memory.
template <class T>
struct Fp8ColumnPair {
  Vector<T, 2> x[kFp8Quarter];
  int column, quarter;

  __device__ __forceinline__ void load(const T* tile) {
    column = static_cast<int>(threadIdx.x) % (kFp8Tile / 2) * 2;
    quarter = static_cast<int>(threadIdx.x) / (kFp8Tile / 2);
#pragma unroll
    for (int i = 0; i < kFp8Quarter; ++i)
      x[i] = load_vector<2>(tile + (quarter * kFp8Quarter + i) * kFp8Tile + column);
  }
  __device__ __forceinline__ uint32_t largest(int j) const {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kFp8Quarter; ++i) bits = max(bits, fp8_magnitude(to_float(x[i].v[j])));
    return bits;
  }
};

}  // namespace ds::cuda
