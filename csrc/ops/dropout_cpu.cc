// Dropout on the CPU: a Philox block per four elements. The mask equals the GPU's.
#include "dropout.h"

#include "../cpu/map.h"

namespace ds::cpu {
namespace {

/// Writes keep[i], 1 or 0, for n elements from index `place` of the stream on.
void draw(const Dropout& op, int64_t place, int64_t n, uint8_t* keep) {
  const float p = static_cast<float>(op.p);
  for (int64_t i = 0; i < n;) {
    const Philox4 words = philox(static_cast<uint64_t>(op.seed), static_cast<uint64_t>(op.offset),
                                 static_cast<uint64_t>((place + i) / 4));
    for (int64_t word = (place + i) % 4; word < 4 && i < n; ++word, ++i)
      keep[i] = unit_float(words.v[word]) >= p;
  }
}

/// Writes keep[i], 1 or 0, for n elements from `first` on, in contiguous runs of the stream.
void draw_mask(const Dropout& op, int64_t first, int64_t n, uint8_t* keep) {
  const Part part = part_of(op);
  for (int64_t i = 0; i < n;) {
    const int64_t place = part.place(first + i), run = part.run(first + i, n - i);
    const int64_t count = op.ranks == 1 ? run : std::min(run, op.sample - place % op.sample);
    draw(op, dropout_place(place, op.sample, op.rank, op.ranks), count, keep + i);
    i += count;
  }
}

}  // namespace

void run(const Dropout& op, CpuContext& ctx) {
  constexpr const char* kOp = "dropout";
  for_floating(kOp, op.in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = compute_t<T>;
    const C kept_share = C(1) - static_cast<C>(op.p);
    ctx.pool.parallel_for(op.in.numel(), kElementGrain, [&](int64_t begin, int64_t end) {
      uint8_t keep[kBlock];
      C x[kBlock], old[kBlock];
      for (int64_t at = begin; at < end; at += kBlock) {
        const int64_t n = std::min(kBlock, end - at);
        T* const out = op.out.as<T>() + at;
        draw_mask(op, at, n, keep);
        widen(op.in.as<T>() + at, x, n);
        for (int64_t i = 0; i < n; ++i) x[i] = keep[i] ? x[i] / kept_share : C(0);
        if (op.accumulate) {
          widen(out, old, n);
          for (int64_t i = 0; i < n; ++i) x[i] = old[i] + x[i];
        }
        narrow(x, out, n);
      }
    });
  });
}

}  // namespace ds::cpu
