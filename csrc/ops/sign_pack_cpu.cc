// Sign packing on the CPU: sums over chunks, then runs of elements of one segment, with denormals flushed.
#include <algorithm>
#include <vector>

#include "../cpu/flush_denormals.h"
#include "../cpu/segment_sum.h"
#include "sign_pack_rule.h"

namespace ds::cpu {
namespace {

constexpr int64_t kSlotGrain = 8;       // chunks per task
constexpr int64_t kByteGrain = 1 << 12;  // bytes of bits per task

/// chunk_sum() of accumulators of which only those of the first `count` elements are set: what the
/// others would add is zero.
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

/// The sums over one chunk, to `sums`.
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
    const int64_t many = std::min(kSegmentBlock, chunk.end - i);
    for (int64_t j = 0; j < many; ++j) {
      double term[kSums];
      sign_terms<kKind>(add_rn(value[i + j], error[i + j]), term);
      for (int s = 0; s < kSums; ++s) a[s][j] += term[s];
    }
  }
  for (int s = 0; s < kSums; ++s) sums[s] = used_sum(a[s], count);
}

/// Calls body(segment, begin, end) for the runs of elements of one segment in bytes [first, last).
template <class Body>
void for_runs(const View& starts_view, const View& counts_view, int64_t n, int64_t first,
              int64_t last, const Body& body) {
  const int64_t *const starts = starts_view.as<int64_t>(), *const counts = counts_view.as<int64_t>();
  const int64_t segments = starts_view.numel() - 1, end = std::min(n, last * 8);
  if (segments == 0) return;
  int64_t segment = segment_at(starts, 0, segments, first * 8);
  for (; segment < segments && starts[segment] < end; ++segment) {
    const int64_t begin = std::max(first * 8, starts[segment]);
    const int64_t stop = std::min(end, starts[segment] + counts[segment]);
    if (begin < stop) body(segment, begin, stop);
  }
}

/// Bits and errors of elements [begin, end) of one segment; the bits are 0 so far.
__attribute__((noinline)) void pack_run(const float* __restrict value, float* __restrict error,
                                        const float* levels, uint8_t* bits, int64_t begin,
                                        int64_t end) {
  const float low = levels[0], high = levels[1];
  int64_t i = begin;
  const auto one = [&](int64_t at) {
    const float x = add_rn(value[at], error[at]);
    const bool positive = !(x < 0.0f);
    error[at] = sub_rn(x, positive ? high : low);
    return static_cast<unsigned>(positive);
  };
  for (; i < end && i % 8 != 0; ++i) bits[i / 8] |= static_cast<uint8_t>(one(i) << (7 - i % 8));
  for (; i + 8 <= end; i += 8) {
    unsigned byte = 0;
    for (int j = 0; j < 8; ++j) byte |= one(i + j) << (7 - j);
    bits[i / 8] = static_cast<uint8_t>(byte);
  }
  for (; i < end; ++i) bits[i / 8] |= static_cast<uint8_t>(one(i) << (7 - i % 8));
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

/// out = the mean over ranks of elements [begin, end) of one segment.
__attribute__((noinline)) void average_run(const SignAverage& op, int64_t segment, int64_t begin,
                                           int64_t end) {
  const int64_t ranks = op.bits.size(0);
  const float inverse = static_cast<float>(1.0 / static_cast<double>(ranks));
  float* const out = op.out.as<float>();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const uint8_t* const bits = op.bits.as<uint8_t>() + rank * op.bits.strides[0];
    const float* const levels =
        op.levels.as<float>() + rank * op.levels.strides[0] + 2 * segment;
    const float low = levels[0], high = levels[1];
    for (int64_t i = begin; i < end; ++i) {
      const float q = bits[i / 8] >> (7 - i % 8) & 1 ? high : low;
      out[i] = rank == 0 ? q : add_rn(out[i], q);
    }
  }
  if (ranks == 1) return;
  for (int64_t i = begin; i < end; ++i) out[i] = mul_rn(out[i], inverse);
}

}  // namespace

void run(const SignCompress& op, CpuContext& ctx) {
  constexpr const char* kOp = "sign_compress";
  const int64_t n = op.value.numel();
  check_climbs(kOp, op.starts, n);
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
    for_runs(op.starts, op.counts, n, first, last, [&](int64_t segment, int64_t begin, int64_t end) {
      pack_run(op.value.as<float>(), op.error.as<float>(), op.levels.as<float>() + 2 * segment,
               bits, begin, end);
    });
  });
}

void run(const SignAverage& op, CpuContext& ctx) {
  const int64_t n = op.out.numel();
  check_climbs("sign_average", op.starts, n);
  ctx.pool.parallel_for((n + 7) / 8, kByteGrain, [&](int64_t first, int64_t last) {
    const FlushDenormals flush;
    std::fill(op.out.as<float>() + first * 8, op.out.as<float>() + std::min(n, last * 8), 0.0f);
    for_runs(op.starts, op.counts, n, first, last, [&](int64_t segment, int64_t begin, int64_t end) {
      average_run(op, segment, begin, end);
    });
  });
}

}  // namespace ds::cpu
