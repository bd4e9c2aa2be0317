// FlashAttention backward on wgmma and TMA: one kernel computes dk and dv, a second one dq.
//
//   kernel   own[0], own[1]   stream[s][0], [1]   sums of a consumer, for each streamed tile
//   dk, dv   k, v             q, dout             dv += P^T dout, dk += dS^T q
//   dq       q, dout          k, v                dq += dS k
//
// The producer warp waits for own_empty and fills own; for each tile it waits for empty[s] and
// fills stream[s]. TMA completes own_full and full[s]. A consumer owns 64 rows of own. Its sums, P
// and dS stay in its registers, in a fixed order, so results are deterministic. It issues the next
// scores while the products with P and dS run. If dS is stored, attention_hopper_product.cuh makes
// dq of it. attention_backward.cuh explains why there are two kernels.
#pragma once

#include <type_traits>

#include "attention_backward.cuh"
#include "attention_hopper_tile.cuh"

namespace ds::cuda {

constexpr int kKeptTile = 64;                            // rows and columns of a tile of dS
constexpr int kKeptPackets = kKeptTile * kKeptTile / 8;  // packets of 16 bytes in a tile
constexpr int kKeptWarpPackets = kKeptPackets / 4;       // packets of a warp's 16 keys
constexpr int kKeptGroupPackets = kKeptWarpPackets / 4;  // packets of 16 keys x 16 queries

/// dS in global memory, for causal attention with as many keys as queries: 64 x 64 tiles on and
/// below the diagonal. A tile is [4 warps of 16 keys][4 groups of 16 queries][32 lanes] packets of
/// 16 bytes. A packet is a lane's wgmma operand, so each warp stores and loads contiguously.
struct KeptSlopes {
  uint4* data;  // null: not kept

  static __host__ __device__ int64_t tiles_of(int rows) {
    const int64_t side = (rows + kKeptTile - 1) / kKeptTile;
    return side * (side + 1) / 2;
  }
  /// Returns the tile of 64 queries from `query` and 64 keys from `key`, both multiples of 64.
  __device__ __forceinline__ uint4* tile(const AttentionSizes& sizes, int batch, int head,
                                         int query, int key) const {
    const int64_t of_head = int64_t{batch} * sizes.heads + head, row = query / kKeptTile;
    return data +
           (of_head * tiles_of(sizes.rows) + row * (row + 1) / 2 + key / kKeptTile) * kKeptPackets;
  }
};

template <class T>
struct HopperBackwardArguments {
  TensorMap own[2], stream[2];  // k, v and q, dout; for dq: q, dout and k, v
  BackwardArguments<T> call;
  unsigned* counter;  // 0 before and after the launch
  KeptSlopes kept;
};

/// Sums of a consumer: `first` is dk or dq, `second` is dv. In a split kernel, both consumers own
/// the same keys and compute the same scores; one sums dk, the other dv.
enum class HopperRole : int { first, second, both };

/// Tile sizes of a kernel: 64 owned rows per consumer, kTileRows streamed rows per stage. With
/// kSplit, both consumers own the same 64 rows: see HopperRole.
template <int kHeadDim, int kConsumerCount, int kTileRows, int kStageCount,
          int kProducerRegisters = kConsumerCount == 2 ? 24 : 32, bool kSplit = false>
struct HopperBackwardShape {
  static constexpr int head_dim = kHeadDim, tile = kTileRows, stages = kStageCount;
  static constexpr int consumers = kConsumerCount, rows = 64 * (kSplit ? 1 : kConsumerCount);
  static constexpr int threads = kWarpgroup * (1 + kConsumerCount);
  static constexpr int producer_registers = kProducerRegisters;
  static constexpr int consumer_registers =
      hopper_consumer_registers<kConsumerCount, kProducerRegisters>;
  static constexpr bool split = kSplit;
  static_assert(!kSplit || kConsumerCount == 2);
};

/// True if the producer copies document ids to shared memory, as in the forward. Above D = 64,
/// consumers read the ids from global memory, which is as fast.
template <class Shape, Hiding kHiding>
constexpr bool hands_over_ids = kHiding == Hiding::tiles && Shape::head_dim <= 64;

template <class T, class Shape, bool kByKey>
struct HopperBackwardMemory {
  static constexpr int kPanels = panels_of<Shape::head_dim>;
  T own[2][kPanels][Shape::rows][kPanel];
  T stream[Shape::stages][2][kPanels][Shape::tile][kPanel];
  T staging[Shape::consumers * 4][kWarpRows * kPanel];  // for stores: a panel of 16 rows per warp
  RowStatistics statistics[kByKey ? Shape::stages : 1]
                          [kByKey ? Shape::tile : 1];  // of the streamed queries
  SharedBarrier own_full, own_empty, full[Shape::stages], empty[Shape::stages];
  HopperWork work;
  HopperTile tile[Shape::stages];
  int head[Shape::stages];               // query head of the streamed tile
  alignas(16) int own_ids[Shape::rows];  // see hands_over_ids
  alignas(16) int tile_ids[Shape::stages][Shape::tile];
};
template <class T, class Shape, bool kByKey>
constexpr size_t hopper_backward_bytes =
    sizeof(HopperBackwardMemory<T, Shape, kByKey>) + kHopperAlignment;

/// The producer warp: takes units of work from the counter and copies tiles. With kByKey, a unit is
/// a block of keys, and the tiles are queries of each head of the group. Otherwise the reverse.
template <class T, class Shape, Hiding kHiding, bool kByKey, bool kKeeps>
__device__ __forceinline__ void hopper_backward_produce(
    const HopperBackwardArguments<T>& args, HopperBackwardMemory<T, Shape, kByKey>& memory) {
  const AttentionSizes& sizes = args.call.sizes;
  const int blocks = ((kByKey ? sizes.keys : sizes.rows) + Shape::rows - 1) / Shape::rows;
  const int heads = kByKey ? sizes.key_heads : sizes.heads;
  const unsigned total = static_cast<unsigned>(blocks) * heads * sizes.batches;
  const bool elected = threadIdx.x % 32 == 0;
  const ScoreFilter& filter = args.call.filter;
  const DocumentSide &own_side = kByKey ? filter.keys : filter.queries,
                     &tile_side = kByKey ? filter.queries : filter.keys;
  const bool has_ids = hands_over_ids<Shape, kHiding> && filter.keys.ids != nullptr;
  RingPlace<Shape::stages> place;
  uint32_t parity = 0;
  for (unsigned index = blockIdx.x; index < total;) {
    unsigned next = 0;
    const Work work(index, blocks, heads, sizes.batches, sizes.heads_in_turn);
    const int group = sizes.group(), other = kByKey ? work.head * group : work.head / group;
    const Visibility<T, kHiding> seen(sizes, args.call.filter, work.batch,
                                      kByKey ? other : work.head);
    int row = work.block * Shape::rows;
    if constexpr (!kByKey) row = hopper_block_row<Shape, kHiding>(sizes, blocks, work.block);
    const auto copy = [&](auto& tiles, int count, int turns) {
      memory.own_empty.wait(parity ^ 1);
      parity ^= 1;
      if (elected) {
        memory.work = {work.batch, work.head, row, count * turns};
        memory.own_full.arrive_expecting(sizeof(memory.own) +
                                         (has_ids ? sizeof(memory.own_ids) : 0));
        if (has_ids)
          load_bytes(memory.own_ids, own_side.ids_of(work.batch) + row, sizeof(memory.own_ids),
                     memory.own_full);
#pragma unroll
        for (int which = 0; which < 2; ++which)
          load_panels(memory.own[which], args.own[which], memory.own_full, kEvictFirst, row,
                      work.head, work.batch);
      }
      int tile = tiles.start(), left = count, head = other;
      if (elected && count * turns == 0) next = hopper_next_unit(args.counter, total);
#pragma unroll 1
      for (int step = 0; step < count * turns; ++step) {
        const int first = tile * Shape::tile;
        unsigned flags = 0;
        if constexpr (kHiding != Hiding::causal) {
          Visibility<T, kHiding> here = seen;
          if constexpr (kByKey) here.go_to(head);
          flags = hopper_flags<Shape::rows, Shape::tile, kByKey>(here, row, first);
        }
        if (elected) {
          const int stage = place.stage;
          if (step + 1 == count * turns) next = hopper_next_unit(args.counter, total);
          SharedBarrier& full = memory.full[stage];
          memory.empty[stage].wait(place.parity ^ 1);
          memory.tile[stage] = {first, flags};
          if constexpr (kHiding == Hiding::elements || kKeeps) memory.head[stage] = head;
          const bool mixed = has_ids && (flags & HopperTile::kAnyMixed);
          full.arrive_expecting(sizeof(memory.stream[0]) +
                                (kByKey ? sizeof(memory.statistics[0]) : 0) +
                                (mixed ? sizeof(memory.tile_ids[0]) : 0));
          if (mixed)
            load_bytes(memory.tile_ids[stage], tile_side.ids_of(work.batch) + first,
                       sizeof(memory.tile_ids[0]), full);
#pragma unroll
          for (int which = 0; which < 2; ++which)
            load_panels(memory.stream[stage][which], args.stream[which], full, kEvictLast, first,
                        head, work.batch);
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
  memory.own_empty.wait(parity ^ 1);
  if (elected) {
    memory.work.steps = -1;
    memory.own_full.arrive();
  }
}

/// A consumer warpgroup: multiplies own by streamed tiles, writes gradients and, if kKeeps, dS.
template <class T, class Shape, Hiding kHiding, bool kByKey, HopperRole kRole, bool kKeeps>
struct HopperBackwardConsumer {
  static constexpr int kD = Shape::head_dim, kTile = Shape::tile;
  static constexpr bool kFiltered = kHiding != Hiding::causal;
  static constexpr bool kDrops = kHiding == Hiding::elements;
  static constexpr bool kFirst = kRole != HopperRole::second;
  static constexpr bool kSecond = kByKey && kRole != HopperRole::first;
  // True: dS of a tile stays in registers until the next tile's products are issued. At D = 128,
  // ptxas would run out of registers and wait after each product.
  static constexpr bool kFlushesLate = kKeeps && kD <= 64;
  // True: a tile's statistics are read once. At D = 128, registers would not suffice.
  static constexpr bool kKeepsDeltas = kD <= 64;
  using Memory = HopperBackwardMemory<T, Shape, kByKey>;
  const BackwardArguments<T>& args;
  Memory& memory;
  int group;  // index of this consumer
  KeptSlopes kept;
  RingPlace<Shape::stages> place;
  float first[kFirst ? kD / 8 : 1][4];    // dq or dk, before the scale
  float second[kSecond ? kD / 8 : 1][4];  // dv

  /// Returns the first row of this consumer among the block's owned rows.
  __device__ __forceinline__ int first_own() const { return Shape::split ? 0 : 64 * group; }
  /// Returns the first row of this warp among the block's owned rows.
  __device__ __forceinline__ int warp_own() const {
    return first_own() + static_cast<int>(threadIdx.x / 32 % 4) * kWarpRows;
  }

  /// Starts acc = own[which] stream[which]^T.
  __device__ __forceinline__ void issue_rows(float (&acc)[kTile / 8][4], int which,
                                             int stage) const {
    hold(acc);
    issue_by_rows<kD>(acc, memory.own[which], first_own(), memory.stream[stage][which]);
    hold(acc);
  }

  /// Writes dS of a tile to `to`; does nothing if `to` is null. If kFlushesLate, wgmma computes the
  /// next scores meanwhile, and the warps would be idle.
  static __device__ __forceinline__ void flush(uint4* to, const uint32_t (&left)[kTile / 16][4]) {
    static_assert(!kKeeps || (kByKey && kTile == kKeptTile));
    if (to == nullptr) return;
#pragma unroll
    for (int k = 0; k < kTile / 16; ++k)
      __stcs(to + k * kKeptGroupPackets, uint4{left[k][0], left[k][1], left[k][2], left[k][3]});
  }

  /// Returns Visibility's slope() of a score, computed from its probability p. Registers hold
  /// probabilities only: scores would need kTile / 2 more.
  static __device__ __forceinline__ float slope_of(const Visibility<T, kHiding>& seen, float p,
                                                   float lse_log2) {
    return seen.slope(__log2f(p) + lse_log2);
  }

  __device__ __forceinline__ void attend(const HopperWork& work) {
    const AttentionSizes& sizes = args.sizes;
    const float scale_log2 = sizes.scale_log2;
    const int lane = threadIdx.x % 32, own_row = work.row + first_own();
    const int row = work.row + warp_own();
    Visibility<T, kHiding> seen(args.sizes, args.filter, work.batch, work.head);
    float lse_log2[2], delta[2];  // statistics of the owned queries
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
    float scores[1][kTile / 8][4], dp[1][kFirst ? kTile / 8 : 1][4];
    uint32_t left[kTile / 16][4], left_p[kSecond ? kTile / 16 : 1][4];
    int held = -1;          // stage that products in flight still read, or -1
    uint4* to = nullptr;    // destination of the dS in `left`; null: not stored
    uint4* next = nullptr;  // destination of the next visible tile of the head
#pragma unroll 1
    for (int step = 0; step < work.steps; ++step) {
      const int stage = uniform(place.stage);
      memory.full[stage].wait(place.parity);
      place.advance();
      const HopperTile handed = memory.tile[stage];
      const int tile = handed.first;
      if constexpr (kByKey && kHiding == Hiding::elements) seen.go_to(memory.head[stage]);
      const int mine = Shape::split ? 0 : group;
      bool hidden;
      if constexpr (kFiltered) hidden = handed.hidden(mine);
      else if constexpr (kByKey) hidden = seen.template hidden<kTile, 64>(tile, own_row);
      else hidden = seen.template hidden<64, kTile>(own_row, tile);
      if (hidden) {
        if (held >= 0) {
          wgmma_wait<0>();
          release_stage(memory.empty[held]);
          held = -1;
          if constexpr (kFlushesLate) flush(to, left);
          to = nullptr;
        }
        release_stage(memory.empty[stage]);
        continue;
      }
      if constexpr (kFiltered && !kByKey) {
        if (args.filter.key_lengths && tile + kTile > seen.sizes.keys) {
          zero_rows(memory.stream[stage][0], seen.sizes.keys - tile, group);
          zero_rows(memory.stream[stage][1], seen.sizes.keys - tile, group);
        }
      }
      issue_rows(scores[0], 0, stage);
      // The previous tile's products have ended by now; this wait frees the registers of P and dS.
      // Without it, ptxas runs out of registers and waits after each product.
      wgmma_wait<1>();
      if (held >= 0) release_stage(memory.empty[held]);
      held = stage;
      if constexpr (kFirst) issue_rows(dp[0], 1, stage);
      if constexpr (kKeeps) {
        if constexpr (kFlushesLate) flush(to, left);
        if (tile == own_row)  // the first tile of a head
          next = kept.tile(sizes, work.batch, memory.head[stage], tile, own_row) +
                 static_cast<int>(threadIdx.x) / 32 % 4 * kKeptWarpPackets + lane;
        to = next;
        next += (tile / kKeptTile + 1) * kKeptPackets;  // to the same keys of the next row of tiles
      }
      wgmma_wait<kFirst ? 1 : 0>();
      hold(scores[0]);
      bool mixed = handed.mixed(mine);
      if constexpr (hands_over_ids<Shape, kHiding>) {
        if (mixed)
          hide_other_documents(scores[0], memory.own_ids + warp_own(), memory.tile_ids[stage]);
        mixed = false;
      }
      if constexpr (kByKey) {
        seen.hide_by_key(scores, row, tile, mixed);
        const RowStatistics* const statistics = memory.statistics[stage] + lane % 4 * 2;
        float2 deltas[kTile / 8];  // of two queries
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n) {
          const float4 two = kKeepsDeltas ? load_float4(statistics + n * 8)
                                          : *reinterpret_cast<const float4*>(statistics + n * 8);
          if constexpr (kKeepsDeltas) deltas[n] = {two.y, two.w};
#pragma unroll
          for (int e = 0; e < 4; ++e)
            scores[0][n][e] = fast_exp2(fmaf(scores[0][n][e], scale_log2, e % 2 ? -two.z : -two.x));
        }
        if constexpr (kSecond && !kDrops) pack_left<T, kTile>(left_p, scores[0]);
        if constexpr (kFirst) {
          wgmma_wait<0>();
          hold(dp[0]);
        }
        if constexpr (kSecond && !kDrops)
          issue_by_columns<kD>(second, left_p, memory.stream[stage][1]);
        if (!kDrops || args.filter.dropout.p == 0) {
          if constexpr (kFirst) {
#pragma unroll
            for (int n = 0; n < kTile / 8; ++n) {
              if constexpr (!kKeepsDeltas)
                deltas[n] = {statistics[n * 8].delta, statistics[n * 8 + 1].delta};
#pragma unroll
              for (int e = 0; e < 4; ++e)
                dp[0][n][e] = scores[0][n][e] * (dp[0][n][e] - (e % 2 ? deltas[n].y : deltas[n].x));
              if (!seen.caps()) continue;
#pragma unroll
              for (int e = 0; e < 4; ++e)
                dp[0][n][e] *= slope_of(seen, scores[0][n][e], statistics[n * 8 + e % 2].lse_log2);
            }
          }
        } else {
          seen.template drop<true, 1, kTile / 8>(row, tile, [&](int m, int n, int e, float kept) {
            const float of_query = statistics[n * 8 + e % 2].delta;
            if constexpr (kFirst)
              dp[m][n][e] = scores[m][n][e] * fmaf(kept, dp[m][n][e], -of_query);
            scores[m][n][e] *= kept;
          });
        }
        if constexpr (kSecond && kDrops) {
          pack_left<T, kTile>(left_p, scores[0]);
          issue_by_columns<kD>(second, left_p, memory.stream[stage][1]);
        }
      } else {
        seen.hide_by_query(scores, row, tile, mixed);
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            scores[0][n][e] = fast_exp2(fmaf(scores[0][n][e], scale_log2, -lse_log2[e / 2]));
        wgmma_wait<0>();
        hold(dp[0]);
        if (kDrops && args.filter.dropout.p > 0)
          seen.template drop<false, 1, kTile / 8>(
              row, tile, [&](int m, int n, int e, float kept) { dp[m][n][e] *= kept; });
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            dp[0][n][e] = scores[0][n][e] * (dp[0][n][e] - delta[e / 2]);
            if (seen.caps()) dp[0][n][e] *= slope_of(seen, scores[0][n][e], lse_log2[e / 2]);
          }
      }
      if constexpr (kFirst) {
        pack_left<T, kTile>(left, dp[0]);
        if constexpr (kKeeps && !kFlushesLate) flush(to, left);
        issue_by_columns<kD>(first, left, memory.stream[stage][0]);
      }
    }
    release_stage(memory.own_empty);
    wgmma_wait<0>();
    if constexpr (kFirst) hold(first);
    if constexpr (kSecond) hold(second);
    if (held >= 0) release_stage(memory.empty[held]);
    if constexpr (kFlushesLate) flush(to, left);
  }

  /// Writes one gradient, times `factor`, for this warp's rows. Keys beyond key_lengths get 0.
  template <int kColumns>
  __device__ __forceinline__ void store(const float (&acc)[kColumns][4], float factor,
                                        const HopperWork& work, const HeadsView<T>& view,
                                        int rows) {
    const int warp = threadIdx.x / 32 % 4, row = work.row + warp_own(), skipped = max(0, -row);
    if (skipped >= kWarpRows || row >= rows) return;
    RowFactors factors{{factor, factor}};
    if constexpr (kFiltered && kByKey) {
      if (args.filter.key_lengths) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (row + half * 8 + static_cast<int>(threadIdx.x) % 32 / 4 >=
              args.filter.key_lengths[work.batch])
            factors.of[half] = 0.f;
      }
    }
    store_panels<T, kD>(
        acc, factors, [&](int) { return memory.staging[4 * group + warp]; }, view,
        view.at(work.batch, work.head, row), rows - row, args.sizes.d, skipped);
  }

  __device__ __forceinline__ void run() {
    uint32_t parity = 0;
    while (true) {
      memory.own_full.wait(parity);
      parity ^= 1;
      const HopperWork work = memory.work;
      if (work.steps < 0) break;
      if constexpr (kFirst) {
#pragma unroll
        for (int n = 0; n < kD / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) first[n][e] = 0.f;
      }
      if constexpr (kSecond) {
#pragma unroll
        for (int n = 0; n < kD / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) second[n][e] = 0.f;
      }
      attend(work);
      if constexpr (!kByKey) store(first, args.sizes.scale, work, args.dq, args.sizes.rows);
      if constexpr (kByKey && kFirst)
        store(first, args.sizes.scale, work, args.dk, args.sizes.keys);
      if constexpr (kSecond) store(second, 1.f, work, args.dv, args.sizes.keys);
    }
  }
};

/// On other architectures the kernel has no body and a launch bound of 1: see hopper_serves().
template <class T, class Shape, Hiding kHiding, bool kByKey, bool kKeeps = false>
__global__ void __launch_bounds__(DS_HOPPER_BODY ? Shape::threads : 1, 1)
    hopper_attention_backward_kernel(const __grid_constant__ HopperBackwardArguments<T> args) {
#if DS_HOPPER_BODY
  extern __shared__ unsigned char hopper_shared[];
  auto& memory = hopper_memory<HopperBackwardMemory<T, Shape, kByKey>>(hopper_shared);
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
  run_hopper_roles<Shape>(
      [&] { hopper_backward_produce<T, Shape, kHiding, kByKey, kKeeps>(args, memory); },
      [&](int group) {
        const auto consume = [&]<HopperRole kRole>(std::integral_constant<HopperRole, kRole>) {
          HopperBackwardConsumer<T, Shape, kHiding, kByKey, kRole, kKeeps> consumer{
              args.call, memory, group, args.kept};
          consumer.run();
        };
        if constexpr (!Shape::split)
          consume(std::integral_constant<HopperRole, HopperRole::both>{});
        else if (group == 0) consume(std::integral_constant<HopperRole, HopperRole::first>{});
        else consume(std::integral_constant<HopperRole, HopperRole::second>{});
      });
#endif
}

}  // namespace ds::cuda
