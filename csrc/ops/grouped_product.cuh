// Arguments of the grouped product kernels: operands, and tiles of rows.
#pragma once

#include <cstdint>

#include "../cuda/block_reduce.cuh"
#include "../cuda/cuda_context.h"
#include "../cuda/vector.cuh"

namespace ds::cuda {

/// The layout of the operands along the summed dim.
enum class Form {
  rows_by_rows,        // out[r, n] = a[r, :] . b[n, :]
  rows_by_columns,     // out[r, n] = a[r, :] . b[:, n]
  columns_by_columns,  // out[n, k] = a[:, n] . b[:, k], summed over the rows of a group
};

/// Arguments of both ops.
template <class T>
struct Product {
  const T *a, *b;
  T* out;
  const int32_t *rows, *offsets;  // rows: of a, or of b in columns_by_columns; may be null
  int64_t gathered;               // number of rows that `rows` may refer to
  int groups;
  int64_t m, n, k;  // m: rows of out, or summed rows of a group; n, k: columns
  bool accumulate;
};

/// Rows of out that a block computes.
struct Tile {
  int group;  // `groups` for rows beyond the last group
  int64_t begin, end;
};

/// The group of rows of tile number `index`, if each tile of rows counts `across` times.
struct FoundGroup {
  int group;           // `groups` for rows beyond the last group
  int64_t begin, end;  // rows of the group
  int64_t index;       // index of the tile in the group
};

/// Finds the group of tile number `index`. The rows of each group are divided into tiles of
/// `height`; an empty group has no tile. Each warp computes it on its own.
template <class T>
__device__ __forceinline__ bool find_group(const Product<T>& p, int64_t index, int height,
                                           int64_t across, FoundGroup& found_group) {
  const int lane = threadIdx.x % kWarp;
  int64_t before = 0;
  for (int from = 0; from <= p.groups; from += kWarp) {
    const int g = from + lane;
    int64_t begin = 0, end = 0;
    if (g <= p.groups) {
      begin = p.offsets[g];
      end = g < p.groups ? p.offsets[g + 1] : p.m;
    }
    begin = begin < 0 ? 0 : begin;
    end = end > p.m ? p.m : end;
    const int64_t tiles = end > begin ? (end - begin + height - 1) / height * across : 0;
    int64_t sum = tiles;
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int64_t left = __shfl_up_sync(0xffffffffu, sum, offset);
      if (lane >= offset) sum += left;
    }
    const bool here = index < before + sum && index >= before + sum - tiles;
    const uint32_t found = __ballot_sync(0xffffffffu, here);
    if (found != 0) {
      const int source = __ffs(static_cast<int>(found)) - 1;
      found_group.group = from + source;
      found_group.begin = __shfl_sync(0xffffffffu, begin, source);
      found_group.end = __shfl_sync(0xffffffffu, end, source);
      found_group.index = __shfl_sync(0xffffffffu, index - (before + sum - tiles), source);
      return true;
    }
    before += __shfl_sync(0xffffffffu, sum, kWarp - 1);
  }
  return false;
}

/// Finds the rows of tile number `index`.
template <class T>
__device__ __forceinline__ bool find_tile(const Product<T>& p, int64_t index, int height,
                                          Tile& tile) {
  FoundGroup found{};
  if (!find_group(p, index, height, 1, found)) return false;
  tile.group = found.group;
  tile.begin = found.begin + found.index * height;
  tile.end = tile.begin + height < found.end ? tile.begin + height : found.end;
  return true;
}

/// Returns an upper bound of the number of tiles: each group, and the rows beyond the last group,
/// may end with a partial tile.
inline int64_t most_tiles(int64_t rows, int64_t groups, int64_t height) {
  const int64_t partial = rows < groups + 1 ? rows : groups + 1;
  return rows / height + partial;
}

/// Returns the row of a gathered operand, or -1 for zeros.
template <class T>
__device__ __forceinline__ int64_t source_row(const Product<T>& p, int64_t row) {
  if (!p.rows) return row;
  const int64_t found = p.rows[row];
  return found >= 0 && found < p.gathered ? found : -1;
}

}  // namespace ds::cuda
