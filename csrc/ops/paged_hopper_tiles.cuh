// Paged attention of prompts on wgmma and TMA: one producer warp and two consumer warpgroups, with
// the barriers and the order of attention_hopper_forward.cuh.
//
// A tile of rows has all query heads of a key head, token by token, so they share one read of the
// keys. A tile of keys has pieces, each within one block of the pool. Each lane of the producer
// copies one piece by TMA. It reads the piece's block number from the table one tile ahead, so that
// no copy waits for the table.
#pragma once

#include "attention_hopper_forward.cuh"
#include "paged_rows.cuh"

namespace ds::cuda {

/// Arguments of the kernel.
template <class T>
struct PagedHopperArguments {
  TensorMap q;     // boxes of `tile_tokens` tokens and the heads of a group
  TensorMap pool;  // boxes of `piece` rows; batch 2 b: keys of block b, 2 b + 1: its values
  PagedArguments<T> call;
  unsigned* counter;  // 0 before and after the launch
  unsigned units;     // at least the tiles of rows times the key heads
  int tile_tokens;    // tokens of a tile of rows
  int piece;          // rows of keys per copy
};

/// A tile of rows of a sequence and key head, and the tiles of keys that it sees. Rows are numbered
/// as in QueryTile.
struct PagedHopperWork {
  int sequence, head;
  int first_row, rows;  // first row, and number of rows of the sequence
  int first_token;      // first token of the sequence in q
  int before, length;   // tokens before the first query, and in all
  int first_key;        // first key of the first tile
  int steps;            // tiles of keys; -1 ends the launch
};

/// Shared memory of a thread block.
template <class T, class Shape>
struct PagedHopperMemory : HopperStages<T, Shape, PagedHopperWork> {
  unsigned missing[Shape::stages];  // bit i: piece i of the keys has no block
};
template <class T, class Shape>
constexpr size_t paged_hopper_bytes = sizeof(PagedHopperMemory<T, Shape>) + kHopperAlignment;

/// Returns unit `index` of work. All lanes of a warp call it. Tiles of a sequence are consecutive,
/// the last rows first. An index beyond the last tile returns a unit without rows.
template <int kKeys, class T>
__device__ __forceinline__ PagedHopperWork find_paged_work(const PagedHopperArguments<T>& args,
                                                           unsigned index) {
  const PagedArguments<T>& a = args.call;
  const int lane = threadIdx.x % 32, head = static_cast<int>(index % a.rows.key_heads);
  int tile = static_cast<int>(index / a.rows.key_heads);
  PagedHopperWork work{0, head, 0, 0, 0, 0, 0, 0, 0};
  for (int first = 0; first < a.sequences; first += 32) {
    const int sequence = first + lane;
    int begin = 0, count = 0;
    if (sequence < a.sequences) {
      begin = a.starts[sequence] - a.starts[0];
      count = a.starts[sequence + 1] - a.starts[0] - begin;
      if (begin < 0 || begin + count > a.tokens) count = 0;
    }
    const int tiles = max(0, count + args.tile_tokens - 1) / args.tile_tokens;
    int end = tiles;  // end of the sequence's tiles, counted from `first`
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, end, step);
      if (lane >= step) end += other;
    }
    const unsigned past = __ballot_sync(0xffffffffu, tile < end);
    if (past == 0) {
      tile -= __shfl_sync(0xffffffffu, end, 31);
      continue;
    }
    const int owner = __ffs(static_cast<int>(past)) - 1;
    const int last = __shfl_sync(0xffffffffu, end, owner) - 1;
    work.sequence = first + owner;
    work.first_token = __shfl_sync(0xffffffffu, begin, owner);
    count = __shfl_sync(0xffffffffu, count, owner);
    const int first_query = (last - tile) * args.tile_tokens;
    work.first_row = first_query * a.group;
    work.rows = count * a.group;
    work.length = min(a.lengths[work.sequence], a.rows.most * a.rows.block);
    work.before = work.length - count;
    const int end_query = min(count, first_query + args.tile_tokens);
    const int seen = work.length == 0 ? 0 : work.before + end_query;
    const int oldest = a.window > 0 ? max(0, work.before + first_query + 1 - a.window) : 0;
    work.first_key = oldest / kKeys * kKeys;
    work.steps = max(0, seen - work.first_key + kKeys - 1) / kKeys;
    break;
  }
  return work;
}

/// The producer warp: takes units of work and copies their queries, keys and values.
template <class T, class Shape>
__device__ __forceinline__ void paged_hopper_produce(const PagedHopperArguments<T>& args,
                                                     PagedHopperMemory<T, Shape>& memory) {
  constexpr int kKeys = Shape::keys, kPanels = panels_of<Shape::head_dim>;
  const PagedArguments<T>& a = args.call;
  const int lane = threadIdx.x % 32, own = lane * args.piece;  // this lane's keys of a tile
  const bool elected = lane == 0;
  const uint32_t query_bytes = kPanels * args.tile_tokens * a.group * kPanel * 2;
  const uint32_t piece_bytes = kPanels * args.piece * kPanel * 2;
  RingPlace<Shape::stages> place;
  RingPlace<Shape::query_stages> query_place;
  for (unsigned index = blockIdx.x; index < args.units;) {
    unsigned next = 0;
    const PagedHopperWork work = find_paged_work<kKeys>(args, index);
    if (elected && work.steps == 0) next = hopper_next_unit(args.counter, args.units);
    if (work.rows > 0) {
      SharedBarrier& full = memory.queries_full[query_place.stage];
      memory.queries_empty[query_place.stage].wait(query_place.parity ^ 1);
      if (elected) {
        memory.work[query_place.stage] = work;
        full.arrive_expecting(query_bytes);
        const int token = work.first_token + work.first_row / a.group;
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel)
          load_box(memory.queries[query_place.stage][panel], args.q, full, kEvictFirst,
                   panel * kPanel, work.head * a.group, token, 0);
      }
      query_place.advance();
    }
    const int* const table = a.rows.tables + work.sequence * a.rows.table_stride;
    // -1: no copy. An invalid block becomes `blocks`, which is beyond the pool: TMA reads zeros.
    const auto block_of = [&](int key) {
      if (own >= kKeys || key >= work.length) return -1;
      const int b = table[key / a.rows.block];
      return b < 0 || b >= a.rows.blocks ? static_cast<int>(a.rows.blocks) : b;
    };
    int key = work.first_key + own, block = work.steps > 0 ? block_of(key) : -1;
#pragma unroll 1
    for (int step = 0; step < work.steps; ++step, key += kKeys) {
      const int stage = place.stage, here = block, row = key % a.rows.block;
      if (step + 1 < work.steps) block = block_of(key + kKeys);
      const uint32_t bytes = __popc(__ballot_sync(0xffffffffu, here >= 0)) * piece_bytes;
      const unsigned missing = __ballot_sync(0xffffffffu, here == a.rows.blocks);
      if (elected && step + 1 == work.steps) next = hopper_next_unit(args.counter, args.units);
      const auto copy = [&](SharedBarrier& full, SharedBarrier& empty, int which, auto& tile) {
        empty.wait(place.parity ^ 1);
        if (elected) {
          if (which == 0) memory.missing[stage] = missing;
          full.arrive_expecting(bytes);
        }
        __syncwarp();
        if (here < 0) return;
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel)
          load_box(tile[panel][own], args.pool, full, kEvictLast, panel * kPanel, row, work.head,
                   2 * here + which);
      };
      copy(memory.keys_full[stage], memory.keys_empty[stage], 0, memory.keys[stage]);
      copy(memory.values_full[stage], memory.values_empty[stage], 1, memory.values[stage]);
      __syncwarp();
      place.advance();
    }
    index = __shfl_sync(0xffffffffu, next, 0);
  }
  memory.end_launch(query_place);
}

/// A consumer warpgroup: computes the output of its 64 rows of each unit of work.
template <class T, class Shape>
struct PagedHopperConsumer : HopperQueryConsumer<Shape, PagedHopperMemory<T, Shape>> {
  using Base = HopperQueryConsumer<Shape, PagedHopperMemory<T, Shape>>;
  using Base::await_turn, Base::end_turn, Base::issue_scores, Base::pass, Base::rescale;
  using Base::group, Base::kD, Base::kKeys, Base::memory, Base::out, Base::place, Base::query_place;
  const PagedHopperArguments<T>& args;
  int begin[2], end[2];       // range of keys that this thread's rows see
  int most_begin, least_end;  // over the rows of the warp

  /// Starts out += p v for the tile of keys from `key` on. First zeroes values beyond the sequence.
  __device__ __forceinline__ void issue_out(const uint32_t (&p)[kKeys / 16][4],
                                            const PagedHopperWork& work, int key) {
    if (key + kKeys > work.length) zero_rows(memory.values[place.stage], work.length - key, group);
    Base::issue_out(p, place.stage);
  }

  /// Returns the end of the keys that query `row` of the sequence sees.
  __device__ __forceinline__ int end_of(const PagedHopperWork& work, int row) const {
    return work.before + min(row, work.rows - 1) / args.call.group + 1;
  }
  __device__ __forceinline__ void see(const PagedHopperWork& work) {
    const int window = args.call.window, lane = threadIdx.x % 32;
    const int row =
        work.first_row + 64 * group + static_cast<int>(threadIdx.x) / 32 % 4 * kWarpRows;
    const auto begin_of = [&](int end) { return window > 0 ? max(0, end - window) : 0; };
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      end[half] = end_of(work, row + 8 * half + lane / 4);
      begin[half] = begin_of(end[half]);
    }
    least_end = end_of(work, row);
    most_begin = begin_of(end_of(work, row + kWarpRows - 1));
  }

  /// Replaces scores by probabilities. Returns true if the caller must multiply `out` by `factor`.
  __device__ __forceinline__ bool weigh(float (&scores)[kKeys / 8][4], HopperSoftmax& softmax,
                                        int key, unsigned missing, float (&factor)[2]) {
    const int column = threadIdx.x % 4 * 2;
    if (args.call.cap.is_set()) args.call.cap.apply(scores);
    if (missing) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)  // a piece has a multiple of 8 rows
        if (missing >> n * 8 / args.piece & 1)
#pragma unroll
          for (int e = 0; e < 4; ++e) scores[n][e] = NAN;
    }
    if (key < most_begin || key + kKeys > least_end) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int k = key + n * 8 + column + e % 2;
          if (k < begin[e / 2] || k >= end[e / 2]) scores[n][e] = -INFINITY;
        }
    }
    const bool raised = softmax.raise_max(scores, args.call.scale_log2, factor);
    softmax.exponentiate(scores, args.call.scale_log2);
    return raised;
  }

  /// Processes a unit of work. `mine` is the number of key tiles that this consumer's rows need,
  /// from the first on.
  __device__ __forceinline__ void attend(const PagedHopperWork& work, HopperSoftmax& softmax,
                                         int mine) {
    float scores[kKeys / 8][4];
    uint32_t p[kKeys / 16][4];
    float factor[2];
    if (mine > 0) {
      int key = work.first_key;
      memory.keys_full[place.stage].wait(place.parity);
      const unsigned missing = memory.missing[place.stage];
      issue_scores(scores, place.stage);
      wgmma_wait<0>();
      hold(scores);
      release_stage(memory.keys_empty[place.stage]);
      // Before the first tile, `out` is 0: there is nothing to multiply by `factor`.
      static_cast<void>(weigh(scores, softmax, key, missing, factor));
      pack_left<T, kKeys>(p, scores);
#pragma unroll 1
      for (int step = 1; step < mine; ++step) {
        RingPlace<Shape::stages> next = place;
        next.advance();
        memory.keys_full[next.stage].wait(next.parity);
        const unsigned absent = memory.missing[next.stage];
        await_turn();
        issue_scores(scores, next.stage);
        memory.values_full[place.stage].wait(place.parity);
        issue_out(p, work, key);
        end_turn();
        wgmma_wait<1>();
        hold(scores);
        release_stage(memory.keys_empty[next.stage]);
        key += kKeys;
        const bool raised = weigh(scores, softmax, key, absent, factor);
        wgmma_wait<0>();
        hold(out);
        release_stage(memory.values_empty[place.stage]);
        place = next;
        pack_left<T, kKeys>(p, scores);
        if (raised) rescale(factor);
      }
      if constexpr (!Shape::staged_in_queries)
        release_stage(memory.queries_empty[query_place.stage]);
      memory.values_full[place.stage].wait(place.parity);
      issue_out(p, work, key);
      wgmma_wait<0>();
      hold(out);
      release_stage(memory.values_empty[place.stage]);
      place.advance();
    } else if constexpr (!Shape::staged_in_queries) {
      release_stage(memory.queries_empty[query_place.stage]);
    }
#pragma unroll 1
    for (int step = mine; step < work.steps; ++step) pass(step);
  }

  /// Writes the rows of a unit of work. A row that sees no key gets 0.
  __device__ __forceinline__ void finish(const PagedHopperWork& work,
                                         const HopperSoftmax& softmax) {
    const PagedArguments<T>& a = args.call;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int own = 64 * group + warp * kWarpRows;
    const int rows = min(work.rows - work.first_row, args.tile_tokens * a.group) - own;
    if constexpr (Shape::staged_in_queries) named_sync(kGroupBarrier + group, kWarpgroup);
    if (rows > 0) {
      float factors[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = softmax.sum[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        factors[half] = sum == 0.f ? 0.f : 1.f / sum;
      }
#pragma unroll
      for (int panel = 0; panel < panels_of<kD>; ++panel) {
        constexpr int kChunks = kPanel / 8;
        T* to = memory.out[4 * group + warp];
        if constexpr (Shape::staged_in_queries) to = memory.queries[query_place.stage][panel][own];
        __syncwarp();
#pragma unroll
        for (int n = panel * kChunks; n < (panel + 1) * kChunks && n < kD / 8; ++n)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            *reinterpret_cast<uint32_t*>(to + swizzled<kPanel>(half * 8 + lane / 4, n % kChunks) +
                                         lane % 4 * 2) =
                pack_pair<T>(out[n][half * 2] * factors[half],
                             out[n][half * 2 + 1] * factors[half]);
        __syncwarp();
#pragma unroll
        for (int i = lane; i < kWarpRows * kChunks; i += 32) {
          const int row = i / kChunks, chunk = i % kChunks, column = panel * kPanel + chunk * 8;
          if (row >= rows || column >= a.d) continue;
          const int r = work.first_row + own + row, query = r / a.group;
          *reinterpret_cast<int4*>(a.out + (work.first_token + query) * a.out_token +
                                   (work.head * a.group + r - query * a.group) * a.out_head +
                                   column) =
              *reinterpret_cast<const int4*>(to + swizzled<kPanel>(row, chunk));
        }
      }
      __syncwarp();
    }
    if constexpr (Shape::staged_in_queries) {
      fence_for_async();
      __syncwarp();
      release_stage(memory.queries_empty[query_place.stage]);
    }
  }

  __device__ __forceinline__ void run() {
    Base::for_each_unit([&](const PagedHopperWork& work) {
      const int first = work.first_row + 64 * group;
      const int last = min(work.first_row + args.tile_tokens * args.call.group, work.rows) - 1;
      int mine = 0;
      if (first <= last && work.steps > 0) {
        const int seen = end_of(work, min(last, first + 63)) - work.first_key;
        mine = min(work.steps, max(0, seen + kKeys - 1) / kKeys);
      }
      see(work);
      Base::clear_out();
      HopperSoftmax softmax;
      attend(work, softmax, mine);
      finish(work, softmax);
    });
  }
};

/// Runs on one block per SM, which takes units of work (a tile of queries and a key head) from a
/// counter. One warp copies, two warpgroups compute.
template <class T, class Shape>
__global__ void __launch_bounds__(DS_HOPPER_BODY ? Shape::threads : 1, 1)
    paged_hopper_kernel(const __grid_constant__ PagedHopperArguments<T> args) {
#if DS_HOPPER_BODY
  extern __shared__ unsigned char hopper_shared[];
  auto& memory = hopper_memory<PagedHopperMemory<T, Shape>>(hopper_shared);
  if (threadIdx.x == 0) {
    prefetch_map(args.q);
    prefetch_map(args.pool);
    memory.start_barriers();
  }
  __syncthreads();
  run_hopper_roles<Shape>([&] { paged_hopper_produce<T, Shape>(args, memory); },
                          [&](int group) {
                            PagedHopperConsumer<T, Shape> consumer{{memory, group}, args};
                            consumer.run();
                          });
#endif
}

}  // namespace ds::cuda
