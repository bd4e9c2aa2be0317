// The ring of queries, keys and values in shared memory, and a consumer's view of it. The forward
// kernels of dense and paged attention on wgmma share it.
#pragma once

#include "attention_hopper_tile.cuh"

namespace ds::cuda {

/// The stages of a thread block: buffers that the producer fills and consumer warps read. The
/// "full" barrier of a stage counts bytes that have arrived. A consumer warp arrives at "empty"
/// when it no longer needs the stage. `Unit` describes a unit of work; -1 steps end the launch.
template <class T, class Shape, class Unit>
struct HopperStages {
  static constexpr int kPanels = panels_of<Shape::head_dim>;
  T queries[Shape::query_stages][kPanels][Shape::rows][kPanel];
  T keys[Shape::stages][kPanels][Shape::keys][kPanel];
  T values[Shape::stages][kPanels][Shape::keys][kPanel];
  T out[Shape::consumers * 4][Shape::staged_in_queries ? 1 : kWarpRows * kPanel];  // rows of a warp
  SharedBarrier queries_full[Shape::query_stages], queries_empty[Shape::query_stages];
  SharedBarrier keys_full[Shape::stages], keys_empty[Shape::stages];
  SharedBarrier values_full[Shape::stages], values_empty[Shape::stages];
  Unit work[Shape::query_stages];

  /// Called by one thread before the first barrier of the block.
  __device__ __forceinline__ void start_barriers() {
    constexpr int warps = 4 * Shape::consumers;
    for (int stage = 0; stage < Shape::query_stages; ++stage) {
      queries_full[stage].start(1);
      queries_empty[stage].start(warps);
    }
    for (int stage = 0; stage < Shape::stages; ++stage) {
      keys_full[stage].start(1);
      keys_empty[stage].start(warps);
      values_full[stage].start(1);
      values_empty[stage].start(warps);
    }
    publish_barriers();
  }

  /// Ends the launch after the last unit. Called by the producer's warp. compute-sanitizer's
  /// racecheck wrongly reports a race of this write with the consumers' reads of `work`. The lanes
  /// of a warp read, meet at a barrier, and then one lane arrives at `queries_empty`.
  __device__ __forceinline__ void end_launch(const RingPlace<Shape::query_stages>& query_place) {
    queries_empty[query_place.stage].wait(query_place.parity ^ 1);
    if (threadIdx.x % 32 != 0) return;
    work[query_place.stage].steps = -1;
    queries_full[query_place.stage].arrive();
  }
};

/// State of a consumer warpgroup: its positions in the stages, and the sums of its 64 rows.
template <class Shape, class Memory>
struct HopperQueryConsumer {
  static constexpr int kD = Shape::head_dim, kKeys = Shape::keys;
  Memory& memory;
  int group;  // index of this consumer
  RingPlace<Shape::stages> place;
  RingPlace<Shape::query_stages> query_place;
  float out[kD / 8][4];

  // Named barrier kTurnBarrier + g gives consumer g its turn to issue. Each consumer takes one turn
  // per key block after the first, even if it skips the block, so that all count the same turns.
  __device__ __forceinline__ void await_turn() const {
    if constexpr (Shape::in_turns) named_sync(kTurnBarrier + group, 2 * kWarpgroup);
  }
  __device__ __forceinline__ void end_turn() const {
    if constexpr (Shape::in_turns)
      named_arrive(kTurnBarrier + (group + 1 == Shape::consumers ? 0 : group + 1), 2 * kWarpgroup);
  }

  /// Starts scores = q k^T for a stage.
  __device__ __forceinline__ void issue_scores(float (&scores)[kKeys / 8][4], int stage) const {
    hold(scores);
    issue_by_rows<kD>(scores, memory.queries[uniform(query_place.stage)], 64 * group,
                      memory.keys[uniform(stage)]);
    hold(scores);
  }
  /// Starts out += p v for a stage.
  __device__ __forceinline__ void issue_out(const uint32_t (&p)[kKeys / 16][4], int stage) {
    hold(out);
    issue_by_columns<kD>(out, p, memory.values[uniform(stage)]);
    hold(out);
  }
  __device__ __forceinline__ void clear_out() {
#pragma unroll
    for (int n = 0; n < kD / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[n][e] = 0.f;
  }
  __device__ __forceinline__ void rescale(const float (&factor)[2]) {
#pragma unroll
    for (int n = 0; n < kD / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[n][e] *= factor[e / 2];
  }

  /// Skips a step, because its keys are hidden. It still waits for the loads and frees their
  /// stages.
  __device__ __forceinline__ void pass(int step) {
    if (step > 0) {
      await_turn();
      end_turn();
    }
    memory.keys_full[place.stage].wait(place.parity);
    release_stage(memory.keys_empty[place.stage]);
    memory.values_full[place.stage].wait(place.parity);
    release_stage(memory.values_empty[place.stage]);
    place.advance();
  }

  /// Calls unit(work) for each unit of the producer.
  template <class F>
  __device__ __forceinline__ void for_each_unit(F&& unit) {
    if (Shape::in_turns && group == 0) named_arrive(kTurnBarrier, 2 * kWarpgroup);
    while (true) {
      memory.queries_full[query_place.stage].wait(query_place.parity);
      const auto work = memory.work[query_place.stage];
      if (work.steps < 0) break;
      unit(work);
      query_place.advance();
    }
    if (Shape::in_turns && group == 0) named_sync(kTurnBarrier, 2 * kWarpgroup);
  }
};

}  // namespace ds::cuda
