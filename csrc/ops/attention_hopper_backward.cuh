// FlashAttention backward on wgmma and TMA, deterministic: one kernel for dk and dv, one for dq.
//
// A consumer owns 64 keys (or queries) from the first product to the stored gradients. So each sum
// stays in the registers of one warpgroup, in a fixed order. The other operands stream through
// shared memory. P and dS stay in registers: the accumulators of one product are the left operand
// of the next. The products with P and dS of one tile run while the scores of the next tile are
// issued. attention_backward.cuh explains the two kernels.
#pragma once

#include "attention_backward.cuh"
#include "attention_hopper_forward.cuh"

namespace ds::cuda {

template <class T>
struct HopperBackwardArguments {
  TensorMap own[2], stream[2];  // keys and values, queries and douts; or the reverse
  BackwardArguments<T> call;
  unsigned* counter;  // 0 before and after the launch
};

/// Tile sizes of one kernel: 64 rows of its own a consumer, kTileRows streamed rows a stage.
template <int kHeadDim, int kConsumerCount, int kTileRows, int kStageCount,
          int kProducerRegisters = kConsumerCount == 2 ? 24 : 32>
struct HopperBackwardShape {
  static constexpr int head_dim = kHeadDim, tile = kTileRows, stages = kStageCount;
  static constexpr int consumers = kConsumerCount, rows = 64 * kConsumerCount;
  static constexpr int threads = kWarpgroup * (1 + kConsumerCount);
  static constexpr int producer_registers = kProducerRegisters;
  static constexpr int consumer_registers =
      hopper_consumer_registers<kConsumerCount, kProducerRegisters>;
};

template <class T, class Shape, bool kByKey>
struct HopperBackwardMemory {
  static constexpr int kHalves = Shape::head_dim / 64;
  T own[2][kHalves][Shape::rows][64];
  T stream[Shape::stages][2][kHalves][Shape::tile][64];
  T staging[Shape::consumers][4][16 * Shape::head_dim];  // one warp's rows each
  RowStatistics statistics[kByKey ? Shape::stages : 1]
                          [kByKey ? Shape::tile : 1];  // of streamed queries
  SharedBarrier own_full, own_empty, full[Shape::stages], empty[Shape::stages];
  HopperWork work;
  int first[Shape::stages];  // the first row of the tile
};
template <class T, class Shape, bool kByKey>
constexpr size_t hopper_backward_bytes =
    sizeof(HopperBackwardMemory<T, Shape, kByKey>) + kHopperAlignment;

/// Copies `bytes` consecutive bytes to shared memory; a multiple of 16, like both addresses.
__device__ __forceinline__ void load_bytes(void* to, const void* from, uint32_t bytes,
                                           SharedBarrier& bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(bar.address())
      : "memory");
}

/// Hands units of work to the consumers and copies their tiles; one warp. With kByKey the block
/// owns keys and the stream has the queries of each head of the group, else the reverse.
template <class T, class Shape, Hiding kHiding, bool kByKey>
__device__ __forceinline__ void hopper_backward_produce(
    const HopperBackwardArguments<T>& args, HopperBackwardMemory<T, Shape, kByKey>& memory) {
  constexpr int kHalves = HopperBackwardMemory<T, Shape, kByKey>::kHalves;
  const AttentionSizes& sizes = args.call.sizes;
  const int blocks = ((kByKey ? sizes.keys : sizes.rows) + Shape::rows - 1) / Shape::rows;
  const int heads = kByKey ? sizes.key_heads : sizes.heads;
  const unsigned total = static_cast<unsigned>(blocks) * heads * sizes.batches;
  const bool elected = threadIdx.x % 32 == 0;
  RingPlace<Shape::stages> place;
  uint32_t turn = 0;
  for (unsigned index = blockIdx.x; index < total;) {
    unsigned next = 0;
    const Work work(index, blocks, heads, sizes.batches, sizes.heads_in_turn);
    const int group = sizes.group(), other = kByKey ? work.head * group : work.head / group;
    const Visibility<T, kHiding> seen(sizes, args.call.filter, work.batch,
                                      kByKey ? other : work.head);
    int row = work.block * Shape::rows;
    if constexpr (!kByKey) row = hopper_block_row<Shape, kHiding>(sizes, blocks, work.block);
    const auto copy = [&](auto& tiles, int count, int turns) {
      memory.own_empty.wait(turn ^ 1);
      turn ^= 1;
      if (elected) {
        memory.work = {work.batch, work.head, row, count * turns};
        memory.own_full.arrive_expecting(sizeof(memory.own));
#pragma unroll
        for (int which = 0; which < 2; ++which)
#pragma unroll
          for (int half = 0; half < kHalves; ++half)
            load_box(memory.own[which][half], args.own[which], memory.own_full, kEvictFirst,
                     half * 64, row, work.head, work.batch);
      }
      int tile = tiles.start(), left = count, head = other;
      if (elected && count * turns == 0) next = hopper_next_unit(args.counter, total);
#pragma unroll 1
      for (int step = 0; step < count * turns; ++step) {
        if (elected) {
          const int stage = place.stage, first = tile * Shape::tile;
          if (step + 1 == count * turns) next = hopper_next_unit(args.counter, total);
          SharedBarrier& full = memory.full[stage];
          memory.empty[stage].wait(place.parity ^ 1);
          memory.first[stage] = first;
          full.arrive_expecting(sizeof(memory.stream[0]) +
                                (kByKey ? sizeof(memory.statistics[0]) : 0));
#pragma unroll
          for (int which = 0; which < 2; ++which)
#pragma unroll
            for (int half = 0; half < kHalves; ++half)
              load_box(memory.stream[stage][which][half], args.stream[which], full, kEvictLast,
                       half * 64, first, head, work.batch);
          if constexpr (kByKey)
            load_bytes(memory.statistics[stage], args.call.statistics_of(work.batch, head) + first,
                       sizeof(memory.statistics[0]), full);
        }
        __syncwarp();
        place.advance();
        if (--left == 0) {
          left = count;
          ++head;
        }
        tiles.turn(tile);
      }
    };
    if constexpr (kByKey) {
      auto tiles = seen.template row_tiles<Shape::tile, Shape::rows>(row);
      copy(tiles, tiles.count(), group);
    } else if constexpr (kHiding == Hiding::causal) {
      LastTiles tiles{0, seen.template key_tiles<Shape::rows, Shape::tile>(row).end};
      copy(tiles, tiles.count(), 1);
    } else {
      auto tiles = seen.template key_tiles<Shape::rows, Shape::tile>(row);
      copy(tiles, tiles.count(), 1);
    }
    index = __shfl_sync(0xffffffffu, next, 0);
  }
  memory.own_empty.wait(turn ^ 1);
  if (elected) {
    memory.work.steps = -1;
    memory.own_full.arrive();
  }
}

/// One consumer warpgroup.
template <class T, class Shape, Hiding kHiding, bool kByKey>
struct HopperBackwardConsumer {
  static constexpr int kD = Shape::head_dim, kTile = Shape::tile, kHalves = kD / 64;
  using Memory = HopperBackwardMemory<T, Shape, kByKey>;
  const BackwardArguments<T>& args;
  Memory& memory;
  int group;  // which consumer
  RingPlace<Shape::stages> place;
  float first[kD / 8][4];                // dq or dk, before the scale
  float second[kByKey ? kD / 8 : 1][4];  // dv

  __device__ __forceinline__ void release(SharedBarrier& barrier) const {
    if (threadIdx.x % 32 == 0) barrier.arrive();
  }

  /// acc = own[which] stream[which]^T, in flight.
  __device__ __forceinline__ void issue_rows(float (&acc)[kTile / 8][4], int which,
                                             int stage) const {
    hold(acc);
    wgmma_fence();
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const uint64_t a = tile_descriptor(memory.own[which][half][64 * group]);
      const uint64_t b = tile_descriptor(memory.stream[stage][which][half]);
#pragma unroll
      for (int k = 0; k < 4; ++k) Wgmma<T, kTile>::shared(acc, a + k * 2, b + k * 2, half + k > 0);
    }
    wgmma_commit();
    hold(acc);
  }
  /// acc += left stream[which], in flight.
  __device__ __forceinline__ void issue_columns(float (&acc)[kD / 8][4],
                                                const uint32_t (&left)[kTile / 16][4], int which,
                                                int stage) const {
    const uint64_t b = tile_descriptor(memory.stream[stage][which], kTile * 128);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kTile / 16; ++k)
      Wgmma<T, kD>::template registers<true>(acc, left[k], b + k * 128, true);
    wgmma_commit();
  }
  static __device__ __forceinline__ void pack(uint32_t (&left)[kTile / 16][4],
                                              const float (&acc)[kTile / 8][4]) {
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
      left[n / 2][n % 2 * 2] = pack_pair<T>(acc[n][0], acc[n][1]);
      left[n / 2][n % 2 * 2 + 1] = pack_pair<T>(acc[n][2], acc[n][3]);
    }
  }

  __device__ __forceinline__ void attend(const HopperWork& work) {
    const AttentionSizes& sizes = args.sizes;
    const float scale_log2 = sizes.scale_log2;
    const int lane = threadIdx.x % 32, own_row = work.row + 64 * group;
    const int row = own_row + static_cast<int>(threadIdx.x / 32 % 4) * 16;
    const Visibility<T, kHiding> seen(args.sizes, args.filter, work.batch, work.head);
    float lse_log2[2], delta[2];  // of own queries
    if constexpr (!kByKey) {
      const RowStatistics* const of_head = args.statistics_of(work.batch, work.head);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = row + half * 8 + lane / 4;
        const bool valid = r >= 0 && r < sizes.rows;
        lse_log2[half] = valid ? of_head[r].lse_log2 : INFINITY;
        delta[half] = valid ? of_head[r].delta : 0.f;
      }
    }
    float scores[1][kTile / 8][4], dp[kTile / 8][4];
    uint32_t left[kTile / 16][4], left_p[kByKey ? kTile / 16 : 1][4];
    int held = -1;  // the stage that products in flight read
#pragma unroll 1
    for (int step = 0; step < work.steps; ++step) {
      const int stage = place.stage;
      memory.full[stage].wait(place.parity);
      place.advance();
      const int tile = memory.first[stage];
      bool hidden;
      if constexpr (kByKey) hidden = seen.template hidden<kTile, 64>(tile, own_row);
      else hidden = seen.template hidden<64, kTile>(own_row, tile);
      if (hidden) {
        if (held >= 0) {
          wgmma_wait<0>();
          release(memory.empty[held]);
          held = -1;
        }
        release(memory.empty[stage]);
        continue;
      }
      issue_rows(scores[0], 0, stage);
      issue_rows(dp, 1, stage);
      wgmma_wait<1>();
      hold(scores[0]);
      if (held >= 0) release(memory.empty[held]);
      held = stage;
      if constexpr (kByKey) {
        seen.hide_by_key(scores, row, tile);
        const RowStatistics* const statistics = memory.statistics[stage] + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n) {
          const float4 two = *reinterpret_cast<const float4*>(statistics + n * 8);
#pragma unroll
          for (int e = 0; e < 4; ++e)
            scores[0][n][e] = fast_exp2(fmaf(scores[0][n][e], scale_log2, e % 2 ? -two.z : -two.x));
        }
        pack(left_p, scores[0]);
        wgmma_wait<0>();
        hold(dp);
        issue_columns(second, left_p, 1, stage);
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n) {
          const float4 two = *reinterpret_cast<const float4*>(statistics + n * 8);
#pragma unroll
          for (int e = 0; e < 4; ++e)
            dp[n][e] = scores[0][n][e] * (dp[n][e] - (e % 2 ? two.w : two.y));
        }
      } else {
        seen.hide_by_query(scores, row, tile);
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            scores[0][n][e] = fast_exp2(fmaf(scores[0][n][e], scale_log2, -lse_log2[e / 2]));
        wgmma_wait<0>();
        hold(dp);
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) dp[n][e] = scores[0][n][e] * (dp[n][e] - delta[e / 2]);
      }
      pack(left, dp);
      issue_columns(first, left, 0, stage);
    }
    release(memory.own_empty);
    wgmma_wait<0>();
    hold(first);
    if constexpr (kByKey) hold(second);
    if (held >= 0) release(memory.empty[held]);
  }

  /// Writes one gradient of this warp's rows.
  __device__ __forceinline__ void store(const float (&acc)[kD / 8][4], float factor,
                                        const HopperWork& work, const HeadsView<T>& view,
                                        int rows) {
    const int warp = threadIdx.x / 32 % 4, row = work.row + 64 * group + warp * 16;
    const int skipped = max(0, -row);
    if (skipped >= 16 || row >= rows) return;
    store_rows<T, 1, kD>(reinterpret_cast<const float(&)[1][kD / 8][4]>(acc), factor,
                         memory.staging[group][warp], view, view.at(work.batch, work.head, row),
                         rows - row, args.sizes.d, skipped);
  }

  __device__ __forceinline__ void run() {
    uint32_t turn = 0;
    while (true) {
      memory.own_full.wait(turn);
      turn ^= 1;
      const HopperWork work = memory.work;
      if (work.steps < 0) break;
#pragma unroll
      for (int n = 0; n < kD / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) first[n][e] = 0.f;
      if constexpr (kByKey) {
#pragma unroll
        for (int n = 0; n < kD / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) second[n][e] = 0.f;
      }
      attend(work);
      if constexpr (kByKey) {
        store(first, args.sizes.scale, work, args.dk, args.sizes.keys);
        store(second, 1.f, work, args.dv, args.sizes.keys);
      } else {
        store(first, args.sizes.scale, work, args.dq, args.sizes.rows);
      }
    }
  }
};

/// Without a body the launch bound is 1 thread, which hopper_serves() tests.
template <class T, class Shape, Hiding kHiding, bool kByKey>
__global__ void __launch_bounds__(DS_HOPPER_BODY ? Shape::threads : 1, 1)
    hopper_attention_backward_kernel(const __grid_constant__ HopperBackwardArguments<T> args) {
#if DS_HOPPER_BODY
  using Memory = HopperBackwardMemory<T, Shape, kByKey>;
  extern __shared__ unsigned char hopper_shared[];
  const uint32_t past = shared_address(hopper_shared) % kHopperAlignment;
  Memory& memory = *reinterpret_cast<Memory*>(
      hopper_shared + (past ? static_cast<uint32_t>(kHopperAlignment) - past : 0));
  if (threadIdx.x == 0) {
    for (int which = 0; which < 2; ++which) {
      prefetch_map(args.own[which]);
      prefetch_map(args.stream[which]);
    }
    constexpr int warps = 4 * Shape::consumers;
    memory.own_full.start(1);
    memory.own_empty.start(warps);
    for (int stage = 0; stage < Shape::stages; ++stage) {
      memory.full[stage].start(1);
      memory.empty[stage].start(warps);
    }
    publish_barriers();
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / kWarpgroup), 0);
  if (warpgroup == 0) {
    give_registers<Shape::producer_registers>();
    if (threadIdx.x < 32) hopper_backward_produce<T, Shape, kHiding, kByKey>(args, memory);
  } else {
    take_registers<Shape::consumer_registers>();
    HopperBackwardConsumer<T, Shape, kHiding, kByKey> consumer{args.call, memory, warpgroup - 1};
    consumer.run();
  }
#endif
}

}  // namespace ds::cuda
