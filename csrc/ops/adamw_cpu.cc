// AdamW on the CPU, for all storages of its state: f32 or bf16 moments, split masters, and 8-bit
// moments. Each block of parameters is converted to f32, updated by the loop of AdamWRule, and
// rounded.
#include <algorithm>

#include "../cpu/master_halves.h"
#include "adamw8bit.h"
#include "adamw_halves.h"
#include "adamw_rule.h"
#include "moments_cpu.h"
#include "update_range_cpu.h"

namespace ds::cpu {
namespace {

// -------------------------------------------------------------------------------------------------
// bf16 moments

/// Calls f with the type of gradients or weights, once per block.
template <class F>
void for_narrow(DType dtype, F&& f) {
  for_floating(AdamWRule::kName, dtype, [&]<class T>(TypeTag<T>) {
    if constexpr (!std::is_same_v<T, double>) f.template operator()<T>();
  });
}

/// Updates parameters [begin, end) with bf16 moments.
void update_narrow(const AdamW& op, const AdamWRule& rule, int64_t begin, int64_t end) {
  const FlushDenormals flush;
  const float* const control = op.control.as<float>();
  alignas(64) float grad[kUpdateBlock];
  for (int64_t i = begin; i < end; i += kUpdateBlock) {
    const int64_t count = std::min(kUpdateBlock, end - i);
    float* const p = op.master.as<float>() + i;
    if (control[1] != 0.0f) {
      MomentBlock moments(op.m, op.v, i, count);
      for_narrow(op.grad.dtype, [&]<class G> { widen(op.grad.as<G>() + i, grad, count); });
      update_values(rule, control[0], grad, count, p, moments.m(), moments.v());
      moments.store(p);
    }
    if (!op.weight) continue;
    for_narrow(op.weight.dtype, [&]<class W> { narrow(p, op.weight.as<W>() + i, count); });
  }
}

// -------------------------------------------------------------------------------------------------
// Split masters. Rows without ties are joined, updated and split in registers, other rows in cache.

/// Updates a row of masters without ties and writes the new masters to `p`. Returns nonzero if one
/// of them has a tie. Compiled for two instruction sets and not inlined, like UpdateLoop.
#define DS_UPDATE_HALVES(name)                                                                  \
  uint32_t name(const AdamWRule& shared, float factor, const float* __restrict grad, int64_t n, \
                uint16_t* __restrict high, uint16_t* __restrict low, float* __restrict m,       \
                float* __restrict v, float* __restrict p) {                                     \
    const AdamWRule rule = shared;                                                              \
    uint32_t any = 0;                                                                           \
    for (int64_t i = 0; i < n; ++i) {                                                           \
      float x = std::bit_cast<float>(join_master(high[i], low[i]));                             \
      rule.update(factor, grad[i], x, m[i], v[i]);                                              \
      const uint32_t bits = std::bit_cast<uint32_t>(x);                                         \
      p[i] = x;                                                                                 \
      high[i] = static_cast<uint16_t>(high_of_master(bits));                                    \
      low[i] = static_cast<uint16_t>(low_of_master(bits));                                      \
      any |= static_cast<uint32_t>(is_master_tie(bits));                                        \
    }                                                                                           \
    return any;                                                                                 \
  }
__attribute__((noinline)) DS_UPDATE_HALVES(halves_baseline)
#if defined(__x86_64__)
    __attribute__((noinline, target("arch=x86-64-v4"))) DS_UPDATE_HALVES(halves_avx512)
#endif
#undef DS_UPDATE_HALVES

        decltype(halves_baseline)* choose_halves() {
#if defined(__x86_64__)
  if (runs_avx512()) return halves_avx512;
#endif
  return halves_baseline;
}

template <class G>
void update_halves(const AdamWHalves& op, const AdamWRule& rule, int64_t begin, int64_t end) {
  static const auto update_row = choose_halves();
  const FlushDenormals flush;
  const float factor = op.control.as<float>()[0];
  alignas(64) float grad[kTieRow], p[kTieRow];
  for (int64_t i = begin; i < end; i += kTieRow) {
    const int64_t count = std::min(kTieRow, end - i);
    uint16_t *const high = op.high.as<uint16_t>() + i, *const low = op.low.as<uint16_t>() + i;
    uint8_t* const ties = op.ties.as<uint8_t>() + i / 8;
    MomentBlock moments(op.m, op.v, i, count);
    float *const m = moments.m(), *const v = moments.v();
    widen(op.grad.as<G>() + i, grad, count);
    if (has_ties(ties, count)) {
      join_masters(high, low, ties, p, count);
      update_values(rule, factor, grad, count, p, m, v);
      split_masters(p, high, low, ties, count);
    } else if (update_row(rule, factor, grad, count, high, low, m, v, p) != 0) {
      mark_ties(p, ties, count);
    }
    moments.store(p);
  }
}

// -------------------------------------------------------------------------------------------------
// 8-bit moments, one block of 256 parameters at a time

constexpr DynamicCode kSigned = dynamic_code(true), kUnsigned = dynamic_code(false);
constexpr int64_t kCodedGrain = 64;  // blocks per task

// These functions must not be inlined, so that their arithmetic stays inside the scope of
// FlushDenormals.

__attribute__((noinline)) void widen_codes(const DynamicCode& code, const uint8_t* codes,
                                           float scale, float* __restrict x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = code.value[codes[i]] * scale;
}

/// Rounds a block to codes. Returns the new scale, or NaN if a value is NaN.
__attribute__((noinline)) float round_to_codes(const DynamicCode& code, const float* __restrict x,
                                               uint8_t* codes, int64_t n) {
  float scale = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float size = __builtin_fabsf(x[i]);
    scale = scale > size || scale != scale ? scale : size;
  }
  if (scale == 0.0f) {
    std::fill_n(codes, n, static_cast<uint8_t>(code.zero));
    return scale;
  }
  for (int64_t i = 0; i < n; ++i)
    codes[i] = static_cast<uint8_t>(nearest_code(code.middle, code.zero, x[i] / scale));
  return scale;
}

template <class G, class W>
void update_coded(const AdamW8bit& op, const AdamWRule& rule, int64_t block) {
  const int64_t at = block * kCodeBlock, n = std::min(kCodeBlock, op.master.numel() - at);
  float* const p = op.master.as<float>() + at;
  const float* const control = op.control.as<float>();
  if (control[1] != 0.0f) {
    alignas(64) float grad[kCodeBlock], m[kCodeBlock], v[kCodeBlock];
    uint8_t *const ms = op.m.as<uint8_t>() + at, *const vs = op.v.as<uint8_t>() + at;
    float &m_scale = op.m_scale.as<float>()[block], &v_scale = op.v_scale.as<float>()[block];
    widen(op.grad.as<G>() + at, grad, n);
    widen_codes(kSigned, ms, m_scale, m, n);
    widen_codes(kUnsigned, vs, v_scale, v, n);
    update_values(rule, control[0], grad, n, p, m, v);
    m_scale = round_to_codes(kSigned, m, ms, n);
    v_scale = round_to_codes(kUnsigned, v, vs, n);
  }
  if (op.weight) narrow(p, op.weight.as<W>() + at, n);
}

}  // namespace

void run(const AdamW& op, CpuContext& ctx) {
  const AdamWRule rule = AdamWRule::of(op);
  if (op.m.dtype == DType::f32) return update_range(rule, op, {op.m, op.v}, ctx);
  ctx.pool.parallel_for(op.master.numel(), kUpdateGrain,
                        [&](int64_t begin, int64_t end) { update_narrow(op, rule, begin, end); });
}

void run(const AdamWHalves& op, CpuContext& ctx) {
  if (op.control.as<float>()[1] == 0.0f) return;
  const AdamWRule rule = AdamWRule::of(op);
  for_floating("adamw_halves", op.grad.dtype, [&]<class G>(TypeTag<G>) {
    if constexpr (!std::is_same_v<G, double>) {
      ctx.pool.parallel_for(op.m.numel(), kUpdateGrain, [&](int64_t begin, int64_t end) {
        update_halves<G>(op, rule, begin, end);
      });
    }
  });
}

void run(const AdamW8bit& op, CpuContext& ctx) {
  constexpr const char* kOp = "adamw8bit";
  const AdamWRule rule = AdamWRule::of(op);
  for_floating(kOp, op.grad.dtype, [&]<class G>(TypeTag<G>) {
    for_floating(kOp, op.weight ? op.weight.dtype : DType::f32, [&]<class W>(TypeTag<W>) {
      if constexpr (!std::is_same_v<G, double> && !std::is_same_v<W, double>) {
        ctx.pool.parallel_for(op.m_scale.numel(), kCodedGrain, [&](int64_t begin, int64_t end) {
          const FlushDenormals flush;
          for (int64_t block = begin; block < end; ++block) update_coded<G, W>(op, rule, block);
        });
      }
    });
  });
}

}  // namespace ds::cpu
