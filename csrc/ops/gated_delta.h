// The gated delta rule, a linear attention with a decaying state, and its gradients. Source: Yang,
// Kautz and Hatamizadeh 2025 (Gated Delta Networks).
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// Each value head has a state S [D, E], initially 0, and uses the key head h / (H / Hk). For each
/// token:
///
///   S = e^decay S;  u = beta (v - S'k);  S = S + k u';  out = S'q
///
/// The state is reset at the first token of a document. Without documents, each row of the batch is
/// one document. Computed in f32 (f64 for f64). The GPU supports D and E up to 256.
struct GatedDelta {
  View q;                  // [B, T, Hk, D], last stride 1
  View k;                  // like q, with its own strides
  View v;                  // [B, T, H, E], last stride 1, H a multiple of Hk
  View decay;              // [B, T, H] f32 (f64 for f64), contiguous; at most 0
  View beta;               // like decay
  View out;                // [B, T, H, E], contiguous
  OptionalView documents;  // [B, T] i32, contiguous
};

/// Computes the gradients of GatedDelta. The gradient of a decay is a sum over later tokens of its
/// document. The GPU needs scratch memory for four f32 tensors like q per value head.
struct GatedDeltaBackward {
  View q;                  // the forward's
  View k;                  // the forward's
  View v;                  // the forward's
  View decay;              // the forward's
  View beta;               // the forward's
  View dout;               // [B, T, H, E], last stride 1
  View dq;                 // like q, contiguous
  View dk;                 // like k, contiguous
  View dv;                 // like v, contiguous
  View ddecay;             // like decay
  View dbeta;              // like beta
  OptionalView documents;  // the forward's
};

/// GatedDelta of the newest tokens of S sequences, packed in [N] as in PagedAttention. Row slots[s]
/// of the pool is the state of sequence s. The op reads it, unless the tokens are all lengths[s]
/// tokens of the sequence, and writes it. With a negative slot, the state starts at 0 and is not
/// kept. Sequences must not share a slot. Invalid starts and slots throw DS_INDEX on the CPU; the
/// GPU accesses no memory outside of its operands.
struct GatedDeltaStep {
  View q;        // [N, Hk, D], last stride 1
  View k;        // like q, with its own strides
  View v;        // [N, H, E], last stride 1
  View decay;    // [N, H] f32 (f64 for f64), contiguous
  View beta;     // like decay
  View starts;   // [S + 1] i32, contiguous
  View lengths;  // [S] i32, contiguous
  View slots;    // [S] i32, contiguous
  View out;      // [N, H, E], contiguous
  View pool;     // [slots, H, D, E] f32 (f64 for f64), contiguous
};

/// Checks heads q and k [.., Hk, D] and v [.., H, E], and decay and beta [.., H], all with `dims`
/// dims.
inline void check_delta(const char* op, const View& q, const View& k, const View& v,
                        const View& decay, const View& beta, int dims) {
  require_floating(op, q);
  require_like(op, q, k);
  require_same_dtype(op, q, v);
  const bool is_batch = dims == 4;
  for (const View* one : {&q, &k})
    require_rows(op, *one, dims, "q and k", is_batch ? "[B, T, Hk, D]" : "[N, Hk, D]");
  require_rows(op, v, dims, "v", is_batch ? "[B, T, H, E]" : "[N, H, E]");
  for (int d = 0; d < dims - 2; ++d)
    DS_CHECK_SHAPE(v.shape[d] == q.shape[d], op, text("v with the tokens of q ", q.describe()),
                   v.describe());
  const int64_t heads = v.size(-2), key_heads = q.size(-2);
  DS_CHECK_SHAPE(heads == 0 || (key_heads > 0 && heads % key_heads == 0), op,
                 "value heads a multiple of key heads",
                 text(heads, " value heads, ", key_heads, " key heads"));
  for (const View* one : {&decay, &beta}) {
    require_dtype(op, *one, statistic_of(q.dtype), "decay and beta");
    bool fits = one->ndim == dims - 1;
    for (int d = 0; fits && d < dims - 1; ++d) fits = one->shape[d] == v.shape[d];
    DS_CHECK_SHAPE(fits, op, text("decay and beta with the heads of v ", v.describe()),
                   one->describe());
    require_contiguous(op, *one, "decay and beta");
  }
}

/// Checks that documents are absent or [B, T] i32.
inline void check_documents(const char* op, const View& documents, const View& x) {
  if (!documents) return;
  require_dtype(op, documents, DType::i32, "documents");
  const bool fits = documents.ndim == 2 && documents.shape[0] == x.shape[0];
  DS_CHECK_SHAPE(fits && documents.shape[1] == x.shape[1], op,
                 text("documents [", x.shape[0], ", ", x.shape[1], "]"), documents.describe());
  require_contiguous(op, documents, "documents");
}

/// Checks a pool [slots, H, D, E] for queries [N, Hk, D] and values [N, H, E].
inline void check_pool(const char* op, const View& pool, const View& q, const View& v) {
  require_dtype(op, pool, statistic_of(q.dtype), "pool");
  const int64_t heads = v.shape[1], d = q.shape[2], e = v.shape[2];
  const bool fits =
      pool.ndim == 4 && pool.shape[1] == heads && pool.shape[2] == d && pool.shape[3] == e;
  DS_CHECK_SHAPE(fits, op, text("a pool [slots, ", heads, ", ", d, ", ", e, "]"), pool.describe());
  require_contiguous(op, pool, "pool");
}

inline void check(const GatedDelta& op) {
  constexpr const char* kOp = "gated_delta";
  check_delta(kOp, op.q, op.k, op.v, op.decay, op.beta, 4);
  require_like(kOp, op.v, op.out);
  require_contiguous(kOp, op.out, "out");
  check_documents(kOp, op.documents, op.v);
}

inline void check(const GatedDeltaBackward& op) {
  constexpr const char* kOp = "gated_delta_backward";
  check_delta(kOp, op.q, op.k, op.v, op.decay, op.beta, 4);
  require_like(kOp, op.v, op.dout);
  require_rows(kOp, op.dout, 4, "dout", "[B, T, H, E]");
  const View* const pairs[][2] = {{&op.q, &op.dq},
                                  {&op.k, &op.dk},
                                  {&op.v, &op.dv},
                                  {&op.decay, &op.ddecay},
                                  {&op.beta, &op.dbeta}};
  for (const auto& [like, out] : pairs) {
    require_like(kOp, *like, *out);
    require_contiguous(kOp, *out, "gradients");
  }
  check_documents(kOp, op.documents, op.v);
}

inline void check(const GatedDeltaStep& op) {
  constexpr const char* kOp = "gated_delta_step";
  check_delta(kOp, op.q, op.k, op.v, op.decay, op.beta, 3);
  require_like(kOp, op.v, op.out);
  require_contiguous(kOp, op.out, "out");
  const int64_t sequences = op.lengths.numel();
  require_list(kOp, op.starts, sequences + 1, DType::i32, "starts");
  require_list(kOp, op.lengths, sequences, DType::i32, "lengths");
  require_list(kOp, op.slots, sequences, DType::i32, "slots");
  check_pool(kOp, op.pool, op.q, op.v);
}

}  // namespace ds
