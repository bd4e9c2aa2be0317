// Low-rank updates by several adapters in one batch: each row of a linear layer has factors A and B
// of its own adapter. Sources: Hu et al. 2021 (LoRA); Chen et al. 2023 (Punica).
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// Largest number of entries of a tile.
constexpr int64_t kAdapterTile = 16;

/// Computes h[p, e, j] = sum over k of x[rows[e], k] a_p[s, j, k] for j < ranks_p[s], and 0 for
/// other j. Entry e belongs to a tile, and s is the adapter of the tile. p counts the present
/// layers, which share x. A row of `tiles` is [adapter, first entry, number of entries]; adapter -1
/// means none. Entries outside of tiles with an adapter are unchanged. Sums in f32 (f64 for f64),
/// rounded once. The result of an entry does not depend on other entries. Invalid tiles, rows and
/// ranks throw DS_INDEX on the CPU; the GPU skips them.
struct AdapterShrink {
  View x;           // [N, K], floating, contiguous
  View rows;        // [E] i32, contiguous
  View tiles;       // [T, 3] i32, contiguous
  View a;           // [S, R, K], x's dtype, contiguous
  View ranks;       // [S] i32, contiguous
  OptionalView a2;  // second layer, like a
  OptionalView ranks2;
  OptionalView a3;  // third layer
  OptionalView ranks3;
  View h;  // [layers, E, R], x's dtype, contiguous
};

/// Adds to out_p[rows[e], m] the sum over j < ranks_p[s] of h[p, e, j] b_p[s, m, j], for the
/// entries of tiles as in AdapterShrink. A row may be in one tile only. Rows outside of tiles keep
/// their bits. Sums in f32 (f64 for f64), rounded once. Beyond the rank, h must be 0, as
/// AdapterShrink writes it, and b finite. Invalid indices as in AdapterShrink.
struct AdapterExpand {
  View h;           // [layers, E, R], floating, contiguous
  View rows;        // [E] i32, contiguous
  View tiles;       // [T, 3] i32, contiguous
  View b;           // [S, M, R], h's dtype, contiguous
  View ranks;       // [S] i32, contiguous
  View out;         // [N, M], h's dtype, last stride 1
  OptionalView b2;  // second layer; its M may differ
  OptionalView ranks2;
  OptionalView out2;
  OptionalView b3;  // third layer
  OptionalView ranks3;
  OptionalView out3;
};

/// Adds the low-rank updates of adapters to the outputs of joined layers. One product has computed
/// both: a row of `wide` has the outputs of all layers, then h of all adapters as [layers, S, R].
/// Writes out[rows[e]] = outputs + h_p[s] b_p[s]^T for the entries of tiles as in AdapterShrink. If
/// `gated`, writes silu of the first layer's outputs times the second layer's. The bits equal
/// AdapterExpand followed by Swiglu. A row may be in one tile only; rows outside of tiles are
/// unchanged. h and b beyond the rank as in AdapterExpand. `next` is the weight of the following
/// product: a GPU prefetches the beginnings of its rows if they are many.
struct AdapterSum {
  View wide;        // [N, outputs + layers * S * R], floating, contiguous
  View rows;        // [E] i32, contiguous
  View tiles;       // [T, 3] i32, contiguous
  View b;           // [S, M, R], wide's dtype, contiguous
  View ranks;       // [S] i32, contiguous
  OptionalView b2;  // second layer; its M may differ if not gated
  OptionalView ranks2;
  OptionalView b3;  // third layer
  OptionalView ranks3;
  OptionalView next;  // [any, any], contiguous
  View out;  // [N, outputs], gated [N, M]; last stride 1. Not gated, it may be columns of wide
  bool gated;
};

inline void check_adapter_lists(const char* op, const View& rows, const View& tiles) {
  DS_CHECK_SHAPE(rows.ndim == 1, op, "rows [E]", rows.describe());
  require_list(op, rows, rows.shape[0], DType::i32, "rows");
  DS_CHECK_SHAPE(tiles.ndim == 2 && tiles.shape[1] == 3 && tiles.shape[0] < 65536, op,
                 "tiles [T, 3], T below 65536", tiles.describe());
  require_list(op, tiles, tiles.shape[0] * 3, DType::i32, "tiles");
}

/// Checks a layer's ranks and its factor [S, R, K] or [S, M, R].
inline void check_adapter_layer(const char* op, const View& like, const View& factor,
                                const View& ranks, int64_t slots) {
  DS_CHECK_SHAPE(factor.ndim == 3 && factor.shape[0] == slots, op,
                 text("a factor [", slots, ", any, any], one matrix for each adapter"),
                 factor.describe());
  require_same_dtype(op, like, factor);
  require_contiguous(op, factor, "factor");
  DS_CHECK_SHAPE(static_cast<bool>(ranks), op, "ranks with each factor", "a factor without ranks");
  require_list(op, ranks, slots, DType::i32, "ranks");
}

inline void check(const AdapterShrink& op) {
  constexpr const char* kOp = "adapter_shrink";
  DS_CHECK_SHAPE(op.x.ndim == 2, kOp, "x [N, K]", op.x.describe());
  require_floating(kOp, op.x);
  require_contiguous(kOp, op.x, "x");
  check_adapter_lists(kOp, op.rows, op.tiles);
  DS_CHECK_SHAPE(op.a.ndim == 3, kOp, "a [S, R, K]", op.a.describe());
  const int64_t slots = op.a.shape[0], rank = op.a.shape[1];
  DS_CHECK_SHAPE(op.a2 || !op.a3, kOp, "a second layer with the third",
                 "a third layer without a second");
  check_adapter_layer(kOp, op.x, op.a, op.ranks, slots);
  if (op.a2) check_adapter_layer(kOp, op.x, op.a2, op.ranks2, slots);
  if (op.a3) check_adapter_layer(kOp, op.x, op.a3, op.ranks3, slots);
  for (const View* a : {&op.a, static_cast<const View*>(&op.a2), static_cast<const View*>(&op.a3)})
    DS_CHECK_SHAPE(!*a || (a->shape[1] == rank && a->shape[2] == op.x.shape[1]), kOp,
                   text("factors [", slots, ", ", rank, ", ", op.x.shape[1], "]"), a->describe());
  const int64_t layers = op.a3 ? 3 : op.a2 ? 2 : 1;
  DS_CHECK_SHAPE(op.h.ndim == 3 && op.h.shape[0] == layers && op.h.shape[1] == op.rows.shape[0] &&
                     op.h.shape[2] == rank,
                 kOp, text("h [", layers, ", ", op.rows.shape[0], ", ", rank, "]"),
                 op.h.describe());
  require_same_dtype(kOp, op.x, op.h);
  require_contiguous(kOp, op.h, "h");
}

inline void check(const AdapterExpand& op) {
  constexpr const char* kOp = "adapter_expand";
  DS_CHECK_SHAPE(op.h.ndim == 3, kOp, "h [layers, E, R]", op.h.describe());
  require_floating(kOp, op.h);
  require_contiguous(kOp, op.h, "h");
  check_adapter_lists(kOp, op.rows, op.tiles);
  DS_CHECK_SHAPE(op.b.ndim == 3, kOp, "b [S, M, R]", op.b.describe());
  const int64_t slots = op.b.shape[0], rank = op.h.shape[2];
  DS_CHECK_SHAPE(op.b2 || !op.b3, kOp, "a second layer with the third",
                 "a third layer without a second");
  const int64_t layers = op.b3 ? 3 : op.b2 ? 2 : 1;
  DS_CHECK_SHAPE(op.h.shape[0] == layers && op.h.shape[1] == op.rows.shape[0], kOp,
                 text("h [", layers, ", ", op.rows.shape[0], ", R]"), op.h.describe());
  const View* const factors[] = {&op.b, &op.b2, &op.b3};
  const View* const ranks[] = {&op.ranks, &op.ranks2, &op.ranks3};
  const View* const outs[] = {&op.out, &op.out2, &op.out3};
  for (int64_t p = 0; p < layers; ++p) {
    check_adapter_layer(kOp, op.h, *factors[p], *ranks[p], slots);
    const View& out = *outs[p];
    DS_CHECK_SHAPE(static_cast<bool>(out), kOp, "an output with each factor",
                   "a factor without an output");
    DS_CHECK_SHAPE(out.ndim == 2 && out.shape[0] == op.out.shape[0] && has_contiguous_rows(out),
                   kOp, text("out [", op.out.shape[0], ", M] with last stride 1"),
                   describe_strides(out));
    require_same_dtype(kOp, op.h, out);
    DS_CHECK_SHAPE(factors[p]->shape[1] == out.shape[1] && factors[p]->shape[2] == rank, kOp,
                   text("b [", slots, ", ", out.shape[1], ", ", rank, "]"), factors[p]->describe());
  }
}

inline void check(const AdapterSum& op) {
  constexpr const char* kOp = "adapter_sum";
  DS_CHECK_SHAPE(op.wide.ndim == 2, kOp, "wide [N, C]", op.wide.describe());
  require_floating(kOp, op.wide);
  require_contiguous(kOp, op.wide, "wide");
  check_adapter_lists(kOp, op.rows, op.tiles);
  DS_CHECK_SHAPE(op.b.ndim == 3, kOp, "b [S, M, R]", op.b.describe());
  DS_CHECK_SHAPE(op.b2 || !op.b3, kOp, "a second layer with the third",
                 "a third layer without a second");
  const int64_t layers = op.b3 ? 3 : op.b2 ? 2 : 1, slots = op.b.shape[0], rank = op.b.shape[2];
  DS_CHECK_SHAPE(!op.gated || layers == 2, kOp, "two layers (gate and up) with gated",
                 text(layers));
  const View* const factors[] = {&op.b, &op.b2, &op.b3};
  const View* const ranks[] = {&op.ranks, &op.ranks2, &op.ranks3};
  int64_t outputs = 0;
  for (int64_t p = 0; p < layers; ++p) {
    check_adapter_layer(kOp, op.wide, *factors[p], *ranks[p], slots);
    const bool fits =
        factors[p]->shape[2] == rank && (!op.gated || factors[p]->shape[1] == op.b.shape[1]);
    DS_CHECK_SHAPE(fits, kOp,
                   text("factors of rank ", rank, op.gated ? " and equal output sizes" : ""),
                   factors[p]->describe());
    outputs += factors[p]->shape[1];
  }
  if (op.next) {
    DS_CHECK_SHAPE(op.next.ndim == 2, kOp, "next [any, any]", op.next.describe());
    require_contiguous(kOp, op.next, "next");
  }
  const int64_t columns = outputs + layers * slots * rank;
  DS_CHECK_SHAPE(op.wide.shape[1] == columns, kOp, text("wide [N, ", columns, "]"),
                 op.wide.describe());
  const int64_t width = op.gated ? op.b.shape[1] : outputs;
  DS_CHECK_SHAPE(op.out.ndim == 2 && op.out.shape[0] == op.wide.shape[0] &&
                     op.out.shape[1] == width && has_contiguous_rows(op.out),
                 kOp, text("out [", op.wide.shape[0], ", ", width, "] with last stride 1"),
                 describe_strides(op.out));
  require_same_dtype(kOp, op.wide, op.out);
}

}  // namespace ds
