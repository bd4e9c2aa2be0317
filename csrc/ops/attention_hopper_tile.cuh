// Shared by the attention kernels on wgmma and TMA: units of work, tiles and stores.
//
// A tile of kRows rows and kD columns is stored as panels of [kRows][64] elements in the 128-byte
// swizzle. Zeros fill the last panel. D = 80 and 96 need two panels, but products read only the
// first kD columns.
#pragma once

#include "../cuda/hopper.cuh"
#include "attention_masks.cuh"

namespace ds::cuda {

constexpr int kPanel = 64;     // columns of a panel
constexpr int kWarpRows = 16;  // accumulator rows of a warp

/// Number of panels for kD columns.
template <int kD>
constexpr int panels_of = (kD + kPanel - 1) / kPanel;

/// Hardware barriers; __syncthreads() uses 0.
enum HopperBarrier : int { kTurnBarrier = 1, kGroupBarrier = 4, kAllBarrier = 7 };

/// Registers of a consumer's thread. The launch gives 168 (two consumers) or 128 to each thread;
/// the producer keeps kProducerRegisters.
template <int kConsumerCount, int kProducerRegisters>
constexpr int hopper_consumer_registers =
    ((kConsumerCount == 2 ? 504 : 512) - kProducerRegisters) / kConsumerCount / 8 * 8;

/// Runs produce() in the first warp and consume(g) in warpgroup g + 1, with the registers of each
/// role. Call it after a barrier of the block that follows the initialization of the barriers.
template <class Shape, class Produce, class Consume>
__device__ __forceinline__ void run_hopper_roles(Produce&& produce, Consume&& consume) {
  const int warpgroup = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / kWarpgroup), 0);
  if (warpgroup == 0) {
    give_registers<Shape::producer_registers>();
    if (threadIdx.x < 32) produce();
  } else {
    take_registers<Shape::consumer_registers>();
    consume(warpgroup - 1);
  }
}

/// A unit of work, which the producer passes to the consumers.
struct HopperWork {
  int batch, head;
  int row;    // first row; negative if the block begins before row 0
  int steps;  // tiles (if filtered: whether there are any); -1 ends the launch
};

/// Returns the first row of query block `block`, where 0 is the last block. Without filters, blocks
/// are aligned to the last row, so that a short block has the first rows, which see the fewest
/// keys. Filters need blocks that start at a multiple of their rows.
template <class Shape, Hiding kHiding>
__device__ __forceinline__ int hopper_block_row(const AttentionSizes& sizes, int blocks,
                                                int block) {
  if constexpr (kHiding == Hiding::causal) return sizes.rows - Shape::rows * (block + 1);
  else return (blocks - 1 - block) * Shape::rows;
}

/// A streamed tile, which the producer passes to the consumers of a filtered kernel. The producer
/// reads the spans of documents, so that consumers do not wait for global memory.
struct HopperTile {
  int first;       // first row
  unsigned flags;  // kLast, and kHidden and kMixed of each block of 64 rows

  static constexpr unsigned kLast = 1u << 31, kHidden = 1, kMixed = 2, kAnyMixed = 0x2AAAAAAA;
  __device__ __forceinline__ bool last() const { return flags & kLast; }
  __device__ __forceinline__ bool hidden(int group) const { return flags >> 2 * group & kHidden; }
  __device__ __forceinline__ bool mixed(int group) const { return flags >> 2 * group & kMixed; }
};

/// Returns the flags of kTile rows from `tile` on, for kRows rows of the block from `own` on.
template <int kRows, int kTile, bool kByKey, class Seen>
__device__ __forceinline__ unsigned hopper_flags(const Seen& seen, int own, int tile) {
  unsigned flags = 0;
#pragma unroll
  for (int group = 0; group < kRows / 64; ++group) {
    const int row = own + 64 * group;
    bool hidden, mixed;
    if constexpr (kByKey) {
      hidden = seen.template hidden<kTile, 64>(tile, row);
      mixed = seen.template mixed<kTile, 64>(tile, row);
    } else {
      hidden = seen.template hidden<64, kTile>(row, tile);
      mixed = seen.template mixed<64, kTile>(row, tile);
    }
    flags |= ((hidden ? HopperTile::kHidden : 0) | (mixed ? HopperTile::kMixed : 0)) << 2 * group;
  }
  return flags;
}

/// Copies a tile by TMA. One thread calls it.
template <class T, int kPanels, int kRows>
__device__ __forceinline__ void load_panels(T (&tile)[kPanels][kRows][kPanel], const TensorMap& map,
                                            SharedBarrier& full, uint64_t hint, int row, int head,
                                            int batch) {
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel)
    load_box(tile[panel], map, full, hint, panel * kPanel, row, head, batch);
}

/// Copies `bytes` to shared memory. Addresses and `bytes` are multiples of 16.
__device__ __forceinline__ void load_bytes(void* to, const void* from, uint32_t bytes,
                                           SharedBarrier& bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(bar.address())
      : "memory");
}

/// Loads 16 bytes of shared memory by one instruction. The compiler would load the parts that it
/// uses at different places one by one.
__device__ __forceinline__ float4 load_float4(const void* from) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(shared_address(from))
               : "memory");
  return x;
}

/// Hides columns of other documents than the row's. `rows` has the ids of the warp's 16 rows,
/// `columns` the ids of the columns. The producer has copied them to shared memory, so no consumer
/// waits for global memory between products.
template <int kColumns>
__device__ __forceinline__ void hide_other_documents(float (&scores)[kColumns][4], const int* rows,
                                                     const int* columns) {
  const int lane = threadIdx.x % 32;
  const int mine[2] = {rows[lane / 4], rows[8 + lane / 4]};
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    const int2 two = *reinterpret_cast<const int2*>(columns + n * 8 + lane % 4 * 2);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (mine[e / 2] != (e % 2 ? two.y : two.x)) scores[n][e] = -INFINITY;
  }
}

/// Zeroes the rows of a tile from `kept` on, by the threads of a warpgroup. TMA also copies rows
/// beyond a length, and a NaN there would reach the sums as 0 x NaN. Each consumer zeroes the rows
/// before it reads the tile, so that consumers need not wait for each other.
template <class T, int kPanels, int kRows>
__device__ __forceinline__ void zero_rows(T (&tile)[kPanels][kRows][kPanel], int kept, int group) {
  constexpr int kChunks = kPanel / 8;
  for (int i = max(0, kept) * kChunks + static_cast<int>(threadIdx.x) % kWarpgroup;
       i < kRows * kChunks; i += kWarpgroup)
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
      reinterpret_cast<int4*>(tile[panel])[i] = int4{0, 0, 0, 0};
  fence_for_async();
  named_sync(kGroupBarrier + group, kWarpgroup);
}

/// Starts acc = a b^T over kD columns. a is 64 rows of a tile from `a_row` on, b a whole tile. Do
/// not keep `a` in registers across tiles: at D = 64, ptxas 13.0 then gives its registers to the
/// left operand of the next product.
template <int kD, class T, int kPanels, int kARows, int kBRows>
__device__ __forceinline__ void issue_by_rows(float (&acc)[kBRows / 8][4],
                                              const T (&a)[kPanels][kARows][kPanel], int a_row,
                                              const T (&b)[kPanels][kBRows][kPanel]) {
  wgmma_fence();
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
    const uint64_t left = tile_descriptor(a[panel][a_row]), right = tile_descriptor(b[panel]);
#pragma unroll
    for (int k = 0; k < 4 && panel * 4 + k < kD / 16; ++k)
      Wgmma<T, kBRows>::shared(acc, moved_descriptor(left, k * 2), moved_descriptor(right, k * 2),
                               panel + k > 0);
  }
  wgmma_commit();
}

/// Starts acc += left b over the rows of b.
template <int kD, class T, int kPanels, int kBRows>
__device__ __forceinline__ void issue_by_columns(float (&acc)[kD / 8][4],
                                                 const uint32_t (&left)[kBRows / 16][4],
                                                 const T (&b)[kPanels][kBRows][kPanel]) {
  const uint64_t right = tile_descriptor(b, kBRows * 128);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kBRows / 16; ++k)
    Wgmma<T, kD>::template registers<true>(acc, left[k], moved_descriptor(right, k * 128), true);
  wgmma_commit();
}

/// Rounds accumulators into left operands of the next product.
template <class T, int kRows>
__device__ __forceinline__ void pack_left(uint32_t (&left)[kRows / 16][4],
                                          const float (&acc)[kRows / 8][4]) {
#pragma unroll
  for (int n = 0; n < kRows / 8; ++n) {
    left[n / 2][n % 2 * 2] = pack_pair<T>(acc[n][0], acc[n][1]);
    left[n / 2][n % 2 * 2 + 1] = pack_pair<T>(acc[n][2], acc[n][3]);
  }
}

/// Factors of a thread's two rows. A factor of 0 stores 0, even if the accumulator is not finite.
struct RowFactors {
  float of[2];
};

/// Rounds a warp's accumulators times `factors` and writes rows [skipped, rows) of d elements,
/// panel by panel. staging(panel) is shared memory for 16 rows of a panel, which only this warp
/// uses.
template <class T, int kD, class Staging>
__device__ __forceinline__ void store_panels(const float (&acc)[kD / 8][4], RowFactors factors,
                                             Staging&& staging, const HeadsView<T>& view, T* target,
                                             int rows, int d, int skipped) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int panel = 0; panel < panels_of<kD>; ++panel) {
    constexpr int kChunks = kPanel / 8;
    T* const to = staging(panel);
    __syncwarp();
#pragma unroll
    for (int n = panel * kChunks; n < (panel + 1) * kChunks && n < kD / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float factor = factors.of[half];
        const float low = factor == 0.f ? 0.f : acc[n][half * 2] * factor;
        const float high = factor == 0.f ? 0.f : acc[n][half * 2 + 1] * factor;
        *reinterpret_cast<uint32_t*>(to + swizzled<kPanel>(half * 8 + lane / 4, n % kChunks) +
                                     lane % 4 * 2) = pack_pair<T>(low, high);
      }
    __syncwarp();
#pragma unroll
    for (int i = lane; i < kWarpRows * kChunks; i += 32) {
      const int row = i / kChunks, chunk = i % kChunks, column = panel * kPanel + chunk * 8;
      if (row < skipped || row >= rows || column >= d) continue;
      const T* const from = to + swizzled<kPanel>(row, chunk);
      T* const there = target + row * view.row_stride + column;
      if (view.vectors) {
        *reinterpret_cast<int4*>(there) = *reinterpret_cast<const int4*>(from);
      } else {
        for (int j = 0; j < min(8, d - column); ++j) there[j] = from[j];
      }
    }
  }
  __syncwarp();
}

}  // namespace ds::cuda
