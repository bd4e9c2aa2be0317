// Reads rows of scores with their masks, biases and counts on the GPU, and finds the best score of
// a row or a part of it.
#pragma once

#include "../cuda/vector.cuh"
#include "sample_math.h"
#include "sample_select.cuh"

namespace ds::cuda {
namespace {

/// Arguments of the kernel: the operands of SampleTokens.
template <class T>
struct Problem {
  const T* scores;
  int64_t row_stride;
  const int32_t* slots;
  int32_t* tokens;
  float* logprobs;  // null if not requested
  const float* settings;
  int32_t *numbers, *recent;
  int32_t* counts;  // counts, bias and masks are null if no slot has a row
  const float* bias;
  const int32_t *masks, *bans;
  float* staged;  // [S, pitch]
  int64_t count_rows, bias_rows, mask_rows, ban_rows, ban_width, slot_count;
  uint32_t columns, pitch, mask_words;  // pitch is a multiple of 4
  uint32_t cluster;                     // blocks per row

  __device__ __forceinline__ int64_t index() const { return blockIdx.x / cluster; }
  __device__ __forceinline__ const T* row() const { return scores + index() * row_stride; }
};

/// Returns the row of a table for a slot, or null if it has none.
template <class T>
__device__ __forceinline__ T* row_of(T* table, int32_t row, int64_t rows, uint32_t columns) {
  return table && row >= 0 && row < rows ? table + int64_t{row} * columns : nullptr;
}

/// Returns the mask bits of the N columns from `c` on, a multiple of N. N divides 32.
template <uint32_t N>
__device__ __forceinline__ uint32_t bits_of_packet(const int32_t* mask, uint32_t c) {
  return static_cast<uint32_t>(mask[c / 32]) >> c % 32 & ((1u << N) - 1);
}

/// A part of a row. A cluster has `parts` blocks, and each block takes one part.
struct RowPart {
  uint32_t part = 0, parts = 1;

  __device__ __forceinline__ uint32_t first() const { return part * kThreads + threadIdx.x; }
  __device__ __forceinline__ uint32_t step() const { return parts * kThreads; }
};

/// Returns how many packets of a row can be loaded at once: none if the row is not aligned.
template <class T>
__device__ __forceinline__ uint32_t whole_packets(const T* row, uint32_t columns) {
  return reinterpret_cast<uintptr_t>(row) % 16 == 0 ? columns / kPacket<T> : 0;
}

/// Calls `each` with the columns and values of a part of a row, in packets if the row is aligned.
template <class T, class Each>
__device__ __forceinline__ void each_element(const T* row, uint32_t columns, RowPart part,
                                             Each each) {
  constexpr uint32_t N = kPacket<T>;
  const uint32_t whole = whole_packets(row, columns);
#pragma unroll 4
  for (uint32_t i = part.first(); i < whole; i += part.step()) {
    const Vector<T, N> x = load_vector<N>(row + i * N);
#pragma unroll
    for (uint32_t e = 0; e < N; ++e) each(i * N + e, to_float(x.v[e]));
  }
  for (uint32_t c = whole * N + part.first(); c < columns; c += part.step())
    each(c, to_float(row[c]));
}

/// Returns the rank of the best score that the mask allows, or 0 if any score is NaN or +infinity.
/// Reads a part of the row once and determines columns only in packets with a new best score.
template <bool kMasked, class T>
__device__ uint64_t best_of_row(const T* row, const int32_t* mask, uint32_t columns, RowPart part) {
  constexpr uint32_t N = kPacket<T>;
  const uint32_t first = part.first(), step = part.step(), whole = whole_packets(row, columns);
  float most = kOut;
  uint32_t at = ~0u;
  bool bad = false;
#pragma unroll 4
  for (uint32_t i = first; i < whole; i += step) {
    const Vector<T, N> x = load_vector<N>(row + i * N);
    float here = to_float(x.v[0]);
#pragma unroll
    for (uint32_t e = 1; e < N; ++e) here = larger_or_nan(here, to_float(x.v[e]));
    bad |= !(here < INFINITY);
    if (!(here > most)) continue;
    constexpr uint32_t kAll = (1u << N) - 1;
    const uint32_t bits = kMasked ? bits_of_packet<N>(mask, i * N) : kAll;
    if (kMasked && bits != kAll) {
      here = kOut;
#pragma unroll
      for (uint32_t e = 0; e < N; ++e)
        if (bits >> e & 1) here = fmaxf(here, to_float(x.v[e]));
      if (!(here > most)) continue;
    }
    most = here;
#pragma unroll
    for (uint32_t e = N; e-- > 0;)
      if ((!kMasked || bits >> e & 1) && to_float(x.v[e]) == here) at = i * N + e;
  }
  for (uint32_t c = whole * N + first; c < columns; c += step) {
    const float x = to_float(row[c]);
    bad |= !(x < INFINITY);
    if (x > most && (!kMasked || bits_of_packet<1>(mask, c))) most = x, at = c;
  }
  const uint64_t best = block_reduce(ranked(most, at), Max{});
  return __syncthreads_or(bad) ? 0 : best;
}

/// The scores of a slot after steps 1 to 4, and their mask.
template <class T>
struct RowScores {
  const T* row;
  const int32_t* counts;
  const float* bias;
  const int32_t* mask;
  const SampleRules& rules;
  uint32_t columns;

  __device__ RowScores(const Problem<T>& p, const int32_t* numbers, const SampleRules& rules)
      : row(p.row()),
        counts(row_of(p.counts, numbers[kCountsRow], p.count_rows, p.columns)),
        bias(row_of(p.bias, numbers[kBiasRow], p.bias_rows, p.columns)),
        mask(row_of(p.masks, numbers[kMaskRow], p.mask_rows, p.mask_words)),
        rules(rules),
        columns(p.columns) {}

  /// Returns true if only the mask changes the model's scores.
  __device__ __forceinline__ bool unchanged() const { return !counts && !bias; }
  /// Returns a score without its mask.
  __device__ __forceinline__ float unmasked(uint32_t c, float x) const {
    if (bias) x = add_rn(x, bias[c]);
    if (counts) x = penalized(x, counts[c], rules);
    return x;
  }
  __device__ __forceinline__ float score(uint32_t c, float x) const {
    x = unmasked(c, x);
    return mask ? masked(x, mask, c) : x;
  }
  /// Calls `each` with each column of a part and its score.
  template <class Each>
  __device__ __forceinline__ void visit(RowPart part, Each each) const {
    each_element(row, columns, part, [&](uint32_t c, float x) { each(c, score(c, x)); });
  }
};

/// Returns the rank of the best score of a part of a row, or 0 if a score is NaN or +infinity.
template <class T>
__device__ uint64_t best_of(const RowScores<T>& scores, RowPart part) {
  if (scores.unchanged())
    return scores.mask ? best_of_row<true>(scores.row, scores.mask, scores.columns, part)
                       : best_of_row<false>(scores.row, scores.mask, scores.columns, part);
  uint64_t best = ranked(kOut, ~0u);  // not 0, also for a part without columns
  int bad = 0;
  scores.visit(part, [&](uint32_t c, float x) {
    bad |= !(x < INFINITY);
    const uint64_t rank = ranked(x, c);
    best = rank > best ? rank : best;
  });
  best = block_reduce(best, Max{});
  return __syncthreads_or(bad) ? 0 : best;
}

/// Writes `value` of each score to `y` [pitch]. Ends with a barrier.
template <class T, class Value>
__device__ void stage(const RowScores<T>& scores, float* y, uint32_t pitch, Value value) {
  scores.visit({}, [&](uint32_t c, float x) { y[c] = value(x); });
  for (uint32_t c = scores.columns + threadIdx.x; c < pitch; c += kThreads) y[c] = kOut;
  __syncthreads();
}

}  // namespace
}  // namespace ds::cuda
