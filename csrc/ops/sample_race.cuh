// The race of the sampler without top_k and top_p: finds the token of a row with the best key of a
// draw. Most tokens lose by a test that takes one power instead of two exact logarithms.
#pragma once

#include "sample_rows.cuh"

namespace ds::cuda {
namespace {

/// A bound that random words of a race must not exceed, relative to the block's best key so far.
///
/// A key is y - log(E), with E >= u = (word + 1/2) / 2^32. It reaches the best key B only if u <=
/// e^(y - B). The margins exceed the rounding of this test, so a token that could win never loses
/// by it. The bound only falls, and any bound gives the same winner.
class RaceBound {
 public:
  /// `shared` is a word of shared memory. Starts with a barrier and ends with one.
  __device__ RaceBound(uint32_t* shared, const SampleRules& rules, uint32_t best_column)
      : shared_(shared), slope_(kLog2e * (1.0f - kSlack) / rules.temperature) {
    __syncthreads();
    if (threadIdx.x == 0) {
      const Philox4 words =
          philox(rules.seed, static_cast<uint64_t>(rules.position), best_column / 4);
      const bool stays = !(exact_exp(0.0f) < rules.min_p);
      *shared_ = ascending_key(stays ? draw_key(0.0f, words.v[best_column % 4]) : kOut);
    }
    __syncthreads();
  }
  /// Reads the bound for the next tokens.
  __device__ __forceinline__ void update() {
    const float best = value_of(*const_cast<const volatile uint32_t*>(shared_));
    base_ = fmaf(fabsf(best), kSlack, fmaf(best, -kLog2e, 32.0f + kMargin));
  }
  /// Returns false if a token with this distance below the best score loses.
  __device__ __forceinline__ bool may_win(float distance, uint32_t word) const {
    return !(static_cast<float>(word) > exp2_of(fmaf(distance, slope_, base_)));
  }
  __device__ __forceinline__ void raise(float key) { atomicMax(shared_, ascending_key(key)); }

 private:
  static constexpr float kLog2e = 1.4426950408889634f, kSlack = 0x1p-19f, kMargin = 0.01f;
  static __device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  uint32_t* const shared_;
  const float slope_;
  float base_ = 0.0f;
};

/// Runs the race of the tokens of a part of a row, with y = (score - most) / temperature. `leader`
/// is the rank of the row's best score. Returns the rank of the best key.
template <bool kMasked, class T>
__device__ uint64_t race_part(const RowScores<T>& scores, uint64_t leader, RowPart part) {
  __shared__ uint32_t shared_bound;
  const SampleRules& rules = scores.rules;
  const float most = value_of(static_cast<uint32_t>(leader >> 32));
  RaceBound bound(&shared_bound, rules, column_in(leader));
  uint64_t best = 0;
  const auto words_of = [&](uint32_t c) {
    return philox(rules.seed, static_cast<uint64_t>(rules.position), c / 4);
  };
  const auto enter = [&](uint32_t c, float x, uint32_t word) {
    const float distance = sub_rn(scores.unmasked(c, x), most);
    if (!bound.may_win(distance, word)) return;
    const float y = div_rn(distance, rules.temperature);
    if (y == kOut || (rules.min_p > 0.0f && exact_exp(y) < rules.min_p)) return;
    const float key = draw_key(y, word);
    bound.raise(key);
    const uint64_t rank = ranked(key, c);
    best = rank > best ? rank : best;
  };
  constexpr uint32_t N = kPacket<T>;
  const uint32_t whole = whole_packets(scores.row, scores.columns);
  for (uint32_t i = part.first(); i < whole; i += part.step()) {
    const uint32_t bits = kMasked ? bits_of_packet<N>(scores.mask, i * N) : 0;
    if (kMasked && bits == 0) continue;
    const Vector<T, N> x = load_vector<N>(scores.row + i * N);
    bound.update();
#pragma unroll
    for (uint32_t g = 0; g < N; g += 4) {
      const Philox4 words = words_of(i * N + g);
#pragma unroll
      for (uint32_t u = 0; u < 4; ++u)
        if (!kMasked || bits >> (g + u) & 1) enter(i * N + g + u, to_float(x.v[g + u]), words.v[u]);
    }
  }
  bound.update();
  for (uint32_t c = whole * N + part.first(); c < scores.columns; c += part.step()) {
    if (kMasked && !bits_of_packet<1>(scores.mask, c)) continue;
    const Philox4 words = words_of(c);
    const uint32_t u = c % 4;
    const uint32_t first = u % 2 == 0 ? words.v[0] : words.v[1];
    const uint32_t second = u % 2 == 0 ? words.v[2] : words.v[3];
    enter(c, to_float(scores.row[c]), u < 2 ? first : second);
  }
  return block_reduce(best, Max{});
}

/// Runs the race of a part of a row, with its mask.
template <class T>
__device__ uint64_t race_row(const RowScores<T>& scores, uint64_t leader, RowPart part) {
  return scores.mask ? race_part<true>(scores, leader, part)
                     : race_part<false>(scores, leader, part);
}

}  // namespace
}  // namespace ds::cuda
