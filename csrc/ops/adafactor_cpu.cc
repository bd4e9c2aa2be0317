// Adafactor on the CPU: sums rows and columns in one pass over groups of rows, the rest in chunks.
// Denormals are flushed to zero.
#include "adafactor.h"

#include <algorithm>
#include <vector>

#include "../cpu/flush_denormals.h"
#include "../cpu/rows.h"
#include "../cpu/segment_sum.h"
#include "adafactor_rule.h"

namespace ds::cpu {
namespace {

constexpr int64_t kGrain = 8;  // chunks per task

// Marks functions with f32 arithmetic. They must not be inlined, so that their arithmetic stays
// inside the scope of FlushDenormals.
#define DS_APART __attribute__((noinline))

/// Runs body(begin, end, &partial) on each chunk of n elements and adds the partials of kSums sums.
template <int kSums, class Body>
void sum_chunks(int64_t n, double* sums, CpuContext& ctx, Body body) {
  const int64_t starts[] = {0, n};
  const int64_t chunks = chunk_count(starts, 0);
  std::vector<double> partials(static_cast<size_t>(kSums * chunks));
  ctx.pool.parallel_for(chunks, kGrain, [&](int64_t begin, int64_t end) {
    const FlushDenormals flush;
    for (int64_t i = begin; i < end; ++i)
      body(i * kSegmentChunk, std::min(n, (i + 1) * kSegmentChunk), &partials[kSums * i]);
  });
  for (int k = 0; k < kSums; ++k) sums[k] = segment_sum(partials.data() + k, kSums, starts, 0);
}

/// The accumulators of a chunk, see core/segments.h.
struct Squares {
  alignas(64) double a[kSegmentBlock] = {};

  DS_APART void add(const float* __restrict x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) a[i] += static_cast<double>(x[i]) * x[i];
  }
};

/// Writes g for elements [at, at + count).
template <class G>
DS_APART void gradient(const View& grad, float factor, int64_t at, int64_t count, float* g) {
  widen(grad.as<G>() + at, g, count);
  for (int64_t i = 0; i < count; ++i) g[i] *= factor;
}

/// Updates v, and overwrites g with the directions.
DS_APART void to_directions(const AdafactorDecay& decay, float* __restrict v, float* __restrict g,
                            int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    v[i] = adafactor_moment(decay, g[i], v[i]);
    g[i] = adafactor_direction(g[i], v[i]);
  }
}

DS_APART void to_directions(const float* __restrict v, float* __restrict g, int64_t count) {
  for (int64_t i = 0; i < count; ++i) g[i] = adafactor_direction(g[i], v[i]);
}

DS_APART void apply(const AdafactorStep& step, const float* __restrict direction,
                    float* __restrict p, float* __restrict m, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    p[i] = adafactor_applied(step, p[i], direction[i], m ? m + i : nullptr);
}

/// Writes the row sums and the partial column sums of a group of rows.
template <class G>
void sum_group(const AdafactorSums& op, int64_t group, const RowGroups& groups, double* columns,
               std::vector<float>& g) {
  const int64_t n = op.master.numel(), rows = op.part.rows / op.part.matrices;
  const int64_t first = group / groups.each * rows + group % groups.each * kAdafactorRows;
  const int64_t end = std::min(first + kAdafactorRows, (group / groups.each + 1) * rows);
  for (int64_t row = first; row < end; ++row) {
    const RowPart part = RowPart::of(op.part, n, row);
    const int64_t count = part.end - part.begin;
    gradient<G>(op.grad, op.control.as<float>()[0], part.begin, count, g.data());
    const float* const x = g.data();
    op.rows.as<double>()[row] =
        sum_of<double>(count, [x](int64_t i) { return static_cast<double>(x[i]) * x[i]; });
    for (int64_t i = 0; i < count; ++i)
      columns[part.column + i] += static_cast<double>(x[i]) * x[i];
  }
}

/// Overwrites the gradients of elements [at, at + count) with their directions.
DS_APART void to_directions(const MatrixPart& part, const float* row_factor,
                            const float* column_factor, int64_t at, int64_t count, float* g) {
  const int64_t rows = part.rows / part.matrices;
  auto [row, column] = MatrixPlace::at(part, at);
  for (int64_t i = 0; i < count;) {
    const int64_t run = std::min(count - i, part.columns - column);
    const float r = row_factor[row];
    const float* const c = column_factor + row / rows * part.columns + column;
    for (int64_t j = 0; j < run; ++j) g[i + j] = adafactor_direction(g[i + j], r, c[j]);
    i += run;
    column = 0;
    ++row;
  }
}

}  // namespace

void run(const AdafactorSums& op, CpuContext& ctx) {
  constexpr const char* kOp = "adafactor_sums";
  auto *const rows = op.rows.as<double>(), *const columns = op.columns.as<double>();
  std::fill_n(rows, op.rows.numel(), 0.0);
  std::fill_n(columns, op.columns.numel(), 0.0);
  op.squares.as<double>()[0] = 0;
  if (op.control.as<float>()[1] == 0.0f) return;
  const int64_t n = op.master.numel(), width = op.part.columns;
  sum_chunks<1>(n, op.squares.as<double>(), ctx, [&](int64_t begin, int64_t end, double* sum) {
    Squares squares;
    for (int64_t i = begin; i < end; i += kSegmentBlock)
      squares.add(op.master.as<float>() + i, std::min(kSegmentBlock, end - i));
    sum[0] = chunk_sum(squares.a);
  });
  const RowGroups groups = RowGroups::of(op.part, n);
  std::vector<double> partials(static_cast<size_t>(groups.count * width));
  for_floating(kOp, op.grad.dtype, [&]<class G>(TypeTag<G>) {
    if constexpr (!std::is_same_v<G, double>) {
      ctx.pool.parallel_for(groups.count, 1, [&](int64_t begin, int64_t end) {
        const FlushDenormals flush;
        std::vector<float> g(static_cast<size_t>(std::min(width, n)));
        for (int64_t i = begin; i < end; ++i)
          sum_group<G>(op, groups.first + i, groups, &partials[i * width], g);
      });
    }
  });
  for (int64_t i = 0; i < groups.count; ++i) {
    double* const total = columns + (groups.first + i) / groups.each * width;
    for (int64_t c = 0; c < width; ++c) total[c] += partials[i * width + c];
  }
}

void run(const AdafactorFactors& op, CpuContext&) {
  if (op.control.as<float>()[1] == 0.0f) return;
  const FlushDenormals flush;
  const MatrixPart& part = op.part;
  const int64_t rows = part.rows / part.matrices;
  auto *const row = op.row.as<float>(), *const column = op.column.as<float>();
  for (int64_t m = 0; m < part.matrices; ++m) {
    double lane[kSegmentLanes] = {};
    for (int64_t i = 0; i < rows; ++i) {
      float& moment = row[m * rows + i];
      moment = adafactor_mean(op.decay, moment, op.row_sums.as<double>()[m * rows + i],
                              part.columns, op.eps);
      lane[i % kSegmentLanes] += moment;
    }
    const double mean = lane_sum(lane) / static_cast<double>(rows);
    for (int64_t i = m * rows; i < (m + 1) * rows; ++i)
      op.row_factor.as<float>()[i] = adafactor_factor(row[i], mean);
  }
  for (int64_t i = 0; i < part.matrices * part.columns; ++i) {
    column[i] = adafactor_mean(op.decay, column[i], op.column_sums.as<double>()[i], rows, op.eps);
    op.column_factor.as<float>()[i] = adafactor_factor(column[i], 1.0);
  }
}

void run(const AdafactorDirection& op, CpuContext& ctx) {
  constexpr const char* kOp = "adafactor_direction";
  op.squares.as<double>()[0] = 0;
  if (op.control.as<float>()[1] == 0.0f) return;
  for_floating(kOp, op.grad.dtype, [&]<class G>(TypeTag<G>) {
    if constexpr (!std::is_same_v<G, double>) {
      sum_chunks<1>(op.grad.numel(), op.squares.as<double>(), ctx,
                    [&](int64_t begin, int64_t end, double* sum) {
                      alignas(64) float g[kSegmentBlock];
                      Squares squares;
                      for (int64_t i = begin; i < end; i += kSegmentBlock) {
                        const int64_t count = std::min(kSegmentBlock, end - i);
                        gradient<G>(op.grad, op.control.as<float>()[0], i, count, g);
                        to_directions(op.part, op.row_factor.as<float>(),
                                      op.column_factor.as<float>(), i, count, g);
                        squares.add(g, count);
                      }
                      sum[0] = chunk_sum(squares.a);
                    });
    }
  });
}

void run(const AdafactorMoment& op, CpuContext& ctx) {
  constexpr const char* kOp = "adafactor_moment";
  auto* const sums = op.squares.as<double>();
  sums[0] = sums[1] = 0;
  if (op.control.as<float>()[1] == 0.0f) return;
  const AdafactorDecay decay = adafactor_decay(op.decay, op.eps);
  for_floating(kOp, op.grad.dtype, [&]<class G>(TypeTag<G>) {
    if constexpr (!std::is_same_v<G, double>) {
      sum_chunks<2>(op.grad.numel(), sums, ctx, [&](int64_t begin, int64_t end, double* sum) {
        alignas(64) float g[kSegmentBlock];
        Squares parameter, direction;
        for (int64_t i = begin; i < end; i += kSegmentBlock) {
          const int64_t count = std::min(kSegmentBlock, end - i);
          gradient<G>(op.grad, op.control.as<float>()[0], i, count, g);
          to_directions(decay, op.v.as<float>() + i, g, count);
          parameter.add(op.master.as<float>() + i, count);
          direction.add(g, count);
        }
        sum[0] = chunk_sum(parameter.a);
        sum[1] = chunk_sum(direction.a);
      });
    }
  });
}

namespace {

/// Updates elements [begin, end). Reads gradients before it writes weights, which may be the same
/// memory.
template <class G, class W>
void apply_chunk(const AdafactorApply& op, const AdafactorStep& step, int64_t begin, int64_t end) {
  const FlushDenormals flush;
  alignas(64) float g[kSegmentBlock];
  const bool changes = op.control.as<float>()[1] != 0.0f;
  for (int64_t i = begin; i < end; i += kSegmentBlock) {
    const int64_t count = std::min(kSegmentBlock, end - i);
    float* const p = op.master.as<float>() + i;
    if (changes) {
      gradient<G>(op.grad, op.control.as<float>()[0], i, count, g);
      if (op.v) {
        to_directions(op.v.as<float>() + i, g, count);
      } else {
        to_directions(op.part, op.row_factor.as<float>(), op.column_factor.as<float>(), i, count,
                      g);
      }
      apply(step, g, p, op.moment ? op.moment.as<float>() + i : nullptr, count);
    }
    if (op.weight) narrow(p, op.weight.as<W>() + i, count);
  }
}

}  // namespace

void run(const AdafactorApply& op, CpuContext& ctx) {
  constexpr const char* kOp = "adafactor_apply";
  const AdafactorStep step =
      adafactor_step(op.rule, op.parameter_squares.as<double>()[0],
                     op.direction_squares.as<double>()[0], op.part.rows * op.part.columns);
  for_floating(kOp, op.grad.dtype, [&]<class G>(TypeTag<G>) {
    for_floating(kOp, op.weight ? op.weight.dtype : DType::f32, [&]<class W>(TypeTag<W>) {
      if constexpr (!std::is_same_v<G, double> && !std::is_same_v<W, double>) {
        ctx.pool.parallel_for(
            op.master.numel(), kGrain * kSegmentChunk,
            [&](int64_t begin, int64_t end) { apply_chunk<G, W>(op, step, begin, end); });
      }
    });
  });
}

#undef DS_APART

}  // namespace ds::cpu
