// Sum of squares and clipping factor on the CPU, in f64 in a fixed order.
#include "gradient_control.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "../cpu/rows.h"

namespace ds::cpu {

void run(const SumOfSquares& op, CpuContext& ctx) {
  constexpr const char* name = "sum_of_squares";
  constexpr int64_t kGrain = 1 << 16;
  const int64_t n = op.x.numel();
  std::vector<double> partials(static_cast<size_t>((n + kGrain - 1) / kGrain));
  for_floating(name, op.x.dtype, [&]<class T>(TypeTag<T>) {
    ctx.pool.parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
      constexpr int64_t kBlock = 1024;
      compute_t<T> block[kBlock];
      double sum = 0;
      for (int64_t i = begin; i < end; i += kBlock) {
        const int64_t count = std::min(kBlock, end - i);
        widen(op.x.as<T>() + i, block, count);
        sum += sum_of<double>(count, [&](int64_t j) {
          const double x = static_cast<double>(block[j]);
          return x * x;
        });
      }
      partials[static_cast<size_t>(begin / kGrain)] = sum;
    });
  });
  double total = 0;
  for (const double partial : partials) total += partial;
  *op.out.as<float>() = static_cast<float>(total);
}

void run(const GradientControl& op, CpuContext&) {
  const PartialRows rows = partial_rows(op.partials);
  double sum = 0;
  for (int64_t row = 0; row < rows.count; ++row) {
    const float* const first = op.partials.as<float>() + row * rows.apart;
    for (int64_t i = 0; i < rows.width; ++i) sum += first[i];
  }
  const bool finite = std::isfinite(sum);
  const double norm = std::sqrt(sum) / op.loss_scale;
  const double clip = op.max_norm > 0 ? std::max(1.0, (norm + 1e-6) / op.max_norm) : 1.0;
  float* const control = op.control.as<float>();
  control[0] = static_cast<float>(1.0 / (op.loss_scale * clip));
  control[1] = finite || !op.skip_nonfinite ? 1.0f : 0.0f;
  control[2] = static_cast<float>(norm);
  control[3] = finite ? 1.0f : 0.0f;
}

}  // namespace ds::cpu
