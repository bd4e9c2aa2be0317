// The recurrence of a state space layer: linear attention with a decaying state, and its gradients.
// Source: Dao and Gu 2024 (Mamba-2).
#pragma once

#include "gated_delta.h"

namespace ds {

/// Each head has a state S [N, P], initially 0, and uses the group h / (H / G) of B and C. For each
/// token:
///
///   S = e^decay S + step b x';  out = S'c
///
/// The state is reset at the first token of a document. Without documents, each row of the batch is
/// one document. Computed in f32 (f64 for f64). The GPU supports N and P up to 256.
struct StateSpace {
  View c;                  // [B, T, G, N], last stride 1
  View b;                  // like c, with its own strides
  View x;                  // [B, T, H, P], last stride 1, H a multiple of G
  View decay;              // [B, T, H] f32 (f64 for f64), contiguous; at most 0
  View step;               // like decay
  View out;                // [B, T, H, P], contiguous
  OptionalView documents;  // [B, T] i32, contiguous
};

/// Computes the gradients of StateSpace. The gradient of a decay is a sum over later tokens of its
/// document. The GPU needs scratch memory for two f32 tensors [B, T, H, N].
struct StateSpaceBackward {
  View c;                  // the forward's
  View b;                  // the forward's
  View x;                  // the forward's
  View decay;              // the forward's
  View step;               // the forward's
  View dout;               // [B, T, H, P], last stride 1
  View dc;                 // like c, contiguous
  View db;                 // like b, contiguous
  View dx;                 // like x, contiguous
  View ddecay;             // like decay
  View dstep;              // like step
  OptionalView documents;  // the forward's
};

/// StateSpace of the newest tokens of S sequences, packed in [M]. Row slots[s] of the pool is the
/// state of sequence s. See GatedDeltaStep.
struct StateSpaceStep {
  View c;        // [M, G, N], last stride 1
  View b;        // like c, with its own strides
  View x;        // [M, H, P], last stride 1
  View decay;    // [M, H] f32 (f64 for f64), contiguous
  View step;     // like decay
  View starts;   // [S + 1] i32, contiguous
  View lengths;  // [S] i32, contiguous
  View slots;    // [S] i32, contiguous
  View out;      // [M, H, P], contiguous
  View pool;     // [slots, H, N, P] f32 (f64 for f64), contiguous
};

/// Checks b and c [.., G, N], x [.., H, P], decay and step [.., H], all with `dims` dims.
inline void check_space(const char* op, const View& c, const View& b, const View& x,
                        const View& decay, const View& step, int dims) {
  require_floating(op, c);
  require_like(op, c, b);
  require_same_dtype(op, c, x);
  const bool is_batch = dims == 4;
  for (const View* one : {&b, &c})
    require_rows(op, *one, dims, "b and c", is_batch ? "[B, T, G, N]" : "[M, G, N]");
  require_rows(op, x, dims, "x", is_batch ? "[B, T, H, P]" : "[M, H, P]");
  for (int d = 0; d < dims - 2; ++d)
    DS_CHECK_SHAPE(x.shape[d] == c.shape[d], op, text("x with the tokens of c ", c.describe()),
                   x.describe());
  const int64_t heads = x.size(-2), groups = c.size(-2);
  DS_CHECK_SHAPE(heads == 0 || (groups > 0 && heads % groups == 0), op,
                 "heads of x a multiple of the groups of c",
                 text(heads, " heads, ", groups, " groups"));
  for (const View* one : {&decay, &step}) {
    require_dtype(op, *one, statistic_of(c.dtype), "decay and step");
    bool fits = one->ndim == dims - 1;
    for (int d = 0; fits && d < dims - 1; ++d) fits = one->shape[d] == x.shape[d];
    DS_CHECK_SHAPE(fits, op, text("decay and step with the heads of x ", x.describe()),
                   one->describe());
    require_contiguous(op, *one, "decay and step");
  }
}

inline void check(const StateSpace& op) {
  constexpr const char* kOp = "state_space";
  check_space(kOp, op.c, op.b, op.x, op.decay, op.step, 4);
  require_like(kOp, op.x, op.out);
  require_contiguous(kOp, op.out, "out");
  check_documents(kOp, op.documents, op.x);
}

inline void check(const StateSpaceBackward& op) {
  constexpr const char* kOp = "state_space_backward";
  check_space(kOp, op.c, op.b, op.x, op.decay, op.step, 4);
  require_like(kOp, op.x, op.dout);
  require_rows(kOp, op.dout, 4, "dout", "[B, T, H, P]");
  const View* const pairs[][2] = {{&op.c, &op.dc},
                                  {&op.b, &op.db},
                                  {&op.x, &op.dx},
                                  {&op.decay, &op.ddecay},
                                  {&op.step, &op.dstep}};
  for (const auto& [like, out] : pairs) {
    require_like(kOp, *like, *out);
    require_contiguous(kOp, *out, "gradients");
  }
  check_documents(kOp, op.documents, op.x);
}

inline void check(const StateSpaceStep& op) {
  constexpr const char* kOp = "state_space_step";
  check_space(kOp, op.c, op.b, op.x, op.decay, op.step, 3);
  require_like(kOp, op.x, op.out);
  require_contiguous(kOp, op.out, "out");
  const int64_t sequences = op.lengths.numel();
  require_list(kOp, op.starts, sequences + 1, DType::i32, "starts");
  require_list(kOp, op.lengths, sequences, DType::i32, "lengths");
  require_list(kOp, op.slots, sequences, DType::i32, "slots");
  check_pool(kOp, op.pool, op.c, op.x);
}

}  // namespace ds
