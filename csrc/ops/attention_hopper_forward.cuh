// FlashAttention-3 forward on wgmma and TMA: one producer warp, two or three consumer warpgroups.
//
// At most one thread block per SM takes units (head, query block) from a counter, longest first.
//   producer   q ─► queries_full, then for each key block: k ─► keys_full, v ─► values_full
//   consumer   S = q k^T, P = exp(S - max), out += P v; after the last block: out / sum ─► global
// Consumers release a stage through its "empty" barrier. A consumer owns 64 query rows. It issues S
// of the next key block before P v of this one, so the tensor cores work during its softmax. With
// kInTurns, consumers take turns to issue, so that one multiplies while another exponentiates.
// Source: Shah et al. 2024 (FlashAttention-3), algorithms 1 and 2.
#pragma once

#include "attention_forward.cuh"
#include "attention_hopper_stages.cuh"

namespace ds::cuda {

template <class T>
struct HopperForwardArguments {
  TensorMap q, k, v;  // boxes: Shape::rows rows of q, Shape::keys rows of k and v
  ForwardArguments<T> call;
  unsigned* counter;  // 0 before and after the launch
};

/// Tile sizes of a kernel: 64 queries per consumer, kKeyRows keys per stage. kInTurns: consumers
/// take turns to issue. kQueryStages 2: the queries of the next unit arrive during this unit. 1:
/// consumers stage their output in the memory of the queries, which saves a buffer.
template <int kHeadDim, int kConsumerCount, int kKeyRows, int kStageCount, bool kInTurns,
          int kProducerRegisters = kConsumerCount == 2 ? 24 : 32, int kQueryStages = 2>
struct HopperForwardShape {
  static constexpr int head_dim = kHeadDim, keys = kKeyRows, stages = kStageCount;
  static constexpr int query_stages = kQueryStages;
  static constexpr int consumers = kConsumerCount, rows = 64 * kConsumerCount;
  static constexpr int threads = kWarpgroup * (1 + kConsumerCount);
  static constexpr int producer_registers = kProducerRegisters;
  static constexpr int consumer_registers =
      hopper_consumer_registers<kConsumerCount, kProducerRegisters>;
  static constexpr bool in_turns = kInTurns, staged_in_queries = kQueryStages == 1;
};

/// Shared memory of a thread block.
template <class T, class Shape>
struct HopperForwardMemory : HopperStages<T, Shape, HopperWork> {
  HopperTile tile[Shape::stages];  // used with filters
  // Ids of documents. A consumer warp may read key_ids after it has released the keys, so each
  // stage has two slots: see key_ids_of().
  alignas(16) int row_ids[Shape::query_stages][Shape::rows];
  alignas(16) int key_ids[2 * Shape::stages][Shape::keys];

  /// Returns the ids of a stage's keys. The slot alternates with each reuse of the stage.
  __device__ __forceinline__ int* key_ids_of(const RingPlace<Shape::stages>& at) {
    return key_ids[at.stage + (at.parity ? Shape::stages : 0)];
  }
};
template <class T, class Shape>
constexpr size_t hopper_forward_bytes = sizeof(HopperForwardMemory<T, Shape>) + kHopperAlignment;

/// The producer warp: takes units of work and copies their queries, keys and values by TMA.
template <class T, class Shape, Hiding kHiding>
__device__ __forceinline__ void hopper_forward_produce(const HopperForwardArguments<T>& args,
                                                       HopperForwardMemory<T, Shape>& memory) {
  const AttentionSizes& sizes = args.call.sizes;
  const int blocks = (sizes.rows + Shape::rows - 1) / Shape::rows;
  const unsigned total = static_cast<unsigned>(blocks) * sizes.heads * sizes.batches;
  const bool elected = threadIdx.x % 32 == 0;
  const ScoreFilter& filter = args.call.filter;
  const bool has_ids = kHiding == Hiding::tiles && filter.keys.ids != nullptr;
  RingPlace<Shape::stages> place;
  RingPlace<Shape::query_stages> query_place;
  for (unsigned index = blockIdx.x; index < total;) {
    unsigned next = 0;
    const Work work(index, blocks, sizes.heads, sizes.batches, sizes.heads_in_turn);
    const int row = hopper_block_row<Shape, kHiding>(sizes, blocks, work.block);
    const Visibility<T, kHiding> seen(sizes, args.call.filter, work.batch, work.head);
    auto tiles = seen.template key_tiles<Shape::rows, Shape::keys>(row);
    const int first = tiles.start();
    if (elected && first >= tiles.end) next = hopper_next_unit(args.counter, total);
    SharedBarrier& queries_full = memory.queries_full[query_place.stage];
    memory.queries_empty[query_place.stage].wait(query_place.parity ^ 1);
    if (elected) {
      memory.work[query_place.stage] = {
          work.batch, work.head, row,
          kHiding == Hiding::causal ? max(0, tiles.end) : first < tiles.end};
      queries_full.arrive_expecting(sizeof(memory.queries[0]) +
                                    (has_ids ? sizeof(memory.row_ids[0]) : 0));
      load_panels(memory.queries[query_place.stage], args.q, queries_full, kEvictFirst, row,
                  work.head, work.batch);
      if (has_ids)
        load_bytes(memory.row_ids[query_place.stage], filter.queries.ids_of(work.batch) + row,
                   sizeof(memory.row_ids[0]), queries_full);
    }
    query_place.advance();
    const int key_head = work.head / sizes.group();
#pragma unroll 1
    for (int step = 0; tiles.at(step) < tiles.end; ++step, tiles.go_on()) {
      tiles.look_ahead();
      const int key = tiles.at(step) * Shape::keys;
      const bool last = tiles.after(step) >= tiles.end;
      unsigned flags = last ? HopperTile::kLast : 0;
      if constexpr (kHiding != Hiding::causal)
        flags |= hopper_flags<Shape::rows, Shape::keys, false>(seen, row, key);
      if (elected) {
        const int stage = place.stage;
        if (last) next = hopper_next_unit(args.counter, total);
        memory.keys_empty[stage].wait(place.parity ^ 1);
        if constexpr (kHiding != Hiding::causal) memory.tile[stage] = {key, flags};
        const bool mixed = has_ids && (flags & HopperTile::kAnyMixed);
        memory.keys_full[stage].arrive_expecting(sizeof(memory.keys[0]) +
                                                 (mixed ? sizeof(memory.key_ids[0]) : 0));
        if (mixed)
          load_bytes(memory.key_ids_of(place), filter.keys.ids_of(work.batch) + key,
                     sizeof(memory.key_ids[0]), memory.keys_full[stage]);
        load_panels(memory.keys[stage], args.k, memory.keys_full[stage], kEvictLast, key, key_head,
                    work.batch);
        memory.values_empty[stage].wait(place.parity ^ 1);
        memory.values_full[stage].arrive_expecting(sizeof(memory.values[0]));
        load_panels(memory.values[stage], args.v, memory.values_full[stage], kEvictLast, key,
                    key_head, work.batch);
      }
      __syncwarp();
      place.advance();
    }
    index = __shfl_sync(0xffffffffu, next, 0);
  }
  memory.end_launch(query_place);
}

/// Running maximum and sum of a thread's two rows. The output is not a member, because wgmma may be
/// writing it.
struct HopperSoftmax {
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0.f, 0.f};  // sum: this thread's columns only

  /// Raises the maxima if a score exceeds them by more than kMaxLag (in powers of 2). Then returns
  /// true, and the warp must rescale its output by `factor`. Only then do lanes exchange maxima.
  template <int kColumns>
  __device__ __forceinline__ bool raise_max(const float (&scores)[kColumns][4], float scale_log2,
                                            float (&factor)[2]) {
    float top[2];
    bool lags = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = fmaxf(scores[0][half * 2], scores[0][half * 2 + 1]);
#pragma unroll
      for (int n = 1; n < kColumns; ++n)
        top[half] = fmaxf(top[half], fmaxf(scores[n][half * 2], scores[n][half * 2 + 1]));
      lags |= (top[half] - max[half]) * scale_log2 > kMaxLag;
    }
    if (!__any_sync(0xffffffffu, lags)) return false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float t = fmaxf(top[half], max[half]);
      t = fmaxf(t, __shfl_xor_sync(0xffffffffu, t, 1));
      t = fmaxf(t, __shfl_xor_sync(0xffffffffu, t, 2));
      factor[half] = t == -INFINITY ? 1.f : fast_exp2((max[half] - t) * scale_log2);
      max[half] = t;
      sum[half] *= factor[half];
    }
    return true;
  }

  /// Replaces scores by exp(scale (scores - max)) and adds them to the sums.
  template <int kColumns>
  __device__ __forceinline__ void exponentiate(float (&scores)[kColumns][4], float scale_log2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float base = max[half] == -INFINITY ? 0.f : max[half] * scale_log2;
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int e = half * 2; e < half * 2 + 2; ++e) {
          scores[n][e] = fast_exp2(fmaf(scores[n][e], scale_log2, -base));
          sum[half] += scores[n][e];
        }
    }
  }
};

/// A consumer warpgroup: computes out and lse of its 64 rows of each unit of work.
template <class T, class Shape, Hiding kHiding>
struct HopperForwardConsumer : HopperQueryConsumer<Shape, HopperForwardMemory<T, Shape>> {
  using Base = HopperQueryConsumer<Shape, HopperForwardMemory<T, Shape>>;
  using Base::await_turn, Base::end_turn, Base::issue_scores, Base::pass, Base::rescale;
  using Base::group, Base::kD, Base::kKeys, Base::memory, Base::out, Base::place, Base::query_place;
  static constexpr bool kFiltered = kHiding != Hiding::causal;
  using Seen = Visibility<T, kHiding>;
  const ForwardArguments<T>& args;

  /// Starts out += p v for the block of keys from `key` on.
  __device__ __forceinline__ void issue_out(const uint32_t (&p)[kKeys / 16][4], const Seen& seen,
                                            int stage, int key) {
    if constexpr (kFiltered) {
      if (args.filter.key_lengths && key + kKeys > seen.sizes.keys)
        zero_rows(memory.values[stage], seen.sizes.keys - key, group);
    }
    Base::issue_out(p, stage);
  }

  /// Waits until a stage holds its keys. Returns the first key and the flags of the tile.
  __device__ __forceinline__ HopperTile await_keys(const RingPlace<Shape::stages>& at, int step,
                                                   int mine) const {
    memory.keys_full[at.stage].wait(at.parity);
    if constexpr (kFiltered) return memory.tile[at.stage];
    else return {step * kKeys, step + 1 == mine ? HopperTile::kLast : 0};
  }

  /// Replaces scores by probabilities. Returns true if the caller must multiply `out` by `factor`.
  __device__ __forceinline__ bool weigh(float (&scores)[1][kKeys / 8][4], HopperSoftmax& softmax,
                                        const Seen& seen, int row, const HopperTile& tile,
                                        const RingPlace<Shape::stages>& at, float (&factor)[2]) {
    const int key = tile.first;
    bool mixed = tile.mixed(group);
    if constexpr (kHiding == Hiding::tiles) {
      const int warp = threadIdx.x / 32 % 4;
      if (mixed)
        hide_other_documents(scores[0],
                             memory.row_ids[query_place.stage] + 64 * group + warp * kWarpRows,
                             memory.key_ids_of(at));
      mixed = false;
    }
    seen.hide_by_query(scores, row, key, mixed);
    const bool raised = softmax.raise_max(scores[0], args.sizes.scale_log2, factor);
    softmax.exponentiate(scores[0], args.sizes.scale_log2);
    seen.template drop<false, 1, kKeys / 8>(
        row, key, [&](int m, int n, int e, float kept) { scores[m][n][e] *= kept; });
    return raised;
  }

  /// Computes `out` of a unit of work. Without filters, this consumer's rows see the first `mine`
  /// key blocks. With filters, `mine` is 0 if the unit has no key block, else 1.
  __device__ __forceinline__ void attend(const HopperWork& work, HopperSoftmax& softmax, int mine) {
    const int warp = threadIdx.x / 32 % 4;
    const int row = work.row + 64 * group + warp * kWarpRows;
    const Seen seen(args.sizes, args.filter, work.batch, work.head);
    const auto hidden = [&](const HopperTile& tile) { return kFiltered && tile.hidden(group); };
    float scores[1][kKeys / 8][4];
    uint32_t p[kKeys / 16][4];
    float factor[2];
    bool queries_held = !Shape::staged_in_queries, last = mine == 0;
    int step = 0;
    while (!last) {  // one pass per run of key blocks that are not hidden
      HopperTile tile = await_keys(place, step, mine);
      last = tile.last();
      if (hidden(tile)) {
        pass(step++);
        continue;
      }
      if (step > 0) await_turn();
      issue_scores(scores[0], place.stage);
      if (step > 0) end_turn();
      wgmma_wait<0>();
      hold(scores[0]);
      release_stage(memory.keys_empty[place.stage]);
      if (weigh(scores, softmax, seen, row, tile, place, factor)) rescale(factor);
      pack_left<T, kKeys>(p, scores[0]);
      if constexpr (kHiding != Hiding::elements) {
#pragma unroll 1
        while (!last) {
          RingPlace<Shape::stages> next = place;
          next.advance();
          const HopperTile next_tile = await_keys(next, step + 1, mine);
          if (hidden(next_tile)) break;
          ++step;
          last = next_tile.last();
          await_turn();
          issue_scores(scores[0], next.stage);
          memory.values_full[place.stage].wait(place.parity);
          issue_out(p, seen, place.stage, tile.first);
          end_turn();
          wgmma_wait<1>();
          hold(scores[0]);
          release_stage(memory.keys_empty[next.stage]);
          tile = next_tile;
          const bool raised = weigh(scores, softmax, seen, row, tile, next, factor);
          wgmma_wait<0>();
          hold(out);
          release_stage(memory.values_empty[place.stage]);
          place = next;
          pack_left<T, kKeys>(p, scores[0]);
          if (raised) rescale(factor);
        }
      }
      if (last && queries_held) {
        release_stage(memory.queries_empty[query_place.stage]);
        queries_held = false;
      }
      memory.values_full[place.stage].wait(place.parity);
      issue_out(p, seen, place.stage, tile.first);
      wgmma_wait<0>();
      hold(out);
      release_stage(memory.values_empty[place.stage]);
      place.advance();
      ++step;
    }
    if (queries_held) release_stage(memory.queries_empty[query_place.stage]);
    if constexpr (!kFiltered) {
#pragma unroll 1
      while (step < work.steps) pass(step++);
    }
  }

  /// Writes out and lse of a unit of work. A row that sees no key gets 0 and -infinity.
  __device__ __forceinline__ void finish(const HopperWork& work, const HopperSoftmax& softmax) {
    const AttentionSizes& sizes = args.sizes;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int own = 64 * group + warp * kWarpRows, row = work.row + own, skipped = max(0, -row);
    if constexpr (Shape::staged_in_queries) named_sync(kGroupBarrier + group, kWarpgroup);
    if (skipped < kWarpRows && row < sizes.rows) {
      float* lse =
          args.lse + (static_cast<int64_t>(work.batch) * sizes.heads + work.head) * sizes.rows;
      RowFactors factors;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = softmax.sum[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        factors.of[half] = sum == 0.f ? 0.f : 1.f / sum;
        const int r = row + half * 8 + lane / 4;
        if (lane % 4 == 0 && r >= 0 && r < sizes.rows)
          lse[r] = sum == 0.f ? -INFINITY : softmax.max[half] * sizes.scale + logf(sum);
      }
      const auto staging = [&](int panel) -> T* {
        if constexpr (Shape::staged_in_queries)
          return memory.queries[query_place.stage][panel][own];
        else return memory.out[4 * group + warp];
      };
      store_panels<T, kD>(out, factors, staging, args.out, args.out.at(work.batch, work.head, row),
                          sizes.rows - row, sizes.d, skipped);
    }
    if constexpr (Shape::staged_in_queries) {
      fence_for_async();
      __syncwarp();
      release_stage(memory.queries_empty[query_place.stage]);
    }
  }

  __device__ __forceinline__ void run() {
    Base::for_each_unit([&](const HopperWork& work) {
      const int end = min(work.row + 64 * (group + 1), args.sizes.rows);
      int mine = work.steps;
      if constexpr (!kFiltered)
        mine = end <= 0 ? 0 : min(mine, max(0, key_blocks<kKeys>(args.sizes, end)));
      Base::clear_out();
      HopperSoftmax softmax;
      attend(work, softmax, mine);
      finish(work, softmax);
    });
  }
};

/// On other architectures the kernel has no body and a launch bound of 1: see hopper_serves().
template <class T, class Shape, Hiding kHiding>
__global__ void __launch_bounds__(DS_HOPPER_BODY ? Shape::threads : 1, 1)
    hopper_attention_forward_kernel(const __grid_constant__ HopperForwardArguments<T> args) {
#if DS_HOPPER_BODY
  extern __shared__ unsigned char hopper_shared[];
  auto& memory = hopper_memory<HopperForwardMemory<T, Shape>>(hopper_shared);
  if (threadIdx.x == 0) {
    prefetch_map(args.q);
    prefetch_map(args.k);
    prefetch_map(args.v);
    memory.start_barriers();
  }
  __syncthreads();
  run_hopper_roles<Shape>(
      [&] { hopper_forward_produce<T, Shape, kHiding>(args, memory); },
      [&](int group) {
        HopperForwardConsumer<T, Shape, kHiding> consumer{{memory, group}, args.call};
        consumer.run();
      });
#endif
}

}  // namespace ds::cuda
