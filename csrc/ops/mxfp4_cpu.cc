// MXFP4 weights on the CPU: converts rows of weights to f32 before their products.
#include "mxfp4.h"

#include <algorithm>
#include <vector>

#include "../cpu/index_check.h"
#include "../cpu/map.h"
#include "mxfp4_math.h"

namespace ds::cpu {
namespace {

/// Converts n weights to f32. n is a multiple of 32.
void decode(const uint8_t* codes, const uint8_t* scales, int64_t n, float* out) {
  for (int64_t b = 0; b < n / kMxfp4Block; ++b) {
    const uint32_t scale = scales[b];
    for (int64_t i = 0; i < kMxfp4Bytes; ++i) {
      const uint32_t pair = codes[b * kMxfp4Bytes + i];
      out[b * kMxfp4Block + 2 * i] = mxfp4_weight(pair & 15, scale);
      out[b * kMxfp4Block + 2 * i + 1] = mxfp4_weight(pair >> 4, scale);
    }
  }
}

/// The matrices [experts, outputs, inputs] of an op.
template <class T>
struct Matrices {
  const View& codes;
  const View& scales;
  const OptionalView& bias;
  int64_t outputs, inputs;

  /// Returns x [inputs] times row `output` of an expert, plus its bias. `row` is scratch memory.
  float product(int64_t expert, int64_t output, const float* x, std::vector<float>& row) const {
    const int64_t at = expert * outputs + output;
    row.resize(static_cast<size_t>(inputs));
    decode(codes.as<uint8_t>() + at * inputs / 2, scales.as<uint8_t>() + at * inputs / kMxfp4Block,
           inputs, row.data());
    const float sum =
        sum_of<float>(inputs, [&](int64_t i) { return x[i] * row[static_cast<size_t>(i)]; });
    return bias ? sum + static_cast<float>(bias.as<T>()[at]) : sum;
  }
};

template <class T>
std::vector<float> widened(const T* from, int64_t n) {
  std::vector<float> out(static_cast<size_t>(n));
  widen(from, out.data(), n);
  return out;
}

template <class T>
void run_experts(const Mxfp4Experts& op, CpuContext& ctx) {
  const int64_t tokens = op.x.shape[0], channels = op.x.shape[1], k = op.ids.shape[1];
  const int64_t hidden = op.up_codes.shape[1] / 2;
  const Matrices<T> up{op.up_codes, op.up_scales, op.up_bias, 2 * hidden, channels};
  const Matrices<T> down{op.down_codes, op.down_scales, op.down_bias, channels, hidden};
  const int32_t* const ids = op.ids.as<int32_t>();
  const auto limit = static_cast<float>(op.limit);
  const std::vector<float> x = widened(op.x.as<T>(), tokens * channels);
  std::vector<T> rounded(static_cast<size_t>(tokens * k * hidden));
  const auto grain = [](int64_t cost) {
    return std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, cost));
  };
  ctx.pool.parallel_for(tokens * k * hidden, grain(2 * channels), [&](int64_t begin, int64_t end) {
    std::vector<float> row;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t choice = i / hidden, n = i % hidden;
      const float* const from = x.data() + choice / k * channels;
      const auto product = [&](int64_t output) {
        return up.product(ids[choice], output, from, row);
      };
      const float gate = product(op.alternate ? 2 * n : n);
      const float value = product(op.alternate ? 2 * n + 1 : hidden + n);
      rounded[static_cast<size_t>(i)] = convert<T>(expert_gate(gate, value, limit));
    }
  });
  const std::vector<float> inner = widened(rounded.data(), tokens * k * hidden);
  ctx.pool.parallel_for(tokens * channels, grain(k * hidden), [&](int64_t begin, int64_t end) {
    std::vector<float> row;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / channels;
      float sum = 0.0f;
      for (int64_t j = t * k; j < (t + 1) * k; ++j)
        sum += op.weights.as<float>()[j] *
               down.product(ids[j], i % channels, inner.data() + j * hidden, row);
      op.out.as<T>()[i] = convert<T>(sum);
    }
  });
}

}  // namespace

void run(const Mxfp4Dequantize& op, CpuContext& ctx) {
  const int64_t blocks = op.out.numel() / kMxfp4Block;
  for_floating("mxfp4_dequantize", op.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    ctx.pool.parallel_for(blocks, kElementGrain / kMxfp4Block, [&](int64_t begin, int64_t end) {
      float values[kMxfp4Block];
      for (int64_t b = begin; b < end; ++b) {
        decode(op.codes.as<uint8_t>() + b * kMxfp4Bytes, op.scales.as<uint8_t>() + b, kMxfp4Block,
               values);
        for (int64_t i = 0; i < kMxfp4Block; ++i)
          op.out.as<T>()[b * kMxfp4Block + i] = convert<T>(values[i]);
      }
    });
  });
}

void run(const Mxfp4Experts& op, CpuContext& ctx) {
  constexpr const char* kOp = "mxfp4_experts";
  const int64_t experts = op.up_codes.shape[0];
  for (int64_t i = 0; i < op.ids.numel(); ++i)
    require_index(kOp, op.ids.as<int32_t>()[i], experts, "the experts");
  if (op.out.numel() == 0) return;
  for_floating(kOp, op.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (sizeof(T) < 8) run_experts<T>(op, ctx);
  });
}

}  // namespace ds::cpu
