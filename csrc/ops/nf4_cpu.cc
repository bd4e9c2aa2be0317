// NF4 on the CPU, block by block.
#include "nf4.h"

#include <cmath>
#include <vector>

#include "../cpu/map.h"
#include "nf4_math.h"

namespace ds::cpu {
namespace {

int64_t block_grain(int64_t block) { return std::max<int64_t>(1, kElementGrain / block); }

/// Returns the largest magnitude. Ignores NaN.
float largest(const float* x, int64_t n) {
  float max = 0.0f;
  for (int64_t i = 0; i < n; ++i) max = std::fabs(x[i]) > max ? std::fabs(x[i]) : max;
  return max;
}

float scale_of(const Nf4Dequantize& op, int64_t b) {
  if (op.absmax.dtype == DType::f32) return op.absmax.as<float>()[b];
  const float code = op.nested_code.as<float>()[op.absmax.as<uint8_t>()[b]];
  return nested_scale(code, op.nested_absmax.as<float>()[b / op.nested_block],
                      *op.offset.as<float>());
}

}  // namespace

void run(const Nf4Quantize& op, CpuContext& ctx) {
  const int64_t n = op.in.numel();
  const float* const code = op.code.as<float>();
  for_floating("nf4_quantize", op.in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    ctx.pool.parallel_for(
        blocks_of(n, op.block), block_grain(op.block), [&](int64_t begin, int64_t end) {
          // If the count is odd, the last half byte is the code of 0.
          std::vector<float> x(static_cast<size_t>(op.block));
          for (int64_t b = begin; b < end; ++b) {
            const int64_t from = b * op.block, count = std::min(op.block, n - from);
            for (int64_t i = 0; i < count; ++i) x[i] = static_cast<float>(op.in.as<T>()[from + i]);
            const float max = largest(x.data(), count), inverse = inverse_scale(max);
            op.absmax.as<float>()[b] = max;
            for (int64_t i = 0; i < count; i += 2) {
              const uint8_t high = nearest_of_16(code, mul_rn(x[i], inverse));
              const float second = i + 1 < count ? mul_rn(x[i + 1], inverse) : 0.0f;
              op.packed.as<uint8_t>()[(from + i) / 2] =
                  static_cast<uint8_t>(high << 4 | nearest_of_16(code, second));
            }
          }
        });
  });
}

void run(const BytesQuantize& op, CpuContext& ctx) {
  const int64_t n = op.in.numel();
  ctx.pool.parallel_for(blocks_of(n, op.block), block_grain(op.block),
                        [&](int64_t begin, int64_t end) {
                          for (int64_t b = begin; b < end; ++b) {
                            const int64_t from = b * op.block, count = std::min(op.block, n - from);
                            const float* const x = op.in.as<float>() + from;
                            const float max = largest(x, count), inverse = inverse_scale(max);
                            op.absmax.as<float>()[b] = max;
                            for (int64_t i = 0; i < count; ++i)
                              op.out.as<uint8_t>()[from + i] =
                                  nearest_of_256(op.code.as<float>(), mul_rn(x[i], inverse));
                          }
                        });
}

void run(const Nf4Dequantize& op, CpuContext& ctx) {
  const int64_t n = op.out.numel();
  const float* const code = op.code.as<float>();
  for_floating("nf4_dequantize", op.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    ctx.pool.parallel_for(
        blocks_of(n, op.block), block_grain(op.block), [&](int64_t begin, int64_t end) {
          for (int64_t b = begin; b < end; ++b) {
            const int64_t from = b * op.block, to = std::min(n, from + op.block);
            const float scale = scale_of(op, b);
            for (int64_t i = from; i < to; ++i) {
              const float value = mul_rn(code[code_of(op.packed.as<uint8_t>(), i)], scale);
              op.out.as<T>()[i] = convert<T>(value);
            }
          }
        });
  });
}

}  // namespace ds::cpu
