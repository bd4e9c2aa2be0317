// Dropout on the CPU: one Philox block per four elements, the GPU's mask exactly.
#include "dropout.h"

#include "../core/philox.h"
#include "../cpu/map.h"

namespace ds::cpu {
namespace {

/// keep[i] = 1 or 0 for the elements first .. first + n - 1; `first` is a multiple of 4.
void draw_mask(const Dropout& op, int64_t first, int64_t n, uint8_t* keep) {
  const float p = static_cast<float>(op.p);
  for (int64_t i = 0; i < n; i += 4) {
    const Philox4 words = philox(static_cast<uint64_t>(op.seed), static_cast<uint64_t>(op.offset),
                                 static_cast<uint64_t>((first + i) / 4));
    for (int64_t j = 0; j < std::min<int64_t>(4, n - i); ++j)
      keep[i + j] = unit_float(words.v[j]) >= p;
  }
}

}  // namespace

void run(const Dropout& op, CpuContext& ctx) {
  constexpr const char* kOp = "dropout";
  require_same_shape(kOp, op.in, op.out);
  require_same_dtype(kOp, op.in, op.out);
  require_contiguous(kOp, op.in, "in");
  require_contiguous(kOp, op.out, "out");
  if (!(op.p >= 0 && op.p < 1)) throw Error("DS_ARGUMENT", kOp, "p in [0, 1)", text(op.p));
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
