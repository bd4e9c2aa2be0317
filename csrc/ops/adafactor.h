// Adafactor over a parameter or a part of it. For matrices, it keeps means of the second moment
// over rows and columns only. Sources: Shazeer & Stern 2018, arXiv:1804.04235, algorithms 4 to 6;
// the Adafactor of fairseq and transformers.
#pragma once

#include "flat_update.h"

namespace ds {

/// The part of a parameter in a flat range: the elements from `from` on. The parameter has
/// `matrices` contiguous matrices, each of rows / matrices by columns elements.
struct MatrixPart {
  int64_t from;
  int64_t matrices;
  int64_t rows;     // rows of all matrices together
  int64_t columns;  // below 2^31
};

/// Checks that `rows` has a value per row of all matrices, and `columns` a value per column of each
/// matrix.
inline void check_factors(const char* op, const MatrixPart& part, const View& rows, DType dtype,
                          const View& columns, int64_t n) {
  const bool even = part.matrices > 0 && part.rows >= 0 && part.rows % part.matrices == 0;
  const bool narrow = part.columns > 0 && part.columns < int64_t{1} << 31;
  if (!even || !narrow) {
    throw Error("DS_ARGUMENT", op, "matrices of equal height with 1 to 2^31 - 1 columns",
                text(part.matrices, " matrices of ", part.rows, " rows together and ", part.columns,
                     " columns"));
  }
  if (part.from < 0 || part.from + n > part.rows * part.columns) {
    throw Error("DS_ARGUMENT", op, text("a range inside ", part.rows * part.columns, " elements"),
                text(n, " elements at ", part.from));
  }
  require_list(op, rows, part.rows, dtype, "rows");
  require_list(op, columns, part.matrices * part.columns, dtype, "columns");
}

/// First pass over matrices. With g = grad * control[0] in f32, computes over the elements of this
/// range: squares = sum of p^2; rows and columns = sums of g^2 along rows and columns. Sums are f64
/// in a fixed order, so all back ends give the same bits. If control[1] is 0, all sums are 0. The
/// sums of a parameter's ranges add up to those of the whole parameter.
struct AdafactorSums {
  View master;   // [n] f32, read
  View grad;     // [n] f32, f16 or bf16
  View squares;  // [1] f64, overwritten
  View rows;     // [rows] f64, overwritten
  View columns;  // [matrices * columns] f64, overwritten
  View control;  // [4] f32, see GradientControl
  MatrixPart part;
};

inline void check(const AdafactorSums& op) {
  constexpr const char* kOp = "adafactor_sums";
  check_states(kOp, op.master, {&op.master});
  check_elements(kOp, op.master, op.grad, "grad");
  require_list(kOp, op.squares, 1, DType::f64, "squares");
  check_factors(kOp, op.part, op.rows, DType::f64, op.columns, op.master.numel());
  check_control(kOp, op.control);
}

/// Updates the factored moments between the passes. They follow the means of g^2 + eps:
///     row = decay row + (1 - decay) (row_sums / columns + eps),
///   the same for column, over the rows of its matrix,
///     row_factor = 1 / sqrt(row / (mean of the matrix's rows)), column_factor = 1 / sqrt(column).
/// Computed in f64 and rounded to f32. If a moment is 0, its factor is 0. If control[1] is 0,
/// nothing changes.
struct AdafactorFactors {
  View row_sums;       // [rows] f64, over whole parameters
  View column_sums;    // [matrices * columns] f64
  View row;            // [rows] f32, updated
  View column;         // [matrices * columns] f32, updated
  View row_factor;     // [rows] f32, overwritten
  View column_factor;  // [matrices * columns] f32, overwritten
  View control;        // [4] f32
  MatrixPart part;     // `from` must be 0
  double decay;        // decay of the second moment at this step
  double eps;
};

inline void check(const AdafactorFactors& op) {
  constexpr const char* kOp = "adafactor_factors";
  check_factors(kOp, op.part, op.row_sums, DType::f64, op.column_sums, 0);
  check_factors(kOp, op.part, op.row, DType::f32, op.column, 0);
  check_factors(kOp, op.part, op.row_factor, DType::f32, op.column_factor, 0);
  check_control(kOp, op.control);
}

/// Second pass over matrices: computes the sum of u^2 over the elements of this range, with u =
/// row_factor column_factor g, in the order of core/segments.h. If control[1] is 0, the sum is 0.
struct AdafactorDirection {
  View grad;           // [n] f32, f16 or bf16
  View row_factor;     // [rows] f32
  View column_factor;  // [matrices * columns] f32
  View squares;        // [1] f64, overwritten
  View control;        // [4] f32
  MatrixPart part;
};

inline void check(const AdafactorDirection& op) {
  constexpr const char* kOp = "adafactor_direction";
  require_narrow(kOp, op.grad, "grad");
  require_contiguous(kOp, op.grad, "grad");
  check_factors(kOp, op.part, op.row_factor, DType::f32, op.column_factor, op.grad.numel());
  require_list(kOp, op.squares, 1, DType::f64, "squares");
  check_control(kOp, op.control);
}

/// First pass over vectors: v = decay v + (1 - decay) (g^2 + eps), and squares = (sum of p^2, sum
/// of u^2) with u = g / sqrt(v), or 0 if v is 0. If control[1] is 0, the moment is unchanged and
/// the sums are 0.
struct AdafactorMoment {
  View master;   // [n] f32, read
  View v;        // [n] f32, updated
  View grad;     // [n] f32, f16 or bf16
  View squares;  // [2] f64, overwritten
  View control;  // [4] f32
  double decay;
  double eps;
};

inline void check(const AdafactorMoment& op) {
  constexpr const char* kOp = "adafactor_moment";
  check_states(kOp, op.master, {&op.master, &op.v});
  check_elements(kOp, op.master, op.grad, "grad");
  require_list(kOp, op.squares, 2, DType::f64, "squares");
  check_control(kOp, op.control);
}

/// Hyperparameters of a group at one step.
struct AdafactorScalars {
  double lr;
  double least_scale;  // lower bound of rms(p) in the rate, if scale_parameter is set
  double clip_threshold;
  double weight_decay;
  double beta1;  // decay of the first moment, if there is one
  bool scale_parameter;
};

/// Last pass: updates the weights. The parameter has `whole` elements, this range has n. With
/// rms(x) = sqrt(sum of x^2 / whole):
///     rate = lr max(least_scale, rms(p)), or lr if scale_parameter is false;
///     u = rate / max(1, rms(u) / clip_threshold) * (row_factor column_factor g, or g / sqrt(v));
///     with a first moment m = beta1 m + (1 - beta1) u, and then u = m;
///     p -= rate weight_decay p, then p -= u. weight = p rounded to its dtype.
/// `weight` may be `grad`: a thread reads the gradient before it writes the weight. If control[1]
/// is 0, only `weight` is written, from the unchanged master.
struct AdafactorApply {
  View master;                 // [n] f32, updated
  View grad;                   // [n] f32, f16 or bf16
  OptionalView row_factor;     // [rows] f32, of matrices
  OptionalView column_factor;  // [matrices * columns] f32, of matrices
  OptionalView v;              // [n] f32, for parameters that are not matrices
  OptionalView moment;         // [n] f32, updated
  OptionalView weight;         // [n] f32, f16 or bf16: the copy that the model computes with
  View parameter_squares;      // [1] f64, over the whole parameter
  View direction_squares;      // [1] f64, over the whole parameter
  View control;                // [4] f32
  MatrixPart part;
  AdafactorScalars rule;
};

inline void check(const AdafactorApply& op) {
  constexpr const char* kOp = "adafactor_apply";
  check_states(kOp, op.master, {&op.master});
  check_elements(kOp, op.master, op.grad, "grad");
  if (!op.v == !op.row_factor || !op.row_factor != !op.column_factor) {
    throw Error("DS_ARGUMENT", kOp, "either v, or row_factor and column_factor",
                text("v ", op.v.describe(), ", row_factor ", op.row_factor.describe(),
                     ", column_factor ", op.column_factor.describe()));
  }
  if (op.v) check_states(kOp, op.master, {&op.v});
  else check_factors(kOp, op.part, op.row_factor, DType::f32, op.column_factor, op.master.numel());
  if (op.moment) check_states(kOp, op.master, {&op.moment});
  if (op.weight) check_elements(kOp, op.master, op.weight, "weight");
  require_list(kOp, op.parameter_squares, 1, DType::f64, "parameter_squares");
  require_list(kOp, op.direction_squares, 1, DType::f64, "direction_squares");
  check_control(kOp, op.control);
}

}  // namespace ds
