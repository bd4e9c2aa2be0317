// LayerNorm and RMSNorm on the CPU: rows in parallel, in the compute type.
#include "norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "../cpu/rows.h"

namespace ds::cpu {
namespace {

constexpr int64_t kGrainElements = 1 << 14;  // elements per task
constexpr int64_t kMaxPartials = 64;         // chunks of rows, each with its own column sums

/// Both forwards. RMSNorm has no mean and no bias.
struct Forward {
  const char* op;
  View x, residual, weight, bias, sum, out, mean, rstd;
  double eps;
};

/// Both backwards. `mean` and `dbias` are absent for RMSNorm.
struct Backward {
  const char* op;
  View s, weight, mean, rstd, dout, dsum, dx, dweight, dbias;
  bool accumulate;
};

int64_t rows_per_task(int64_t width) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, width));
}

/// Computes s = x + residual, rounded to T, in the compute type. Stores it if `sum` is present.
template <class T>
void load_sum(const Forward& f, int64_t row, int64_t width, compute_t<T>* s, compute_t<T>* other) {
  widen(f.x.as<T>() + row * width, s, width);
  if (f.residual) {
    widen(f.residual.as<T>() + row * width, other, width);
    for (int64_t j = 0; j < width; ++j) s[j] += other[j];
  }
  if (!f.sum) return;
  T* const stored = f.sum.as<T>() + row * width;
  narrow(s, stored, width);
  widen(stored, s, width);
}

template <class T>
void forward_rows(const Forward& f, int64_t begin, int64_t end) {
  using C = compute_t<T>;
  const int64_t width = f.x.shape[1];
  std::vector<C> scratch(static_cast<size_t>(4 * width));
  C* const s = scratch.data();
  C* const other = s + width;
  C* const weight = other + width;
  C* const bias = weight + width;  // stays 0 if absent
  widen(f.weight.as<T>(), weight, width);
  if (f.bias) widen(f.bias.as<T>(), bias, width);
  for (int64_t row = begin; row < end; ++row) {
    load_sum<T>(f, row, width, s, other);
    const C n = static_cast<C>(width);
    C mean = 0, error = 0;
    if (f.mean) mean = sum_of<C>(width, [&](int64_t j) { return s[j]; }) / n;
    if (f.mean) error = sum_of<C>(width, [&](int64_t j) { return s[j] - mean; }) / n;
    const C squares = sum_of<C>(width, [&](int64_t j) { return (s[j] - mean) * (s[j] - mean); });
    mean += error;
    const C variance = std::max(squares / n - error * error, C(0));
    const C rstd = C(1) / std::sqrt(variance + static_cast<C>(f.eps));
    for (int64_t j = 0; j < width; ++j) s[j] = (s[j] - mean) * rstd * weight[j] + bias[j];
    narrow(s, f.out.as<T>() + row * width, width);
    if (f.mean) f.mean.as<C>()[row] = mean;
    f.rstd.as<C>()[row] = rstd;
  }
}

void forward(const Forward& f, CpuContext& ctx) {
  const int64_t rows = f.x.shape[0], width = f.x.shape[1];
  for_floating(f.op, f.x.dtype, [&]<class T>(TypeTag<T>) {
    ctx.pool.parallel_for(rows, rows_per_task(width),
                          [&](int64_t begin, int64_t end) { forward_rows<T>(f, begin, end); });
  });
}

/// With n = (s - mean) rstd and g = dout weight, computes dx = rstd (g - mean(g) - n mean(g n)) +
/// dsum, without mean(g) for RMSNorm. Adds dout n and dout to the column sums if present.
template <class T>
void backward_rows(const Backward& b, int64_t begin, int64_t end, compute_t<T>* dweight,
                   compute_t<T>* dbias) {
  using C = compute_t<T>;
  const int64_t width = b.s.shape[1];
  std::vector<C> scratch(static_cast<size_t>(4 * width));
  C* const n = scratch.data();
  C* const dout = n + width;
  C* const weight = dout + width;
  C* const dsum = weight + width;  // stays 0 if absent
  widen(b.weight.as<T>(), weight, width);
  for (int64_t row = begin; row < end; ++row) {
    const C mean = b.mean ? b.mean.as<C>()[row] : C(0), rstd = b.rstd.as<C>()[row];
    widen(b.s.as<T>() + row * width, n, width);
    widen(b.dout.as<T>() + row * width, dout, width);
    for (int64_t j = 0; j < width; ++j) n[j] = (n[j] - mean) * rstd;
    if (dweight)
      for (int64_t j = 0; j < width; ++j) dweight[j] += dout[j] * n[j];
    if (dbias)
      for (int64_t j = 0; j < width; ++j) dbias[j] += dout[j];
    if (!b.dx) continue;
    for (int64_t j = 0; j < width; ++j) dout[j] *= weight[j];
    const C inverse = C(1) / static_cast<C>(width);
    const C along = inverse * sum_of<C>(width, [&](int64_t j) { return dout[j] * n[j]; });
    const C shift = b.mean ? inverse * sum_of<C>(width, [&](int64_t j) { return dout[j]; }) : C(0);
    if (b.dsum) widen(b.dsum.as<T>() + row * width, dsum, width);
    for (int64_t j = 0; j < width; ++j) n[j] = rstd * (dout[j] - shift - n[j] * along) + dsum[j];
    narrow(n, b.dx.as<T>() + row * width, width);
  }
}

/// Adds the column sums of the chunks in order and rounds once.
template <class T>
void combine(const View& out, const compute_t<T>* partials, int64_t chunks, int64_t stride,
             bool accumulate) {
  using C = compute_t<T>;
  const int64_t width = out.shape[0];
  std::vector<C> total(static_cast<size_t>(width));
  if (accumulate) widen(out.as<T>(), total.data(), width);
  for (int64_t chunk = 0; chunk < chunks; ++chunk)
    for (int64_t j = 0; j < width; ++j) total[j] += partials[chunk * stride + j];
  narrow(total.data(), out.as<T>(), width);
}

template <class T>
void backward_typed(const Backward& b, CpuContext& ctx) {
  using C = compute_t<T>;
  const int64_t rows = b.s.shape[0], width = b.s.shape[1];
  const int64_t grain = std::max(rows_per_task(width), (rows + kMaxPartials - 1) / kMaxPartials);
  const int64_t chunks = (rows + grain - 1) / grain, stride = 2 * width;
  const bool sums = b.dweight || b.dbias;
  std::vector<C> partials(static_cast<size_t>(sums ? chunks * stride : 0));
  ctx.pool.parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
    C* const own = partials.data() + (sums ? begin / grain * stride : 0);
    backward_rows<T>(b, begin, end, b.dweight ? own : nullptr, b.dbias ? own + width : nullptr);
  });
  if (b.dweight) combine<T>(b.dweight, partials.data(), chunks, stride, b.accumulate);
  if (b.dbias) {
    const C* const first = partials.data() + (chunks ? width : 0);
    combine<T>(b.dbias, first, chunks, stride, b.accumulate);
  }
}

void backward(const Backward& b, CpuContext& ctx) {
  for_floating(b.op, b.s.dtype, [&]<class T>(TypeTag<T>) { backward_typed<T>(b, ctx); });
}

}  // namespace

void run(const LayerNorm& op, CpuContext& ctx) {
  forward({"layer_norm", op.x, op.residual, op.weight, op.bias, op.sum, op.out, op.mean, op.rstd,
           op.eps},
          ctx);
}

void run(const RmsNorm& op, CpuContext& ctx) {
  forward(
      {"rms_norm", op.x, op.residual, op.weight, View{}, op.sum, op.out, View{}, op.rstd, op.eps},
      ctx);
}

void run(const LayerNormBackward& op, CpuContext& ctx) {
  backward({"layer_norm_backward", op.s, op.weight, op.mean, op.rstd, op.dout, op.dsum, op.dx,
            op.dweight, op.dbias, op.accumulate},
           ctx);
}

void run(const RmsNormBackward& op, CpuContext& ctx) {
  backward({"rms_norm_backward", op.s, op.weight, View{}, op.rstd, op.dout, op.dsum, op.dx,
            op.dweight, View{}, op.accumulate},
           ctx);
}

}  // namespace ds::cpu
