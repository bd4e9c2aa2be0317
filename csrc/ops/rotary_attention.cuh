// RotaryAttention for single tokens in one kernel. It rotates the queries and the key of a token,
// and stores its key and value. Then it attends to all keys of the sequence.
//
// A thread block has a key head of a sequence. Its warps take 16 keys at a time, so they need no
// barrier until their partial results are reduced. Keys of earlier tokens load while the previous
// kernel still runs. The new key and value do not pass through the pool.
#pragma once

#include "online_softmax.cuh"
#include "paged_rows.cuh"

namespace ds::cuda {

/// Arguments of rotary_attention_kernel. `settled` includes slots, positions and angles.
template <class T>
struct RotaryAttentionArguments {
  PagedArguments<T> attention;
  const T *k, *v;
  T* pool;
  int64_t k_token, k_head, v_token, v_head;
  const float *cos, *sin;
  const int *positions, *slots;
  int64_t angles, places;  // rows of the table, slots of the pool
};

/// Shape of a block. Each warp has kStages groups of 16 keys and values in shared memory.
template <int kHeadDim, int kWarpCount, int kStageCount>
struct RotaryAttentionShape {
  static constexpr int head_dim = kHeadDim, warps = kWarpCount, stages = kStageCount;
  static constexpr int threads = 32 * warps, keys = 16, rows = 16;
  static constexpr int stage = 2 * keys * head_dim;  // elements
  static constexpr int width = head_dim + 4;         // floats of a row of sums
  static constexpr size_t stage_bytes = sizeof(uint16_t) * warps * stages * stage;
  static constexpr size_t merge_bytes = sizeof(float) * (warps + 1) * rows * (width + 2);
  static constexpr size_t shared_bytes = stage_bytes > merge_bytes ? stage_bytes : merge_bytes;
};

/// Returns a pair of consecutive elements.
template <class T>
__device__ __forceinline__ uint32_t load_pair(const T* p) {
  return *reinterpret_cast<const uint32_t*>(p);
}

/// Rotates pairs of elements of the lower and the upper half of a head, as RotaryStore does.
template <class T>
__device__ __forceinline__ void rotate_pairs(uint32_t& lower, uint32_t& upper, float2 cos,
                                             float2 sin) {
  const auto x1 = reinterpret_cast<const Vector<T, 2>&>(lower);
  const auto x2 = reinterpret_cast<const Vector<T, 2>&>(upper);
  const float c[2] = {cos.x, cos.y}, s[2] = {sin.x, sin.y};
  Vector<T, 2> y1, y2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float a = to_float(x1.v[i]), b = to_float(x2.v[i]);
    y1.v[i] = from_float<T>(a * c[i] - b * s[i]);
    y2.v[i] = from_float<T>(b * c[i] + a * s[i]);
  }
  lower = reinterpret_cast<const uint32_t&>(y1);
  upper = reinterpret_cast<const uint32_t&>(y2);
}

/// Angles of pairs of channels. A position outside of the table gives NaN.
template <class T>
struct PairAngles {
  float2 cos, sin;

  __device__ __forceinline__ void load(const RotaryAttentionArguments<T>& a, int position, int c) {
    cos = sin = make_float2(NAN, NAN);
    if (position < 0 || position >= a.angles) return;
    const int64_t at = int64_t{position} * (a.attention.d / 2) + c;
    cos = *reinterpret_cast<const float2*>(a.cos + at);
    sin = *reinterpret_cast<const float2*>(a.sin + at);
  }
};

/// The new key and value of a head. A lane has pairs of channels: its pair of each half of the key,
/// and two of the value.
template <class T, int kD>
struct NewKey {
  static constexpr int kLanes = kD / 4;
  static_assert(kLanes <= 32);
  PairAngles<T> angles;
  uint32_t key[2], value[2];

  __device__ __forceinline__ static bool has_channels() { return threadIdx.x % 32 < kLanes; }
  __device__ __forceinline__ static int channel(int half) {
    return half * (kD / 2) + static_cast<int>(threadIdx.x) % 32 * 2;
  }
  __device__ __forceinline__ void load(const RotaryAttentionArguments<T>& a, int64_t token,
                                       int head) {
    if (!has_channels()) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      key[half] = load_pair(a.k + token * a.k_token + head * a.k_head + channel(half));
      value[half] = load_pair(a.v + token * a.v_token + head * a.v_head + channel(half));
    }
  }
  /// Writes the key to `key_row` and the value to the row `to_value` elements behind it; element c
  /// is at `place(c)`.
  template <class Place>
  __device__ __forceinline__ void store(T* keys, int64_t to_value, const Place& place) const {
    if (!has_channels()) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      T* const to = keys + place(channel(half));
      *reinterpret_cast<uint32_t*>(to) = key[half];
      *reinterpret_cast<uint32_t*>(to + to_value) = value[half];
    }
  }
};

template <class T, class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    rotary_attention_kernel(const __grid_constant__ RotaryAttentionArguments<T> args) {
  constexpr int kD = Shape::head_dim, kWarps = Shape::warps, kStages = Shape::stages;
  constexpr int kKeys = Shape::keys, kRows = Shape::rows, kWidth = Shape::width;
  constexpr int kSteps = kD / 16, kHalf = kSteps / 2;
  extern __shared__ __align__(128) unsigned char rotary_shared[];
  __shared__ float sink_logits[kRows];
  const PagedArguments<T>& a = args.attention;
  if (!a.settled) await_previous();
  const QueryTile tile(a, kRows);
  if (tile.first_row >= tile.rows) return await_previous();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, quad = lane % 4;
  const int token = tile.first_token, end = tile.length, last = end - 1;
  const int begin = a.window > 0 ? max(0, end - a.window) : 0;
  const int first_group = begin / kKeys, groups = (end + kKeys - 1) / kKeys - first_group;
  const auto group_of = [&](int i) { return (i * kWarps + warp) * a.splits + tile.split; };
  T* const stages = reinterpret_cast<T*>(rotary_shared) + warp * kStages * Shape::stage;
  const auto stage = [&](int i) { return stages + i % kStages * Shape::stage; };
  const bool whole = a.rows.block % kKeys == 0;

  // Starts the copy of the warp's i-th group, except the new key.
  const auto load_group = [&](int i) {
    const int which = group_of(i), first = (first_group + which) * kKeys;
    if (which >= groups) return;
    constexpr int kChunks = kD / 8, kAtOnce = 32 / kChunks;
    const int chunk = lane % kChunks;
    const T* const start = whole ? a.rows.key(tile.sequence, tile.head, first) : nullptr;
    const int64_t to_value = a.rows.value_offset();
#pragma unroll
    for (int row = lane / kChunks; row < kKeys; row += kAtOnce) {
      const int at = first + row;
      if (at == last) continue;
      const T* from = nullptr;
      if (at < last)
        from = !whole  ? a.rows.key(tile.sequence, tile.head, at)
               : start ? start + row * kD
                       : nullptr;
      T* const key = stage(i) + swizzled<kD>(row, chunk);
      T* const value = key + kKeys * kD;
      if (at < last && !from) {  // a missing block gives NaN
#pragma unroll
        for (int e = 0; e < 8; ++e) key[e] = from_float<T>(NAN), value[e] = from_float<T>(0.f);
        continue;
      }
      cp_async_16(key, from ? from + chunk * 8 : a.rows.pool, from != nullptr);
      cp_async_16(value, from ? from + to_value + chunk * 8 : a.rows.pool, from != nullptr);
    }
  };
#pragma unroll
  for (int i = 0; i < kStages; ++i) {
    load_group(i);
    cp_async_commit();
  }
  const int position = args.positions[token], slot = args.slots[token];
  PairAngles<T> angles[kHalf][2];
#pragma unroll
  for (int k = 0; k < kHalf; ++k)
#pragma unroll
    for (int e = 0; e < 2; ++e) angles[k][e].load(args, position, k * 16 + e * 8 + quad * 2);
  // The warp and its turn that take the new key.
  const int newest = last / kKeys - first_group;
  const bool owner =
      end > 0 && newest % a.splits == tile.split && newest / a.splits % kWarps == warp;
  const int own_turn = owner ? newest / a.splits / kWarps : -1;
  NewKey<T, kD> fresh;
  if (owner && fresh.has_channels()) fresh.angles.load(args, position, lane * 2);
  if (threadIdx.x < kRows)
    sink_logits[threadIdx.x] =
        a.sinks && static_cast<int>(threadIdx.x) < a.group
            ? to_float(a.sinks[tile.head * a.group + threadIdx.x]) * 1.4426950408889634f
            : -INFINITY;
  if (a.settled) await_previous();
  let_next_begin();

  if (owner) fresh.load(args, token, tile.head);
  RowFragments<T, 1, kD, true> query;
  const auto query_of = [&](int row, int c) -> uint32_t {
    if (row >= a.group) return 0;
    return load_pair(a.q + token * a.q_token + int64_t{tile.head * a.group + row} * a.q_head + c);
  };
#pragma unroll
  for (int k = 0; k < kSteps; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      query.kept[0][k][i] = query_of(group + i % 2 * 8, k * 16 + i / 2 * 8 + quad * 2);
  if (owner) {
    rotate_pairs<T>(fresh.key[0], fresh.key[1], fresh.angles.cos, fresh.angles.sin);
    if (slot >= 0 && slot < args.places) {
      const int64_t block = slot / a.rows.block;
      T* const key = args.pool + ((block * 2 * a.rows.key_heads + tile.head) * a.rows.block +
                                  (slot - block * a.rows.block)) *
                                     kD;
      fresh.store(key, a.rows.value_offset(), [](int c) { return c; });
    }
  }
#pragma unroll
  for (int k = 0; k < kHalf; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      rotate_pairs<T>(query.kept[0][k][i], query.kept[0][k + kHalf][i], angles[k][i / 2].cos,
                      angles[k][i / 2].sin);

  OnlineSoftmax<1, kD, true> state;
  for (int i = 0; group_of(i) < groups; ++i) {
    cp_async_wait<kStages - 1>();
    if (i == own_turn)
      fresh.store(stage(i), kKeys * kD,
                  [&](int c) { return swizzled<kD>(last % kKeys, c / 8) + c % 8; });
    __syncwarp();
    const int first = (first_group + group_of(i)) * kKeys;
    float scores[1][2][4] = {};
    multiply_by_rows<T, kD>(scores, query, stage(i));
    if (a.cap.is_set()) a.cap.apply(scores);
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = first + n * 8 + quad * 2 + e % 2;
        if (key < begin || key >= end) scores[0][n][e] = -INFINITY;
      }
    state.update_max(scores, a.scale_log2);
    state.exponentiate(scores, a.scale_log2);
    uint32_t weights[1][1][4];
    to_left_operand<T>(weights, scores);
    multiply_by_columns<T, kD>(state.out, weights, stage(i) + kKeys * kD);
    __syncwarp();
    load_group(i + kStages);
    cp_async_commit();
  }
  cp_async_wait<0>();
  __syncthreads();

  float* const sums = reinterpret_cast<float*>(rotary_shared);
  auto* const marks = reinterpret_cast<float2*>(sums + (kWarps + 1) * kRows * kWidth);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = half * 8 + group;
    float sum = state.sum[0][half];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (row >= a.group) continue;
    if (quad == 0) marks[warp * kRows + row] = make_float2(state.max[0][half] * a.scale_log2, sum);
#pragma unroll
    for (int n = 0; n < kD / 8; ++n)
      *reinterpret_cast<float2*>(sums + (warp * kRows + row) * kWidth + n * 8 + quad * 2) =
          make_float2(state.out[0][n][half * 2], state.out[0][n][half * 2 + 1]);
  }
  __syncthreads();
  const auto write = [&](int r, int c, float top, float total, float sum) {
    const float base = top == -INFINITY ? 0.f : top;
    if (total != 0.f) total += exp2f(sink_logits[r] - base);
    a.out[token * a.out_token + (tile.head * a.group + r) * a.out_head + c] =
        from_float<T>(total == 0.f ? 0.f : sum / total);
  };
  for (int i = threadIdx.x; i < a.group * kD; i += Shape::threads) {
    const int r = i / kD, c = i % kD;
    float top = -INFINITY, total = 0.f, sum = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, marks[w * kRows + r].x);
    const float base = top == -INFINITY ? 0.f : top;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float2 mark = marks[w * kRows + r];
      const float factor = exp2f(mark.x - base);
      total = fmaf(mark.y, factor, total);
      sum = fmaf(sums[(w * kRows + r) * kWidth + c], factor, sum);
    }
    if (a.splits == 1) {
      write(r, c, top, total, sum);
      continue;
    }
    sums[(kWarps * kRows + r) * kWidth + c] = sum;
    if (c == 0) marks[kWarps * kRows + r] = make_float2(top, total);
  }
  if (a.splits == 1) return;
  cluster_barrier();
  const int first = tile.split * Shape::threads + static_cast<int>(threadIdx.x);
  for (int i = first; i < a.group * kD; i += a.splits * Shape::threads) {
    const int r = i / kD, c = i % kD;
    float tops[kMostClustered], totals[kMostClustered], parts[kMostClustered];
#pragma unroll
    for (int z = 0; z < kMostClustered; ++z) {
      const float2& mark = marks[kWarps * kRows + r];
      tops[z] = z < a.splits ? load_of_block(&mark.x, z) : -INFINITY;
      totals[z] = z < a.splits ? load_of_block(&mark.y, z) : 0.f;
      parts[z] = z < a.splits ? load_of_block(sums + (kWarps * kRows + r) * kWidth + c, z) : 0.f;
    }
    float top = tops[0], total = 0.f, sum = 0.f;
#pragma unroll
    for (int z = 1; z < kMostClustered; ++z) top = fmaxf(top, tops[z]);
    const float base = top == -INFINITY ? 0.f : top;
#pragma unroll
    for (int z = 0; z < kMostClustered; ++z) {
      const float factor = exp2f(tops[z] - base);
      total = fmaf(totals[z], factor, total);
      sum = fmaf(parts[z], factor, sum);
    }
    write(r, c, top, total, sum);
  }
  cluster_barrier();  // until all blocks have read this block's results
}

}  // namespace ds::cuda
