// Adafactor's update of an element, and the scalars of its parameter: the sequence of IEEE
// operations that all back ends run.
#pragma once

#include <cmath>

#include "../core/exact_math.h"
#include "adafactor.h"

namespace ds {

// No back end contracts f64 operations into fma unless the code calls fma.

/// Number of rows of a matrix that a partial column sum adds in order.
constexpr int64_t kAdafactorRows = 64;

/// Returns decay * moment + (1 - decay) * (sum / count + eps), rounded once.
DS_HOST_DEVICE float adafactor_mean(double decay, float moment, double sum, int64_t count,
                                    double eps) {
  const double mean = sum / static_cast<double>(count) + eps;
  return static_cast<float>(fma(decay, static_cast<double>(moment), (1.0 - decay) * mean));
}

/// Returns 1 / sqrt(moment / mean), or 0 if `moment` is 0.
DS_HOST_DEVICE float adafactor_factor(float moment, double mean) {
  if (!(moment != 0.0f)) return 0.0f;
  return static_cast<float>(1.0 / sqrt(static_cast<double>(moment) / mean));
}

/// Scalars of an element's moment, computed in double on the host and rounded once to float.
struct AdafactorDecay {
  float decay, one_minus_decay, eps;
};

inline AdafactorDecay adafactor_decay(double decay, double eps) {
  return {static_cast<float>(decay), static_cast<float>(1.0 - decay), static_cast<float>(eps)};
}

/// Returns fma(decay, v, one_minus_decay * fma(g, g, eps)) with denormals flushed to zero.
DS_HOST_DEVICE float adafactor_moment(const AdafactorDecay& c, float g, float v) {
  return fma_rn(c.decay, v, mul_rn(c.one_minus_decay, fma_rn(g, g, c.eps)));
}

/// Returns g / sqrt(v), or 0 if v is 0.
DS_HOST_DEVICE float adafactor_direction(float g, float v) {
  const float quotient = div_rn(g, sqrt_rn(v));
  return v == 0.0f ? 0.0f : quotient;
}

/// Returns (row_factor * column_factor) * g.
DS_HOST_DEVICE float adafactor_direction(float g, float row_factor, float column_factor) {
  return mul_rn(mul_rn(row_factor, column_factor), g);
}

/// Scalars of an update that depend on both sums, equal for all elements of a parameter.
struct AdafactorStep {
  float step;            // rate / max(1, rms(u) / clip_threshold)
  float negative_decay;  // -rate * weight_decay
  float beta1, one_minus_beta1;
};

/// Returns the scalars. The squares are sums over all `whole` elements of the parameter.
DS_HOST_DEVICE AdafactorStep adafactor_step(const AdafactorScalars& rule, double parameter_squares,
                                            double direction_squares, int64_t whole) {
  const double count = static_cast<double>(whole);
  const double size = sqrt(parameter_squares / count), length = sqrt(direction_squares / count);
  const double scale = size > rule.least_scale ? size : rule.least_scale;
  const double rate = rule.scale_parameter ? rule.lr * scale : rule.lr;
  const double excess = length / rule.clip_threshold;
  return {static_cast<float>(excess > 1.0 ? rate / excess : rate),
          static_cast<float>(-(rate * rule.weight_decay)), static_cast<float>(rule.beta1),
          static_cast<float>(1.0 - rule.beta1)};
}

/// Returns the updated p, and updates the moment unless `m` is null:
///     u = step * direction
///     with a moment: m = fma(beta1, m, one_minus_beta1 * u), u = m
///     p = fma(negative_decay, p, p);  p = p - u
DS_HOST_DEVICE float adafactor_applied(const AdafactorStep& s, float p, float direction, float* m) {
  float u = mul_rn(s.step, direction);
  if (m) {
    *m = fma_rn(s.beta1, *m, mul_rn(s.one_minus_beta1, u));
    u = *m;
  }
  return sub_rn(fma_rn(s.negative_decay, p, p), u);
}

/// Tracks row and column while a thread moves along the elements of a part, from element `at` on.
struct MatrixPlace {
  int64_t row, column;  // row of all matrices, and column in the row

  DS_HOST_DEVICE static MatrixPlace at(const MatrixPart& part, int64_t at) {
    const int64_t place = part.from + at;
    return {place / part.columns, place % part.columns};
  }
};

/// The groups of kAdafactorRows rows in a part of n elements. A group belongs to one matrix.
struct RowGroups {
  int64_t each;   // groups of a matrix
  int64_t first;  // index among the groups of all matrices
  int64_t count;

  DS_HOST_DEVICE static int64_t of(int64_t row, int64_t rows, int64_t each) {
    return row / rows * each + row % rows / kAdafactorRows;
  }

  DS_HOST_DEVICE static RowGroups of(const MatrixPart& part, int64_t n) {
    const int64_t rows = part.rows / part.matrices;
    const int64_t each = (rows + kAdafactorRows - 1) / kAdafactorRows;
    if (n == 0) return {each, 0, 0};
    const int64_t first = of(part.from / part.columns, rows, each);
    return {each, first, of((part.from + n - 1) / part.columns, rows, each) + 1 - first};
  }
};

/// Elements [begin, end) of a range, which belong to row `row`.
struct RowPart {
  int64_t begin, end;
  int64_t column;  // column of `begin`

  DS_HOST_DEVICE static RowPart of(const MatrixPart& part, int64_t n, int64_t row) {
    int64_t begin = row * part.columns - part.from, end = begin + part.columns;
    const int64_t column = begin < 0 ? -begin : 0;
    if (begin < 0) begin = 0;
    if (end > n) end = n;
    if (end < begin) end = begin;
    return {begin, end, column};
  }
};

}  // namespace ds
