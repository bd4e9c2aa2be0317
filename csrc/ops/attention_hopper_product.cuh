// Computes dq = dS k of attention from dS, which the kernel of dk and dv has stored (KeptSlopes).
//
// The producer warp copies key tiles by TMA (barriers full, empty). A consumer warp reads dS of its
// 16 queries once, in memory order, so the kernel runs at about memory bandwidth. It transposes dS
// in registers and sums in the order of the kernel that recomputes dS, so dq has the same bits. dS
// in shared memory would be slower: 330 against 310 us (8 x 32 heads, D = 64, T = 2048, H200).
#pragma once

#include "attention_hopper_backward.cuh"

namespace ds::cuda {

template <class T>
struct HopperProductArguments {
  TensorMap keys;
  HeadsView<T> dq;
  AttentionSizes sizes;
  KeptSlopes kept;
  unsigned* counter;  // 0 before and after the launch
};

/// A consumer owns 64 queries. The consumers of a block share the keys' tiles.
template <int kHeadDim, int kConsumerCount, int kStageCount>
struct HopperProductShape {
  static constexpr int head_dim = kHeadDim, tile = kKeptTile, stages = kStageCount;
  static constexpr int consumers = kConsumerCount, rows = kKeptTile * kConsumerCount;
  static constexpr int threads = kWarpgroup * (1 + kConsumerCount);
  static constexpr int producer_registers = 32;
  // The launch gives 128 registers to each of 512 threads, 96 to each of 640.
  static constexpr int consumer_registers = kConsumerCount == 3 ? 160 : 112;
  static_assert(kConsumerCount == 3 || kConsumerCount == 4);
};

template <class T, class Shape>
struct HopperProductMemory {
  T keys[Shape::stages][panels_of<Shape::head_dim>][Shape::tile][kPanel];
  T staging[Shape::consumers * 4][kWarpRows * kPanel];  // for stores: a panel of 16 rows per warp
  SharedBarrier work_full, work_empty, full[Shape::stages], empty[Shape::stages];
  HopperWork work;
};
template <class T, class Shape>
constexpr size_t hopper_product_bytes = sizeof(HopperProductMemory<T, Shape>) + kHopperAlignment;

/// The producer warp: takes blocks of queries, the longest first, and copies the keys they see.
template <class T, class Shape>
__device__ __forceinline__ void hopper_product_produce(const HopperProductArguments<T>& args,
                                                       HopperProductMemory<T, Shape>& memory) {
  const AttentionSizes& sizes = args.sizes;
  const int blocks = (sizes.rows + Shape::rows - 1) / Shape::rows;
  const unsigned total = static_cast<unsigned>(blocks) * sizes.heads * sizes.batches;
  const bool elected = threadIdx.x % 32 == 0;
  RingPlace<Shape::stages> place;
  uint32_t parity = 0;
  for (unsigned index = blockIdx.x; index < total;) {
    unsigned next = 0;
    const Work work(index, blocks, sizes.heads, sizes.batches, sizes.heads_in_turn);
    const int row = (blocks - 1 - work.block) * Shape::rows;
    const int steps = (min(row + Shape::rows, sizes.rows) + kKeptTile - 1) / kKeptTile;
    memory.work_empty.wait(parity ^ 1);
    parity ^= 1;
    if (elected) {
      memory.work = {work.batch, work.head, row, steps};
      memory.work_full.arrive();
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        if (step + 1 == steps) next = hopper_next_unit(args.counter, total);
        memory.empty[place.stage].wait(place.parity ^ 1);
        memory.full[place.stage].arrive_expecting(sizeof(memory.keys[0]));
        load_panels(memory.keys[place.stage], args.keys, memory.full[place.stage], kEvictLast,
                    step * kKeptTile, work.head / sizes.group(), work.batch);
        place.advance();
      }
    }
    index = __shfl_sync(0xffffffffu, next, 0);
  }
  memory.work_empty.wait(parity ^ 1);
  if (elected) {
    memory.work.steps = -1;
    memory.work_full.arrive();
  }
}

/// Transposes an 8 x 8 matrix of 16-bit elements: lane l has elements 2 (l % 4) and 2 (l % 4) + 1
/// of row l / 4.
__device__ __forceinline__ uint32_t transposed(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

/// A consumer warpgroup.
template <class T, class Shape>
struct HopperProductConsumer {
  static constexpr int kD = Shape::head_dim, kGroups = kKeptTile / 16;
  const HopperProductArguments<T>& args;
  HopperProductMemory<T, Shape>& memory;
  int group;  // index of this consumer
  RingPlace<Shape::stages> place;
  float dq[kD / 8][4];  // before the scale

  /// Loads dS of this warp's 16 queries and all 64 keys of a tile.
  static __device__ __forceinline__ void load(uint4 (&packets)[kGroups], const uint4* tile) {
#pragma unroll
    for (int s = 0; s < kGroups; ++s) packets[s] = __ldcs(tile + s * kKeptWarpPackets);
  }

  /// Adds dS k of tile `step` to dq, if this consumer's queries see it (step < count). Meanwhile
  /// loads dS of tile step + 2 into `packets`.
  __device__ __forceinline__ void add(uint4 (&packets)[kGroups], const uint4* tiles, int step,
                                      int count) {
    const int stage = place.stage;
    memory.full[stage].wait(place.parity);
    place.advance();
    if (step < count) {
      uint32_t left[kGroups][4];
#pragma unroll
      for (int s = 0; s < kGroups; ++s) {
        left[s][0] = transposed(packets[s].x);
        left[s][1] = transposed(packets[s].z);
        left[s][2] = transposed(packets[s].y);
        left[s][3] = transposed(packets[s].w);
      }
      if (step + 2 < count) load(packets, tiles + int64_t{step + 2} * kKeptPackets);
      hold(dq);
      issue_by_columns<kD>(dq, left, memory.keys[stage]);
      wgmma_wait<0>();
      hold(dq);
    }
    release_stage(memory.empty[stage]);
  }

  __device__ __forceinline__ void run() {
    const AttentionSizes& sizes = args.sizes;
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4, lane = threadIdx.x % 32;
    uint32_t parity = 0;
    while (true) {
      memory.work_full.wait(parity);
      parity ^= 1;
      const HopperWork work = memory.work;
      release_stage(memory.work_empty);
      if (work.steps < 0) break;
      const int first = work.row + kKeptTile * group, row = first + warp * kWarpRows;
      const int count = first < sizes.rows ? first / kKeptTile + 1 : 0;
      const uint4* const tiles =
          args.kept.tile(sizes, work.batch, work.head, first, 0) + warp * kKeptGroupPackets + lane;
      uint4 even[kGroups], odd[kGroups];
      if (count > 0) load(even, tiles);
      if (count > 1) load(odd, tiles + kKeptPackets);
#pragma unroll
      for (int n = 0; n < kD / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) dq[n][e] = 0.f;
#pragma unroll 1
      for (int step = 0; step < work.steps; step += 2) {
        add(even, tiles, step, count);
        if (step + 1 < work.steps) add(odd, tiles, step + 1, count);
      }
      if (row >= sizes.rows) continue;
      store_panels<T, kD>(
          dq, RowFactors{{sizes.scale, sizes.scale}},
          [&](int) { return memory.staging[4 * group + warp]; }, args.dq,
          args.dq.at(work.batch, work.head, row), sizes.rows - row, sizes.d, 0);
    }
  }
};

/// On other architectures the kernel has no body and a launch bound of 1: see hopper_serves().
template <class T, class Shape>
__global__ void __launch_bounds__(DS_HOPPER_BODY ? Shape::threads : 1, 1)
    hopper_attention_product_kernel(const __grid_constant__ HopperProductArguments<T> args) {
#if DS_HOPPER_BODY
  extern __shared__ unsigned char hopper_shared[];
  auto& memory = hopper_memory<HopperProductMemory<T, Shape>>(hopper_shared);
  if (threadIdx.x == 0) {
    prefetch_map(args.keys);
    constexpr int warps = 4 * Shape::consumers;
    memory.work_full.start(1);
    memory.work_empty.start(warps);
    for (int stage = 0; stage < Shape::stages; ++stage) {
      memory.full[stage].start(1);
      memory.empty[stage].start(warps);
    }
    publish_barriers();
  }
  __syncthreads();
  run_hopper_roles<Shape>([&] { hopper_product_produce<T, Shape>(args, memory); },
                          [&](int group) {
                            HopperProductConsumer<T, Shape> consumer{args, memory, group};
                            consumer.run();
                          });
#endif
}

}  // namespace ds::cuda
