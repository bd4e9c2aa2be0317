// Keys and values in blocks of a pool, and the attention of ragged queries to them. Sources: Kwon
// et al. 2023 (PagedAttention); Dao et al. 2023 (Flash-Decoding) for keys split over thread blocks.
#pragma once

#include "../core/preconditions.h"
#include "score_cap.h"

namespace ds {

/// Writes the key and value of each token to its slot: row slot % block of block slot / block. A
/// token with a negative slot is not written. Tokens must not share a slot. A slot outside of the
/// pool throws DS_INDEX on the CPU before anything is written; the GPU skips the token. A u8 pool
/// stores FP8 codes (e4m3, scale 1): the code nearest to the value, at most 448.
struct PagedStore {
  View k;      // [N, Hk, D], last stride 1
  View v;      // like k, with its own strides
  View slots;  // [N] i32, contiguous
  View pool;   // [blocks, 2, Hk, block, D] of k's dtype or u8, contiguous: keys before values
};

/// Attention of the newest tokens of S sequences, packed in [N], to all tokens of their sequence.
/// The queries of sequence s are rows starts[s] - starts[0] to starts[s + 1] - starts[0], the last
/// of its lengths[s] tokens. Its blocks tables[s, 0], tables[s, 1], ... hold the keys and values of
/// all its tokens. A query sees its own and earlier tokens; with a `window`, only the nearest
/// `window` tokens, including its own. Grouped heads as in Attention. A sequence of length 0 gives
/// 0. Scores and sums are f32 (f64 for f64).
///
/// If `invariant`, the order of a query's sums depends only on its position, so that its bits do
/// not depend on blocks and other queries. The GPU then uses one tile size and does not split keys.
/// The CPU always sums in this order.
///
/// The CPU throws DS_INDEX if starts do not ascend over all N rows, or if a sequence has more than
/// `longest` queries or fewer tokens than queries. It also throws DS_INDEX if a block is outside of
/// the table or the pool. The GPU never reads out of bounds, and gives NaN for a missing block.
///
/// With a `cap`, a scaled score s becomes cap tanh(s / cap) (Gemma 2).
///
/// With `sinks`, the softmax of a head also has the logit of its sink, which has no value. lse
/// excludes it. Source: OpenAI's gpt-oss.
struct PagedAttention {
  View q;              // [N, H, D], last stride 1
  View pool;           // [blocks, 2, Hk, block, D] of q's dtype or u8 (codes), contiguous
  View tables;         // [S, most] i32, last stride 1: block numbers; only the used ones are read
  View starts;         // [S + 1] i32, contiguous
  View lengths;        // [S] i32, contiguous
  View out;            // like q, with its own strides
  OptionalView lse;    // [N, H] f32 (f64 for f64), contiguous: log-sum-exp of a query's scores
  OptionalView sinks;  // [H], q's dtype, contiguous
  double scale;
  double cap;       // bound of the scores; 0: none
  int64_t window;   // 0: none
  int64_t longest;  // upper bound of the queries of a sequence, known to the host
  bool invariant;   // required for lse
};

/// Checks that `v` is [tokens, heads, D] with last stride 1.
inline void check_ragged(const char* name, const View& v, const char* what) {
  require_rows(name, v, 3, what, "[tokens, heads, D]");
}

/// Checks that `pool` is [blocks, 2, heads, block, D] with the D of `v`, and that the heads of `v`
/// are a multiple of its heads.
inline void check_pool(const char* name, const View& pool, const View& v) {
  require_floating(name, v);
  if (pool.dtype == DType::u8) require_narrow(name, v, "values of a pool of codes");
  else require_same_dtype(name, v, pool);
  const int64_t* const p = pool.shape;
  DS_CHECK_SHAPE(pool.ndim == 5 && p[1] == 2 && p[3] > 0 && p[4] == v.shape[2], name,
                 text("a pool [blocks, 2, heads, block, ", v.shape[2], "]"), pool.describe());
  require_contiguous(name, pool, "pool");
}

inline void check(const PagedStore& op) {
  constexpr const char* kOp = "paged_store";
  check_ragged(kOp, op.k, "k");
  check_ragged(kOp, op.v, "v");
  require_like(kOp, op.k, op.v);
  check_pool(kOp, op.pool, op.k);
  DS_CHECK_SHAPE(op.pool.shape[2] == op.k.shape[1], kOp,
                 text("a pool of ", op.k.shape[1], " heads"), op.pool.describe());
  require_list(kOp, op.slots, op.k.shape[0], DType::i32, "slots");
}

inline void check(const PagedAttention& op) {
  constexpr const char* kOp = "paged_attention";
  check_ragged(kOp, op.q, "q");
  check_ragged(kOp, op.out, "out");
  require_like(kOp, op.q, op.out);
  check_pool(kOp, op.pool, op.q);
  const int64_t heads = op.q.shape[1], key_heads = op.pool.shape[2];
  DS_CHECK_SHAPE(heads == 0 || (key_heads > 0 && heads % key_heads == 0), kOp,
                 "query heads a multiple of key heads",
                 text(heads, " query heads, ", key_heads, " key heads"));
  const View& tables = op.tables;
  require_dtype(kOp, tables, DType::i32, "tables");
  require_rows(kOp, tables, 2, "tables", "[sequences, blocks]");
  require_list(kOp, op.starts, tables.shape[0] + 1, DType::i32, "starts");
  require_list(kOp, op.lengths, tables.shape[0], DType::i32, "lengths");
  DS_CHECK_SHAPE(tables.shape[0] > 0 || op.q.shape[0] == 0, kOp, "a sequence for each query",
                 text(op.q.shape[0], " queries without a sequence"));
  if (op.lse) {
    require_list(kOp, op.lse, op.q.shape[0] * heads, statistic_of(op.q.dtype), "lse");
    DS_CHECK_SHAPE(op.q.shape[2] > 0, kOp, "a head dim above 0 for lse", op.q.describe());
    if (!op.invariant)
      throw Error("DS_ARGUMENT", kOp, "invariant together with lse", "lse without invariant");
  }
  if (op.sinks) {
    require_vector(kOp, op.sinks, heads, "sinks");
    require_same_dtype(kOp, op.q, op.sinks);
  }
  check_cap(kOp, op.cap, op.scale);
  if (op.window < 0)
    throw Error("DS_ARGUMENT", kOp, "a window of 0 (none) or more", text(op.window));
  if (op.longest < 0) throw Error("DS_ARGUMENT", kOp, "longest of 0 or more", text(op.longest));
}

}  // namespace ds
