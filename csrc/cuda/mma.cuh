// Warp-level instructions of tensor-core kernels: mma.sync, ldmatrix, cp.async and swizzled tiles.
#pragma once

#include <cstdint>

#include "cuda_context.h"

namespace ds::cuda {

/// Returns the 32-bit address of shared memory that PTX instructions take.
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// Loads four 8x8 matrices of 16-bit elements. Lane i provides the address of row i % 8 of matrix i
/// / 8.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

/// Like ldmatrix_x4, but transposes each matrix.
__device__ __forceinline__ void ldmatrix_x4_transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

/// Computes c[16, 8] += a[16, 16] b[16, 8] in f32. T is __nv_bfloat16 or __half.
template <class T>
__device__ __forceinline__ void mma_16x8x16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1);
template <>
__device__ __forceinline__ void mma_16x8x16<__nv_bfloat16>(float (&c)[4], const uint32_t (&a)[4],
                                                           uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma_16x8x16<__half>(float (&c)[4], const uint32_t (&a)[4],
                                                    uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Computes c[16, 8] += a[16, 32] b[32, 8] of signed bytes. A register holds four bytes.
__device__ __forceinline__ void mma_16x8x32(int (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Copies 16 bytes from global to shared memory asynchronously. If not `valid`, writes zeros.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(shared)), "l"(global), "r"(valid ? 16 : 0)
               : "memory");
}
/// Closes the group of this thread's asynchronous copies.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most kPending copy groups of this thread are in flight.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Returns 2^x by one instruction, with a relative error of 2^-22. 2^-inf is 0.
__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Rounds two floats to T and packs them into a register, with `low` at the lower address.
template <class T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high);
template <>
__device__ __forceinline__ uint32_t pack_pair<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
template <>
__device__ __forceinline__ uint32_t pack_pair<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

/// Returns the element offset of chunk `chunk` (8 elements) of `row` in a shared tile with kD
/// elements per row. Chunks are permuted within a row, so that equal chunks of eight rows are in
/// different banks. The pattern repeats every 8 rows, so a tile may begin at any multiple of 8
/// rows.
template <int kD>
__device__ __forceinline__ int swizzled(int row, int chunk) {
  static_assert(kD % 32 == 0, "a row is a whole number of 64-byte halves of the bank line");
  if constexpr (kD % 64 == 0) return row * kD + ((chunk ^ (row & 7)) * 8);
  return row * kD + ((chunk ^ ((row >> 1) & 3)) * 8);
}

/// The 16 kTiles rows from `row` of a tile on, as left operands of mma over kD. With kInRegisters,
/// they stay in registers. Otherwise each use reads shared memory.
template <class T, int kTiles, int kD, bool kInRegisters>
struct RowFragments {
  const T* rows;
  uint32_t kept[kInRegisters ? kTiles : 1][kInRegisters ? kD / 16 : 1][4];

  /// Attaches to a tile in shared memory. All threads of the warp call it.
  __device__ __forceinline__ void attach(const T* tile, int row) {
    rows = tile + row * kD;
    if constexpr (kInRegisters) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
#pragma unroll
        for (int k = 0; k < kD / 16; ++k) read(m, k, kept[m][k]);
    }
  }
  __device__ __forceinline__ void read(int m, int k, uint32_t (&fragment)[4]) const {
    const int lane = threadIdx.x % 32;
    ldmatrix_x4(fragment, rows + swizzled<kD>(m * 16 + lane % 16, k * 2 + lane / 16));
  }
  __device__ __forceinline__ void get(int m, int k, uint32_t (&fragment)[4]) const {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int i = 0; i < 4; ++i) fragment[i] = kept[m][k][i];
    } else {
      read(m, k, fragment);
    }
  }
};

/// Computes acc[16 kTiles, 8 kColumns] += a b^T. b has 8 kColumns rows of kD in shared memory.
template <class T, int kD, int kTiles, int kColumns, bool kInRegisters>
__device__ __forceinline__ void multiply_by_rows(float (&acc)[kTiles][kColumns][4],
                                                 const RowFragments<T, kTiles, kD, kInRegisters>& a,
                                                 const T* b) {
  static_assert(kColumns % 2 == 0, "ldmatrix.x4 brings two column tiles");
  const int lane = threadIdx.x % 32;
  const int row = lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
#pragma unroll
  for (int k = 0; k < kD / 16; ++k) {
    uint32_t left[kTiles][4];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) a.get(m, k, left[m]);
#pragma unroll
    for (int n = 0; n < kColumns / 2; ++n) {
      uint32_t right[4];
      ldmatrix_x4(right, b + swizzled<kD>(n * 16 + row, k * 2 + half));
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        mma_16x8x16<T>(acc[m][2 * n], left[m], right[0], right[1]);
        mma_16x8x16<T>(acc[m][2 * n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

/// Computes acc[16 kTiles, kD] += a[16 kTiles, 16 kSteps] b. b has 16 kSteps rows of kD in shared
/// memory.
template <class T, int kD, int kTiles, int kSteps>
__device__ __forceinline__ void multiply_by_columns(float (&acc)[kTiles][kD / 8][4],
                                                    const uint32_t (&a)[kTiles][kSteps][4],
                                                    const T* b) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < kSteps; ++k)
#pragma unroll
    for (int n = 0; n < kD / 16; ++n) {
      uint32_t right[4];
      ldmatrix_x4_transposed(right, b + swizzled<kD>(k * 16 + lane % 16, n * 2 + lane / 16));
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        mma_16x8x16<T>(acc[m][2 * n], a[m][k], right[0], right[1]);
        mma_16x8x16<T>(acc[m][2 * n + 1], a[m][k], right[2], right[3]);
      }
    }
}

/// Rounds the accumulators of a product to T, as the left operand of the next. No data moves
/// between threads.
template <class T, int kTiles, int kColumns>
__device__ __forceinline__ void to_left_operand(uint32_t (&a)[kTiles][kColumns / 2][4],
                                                const float (&acc)[kTiles][kColumns][4]) {
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      a[m][n / 2][n % 2 * 2] = pack_pair<T>(acc[m][n][0], acc[m][n][1]);
      a[m][n / 2][n % 2 * 2 + 1] = pack_pair<T>(acc[m][n][2], acc[m][n][3]);
    }
}

}  // namespace ds::cuda
