// Grouped products on wgmma and TMA: one producer warpgroup and two consumer warpgroups. One thread
// block per SM takes tiles from a counter. The producer finds a tile's rows from the offsets on the
// device (work_full, work_empty). For each step of 64 along the summed dim, it waits for empty[s].
// It copies operands by TMA, and gathered rows by cp.async; full[s] counts both. A consumer owns 64
// rows of the tile and skips products of rows beyond the end of the group. Source: the
// warp-specialized kernels of NVIDIA CUTLASS.
#pragma once

#include "../cuda/hopper.cuh"
#include "grouped_product.cuh"

namespace ds::cuda {

/// Arguments of the kernel.
template <class T>
struct HopperProduct {
  TensorMap a, b;  // the map of a gathered operand is unused
  Product<T> call;
  unsigned* counter;  // 0 before and after the launch
};

/// Tiles of 128 rows by kColumns. The tiles of a group are visited in columns of `row_block` tiles,
/// so that tiles in flight share operands in the L2 cache.
template <int kColumns, int kStages>
struct HopperProductShape {
  static constexpr int rows = 128, columns = kColumns, depth = 64, stages = kStages;
  static constexpr int consumers = 2, threads = kWarpgroup * (1 + consumers);
  static constexpr int producer_registers = 56, consumer_registers = 224;
  static constexpr int panels = kColumns / 64, row_block = 16;
};

/// A tile, which the producer passes to the consumers.
struct HopperTileWork {
  int group;
  int row, end;       // rows of out
  int column;         // column of out
  int begin, length;  // rows of the group, for the weight gradient
  int steps;          // steps of kDepth along the summed dim; -1 ends the launch
};

/// Shared memory of a thread block. If the summed dim runs along columns, a tile is [rows][64].
/// Otherwise it is panels of [64][64].
template <class T, class S>
struct HopperProductMemory {
  T a[S::stages][S::consumers][64][64];
  T b[S::stages][S::panels][64][64];
  T out[S::consumers * 4][16 * 64];  // 16 rows per warp
  SharedBarrier full[S::stages], empty[S::stages];
  SharedBarrier work_full[2], work_empty[2];
  HopperTileWork work[2];
};
template <class T, class S>
constexpr size_t hopper_product_bytes = sizeof(HopperProductMemory<T, S>) + 1024;

/// The producer warpgroup: finds tiles and copies operands. Only kGather needs all four warps.
template <class T, Form kForm, class S, bool kGather>
struct HopperProducer {
  static constexpr bool kGradient = kForm == Form::columns_by_columns;
  static constexpr int kDepth = S::depth;
  const HopperProduct<T>& args;
  HopperProductMemory<T, S>& memory;
  const Product<T>& p;
  int warp, lane;

  __device__ __forceinline__ int pieces(int64_t size, int piece) const {
    return static_cast<int>((size + piece - 1) / piece);
  }

  /// Returns the number of tiles of rows. The lanes of a warp add it up together.
  __device__ __forceinline__ int count_tiles() const {
    int sum = 0;
    for (int g = lane; g <= p.groups; g += 32) {
      const int64_t begin = max(int64_t{0}, static_cast<int64_t>(p.offsets[g]));
      const int64_t end = g < p.groups ? min(p.m, static_cast<int64_t>(p.offsets[g + 1])) : p.m;
      if (end > begin) sum += pieces(end - begin, S::rows);
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    return sum;
  }

  /// Position of a tile in a group of `down` x `across` tiles.
  struct Place {
    int down, across;
  };
  __device__ __forceinline__ Place place_of(unsigned index, int down, int across) const {
    const unsigned whole = static_cast<unsigned>(S::row_block) * across;
    const int first = static_cast<int>(index / whole) * S::row_block;
    const unsigned rows = min(S::row_block, down - first), within = index % whole;
    return {first + static_cast<int>(within % rows), static_cast<int>(within / rows)};
  }

  __device__ __forceinline__ HopperTileWork work_of(unsigned index) const {
    if constexpr (kGradient) {
      const int across = pieces(p.k, S::columns), down = pieces(p.n, S::rows);
      const unsigned tiles = static_cast<unsigned>(down) * across;
      const int group = static_cast<int>(index / tiles);
      const Place at = place_of(index % tiles, down, across);
      const int64_t begin = max(int64_t{0}, static_cast<int64_t>(p.offsets[group]));
      const int64_t end = min(p.m, static_cast<int64_t>(p.offsets[group + 1]));
      const int length = static_cast<int>(max(int64_t{0}, end - begin));
      return {group,
              at.down * S::rows,
              static_cast<int>(p.n),
              at.across * S::columns,
              static_cast<int>(begin),
              length,
              pieces(length, kDepth)};
    } else {
      const int across = pieces(p.n, S::columns);
      FoundGroup found{};
      find_group(p, index, S::rows, across, found);
      const int begin = static_cast<int>(found.begin), end = static_cast<int>(found.end);
      const Place at =
          place_of(static_cast<unsigned>(found.index), pieces(end - begin, S::rows), across);
      const int row = begin + at.down * S::rows;
      return {found.group,
              row,
              min(row + S::rows, end),
              at.across * S::columns,
              0,
              0,
              found.group < p.groups ? pieces(p.k, kDepth) : 0};
    }
  }

  /// Bytes that TMA copies in a step.
  static constexpr uint32_t kBulkBytes = (kGather && !kGradient ? 0 : S::rows * kDepth * 2) +
                                         (kGather && kGradient ? 0 : S::columns * kDepth * 2);

  /// Starts the copies by TMA of a step. One thread calls it.
  __device__ __forceinline__ void copy_bulk(const HopperTileWork& work, int stage, int from) const {
    SharedBarrier& full = memory.full[stage];
    full.arrive_expecting(kBulkBytes);
    constexpr uint64_t kHint = 0x1000000000000000;  // evict normally
    auto& a = memory.a[stage];
    auto& b = memory.b[stage];
    if constexpr (kGradient) {
      const int row = work.begin + from;
#pragma unroll
      for (int j = 0; j < S::consumers; ++j)
        load_box(a[j], args.a, full, kHint, work.row + j * 64, row, 0, 0);
      if constexpr (!kGather) {
#pragma unroll
        for (int j = 0; j < S::panels; ++j)
          load_box(b[j], args.b, full, kHint, work.column + j * 64, row, 0, 0);
      }
    } else {
      if constexpr (!kGather) load_box(a, args.a, full, kHint, from, work.row, 0, 0);
      if constexpr (kForm == Form::rows_by_rows) {
        load_box(b, args.b, full, kHint, from, work.column, work.group, 0);
      } else {
#pragma unroll
        for (int j = 0; j < S::panels; ++j)
          load_box(b[j], args.b, full, kHint, work.column + j * 64, from, work.group, 0);
      }
    }
  }

  /// Finds the rows of `a` that this thread gathers: threadIdx.x / 8 + 16 i of the tile.
  static constexpr int kRowsOfThread = S::rows / 16;
  __device__ __forceinline__ void find_rows(int (&source)[kRowsOfThread],
                                            const HopperTileWork& work) const {
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
      const int row = work.row + static_cast<int>(threadIdx.x) / 8 + 16 * i;
      source[i] = row < work.end ? static_cast<int>(source_row(p, row)) : -1;
    }
  }
  __device__ __forceinline__ void gather_left(const int (&source)[kRowsOfThread], int stage,
                                              int from) const {
    T* const to = &memory.a[stage][0][0][0];
    const int chunk = threadIdx.x % 8;
    const bool inside = from + chunk * 8 < p.k;
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
      const bool valid = inside && source[i] >= 0;
      const T* const row = p.a + (valid ? source[i] * p.k + from + chunk * 8 : 0);
      cp_async_16(to + swizzled<64>(threadIdx.x / 8 + 16 * i, chunk), row, valid);
    }
  }

  /// Returns the row that lane i of this warp reads for the gathered right operand: warp + 4 i.
  __device__ __forceinline__ int right_row(const HopperTileWork& work, int from) const {
    const int row = from + warp + 4 * (lane % 16);
    return row < work.length ? static_cast<int>(source_row(p, work.begin + row)) : -1;
  }
  __device__ __forceinline__ void gather_right(const HopperTileWork& work, int mine,
                                               int stage) const {
    constexpr int kChunks = S::columns / 8;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int source = __shfl_sync(0xffffffffu, mine, i);
#pragma unroll
      for (int chunk = lane; chunk < kChunks; chunk += 32) {
        const int column = work.column + chunk * 8;
        const bool valid = source >= 0 && column < p.k;
        T* const to = &memory.b[stage][chunk / 8][0][0] + swizzled<64>(warp + 4 * i, chunk % 8);
        cp_async_16(to, p.b + (valid ? source * p.k + column : 0), valid);
      }
    }
  }

  __device__ __forceinline__ void run() {
    if (!kGather && warp > 0) return;
    unsigned total = 0;
    if (warp == 0) {
      if constexpr (kGradient)
        total = static_cast<unsigned>(p.groups) * pieces(p.n, S::rows) * pieces(p.k, S::columns);
      else total = static_cast<unsigned>(count_tiles()) * pieces(p.n, S::columns);
    }
    RingPlace<S::stages> place;
    RingPlace<2> work_place;
    unsigned index = blockIdx.x;
    while (true) {
      HopperTileWork work;
      if (warp == 0) {
        work.steps = -1;
        if (index < total) work = work_of(index);
        memory.work_empty[work_place.stage].wait(work_place.parity ^ 1);
        if (lane == 0) {
          memory.work[work_place.stage] = work;
          memory.work_full[work_place.stage].arrive();
        }
        __syncwarp();
      } else {
        memory.work_full[work_place.stage].wait(work_place.parity);
        work = memory.work[work_place.stage];
        release_stage(memory.work_empty[work_place.stage]);
      }
      work_place.advance();
      if (work.steps < 0) break;
      unsigned next = 0;
      if (work.steps == 0 && warp == 0 && lane == 0) next = hopper_next_unit(args.counter, total);
      int source[kRowsOfThread];
      int mine = -1;
      if constexpr (kGather && !kGradient) find_rows(source, work);
      if constexpr (kGather && kGradient) mine = right_row(work, 0);
#pragma unroll 1
      for (int step = 0; step < work.steps; ++step) {
        const int stage = place.stage, from = step * kDepth;
        memory.empty[stage].wait(place.parity ^ 1);
        if (warp == 0 && lane == 0) {
          if (step + 1 == work.steps) next = hopper_next_unit(args.counter, total);
          copy_bulk(work, stage, from);
        }
        __syncwarp();
        if constexpr (kGather) {
          if constexpr (kGradient) {
            gather_right(work, mine, stage);
            mine = right_row(work, from + kDepth);
          } else {
            gather_left(source, stage, from);
          }
          memory.full[stage].arrive_after_copies();
        }
        place.advance();
      }
      if (warp == 0) index = __shfl_sync(0xffffffffu, next, 0);
    }
  }
};

/// A consumer warpgroup: multiplies and stores 64 rows of each tile.
template <class T, Form kForm, class S>
struct HopperProductConsumer {
  static constexpr bool kGradient = kForm == Form::columns_by_columns;
  static constexpr int kN = S::columns;
  const HopperProduct<T>& args;
  HopperProductMemory<T, S>& memory;
  const Product<T>& p;
  int group;  // index of this consumer
  float acc[kN / 8][4];

  /// The last step of a group also loads rows of the next group. Zeroes them in this consumer's a
  /// and in b. Both consumers write the same zeros to b, so neither waits for the other.
  __device__ __forceinline__ void zero_behind(int kept, int stage) const {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    for (int i = kept * 8 + thread; i < 64 * 8; i += kWarpgroup) {
      reinterpret_cast<int4*>(memory.a[stage][group])[i] = int4{0, 0, 0, 0};
#pragma unroll
      for (int panel = 0; panel < S::panels; ++panel)
        reinterpret_cast<int4*>(memory.b[stage][panel])[i] = int4{0, 0, 0, 0};
    }
    fence_for_async();
    named_sync(1 + group, kWarpgroup);
  }

  /// Starts acc += the product of a stage.
  __device__ __forceinline__ void issue(int stage) {
    const auto& a = memory.a[stage];
    const auto& b = memory.b[stage];
    constexpr bool kBColumns = kForm != Form::rows_by_rows;
    const uint64_t left = tile_descriptor(a[group]);
    const uint64_t right = tile_descriptor(b, kBColumns ? 64 * 128 : 16);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < S::depth / 16; ++k)
      Wgmma<T, kN>::template shared<kGradient, kBColumns>(acc, left + k * (kGradient ? 128 : 2),
                                                          right + k * (kBColumns ? 128 : 2), true);
    wgmma_commit();
  }

  /// Rounds and stores the tile, panel by panel. Adds the old gradient if p.accumulate.
  __device__ __forceinline__ void finish(const HopperTileWork& work) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int row = work.row + 64 * group + 16 * warp;
    const int64_t width = kGradient ? p.k : p.n;
    T* const out = kGradient ? p.out + work.group * p.n * p.k : p.out;
    T* const staging = memory.out[4 * group + warp];
    const bool add = kGradient && p.accumulate;
    const auto each_chunk = [&](int panel, auto&& body) {  // 16 bytes of global and staged rows
#pragma unroll
      for (int i = lane; i < 16 * 8; i += 32) {
        const int r = i / 8, chunk = i % 8;
        const int64_t column = work.column + panel * 64 + chunk * 8;
        if (row + r >= work.end || column >= width) continue;
        body(*reinterpret_cast<int4*>(out + (row + r) * width + column),
             *reinterpret_cast<int4*>(staging + swizzled<64>(r, chunk)));
      }
    };
#pragma unroll
    for (int panel = 0; panel < S::panels; ++panel) {
      __syncwarp();
      if (add) {
        each_chunk(panel, [](const int4& there, int4& here) { here = there; });
        __syncwarp();
      }
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float low = acc[panel * 8 + n][half * 2], high = acc[panel * 8 + n][half * 2 + 1];
          uint32_t* const place = reinterpret_cast<uint32_t*>(
              staging + swizzled<64>(half * 8 + lane / 4, n) + lane % 4 * 2);
          if (add) {
            const uint32_t old = *place;
            low += to_float(reinterpret_cast<const T*>(&old)[0]);
            high += to_float(reinterpret_cast<const T*>(&old)[1]);
          }
          *place = pack_pair<T>(low, high);
        }
      __syncwarp();
      each_chunk(panel, [](int4& there, const int4& here) { there = here; });
    }
    __syncwarp();
  }

  /// Waits for a stage and starts its product.
  __device__ __forceinline__ void start(const HopperTileWork& work, int step,
                                        const RingPlace<S::stages>& place) {
    memory.full[place.stage].wait(place.parity);
    if constexpr (kGradient) {
      const int kept = work.length - step * S::depth;
      if (kept < S::depth) zero_behind(kept, place.stage);
    }
    issue(place.stage);
  }

  __device__ __forceinline__ void run() {
    RingPlace<S::stages> place;
    RingPlace<2> work_place;
    while (true) {
      memory.work_full[work_place.stage].wait(work_place.parity);
      const HopperTileWork work = memory.work[work_place.stage];
      release_stage(memory.work_empty[work_place.stage]);
      work_place.advance();
      if (work.steps < 0) break;
      if (work.row + 64 * group >= work.end) {
        for (int step = 0; step < work.steps; ++step, place.advance()) {
          memory.full[place.stage].wait(place.parity);
          release_stage(memory.empty[place.stage]);
        }
        continue;
      }
#pragma unroll
      for (int n = 0; n < kN / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) acc[n][e] = 0.f;
      if (work.steps > 0) {
        hold(acc);
        start(work, 0, place);
        int previous = place.stage;
        place.advance();
#pragma unroll 1
        for (int step = 1; step < work.steps; ++step, place.advance()) {
          start(work, step, place);
          wgmma_wait<1>();
          release_stage(memory.empty[previous]);
          previous = place.stage;
        }
        wgmma_wait<0>();
        hold(acc);
        release_stage(memory.empty[previous]);
      }
      finish(work);
    }
  }
};

/// On other architectures the kernel has no body and a launch bound of 1.
template <class T, Form kForm, class S, bool kGather>
__global__ void __launch_bounds__(DS_HOPPER_BODY ? S::threads : 1, 1)
    hopper_product_kernel(const __grid_constant__ HopperProduct<T> args) {
#if DS_HOPPER_BODY
  extern __shared__ unsigned char hopper_shared[];
  auto& memory = hopper_memory<HopperProductMemory<T, S>>(hopper_shared);
  if (threadIdx.x == 0) {
    constexpr int warps = 4 * S::consumers;
    for (int stage = 0; stage < S::stages; ++stage) {
      memory.full[stage].start(1 + (kGather ? kWarpgroup : 0));
      memory.empty[stage].start(warps);
    }
    for (int stage = 0; stage < 2; ++stage) {
      memory.work_full[stage].start(1);
      memory.work_empty[stage].start(warps + (kGather ? 3 : 0));
    }
    publish_barriers();
  }
  __syncthreads();
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
  if (warp < 4) {
    give_registers<S::producer_registers>();
    HopperProducer<T, kForm, S, kGather> producer{args, memory, args.call, warp,
                                                  static_cast<int>(threadIdx.x % 32)};
    producer.run();
  } else {
    take_registers<S::consumer_registers>();
    HopperProductConsumer<T, kForm, S> consumer{args, memory, args.call, warp / 4 - 1};
    consumer.run();
  }
#endif
}

/// Returns the kernel's arguments with the tensor maps of a product.
template <class T, Form kForm, class S, bool kGather>
HopperProduct<T> hopper_product(const char* op, const Product<T>& p, unsigned* counter) {
  constexpr bool kGradient = kForm == Form::columns_by_columns;
  constexpr bool kBf16 = std::is_same_v<T, __nv_bfloat16>;
  const auto plain = [&](const T* data, int64_t rows, int64_t columns, int box) {
    return encode_tensor_map(op, {data, kBf16, 1, 1, rows, columns, 0, 0, columns}, box);
  };
  const auto grouped = [&](const T* data, int64_t rows, int64_t columns, int box) {
    return encode_tensor_map(
        op, {data, kBf16, 1, p.groups, rows, columns, 0, rows * columns, columns}, box);
  };
  HopperProduct<T> all{{}, {}, p, counter};
  if constexpr (kGradient) {
    all.a = plain(p.a, p.m, p.n, 64);
    if constexpr (!kGather) all.b = plain(p.b, p.m, p.k, 64);
  } else {
    if constexpr (!kGather) all.a = plain(p.a, p.m, p.k, S::rows);
    all.b = kForm == Form::rows_by_rows ? grouped(p.b, p.n, p.k, S::columns)
                                        : grouped(p.b, p.k, p.n, 64);
  }
  return all;
}

}  // namespace ds::cuda
