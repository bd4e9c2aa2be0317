// AdamW on the CPU: the shared rule over blocks that stay in cache, with denormals flushed.
#include "adamw.h"

#include <algorithm>

#include "../cpu/rows.h"
#include "adamw_cpu.h"

namespace ds::cpu {
namespace {

constexpr const char* kOp = "adamw";

#define DS_UPDATE_BLOCK                                                                         \
  (const AdamWConstants& constants, float factor, const float* __restrict grad,                 \
   float* __restrict p, float* __restrict m, float* __restrict v, int64_t n) {                  \
    const AdamWConstants c = constants;                                                         \
    for (int64_t i = 0; i < n; ++i) adamw_update(c, factor, grad[i], p[i], m[i], v[i]);         \
  }
// The same loop for two instruction sets: wider vectors change the speed and no bit. Neither may be
// inlined, so that no arithmetic leaves the scope of FlushDenormals.
__attribute__((noinline)) void update_block DS_UPDATE_BLOCK
#if defined(__x86_64__)
__attribute__((noinline, target("arch=x86-64-v4"))) void update_block_512 DS_UPDATE_BLOCK
#endif
#undef DS_UPDATE_BLOCK

void check(const AdamW& op) {
  for (const View* v : {&op.master, &op.m, &op.v, &op.grad}) {
    require_contiguous(kOp, *v, "operands");
    DS_CHECK_SHAPE(v->numel() == op.master.numel(), kOp, op.master.describe(), v->describe());
  }
  require_same_dtype(kOp, op.master, op.m);
  require_same_dtype(kOp, op.master, op.v);
  if (op.master.dtype != DType::f32) unsupported(kOp, op.master.dtype, "f32 master and moments");
  if (op.grad.dtype == DType::f64) unsupported(kOp, op.grad.dtype, "an f32, f16 or bf16 gradient");
  if (op.weight) {
    require_contiguous(kOp, op.weight, "weight");
    DS_CHECK_SHAPE(op.weight.numel() == op.master.numel(), kOp, op.master.describe(),
                   op.weight.describe());
    if (op.weight.dtype == DType::f64)
      unsupported(kOp, op.weight.dtype, "an f32, f16 or bf16 weight");
  }
  DS_CHECK_SHAPE(op.control.numel() == 4 && op.control.dtype == DType::f32, kOp,
                 "control [4] f32", op.control.describe());
  require_contiguous(kOp, op.control, "control");
}

/// Parameters [begin, end): gradient widened and weight rounded while the block is cached.
template <class G, class W>
void update_range(const AdamW& op, const AdamWConstants& constants, int64_t begin, int64_t end) {
  static UpdateBlock* const update = choose_update_block();
  const FlushDenormals flush;
  const float factor = op.control.as<float>()[0];
  const bool apply = op.control.as<float>()[1] != 0.0f;
  alignas(64) float grad[kAdamWBlock];
  for (int64_t i = begin; i < end; i += kAdamWBlock) {
    const int64_t count = std::min(kAdamWBlock, end - i);
    float* const p = op.master.as<float>() + i;
    if (apply) {
      widen(op.grad.as<G>() + i, grad, count);
      update(constants, factor, grad, p, op.m.as<float>() + i, op.v.as<float>() + i, count);
    }
    if (op.weight) narrow(p, op.weight.as<W>() + i, count);
  }
}

}  // namespace

UpdateBlock* choose_update_block() {
#if defined(__x86_64__)
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512vl");
  if (wide) return update_block_512;
#endif
  return update_block;
}

void run(const AdamW& op, CpuContext& ctx) {
  check(op);
  const AdamWConstants constants = adamw_constants(op);
  const DType weight_dtype = op.weight ? op.weight.dtype : DType::f32;
  for_floating(kOp, op.grad.dtype, [&]<class G>(TypeTag<G>) {
    for_floating(kOp, weight_dtype, [&]<class W>(TypeTag<W>) {
      if constexpr (!std::is_same_v<G, double> && !std::is_same_v<W, double>) {
        ctx.pool.parallel_for(op.master.numel(), kAdamWGrain, [&](int64_t begin, int64_t end) {
          update_range<G, W>(op, constants, begin, end);
        });
      }
    });
  });
}

}  // namespace ds::cpu
