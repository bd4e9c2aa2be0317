// Sign compression on the CPU: sums over chunks, then runs of elements of a segment, with denormals
// flushed to zero.
#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "../cpu/flush_denormals.h"
#include "../cpu/segment_sum.h"
#include "sign_pack_rule.h"

namespace ds::cpu {
namespace {

constexpr int64_t kSlotGrain = 8;        // chunks per task
constexpr int64_t kByteGrain = 1 << 12;  // bytes of bits per task

/// Like chunk_sum(), if only the first `count` accumulators are set. The others would add zeros.
double used_sum(const double* a, int64_t count) {
  constexpr int64_t kOfWarp = kSegmentWarp * kSegmentWidth;
  double total = 0;
  for (int64_t begin = 0; begin < std::min(count, kSegmentBlock); begin += kOfWarp) {
    double lane[kSegmentWarp];
    const double* const of = a + begin;
    for (int i = 0; i < kSegmentWarp; ++i)
      lane[i] = (of[4 * i] + of[4 * i + 1]) + (of[4 * i + 2] + of[4 * i + 3]);
    for (int width = kSegmentWarp / 2; width > 0; width /= 2)
      for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
    total = begin == 0 ? lane[0] : total + lane[0];
  }
  return total;
}

/// Adds the terms of n elements to their accumulators.
template <SignLevels kKind>
__attribute__((noinline)) void measure_block(const float* __restrict value,
                                             const float* __restrict error,
                                             double (&a)[kSignSums<kKind>][kSegmentBlock],
                                             int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    double term[kSignSums<kKind>];
    sign_terms<kKind>(add_rn(value[j], error[j]), term);
    for (int s = 0; s < kSignSums<kKind>; ++s) a[s][j] += term[s];
  }
}

/// Writes the sums over a chunk to `sums`.
template <SignLevels kKind>
void measure_chunk(const float* value, const float* error, const SegmentChunk& chunk,
                   double* sums) {
  constexpr int kSums = kSignSums<kKind>;
  alignas(64) double a[kSums][kSegmentBlock];
  const int64_t count = chunk.end - chunk.begin;
  constexpr int64_t kOfWarp = kSegmentWarp * kSegmentWidth;
  const int64_t used = std::min(kSegmentBlock, (count + kOfWarp - 1) / kOfWarp * kOfWarp);
  for (auto& one : a) std::fill_n(one, used, 0.0);
  for (int64_t i = chunk.begin; i < chunk.end; i += kSegmentBlock) {
    measure_block<kKind>(value + i, error + i, a, std::min(kSegmentBlock, chunk.end - i));
  }
  for (int s = 0; s < kSums; ++s) sums[s] = used_sum(a[s], count);
}

/// Calls body(segment, begin, end) for the runs of elements of a segment in bytes [first, last).
template <class Body>
void for_runs(const View& starts_view, const View& counts_view, int64_t n, int64_t first,
              int64_t last, const Body& body) {
  const int64_t *const starts = starts_view.as<int64_t>(), *const counts =
                                                               counts_view.as<int64_t>();
  const int64_t segments = starts_view.numel() - 1, end = std::min(n, last * 8);
  if (segments == 0) return;
  int64_t segment = segment_at(starts, 0, segments, first * 8);
  for (; segment < segments && starts[segment] < end; ++segment) {
    const int64_t begin = std::max(first * 8, starts[segment]);
    const int64_t stop = std::min(end, starts[segment] + counts[segment]);
    if (begin < stop) body(segment, begin, stop);
  }
}

/// Packs eight bytes of 0 or 1 into a byte, the first in its highest bit.
uint8_t packed(const uint8_t* ones) {
  uint64_t word;
  std::memcpy(&word, ones, sizeof word);
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return static_cast<uint8_t>(word * 0x8040201008040201 >> 56);
}

/// Computes the errors of n elements of a segment. Writes 1 to `ones` for each that is not
/// negative.
__attribute__((noinline)) void round_block(const float* __restrict value, float* __restrict error,
                                           float low, float high, uint8_t* __restrict ones,
                                           int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float x = add_rn(value[i], error[i]);
    const bool negative = x < 0.0f;
    error[i] = sub_rn(x, negative ? low : high);
    ones[i] = negative ? 0 : 1;
  }
}

/// Writes bits and errors of elements [begin, end) of a segment. The bits must be 0 before.
void pack_run(const float* value, float* error, const float* levels, uint8_t* bits, int64_t begin,
              int64_t end) {
  alignas(64) uint8_t ones[kSegmentBlock + 8];
  for (int64_t at = begin; at < end;) {
    // The first block ends at the end of a byte.
    const int64_t count = std::min(end - at, kSegmentBlock - at % 8);
    const int64_t lead = at % 8, whole = (lead + count + 7) / 8;
    std::fill_n(ones, lead, uint8_t{0});
    std::fill(ones + lead + count, ones + 8 * whole, uint8_t{0});
    round_block(value + at, error + at, levels[0], levels[1], ones + lead, count);
    for (int64_t i = 0; i < whole; ++i) bits[at / 8 + i] |= packed(ones + 8 * i);
    at += count;
  }
}

template <SignLevels kKind>
void find_levels(const SignCompress& op, CpuContext& ctx) {
  constexpr int kSums = kSignSums<kKind>;
  const int64_t *const starts = op.starts.as<int64_t>(), *const counts = op.counts.as<int64_t>();
  const int64_t segments = op.starts.numel() - 1;
  const int64_t slots = slot_count(op.value.numel(), segments);
  std::vector<double> partials(static_cast<size_t>(kSums * slots));
  ctx.pool.parallel_for(slots, kSlotGrain, [&](int64_t begin, int64_t end) {
    const FlushDenormals flush;
    for (int64_t slot = begin; slot < end; ++slot)
      measure_chunk<kKind>(op.value.as<float>(), op.error.as<float>(),
                           counted_chunk(starts, counts, segments, slot), &partials[kSums * slot]);
  });
  const FlushDenormals flush;
  for (int64_t i = 0; i < segments; ++i) {
    double sum[kSums];
    for (int s = 0; s < kSums; ++s) {
      const bool single = chunk_count(starts, i) == 1;
      sum[s] = single ? partials[kSums * first_slot(starts, i) + s]
                      : segment_sum(partials.data() + s, kSums, starts, i);
    }
    sign_levels<kKind>(sum, counts[i], op.levels.as<float>() + 2 * i);
  }
}

/// Writes the levels of eight elements, the first from the highest bit.
inline void unpack(uint32_t bits, uint32_t low, uint32_t either, float* out) {
  uint32_t chosen[8];
  for (int j = 0; j < 8; ++j) chosen[j] = low ^ (either & (0 - (bits >> (7 - j) & 1)));
  std::memcpy(out, chosen, sizeof chosen);
}

/// Writes or adds the levels of `bytes` whole bytes.
__attribute__((noinline)) void add_bytes(const uint8_t* __restrict bits, const float* levels,
                                         float* __restrict out, int64_t bytes, bool first) {
  const uint32_t low = bits_of(levels[0]), either = low ^ bits_of(levels[1]);
  float q[8];
  for (int64_t i = 0; i < bytes; ++i) {
    unpack(bits[i], low, either, q);
    for (int j = 0; j < 8; ++j) out[8 * i + j] = first ? q[j] : add_rn(out[8 * i + j], q[j]);
  }
}

/// Like add_bytes(), for elements [begin, end), which may begin or end inside a byte.
void add_run(const uint8_t* bits, const float* levels, float* out, int64_t begin, int64_t end,
             bool first) {
  const auto one = [&](int64_t i) {
    const float q = levels[bits[i / 8] >> (7 - i % 8) & 1];
    out[i] = first ? q : add_rn(out[i], q);
  };
  int64_t i = begin;
  for (; i < end && i % 8 != 0; ++i) one(i);
  const int64_t bytes = (end - i) / 8;
  add_bytes(bits + i / 8, levels, out + i, bytes, first);
  for (i += 8 * bytes; i < end; ++i) one(i);
}

/// Writes the mean over ranks of elements [begin, end) of a segment.
__attribute__((noinline)) void average_run(const SignAverage& op, int64_t segment, int64_t begin,
                                           int64_t end) {
  const int64_t ranks = op.bits.size(0);
  const float inverse = static_cast<float>(1.0 / static_cast<double>(ranks));
  float* const out = op.out.as<float>();
  for (int64_t at = begin; at < end;) {
    // Blocks stay in cache while ranks are added.
    const int64_t stop = std::min(end, (at / kSegmentBlock + 1) * kSegmentBlock);
    for (int64_t rank = 0; rank < ranks; ++rank)
      add_run(op.bits.as<uint8_t>() + rank * op.bits.strides[0],
              op.levels.as<float>() + rank * op.levels.strides[0] + 2 * segment, out, at, stop,
              rank == 0);
    if (ranks > 1)
      for (int64_t i = at; i < stop; ++i) out[i] = mul_rn(out[i], inverse);
    at = stop;
  }
}

}  // namespace

void run(const SignCompress& op, CpuContext& ctx) {
  constexpr const char* kOp = "sign_compress";
  const int64_t n = op.value.numel();
  check_ascending(kOp, op.starts, n);
  uint8_t* const bits = op.bits.as<uint8_t>();
  if (op.control.as<float>()[1] == 0.0f) {
    std::fill_n(bits, op.bits.numel(), uint8_t{0});
    std::fill_n(op.levels.as<float>(), op.levels.numel(), 0.0f);
    return;
  }
  if (op.kind == SignLevels::rms) find_levels<SignLevels::rms>(op, ctx);
  else find_levels<SignLevels::means>(op, ctx);
  ctx.pool.parallel_for(op.bits.numel(), kByteGrain, [&](int64_t first, int64_t last) {
    const FlushDenormals flush;
    std::fill(bits + first, bits + last, uint8_t{0});
    for_runs(op.starts, op.counts, n, first, last,
             [&](int64_t segment, int64_t begin, int64_t end) {
               pack_run(op.value.as<float>(), op.error.as<float>(),
                        op.levels.as<float>() + 2 * segment, bits, begin, end);
             });
  });
}

void run(const SignAverage& op, CpuContext& ctx) {
  const int64_t n = op.out.numel();
  check_ascending("sign_average", op.starts, n);
  ctx.pool.parallel_for((n + 7) / 8, kByteGrain, [&](int64_t first, int64_t last) {
    const FlushDenormals flush;
    std::fill(op.out.as<float>() + first * 8, op.out.as<float>() + std::min(n, last * 8), 0.0f);
    for_runs(
        op.starts, op.counts, n, first, last,
        [&](int64_t segment, int64_t begin, int64_t end) { average_run(op, segment, begin, end); });
  });
}

}  // namespace ds::cpu
