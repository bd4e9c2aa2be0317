// The next token of each sequence on the GPU: a block per row. Radix selection over counts and
// integer weights narrows the candidates, so no order of summation matters.
#include "sample.h"

#include "../cuda/vector.cuh"
#include "sample_math.h"
#include "sample_select.cuh"

namespace ds::cuda {
namespace {

template <class T>
struct Problem {
  const T* scores;
  int64_t row_stride;
  const int32_t* slots;
  int32_t* tokens;
  float* logprobs;  // null: not requested
  const float* settings;
  int32_t *numbers, *recent;
  int32_t* counts;  // counts, bias and masks are null if no slot has a row
  const float* bias;
  const int32_t *masks, *bans;
  float* staged;  // [S, pitch]
  int64_t count_rows, bias_rows, mask_rows, ban_rows, ban_width, slot_count;
  uint32_t columns, pitch, mask_words;  // pitch is a multiple of 4

  __device__ __forceinline__ const T* row() const { return scores + blockIdx.x * row_stride; }
};

// -------------------------------------------------------------------------------------------------
// A row

/// Returns a slot's row of a table, or null if it has none.
template <class T>
__device__ __forceinline__ T* row_of(T* table, int32_t row, int64_t rows, uint32_t columns) {
  return table && row >= 0 && row < rows ? table + int64_t{row} * columns : nullptr;
}

/// Mask bits of the N columns from `c` on, a multiple of N. N divides 32.
template <uint32_t N>
__device__ __forceinline__ uint32_t bits_of_packet(const int32_t* mask, uint32_t c) {
  return static_cast<uint32_t>(mask[c / 32]) >> c % 32 & ((1u << N) - 1);
}

/// Calls `each` with the columns of a row and their values, in packets if the row is aligned. With
/// kMasked it leaves out columns that the mask excludes.
template <bool kMasked, class T, class Each>
__device__ __forceinline__ void each_element(const T* row, const int32_t* mask, uint32_t columns,
                                             Each each) {
  constexpr uint32_t N = kPacket<T>;
  const uint32_t whole = reinterpret_cast<uintptr_t>(row) % 16 == 0 ? columns / N : 0;
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < whole; i += kThreads) {
    const uint32_t bits = kMasked ? bits_of_packet<N>(mask, i * N) : 0;
    if (kMasked && bits == 0) continue;
    const Vector<T, N> x = load_vector<N>(row + i * N);
#pragma unroll
    for (uint32_t e = 0; e < N; ++e)
      if (!kMasked || bits >> e & 1) each(i * N + e, to_float(x.v[e]));
  }
  for (uint32_t c = whole * N + threadIdx.x; c < columns; c += kThreads)
    if (!kMasked || bits_of_packet<1>(mask, c)) each(c, to_float(row[c]));
}

/// Returns the rank of the best score that the mask allows, or 0 if any score is NaN or +infinity.
/// Greedy decoding reads the row once, and looks for columns only in packets with a new best score.
template <bool kMasked, class T>
__device__ uint64_t best_of_row(const T* row, const int32_t* mask, uint32_t columns) {
  constexpr uint32_t N = kPacket<T>;
  const uint32_t whole = reinterpret_cast<uintptr_t>(row) % 16 == 0 ? columns / N : 0;
  float most = kOut;
  uint32_t at = ~0u;
  bool bad = false;
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < whole; i += kThreads) {
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
  for (uint32_t c = whole * N + threadIdx.x; c < columns; c += kThreads) {
    const float x = to_float(row[c]);
    bad |= !(x < INFINITY);
    if (x > most && (!kMasked || bits_of_packet<1>(mask, c))) most = x, at = c;
  }
  const uint64_t best = block_reduce(ranked(most, at), Max{});
  return __syncthreads_or(bad) ? 0 : best;
}

/// Steps 1 to 4 and the mask, of a slot's scores.
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

  /// True if nothing but the mask changes the scores of the model.
  __device__ __forceinline__ bool unchanged() const { return !counts && !bias; }
  __device__ __forceinline__ float score(uint32_t c, float x) const {
    if (bias) x = add_rn(x, bias[c]);
    if (counts) x = penalized(x, counts[c], rules);
    if (mask) x = masked(x, mask, c);
    return x;
  }
  /// Calls `each` with each column and its score.
  template <class Each>
  __device__ __forceinline__ void visit(Each each) const {
    each_element<false>(row, mask, columns, [&](uint32_t c, float x) { each(c, score(c, x)); });
  }
  /// Calls `each` with the columns that the mask allows, and their scores.
  template <bool kMasked, class Each>
  __device__ __forceinline__ void visit_allowed(Each each) const {
    each_element<kMasked>(row, mask, columns, [&](uint32_t c, float x) {
      if (bias) x = add_rn(x, bias[c]);
      if (counts) x = penalized(x, counts[c], rules);
      each(c, x);
    });
  }
};

/// Returns the rank of the best score, or 0 if a score is NaN or +infinity.
template <class T>
__device__ uint64_t best_of(const RowScores<T>& scores) {
  if (scores.unchanged())
    return scores.mask ? best_of_row<true>(scores.row, scores.mask, scores.columns)
                       : best_of_row<false>(scores.row, scores.mask, scores.columns);
  uint64_t best = 0;
  int bad = 0;
  scores.visit([&](uint32_t c, float x) {
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
  scores.visit([&](uint32_t c, float x) { y[c] = value(x); });
  for (uint32_t c = scores.columns + threadIdx.x; c < pitch; c += kThreads) y[c] = kOut;
  __syncthreads();
}

/// Returns whether a slot has banned sequences.
template <class T>
__device__ bool has_bans(const Problem<T>& p, int32_t slot) {
  if (p.ban_rows == 0) return false;
  int any = 0;
  for (int64_t b = threadIdx.x; b < p.ban_rows; b += kThreads)
    any |= p.bans[b * p.ban_width + kBanSlot] == slot;
  return __syncthreads_or(any);
}

/// Step 5. Returns whether any token was excluded.
template <class T>
__device__ bool ban(const Problem<T>& p, int32_t slot, const SampleRules& rules, float* y) {
  const int32_t* const recent = p.recent + slot * kSampleRecent;
  int any = 0;
  for (int64_t b = threadIdx.x; b < p.ban_rows; b += kThreads) {
    const int32_t* const one = p.bans + b * p.ban_width;
    if (one[kBanSlot] != slot || !ban_applies(one, recent, rules)) continue;
    const uint32_t last = one[kBanTokens + one[kBanLength] - 1];
    if (last >= p.columns) continue;
    y[last] = kOut;
    any = 1;
  }
  return __syncthreads_or(any);
}

/// The rank of the best of y.
__device__ uint64_t best_of(const float* y, uint32_t columns) {
  uint64_t best = 0;
  for (uint32_t c = threadIdx.x; c < columns; c += kThreads) {
    const uint64_t rank = ranked(y[c], c);
    best = rank > best ? rank : best;
  }
  return block_reduce(best, Max{});
}

constexpr uint32_t kMostListed = 1024;

/// Candidates in shared memory.
struct List {
  float y[kMostListed];
  uint32_t columns[kMostListed];
  uint32_t count;
};

/// Keeps the candidates up to `last`. Writes them to `list` if they fit, else in place. They fit if
/// there are at most `at_most` candidates.
__device__ Candidates keep(const Candidates& from, float* y, const Boundary& last, List& list,
                           uint32_t at_most) {
  uint32_t kept = 0;
  for (uint32_t i = threadIdx.x; i < from.count; i += kThreads)
    kept += y[i] != kOut && last.keeps(y[i], i);
  kept = block_sum(kept);
  const bool fits = kept <= at_most;
  if (threadIdx.x == 0) list.count = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < from.count; i += kThreads) {
    const bool stays = y[i] != kOut && last.keeps(y[i], i);
    if (!fits) {
      if (!stays) y[i] = kOut;
    } else if (stays) {
      const uint32_t at = atomicAdd(&list.count, 1u);
      list.y[at] = y[i];
      list.columns[at] = i;
    }
  }
  __syncthreads();
  return fits ? Candidates{list.y, list.columns, kept} : from;
}

/// Step 8: the last candidate that stays.
__device__ Boundary nucleus(const Candidates& from, uint64_t* bins, float top_p) {
  uint64_t total = 0;
  for (uint32_t i = threadIdx.x; i < from.count; i += kThreads) total += sample_weight(from.y[i]);
  total = block_sum(total);
  return select(from, bins, kept_weight(total, top_p), true,
                [](float y) { return sample_weight(y); });
}

/// Step 9 and the race. A thread processes four columns at a time, which share a block of random
/// words.
__device__ uint64_t race(const Candidates& from, const Boundary& last, const SampleRules& rules) {
  uint64_t best = 0;
  const auto enter = [&](float y, uint32_t c, const Philox4& words) {
    const uint64_t rank = ranked(draw_key(y, words.v[c % 4]), c);
    best = rank > best ? rank : best;
  };
  const auto stays = [&](float y, uint32_t c) {
    return y != kOut && last.keeps(y, c) && !(exact_exp(y) < rules.min_p);
  };
  const auto words_of = [&](uint32_t c) {
    return philox(rules.seed, static_cast<uint64_t>(rules.position), c / 4);
  };
  if (from.columns) {
    for (uint32_t i = threadIdx.x; i < from.count; i += kThreads) {
      const uint32_t c = from.columns[i];
      if (stays(from.y[i], c)) enter(from.y[i], c, words_of(c));
    }
  } else {
    for (uint32_t c = 4 * threadIdx.x; c < from.count; c += 4 * kThreads) {
      const Vector<float, 4> y = load_vector<4>(from.y + c);
      bool stay[4], any = false;
#pragma unroll
      for (int u = 0; u < 4; ++u) any |= stay[u] = stays(y.v[u], c + u);
      if (!any) continue;
      const Philox4 words = words_of(c);
#pragma unroll
      for (int u = 0; u < 4; ++u)
        if (stay[u]) enter(y.v[u], c + u, words);
    }
  }
  return block_reduce(best, Max{});
}

/// Above the key of a draw: the same steps with fast logarithms, and room for their errors.
__device__ __forceinline__ float bound_of_key(float y, uint32_t word) {
  const float u = fmaf(static_cast<float>(word), 0x1p-32f, 0x1p-33f);
  const float e = u < 0x1p-7f ? fmaf(0.5f * u, u, u) : -__logf(fmaxf(1.0f - u, 0x1p-24f));
  return y - __logf(e) + 1e-3f;
}

/// The race of all candidates of a row, with y = (score - most) / temperature. It computes the
/// exact key only where a bound of the key reaches the thread's best key.
template <bool kMasked, class T>
__device__ uint64_t race_row(const RowScores<T>& scores, float most) {
  const SampleRules& rules = scores.rules;
  const uint64_t position = static_cast<uint64_t>(rules.position);
  float best_key = kOut;
  uint64_t best = 0;
  uint32_t block = ~0u;
  Philox4 words = {};
  scores.template visit_allowed<kMasked>([&](uint32_t c, float x) {
    const float y = div_rn(sub_rn(x, most), rules.temperature);
    if (y == kOut) return;
    if (c / 4 != block) words = philox(rules.seed, position, block = c / 4);
    const uint32_t u = c % 4;
    const uint32_t first = u % 2 == 0 ? words.v[0] : words.v[1];
    const uint32_t second = u % 2 == 0 ? words.v[2] : words.v[3];
    const uint32_t word = u < 2 ? first : second;
    if (bound_of_key(y, word) < best_key) return;
    if (rules.min_p > 0.0f && exact_exp(y) < rules.min_p) return;
    const float key = draw_key(y, word);
    best_key = fmaxf(best_key, key);
    const uint64_t rank = ranked(key, c);
    best = rank > best ? rank : best;
  });
  return block_reduce(best, Max{});
}

/// Steps 7 to 9 and the draw from y, after a barrier.
__device__ int32_t draw(float* y, uint32_t columns, uint32_t pitch, const SampleRules& rules) {
  __shared__ uint64_t bins[kBins];
  __shared__ List list;
  Candidates left = {y, nullptr, pitch};
  if (rules.top_k > 0) {
    uint64_t possible = 0;
    for (uint32_t c = threadIdx.x; c < columns; c += kThreads) possible += y[c] != kOut;
    possible = block_sum(possible);
    if (static_cast<uint64_t>(rules.top_k) < possible) {
      const Boundary last = select(left, bins, static_cast<uint64_t>(rules.top_k), false,
                                   [](float) { return uint64_t{1}; });
      left = keep(left, y, last, list, kMostListed);
    }
  }
  const Boundary last = rules.top_p < 1.0f ? nucleus(left, bins, rules.top_p) : Boundary{};
  return static_cast<int32_t>(column_in(race(left, last, rules)));
}

/// The token of a slot without banned sequences.
template <class T>
__device__ int32_t choose_freely(const Problem<T>& p, const RowScores<T>& scores, float* y) {
  const SampleRules& rules = scores.rules;
  const uint64_t best = best_of(scores);
  if (best == 0) return kNotANumber;
  const float most = value_of(static_cast<uint32_t>(best >> 32));
  if (most == kOut) return kNothingLeft;
  if (rules.temperature == 0.0f) return static_cast<int32_t>(column_in(best));
  if (rules.top_k <= 0 && rules.top_p >= 1.0f)
    return static_cast<int32_t>(
        column_in(scores.mask ? race_row<true>(scores, most) : race_row<false>(scores, most)));
  stage(scores, y, p.pitch, [&](float x) { return div_rn(sub_rn(x, most), rules.temperature); });
  return draw(y, p.columns, p.pitch, rules);
}

template <class T>
__device__ int32_t choose(const Problem<T>& p, int32_t slot, const SampleRules& rules) {
  float* const y = p.staged + int64_t{blockIdx.x} * p.pitch;
  const RowScores<T> scores(p, p.numbers + slot * kSampleNumbers, rules);
  if (!has_bans(p, slot)) return choose_freely(p, scores, y);
  uint64_t best = best_of(scores);
  if (best == 0) return kNotANumber;
  stage(scores, y, p.pitch, [](float x) { return x; });
  if (ban(p, slot, rules, y)) best = best_of(y, p.columns);
  const float most = value_of(static_cast<uint32_t>(best >> 32));
  if (most == kOut) return kNothingLeft;
  if (rules.temperature == 0.0f) return static_cast<int32_t>(column_in(best));
  __syncthreads();
  for (uint32_t c = threadIdx.x; c < p.columns; c += kThreads)
    y[c] = div_rn(sub_rn(y[c], most), rules.temperature);
  __syncthreads();
  return draw(y, p.columns, p.pitch, rules);
}

template <class T>
__device__ void write_logprobs(const Problem<T>& p, int32_t token) {
  float* const out = p.logprobs + 2 * blockIdx.x;
  if (token < 0) {
    if (threadIdx.x == 0) out[0] = out[1] = NAN;
    return;
  }
  const T* const row = p.row();
  float most = kOut;
  for (uint32_t c = threadIdx.x; c < p.columns; c += kThreads) most = fmaxf(most, to_float(row[c]));
  most = block_reduce(most, Max{});
  uint64_t total = 0;
  for (uint32_t c = threadIdx.x; c < p.columns; c += kThreads)
    total += sample_weight(sub_rn(to_float(row[c]), most));
  total = block_sum(total);
  if (threadIdx.x != 0) return;
  out[1] = log_sum_exp(most, total);
  out[0] = sub_rn(to_float(row[token]), out[1]);
}

/// The slot's sequence has one token more.
template <class T>
__device__ void append(const Problem<T>& p, int32_t slot, int32_t token) {
  int32_t* const numbers = p.numbers + slot * kSampleNumbers;
  p.recent[slot * kSampleRecent + numbers[kPosition] % kSampleRecent] = token;
  ++numbers[kPosition];
  ++numbers[kGenerated];
  if (int32_t* const counts = row_of(p.counts, numbers[kCountsRow], p.count_rows, p.columns))
    counts[token] += 2;
}

template <class T>
__global__ void __launch_bounds__(kThreads) sample_kernel(Problem<T> p) {
  const int32_t slot = p.slots[blockIdx.x];
  const bool known = slot >= 0 && slot < p.slot_count;
  int32_t token = kNotANumber;
  if (known) {
    const SampleRules rules =
        SampleRules::of(p.settings + slot * kSampleSettings, p.numbers + slot * kSampleNumbers);
    token = choose(p, slot, rules);
  }
  if (p.logprobs) write_logprobs(p, token);
  // All threads have read the slot's rules before the slot changes.
  __syncthreads();
  if (threadIdx.x != 0) return;
  p.tokens[blockIdx.x] = token;
  if (token >= 0) append(p, slot, token);
}

}  // namespace

void run(const SampleTokens& op, CudaContext& ctx) {
  const int64_t rows = op.scores.shape[0];
  if (rows == 0) return;
  for_floating("sample_tokens", op.scores.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Problem<T> p = {};
    p.scores = op.scores.as<T>();
    p.row_stride = op.scores.strides[0];
    p.slots = op.slots.as<int32_t>();
    p.tokens = op.tokens.as<int32_t>();
    p.logprobs = op.logprobs ? op.logprobs.as<float>() : nullptr;
    p.settings = op.settings.as<float>();
    p.numbers = op.numbers.as<int32_t>();
    p.recent = op.recent.as<int32_t>();
    p.slot_count = op.settings.shape[0];
    p.counts = op.counts ? op.counts.as<int32_t>() : nullptr;
    p.count_rows = op.counts ? op.counts.shape[0] : 0;
    p.bias = op.bias ? op.bias.as<float>() : nullptr;
    p.bias_rows = op.bias ? op.bias.shape[0] : 0;
    p.masks = op.masks ? op.masks.as<int32_t>() : nullptr;
    p.mask_rows = op.masks ? op.masks.shape[0] : 0;
    p.mask_words = op.masks ? static_cast<uint32_t>(op.masks.shape[1]) : 0;
    p.bans = op.bans ? op.bans.as<int32_t>() : nullptr;
    p.ban_rows = op.bans ? op.bans.shape[0] : 0;
    p.ban_width = op.bans ? op.bans.shape[1] : 0;
    p.columns = static_cast<uint32_t>(op.scores.shape[1]);
    p.pitch = (p.columns + 3) / 4 * 4;
    p.staged = ctx.scratch_of<float>(static_cast<size_t>(rows * p.pitch));
    sample_kernel<T><<<static_cast<unsigned>(rows), kThreads, 0, ctx.stream>>>(p);
    DS_CUDA_LAUNCHED("sample_tokens");
  });
}

}  // namespace ds::cuda
