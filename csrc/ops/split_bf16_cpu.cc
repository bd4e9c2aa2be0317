// SplitBf16 on the CPU, rows in parallel.
#include "split_bf16.h"

#include <algorithm>
#include <cmath>

#include "../cpu/map.h"
#include "../cpu/rows.h"

namespace ds::cpu {

void run(const SplitBf16& op, CpuContext& ctx) {
  const int64_t rows = op.in.shape[0], columns = op.in.shape[1];
  const int64_t grain = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, columns));
  ctx.pool.parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const in = op.in.as<float>() + row * op.in.strides[0];
      bf16* const high = op.high.as<bf16>() + row * op.high.strides[0];
      bf16* const low = op.low.as<bf16>() + row * op.low.strides[0];
      for (int64_t c = 0; c < columns; ++c) {
        high[c] = static_cast<bf16>(in[c]);
        const float rounded = static_cast<float>(high[c]);
        low[c] = static_cast<bf16>(std::isfinite(rounded) ? in[c] - rounded : 0.0f);
      }
      if (op.again) std::copy_n(high, columns, op.again.as<bf16>() + row * op.again.strides[0]);
    }
  });
}

}  // namespace ds::cpu
