// Rows sorted by expert: assigns tokens to experts and combines the experts' results.
#pragma once

#include "../core/preconditions.h"
#include "route.h"

namespace ds {

/// Sorts the choices of T tokens by expert, stably. Group g is expert first + g and has the rows
/// from offsets[g] to offsets[g + 1]. Choices of experts on other ranks are in no group. The host
/// does not wait.
struct GroupRows {
  View ids;      // [T, k] i32, contiguous
  View offsets;  // [groups + 1] i32, contiguous; at most 512 groups
  View rows;     // [T k] i32, contiguous: the token of each row; -1 after the last group
  View places;   // [T, k] i32, contiguous: the row of each choice; -1 for a choice in no group
  int64_t first;
};

inline void check_choices(const char* op, const View& v, const char* name) {
  DS_CHECK_SHAPE(v.ndim == 2, op, text(name, " [tokens, choices]"), v.describe());
  DS_CHECK_SHAPE(v.numel() < int64_t{1} << 31, op, "fewer than 2^31 choices", v.describe());
  require_dtype(op, v, DType::i32, name);
  require_contiguous(op, v, name);
}

inline void check_offsets(const char* op, const View& offsets) {
  DS_CHECK_SHAPE(offsets.ndim == 1 && offsets.shape[0] >= 2 && offsets.shape[0] <= kMostExperts + 1,
                 op, text("offsets [groups + 1] of 1 to ", kMostExperts, " groups"),
                 offsets.describe());
  require_dtype(op, offsets, DType::i32, "offsets");
  require_contiguous(op, offsets, "offsets");
}

inline void check(const GroupRows& op) {
  constexpr const char* kOp = "group_rows";
  check_choices(kOp, op.ids, "ids");
  check_choices(kOp, op.places, "places");
  require_same_shape(kOp, op.ids, op.places);
  check_offsets(kOp, op.offsets);
  require_list(kOp, op.rows, op.ids.numel(), DType::i32, "rows");
  if (op.first < 0) throw Error("DS_ARGUMENT", kOp, "a first expert of 0 or more", text(op.first));
}

/// Computes out[t] (+)= sum over j of weights[t, j] y[places[t, j]], in order of j, in f32 (f64 for
/// f64), rounded once. A place of -1 adds nothing. A place beyond the last row throws DS_INDEX on
/// the CPU; the GPU skips it.
struct CombineRows {
  View y;                // [rows, C], floating, contiguous
  View places;           // [T, k] i32, contiguous
  OptionalView weights;  // [T, k] f32 (f64 for f64), contiguous; absent: 1
  View out;              // [T, C], y's dtype, contiguous
  bool accumulate;
};

inline void check_combined(const char* op, const View& y, const View& places,
                           const OptionalView& weights, const View& out) {
  check_choices(op, places, "places");
  require_floating(op, y);
  require_same_dtype(op, y, out);
  DS_CHECK_SHAPE(y.ndim == 2, op, "rows [rows, C]", y.describe());
  DS_CHECK_SHAPE(out.ndim == 2 && out.shape[0] == places.shape[0] && out.shape[1] == y.shape[1], op,
                 text("tokens [", places.shape[0], ", ", y.shape[1], "]"), out.describe());
  require_contiguous(op, y, "rows");
  require_contiguous(op, out, "tokens");
  if (!weights) return;
  require_same_shape(op, places, weights);
  require_dtype(op, weights, statistic_of(y.dtype), "weights");
  require_contiguous(op, weights, "weights");
}

inline void check(const CombineRows& op) {
  check_combined("combine_rows", op.y, op.places, op.weights, op.out);
}

/// Computes dy[places[t, j]] = weights[t, j] dout[t], and dweights[t, j] = dout[t] . y[places[t,
/// j]], or 0 for a place of -1. Rows of dy without a place are unchanged.
struct CombineRowsBackward {
  View y;         // the forward's
  View places;    // the forward's, without duplicates
  View weights;   // [T, k] f32 (f64 for f64), contiguous
  View dout;      // [T, C], y's dtype, contiguous
  View dy;        // as y
  View dweights;  // as weights
};

inline void check(const CombineRowsBackward& op) {
  constexpr const char* kOp = "combine_rows_backward";
  check_combined(kOp, op.y, op.places, op.weights, op.dout);
  require_like(kOp, op.y, op.dy);
  require_contiguous(kOp, op.dy, "dy");
  require_like(kOp, op.weights, op.dweights);
  require_contiguous(kOp, op.dweights, "dweights");
}

}  // namespace ds
