// Sign compression: one bit per element of a vector and two levels per segment, which ranks
// exchange and average instead of the vector. Sources: Seide et al. 2014, "1-Bit Stochastic
// Gradient Descent"; Tang et al. 2021, arXiv:2102.02888 (1-bit Adam).
#pragma once

#include "flat_update.h"

namespace ds {

/// How the two levels of a segment are computed.
enum class SignLevels : int32_t {
  /// -s and s with s = |x|_2 / sqrt(elements), which keeps the norm.
  rms,
  /// The mean of the negative elements and the mean of the others. The mean of no elements is 0.
  means,
};

/// Rounds x = value + error to the levels of its segment and keeps the rounding error. With q = x <
/// 0 ? levels[0] : levels[1], the new error is x - q (-0 and NaN are not negative). Element i is
/// bit 7 - i % 8 of bits[i / 8], 1 if x is not negative. Segment k is [starts[k], starts[k] +
/// counts[k]); counts[k] is at most starts[k + 1] - starts[k]. Elements outside of segments have
/// bits 0 and unchanged errors, and affect no level. Sums are f64 in the order of core/segments.h.
/// Levels are rounded once to f32, and denormals are flushed to zero, so all back ends give the
/// same bits. If control[1] is 0, the error is unchanged, and bits and levels are 0.
struct SignCompress {
  View value;    // [n] f32, read
  View error;    // [n] f32, updated
  View starts;   // [segments + 1] i64, ascends from 0 to n; the GPU does not check it
  View counts;   // [segments] i64
  View bits;     // [ceil(n / 8)] u8, overwritten
  View levels;   // [segments, 2] f32, overwritten
  View control;  // [4] f32, see GradientControl
  SignLevels kind;
};

inline void check_sign_segments(const char* op, const View& starts, const View& counts, int64_t n) {
  check_segments(op, starts, n);
  require_list(op, counts, starts.numel() - 1, DType::i64, "counts");
}

inline void check(const SignCompress& op) {
  constexpr const char* kOp = "sign_compress";
  const int64_t n = op.value.numel();
  check_states(kOp, op.value, {&op.value, &op.error});
  check_sign_segments(kOp, op.starts, op.counts, n);
  require_list(kOp, op.bits, (n + 7) / 8, DType::u8, "bits");
  require_list(kOp, op.levels, 2 * (op.starts.numel() - 1), DType::f32, "levels");
  check_control(kOp, op.control);
}

/// Computes the mean of the ranks' vectors: their sum in rank order, times 1 / ranks rounded to
/// f32. The result of a single rank is its levels. Elements outside of segments are 0. Layout as in
/// SignCompress.
struct SignAverage {
  View bits;    // [ranks, ceil(n / 8)] u8, any row stride
  View levels;  // [ranks, 2 * segments] f32, any row stride
  View starts;  // [segments + 1] i64
  View counts;  // [segments] i64
  View out;     // [n] f32, overwritten
};

inline void check_sign_rows(const View& v, int64_t ranks, int64_t width, DType dtype,
                            const char* name) {
  DS_CHECK_SHAPE(v.ndim == 2 && v.size(0) == ranks && v.size(1) == width && v.dtype == dtype &&
                     has_contiguous_rows(v),
                 "sign_average",
                 text(name, " [", ranks, ", ", width, "] ", name_of(dtype), " with last stride 1"),
                 v.describe());
}

inline void check(const SignAverage& op) {
  constexpr const char* kOp = "sign_average";
  const int64_t n = op.out.numel();
  check_states(kOp, op.out, {&op.out});
  check_sign_segments(kOp, op.starts, op.counts, n);
  DS_CHECK_SHAPE(op.bits.ndim == 2 && op.bits.size(0) > 0, kOp, "bits [ranks, ceil(n / 8)]",
                 op.bits.describe());
  check_sign_rows(op.bits, op.bits.size(0), (n + 7) / 8, DType::u8, "bits");
  check_sign_rows(op.levels, op.bits.size(0), 2 * (op.starts.numel() - 1), DType::f32, "levels");
}

}  // namespace ds
