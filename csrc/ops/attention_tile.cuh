// Shared by the attention kernels on tensor cores: operands, the order of work, and loads and
// stores of tiles.
#pragma once

#include <algorithm>

#include "../cuda/mma.cuh"

namespace ds::cuda {

/// An operand [B, H, rows, D] with last stride 1. Strides are in elements.
template <class T>
struct HeadsView {
  T* data;
  int64_t batch_stride, head_stride, row_stride;
  bool vectors;  // rows are 16-byte aligned and D is a multiple of 8

  __device__ T* at(int batch, int head, int64_t row) const {
    return data + batch * batch_stride + head * head_stride + row * row_stride;
  }
};

/// The sizes of a call: `rows` queries and `keys` keys per head. Query t sees key s if s < keys
/// and, if `causal`, s <= t + offset().
struct AttentionSizes {
  int batches, heads, key_heads;
  int rows, keys, d;
  bool causal;
  float scale;        // positive
  float scale_log2;   // scale log2(e): scores are exponents of 2
  int heads_in_turn;  // see Work

  __host__ __device__ int offset() const { return keys - rows; }
  __host__ __device__ int group() const { return heads / key_heads; }
};

/// Returns the heads of a turn, for the fewest equal turns of at most max(1, `fitting`) heads. A
/// short last turn would start long tiles when few others are left to overlap with them. (Measured:
/// 8 of 200 heads cost 11 %.)
inline int heads_in_even_turns(int64_t heads, int64_t fitting) {
  const int64_t most = std::max<int64_t>(1, fitting);
  const int64_t turns = std::max<int64_t>(1, (heads + most - 1) / most);
  return static_cast<int>(std::max<int64_t>(1, (heads + turns - 1) / turns));
}

/// Maps a thread block to its batch, head and block of rows. A turn has `heads_in_turn` heads, as
/// many as fit the L2 cache together, and begins with block 0 of all its heads. If block 0 is the
/// longest, a turn ends with the short blocks.
struct Work {
  int batch, head, block;

  __device__ Work(unsigned index, int blocks, int heads, int batches, int heads_in_turn) {
    const unsigned in_turn = static_cast<unsigned>(heads_in_turn) * blocks;
    const unsigned turn = index / in_turn, place = index % in_turn;
    const unsigned first = turn * heads_in_turn;
    const unsigned here =
        min(static_cast<unsigned>(heads_in_turn), static_cast<unsigned>(heads) * batches - first);
    block = static_cast<int>(place / here);
    const unsigned which = first + place % here;
    batch = static_cast<int>(which / heads);
    head = static_cast<int>(which % heads);
  }
};

/// Starts the copy of `rows` rows of d elements into a swizzled tile kRows x kD, with zeros
/// elsewhere. The caller commits and waits. Unaligned rows are copied element by element before it
/// returns.
template <int kRows, int kD, int kThreads, class T>
__device__ __forceinline__ void load_tile(T* tile, const HeadsView<T>& view, const T* source,
                                          int rows, int d) {
  constexpr int chunks = kD / 8, rows_at_once = kThreads / chunks;
  const int chunk = threadIdx.x % chunks, first = threadIdx.x / chunks;
  const int columns = d - chunk * 8;
  const T* from = source + first * view.row_stride + chunk * 8;
  if (kThreads % chunks != 0 && first >= rows_at_once) return;
#pragma unroll
  for (int row = first; row < kRows; row += rows_at_once, from += rows_at_once * view.row_stride) {
    T* to = tile + swizzled<kD>(row, chunk);
    const bool valid = row < rows && columns > 0;
    if (view.vectors) {
      cp_async_16(to, valid ? from : source, valid);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) to[i] = valid && i < columns ? from[i] : from_float<T>(0.f);
    }
  }
}

/// Rounds a warp's accumulators times `factor` and writes rows [skipped, rows) of d elements.
/// `staging` is shared memory for 16 kTiles rows of kD, which only this warp uses.
template <class T, int kTiles, int kD>
__device__ __forceinline__ void store_rows(const float (&acc)[kTiles][kD / 8][4], float factor,
                                           T* staging, const HeadsView<T>& view, T* target,
                                           int rows, int d, int skipped = 0) {
  const int lane = threadIdx.x % 32;
  __syncwarp();
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int n = 0; n < kD / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = m * 16 + half * 8 + lane / 4;
        *reinterpret_cast<uint32_t*>(staging + swizzled<kD>(row, n) + lane % 4 * 2) =
            pack_pair<T>(acc[m][n][half * 2] * factor, acc[m][n][half * 2 + 1] * factor);
      }
  __syncwarp();
  constexpr int chunks = kD / 8;
  for (int i = lane; i < kTiles * 16 * chunks; i += 32) {
    const int row = i / chunks, chunk = i % chunks;
    if (row < skipped || row >= rows || chunk * 8 >= d) continue;
    const T* from = staging + swizzled<kD>(row, chunk);
    T* to = target + row * view.row_stride + chunk * 8;
    if (view.vectors) {
      *reinterpret_cast<int4*>(to) = *reinterpret_cast<const int4*>(from);
    } else {
      for (int j = 0; j < min(8, d - chunk * 8); ++j) to[j] = from[j];
    }
  }
  __syncwarp();
}

/// Returns the last key that query `row` sees.
__device__ __forceinline__ int last_key(const AttentionSizes& sizes, int row) {
  return sizes.causal ? min(sizes.keys - 1, row + sizes.offset()) : sizes.keys - 1;
}

/// Returns how many blocks of kKeys keys the queries before `end_row` need.
template <int kKeys>
__device__ __forceinline__ int key_blocks(const AttentionSizes& sizes, int end_row) {
  const int keys = sizes.causal ? min(sizes.keys, end_row + sizes.offset()) : sizes.keys;
  return (keys + kKeys - 1) / kKeys;
}

/// Streams the keys and values of a head through two stages of kKeys rows in shared memory.
template <class T, int kKeys, int kD, int kThreads>
struct KeyStream {
  static constexpr int elements = 4 * kKeys * kD;
  T* stages;  // keys, values, keys, values
  const HeadsView<T>& k;
  const HeadsView<T>& v;
  const AttentionSizes& sizes;
  int batch, key_head;

  __device__ T* keys(int step) const { return stages + step % 2 * 2 * kKeys * kD; }
  __device__ T* values(int step) const { return keys(step) + kKeys * kD; }

  /// Starts the copy of a block into the stage of `step`. The caller commits it.
  __device__ __forceinline__ void load(int block, int step) const {
    const int first = block * kKeys, here = sizes.keys - first;
    load_tile<kKeys, kD, kThreads>(keys(step), k, k.at(batch, key_head, first), here, sizes.d);
    load_tile<kKeys, kD, kThreads>(values(step), v, v.at(batch, key_head, first), here, sizes.d);
  }
};

/// Allows a kernel `bytes` of dynamic shared memory. CUDA requires this call above 48 KiB.
template <class Kernel>
void allow_shared_memory(Kernel* kernel, size_t bytes, const char* op) {
  if (bytes > 48 * 1024)
    DS_CUDA(
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        op);
}

}  // namespace ds::cuda
