// SampleTokens on the GPU, a block per row, or a cluster of blocks if there are few rows. Radix
// selection over counts and integer weights narrows the candidates, so the order of sums does not
// matter.
#include "sample.h"

#include "../cuda/cluster.cuh"
#include "../cuda/dependent_launch.cuh"
#include "sample_math.h"
#include "sample_race.cuh"
#include "sample_rows.cuh"
#include "sample_select.cuh"

namespace ds::cuda {
namespace {

/// Most blocks of a cluster that process a row together, if there are few rows.
constexpr uint32_t kMostClustered = 8;

/// Returns true if a slot has banned sequences.
template <class T>
__device__ bool has_bans(const Problem<T>& p, int32_t slot) {
  if (p.ban_rows == 0) return false;
  int any = 0;
  for (int64_t b = threadIdx.x; b < p.ban_rows; b += kThreads)
    any |= p.bans[b * p.ban_width + kBanSlot] == slot;
  return __syncthreads_or(any);
}

/// Step 5. Returns true if a token was excluded.
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

/// Returns the rank of the best of y.
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

/// Keeps the candidates up to `last`. Writes them to `list` if at most `at_most` candidates fit
/// there, otherwise in place.
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

/// Step 8: returns the last candidate that is kept.
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

/// Shared memory of a draw.
struct DrawMemory {
  uint64_t bins[kBins];
  List list;
};

__device__ __forceinline__ DrawMemory& draw_memory() {
  __shared__ DrawMemory memory;
  return memory;
}

/// Steps 7 to 9 and the draw from y. Starts with a barrier.
__device__ int32_t draw(float* y, uint32_t columns, uint32_t pitch, const SampleRules& rules) {
  uint64_t* const bins = draw_memory().bins;
  List& list = draw_memory().list;
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

/// Returns how many coarse bins, from the first on, have at most kMostListed candidates together.
/// The last bin, which has no lower end, is not one of them. Starts and ends with a barrier.
__device__ uint32_t listed_bins(const uint32_t* counts) {
  __shared__ uint32_t sums[kThreads / 32];
  constexpr uint32_t kEach = kBins / kThreads;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();
  uint32_t own = 0;
  for (uint32_t u = 0; u < kEach; ++u) own += counts[threadIdx.x * kEach + u];
  uint32_t upto = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint32_t below = __shfl_up_sync(0xffffffffu, upto, distance);
    if (lane >= distance) upto += below;
  }
  if (lane == 31) sums[warp] = upto;
  __syncthreads();
  uint32_t before = upto - own, bins = 0;
  for (uint32_t w = 0; w < warp; ++w) before += sums[w];
  for (uint32_t u = 0; u < kEach; ++u) {
    before += counts[threadIdx.x * kEach + u];
    bins += before <= kMostListed;
  }
  return min(block_sum(bins), uint32_t{kBins - 1});
}

constexpr int32_t kNotListed = -3;

/// Steps 7 to 9 and the draw, if the candidates of top_k or top_p are among the best kMostListed or
/// fewer, otherwise returns kNotListed. Reads the row twice and writes no scores.
template <class T>
__device__ int32_t draw_listed(const RowScores<T>& scores, float most) {
  const SampleRules& rules = scores.rules;
  uint64_t* const bins = draw_memory().bins;
  List& list = draw_memory().list;
  auto* const counts = reinterpret_cast<uint32_t*>(bins);
  const auto y_of = [&](float x) { return div_rn(sub_rn(x, most), rules.temperature); };
  __syncthreads();
  for (int b = threadIdx.x; b < kBins; b += kThreads) counts[b] = 0;
  if (threadIdx.x == 0) list.count = 0;
  __syncthreads();
  uint64_t total = 0;
  scores.visit({}, [&](uint32_t, float x) {
    const float y = y_of(x);
    if (y == kOut) return;
    if (rules.top_k <= 0) total += sample_weight(y);
    const uint32_t bin = coarse_bin(y);
    if (bin < kBins - 1) atomicAdd(counts + bin, 1u);
  });
  total = block_sum(total);
  const uint32_t listed = listed_bins(counts);
  const bool by_count = rules.top_k > 0;
  const uint64_t wanted =
      by_count ? static_cast<uint64_t>(rules.top_k) : kept_weight(total, rules.top_p);
  uint64_t possible = 0;  // at least the count or the weight of the listed candidates
  for (uint32_t b = threadIdx.x; b < listed; b += kThreads)
    possible += counts[b] * (by_count ? 1 : sample_weight(static_cast<float>(b) * -0x1p-6f));
  if (block_sum(possible) < wanted) return kNotListed;
  scores.visit({}, [&](uint32_t c, float x) {
    const float y = y_of(x);
    if (y == kOut || coarse_bin(y) >= listed) return;
    const uint32_t at = atomicAdd(&list.count, 1u);
    list.y[at] = y;
    list.columns[at] = c;
  });
  __syncthreads();
  const Candidates left = {list.y, list.columns, list.count};
  Boundary last;
  if (by_count) {
    last = select(left, bins, wanted, false, [](float) { return uint64_t{1}; });
    keep(left, list.y, last, list, 0);
    last = rules.top_p < 1.0f ? nucleus(left, bins, rules.top_p) : Boundary{};
  } else {
    uint64_t inside = 0;
    for (uint32_t i = threadIdx.x; i < left.count; i += kThreads)
      inside += sample_weight(left.y[i]);
    if (block_sum(inside) < wanted) return kNotListed;
    last = select(left, bins, wanted, true, [](float y) { return sample_weight(y); });
  }
  return static_cast<int32_t>(column_in(race(left, last, rules)));
}

/// Returns true if a row without banned sequences is a race of all its tokens.
__device__ __forceinline__ bool is_race(const SampleRules& rules, uint64_t best) {
  return best != 0 && value_of(static_cast<uint32_t>(best >> 32)) != kOut &&
         rules.temperature != 0.0f && rules.top_k <= 0 && rules.top_p >= 1.0f;
}

/// Returns the token of a slot without banned sequences, if the row is not a race.
template <class T>
__device__ int32_t choose_freely(const Problem<T>& p, const RowScores<T>& scores, uint64_t best,
                                 float* y) {
  const SampleRules& rules = scores.rules;
  if (best == 0) return kNotANumber;
  const float most = value_of(static_cast<uint32_t>(best >> 32));
  if (most == kOut) return kNothingLeft;
  if (rules.temperature == 0.0f) return static_cast<int32_t>(column_in(best));
  if (const int32_t token = draw_listed(scores, most); token != kNotListed) return token;
  stage(scores, y, p.pitch, [&](float x) { return div_rn(sub_rn(x, most), rules.temperature); });
  return draw(y, p.columns, p.pitch, rules);
}

/// Returns the token of a slot with banned sequences.
template <class T>
__device__ int32_t choose_allowed(const Problem<T>& p, int32_t slot, const RowScores<T>& scores,
                                  uint64_t best, float* y) {
  const SampleRules& rules = scores.rules;
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
  float* const out = p.logprobs + 2 * p.index();
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

/// Appends the token to the slot's sequence.
template <class T>
__device__ void append(const Problem<T>& p, int32_t slot, int32_t token) {
  int32_t* const numbers = p.numbers + slot * kSampleNumbers;
  p.recent[slot * kSampleRecent + numbers[kPosition] % kSampleRecent] = token;
  ++numbers[kPosition];
  ++numbers[kGenerated];
  if (int32_t* const counts = row_of(p.counts, numbers[kCountsRow], p.count_rows, p.columns))
    counts[token] += 2;
}

/// Exchanges a rank with the other blocks of the cluster. Returns the best rank to all blocks, or 0
/// if a block has 0 and `all` is true. `parts` [kMostClustered] is shared memory for this call
/// only.
__device__ __forceinline__ uint64_t best_of_cluster(uint64_t* parts, uint64_t own, RowPart part,
                                                    bool all) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (threadIdx.x < part.parts) {
    uint32_t place;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(place)
                 : "r"(shared_address(parts + part.part)), "r"(threadIdx.x));
    asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(place), "l"(own) : "memory");
  }
#endif
  cluster_barrier();
  uint64_t best = parts[0];
  bool none = best == 0;
  for (uint32_t i = 1; i < part.parts; ++i) {
    none |= parts[i] == 0;
    best = parts[i] > best ? parts[i] : best;
  }
  return none && all ? 0 : best;
}

/// Samples a token per row. With kClusters, the blocks of a cluster search for the best score of a
/// row and run its race together. The first block does the rest.
template <class T, bool kClusters>
__global__ void __launch_bounds__(kThreads) sample_kernel(Problem<T> p) {
  __shared__ uint64_t scored[kMostClustered], raced[kMostClustered];
  if constexpr (kClusters) cluster_barrier();  // until all blocks have started
  await_previous();
  let_next_begin();
  const RowPart part = kClusters ? RowPart{blockIdx.x % p.cluster, p.cluster} : RowPart{};
  const int32_t slot = p.slots[p.index()];
  const bool known = slot >= 0 && slot < p.slot_count;
  int32_t token = kNotANumber;
  const int64_t row = known ? slot : 0;
  const SampleRules rules =
      known ? SampleRules::of(p.settings + row * kSampleSettings, p.numbers + row * kSampleNumbers)
            : SampleRules{};
  if (known) {
    const RowScores<T> scores(p, p.numbers + row * kSampleNumbers, rules);
    const bool bans = has_bans(p, slot);
    uint64_t best = best_of(scores, part);
    if constexpr (kClusters) best = best_of_cluster(scored, best, part, true);
    float* const y = p.staged + p.index() * p.pitch;
    if (!bans && is_race(rules, best)) {
      uint64_t winner = race_row(scores, best, part);
      if constexpr (kClusters) winner = best_of_cluster(raced, winner, part, false);
      token = static_cast<int32_t>(column_in(winner));
    } else if (part.part == 0) {
      token = bans ? choose_allowed(p, slot, scores, best, y) : choose_freely(p, scores, best, y);
    }
  }
  if (part.part != 0) return;
  if (p.logprobs) write_logprobs(p, token);
  // All threads must have read the slot's parameters before the slot changes.
  __syncthreads();
  if (threadIdx.x != 0) return;
  p.tokens[p.index()] = token;
  if (token >= 0) append(p, slot, token);
}

/// Returns the number of blocks for a row: as many as fit the SMs, a power of 2.
uint32_t blocks_of_row(int64_t rows, const CudaContext& ctx) {
  uint32_t blocks = kMostClustered;
  while (blocks > 1 && (ctx.code.architecture < 90 || rows * blocks > ctx.sm_count)) blocks /= 2;
  return blocks;
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
    p.cluster = blocks_of_row(rows, ctx);
    launch_behind(ctx,
                  {"sample_tokens", dim3(static_cast<unsigned>(rows) * p.cluster), dim3(kThreads),
                   ctx.stream, 0, p.cluster},
                  p.cluster > 1 ? sample_kernel<T, true> : sample_kernel<T, false>, p);
  });
}

}  // namespace ds::cuda
