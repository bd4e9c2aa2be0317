// Fused scaled-dot-product attention, which never stores the T x S scores. Source: Dao et al. 2022,
// 2023 (FlashAttention 1 and 2).
#pragma once

#include <algorithm>
#include <initializer_list>

#include "../core/preconditions.h"
#include "dropout.h"
#include "score_cap.h"

namespace ds {

/// A mask value below this number hides its key, like minus infinity.
constexpr double kHidingNumber = -1e30;

/// Dropout of attention weights. Whether a weight is kept depends on (seed, offset) and its index
/// in [B, heads, T, S]. As in Dropout, samples are split over `ranks` ranks round-robin: this rank
/// has every `ranks`-th sample, and the heads from `head` on.
struct AttentionDropout {
  double p;  // [0, 1); 0 drops nothing
  int64_t seed;
  int64_t offset;
  int64_t sample;  // rows of the batch that form a sample, at least 1
  int64_t rank;    // [0, ranks)
  int64_t ranks;
  int64_t head;   // index of the first head here, among all heads
  int64_t heads;  // all heads of the random stream; 0: the heads of this call
};

/// Decides which weights of a head are kept. A Philox block serves two queries by two keys; the
/// weight of a query and key uses word (query % 2) * 2 + key % 2. So a thread uses two words of a
/// block, whether the kernel iterates over queries or keys.
struct WeightDraw {
  float p;
  uint64_t seed, offset, first, row;  // first: the head's first block; row: blocks of two queries

  DS_HOST_DEVICE Philox4 block(int64_t query, int64_t key) const {
    const uint64_t place = static_cast<uint64_t>(query / 2) * row + static_cast<uint64_t>(key / 2);
    return philox(seed, offset, first + place);
  }
  DS_HOST_DEVICE bool keeps(uint32_t word) const { return unit_float(word) >= p; }
};

/// Returns the draw of head h in row b of a batch of attentions of `queries` to `keys`.
DS_HOST_DEVICE WeightDraw weight_draw(const AttentionDropout& dropout, int64_t b, int64_t h,
                                      int64_t heads, int64_t queries, int64_t keys) {
  const int64_t row = (keys + 1) / 2;
  const int64_t row_of_all = dropout_place(b, dropout.sample, dropout.rank, dropout.ranks);
  const int64_t head = row_of_all * (dropout.heads ? dropout.heads : heads) + dropout.head + h;
  return {static_cast<float>(dropout.p), static_cast<uint64_t>(dropout.seed),
          static_cast<uint64_t>(dropout.offset),
          static_cast<uint64_t>(head * ((queries + 1) / 2) * row), static_cast<uint64_t>(row)};
}

constexpr int64_t kLeastBlock = 16;  // rows and columns of a fragment, which is hidden as a whole

/// For each block of queries of a head, one bit per block of keys: 1 if it is seen. A block has a
/// power of two of tokens, at least kLeastBlock, so that a fragment of scores is in one block.
struct BlockLayout {
  const uint32_t* words;  // null if all blocks are seen
  int64_t head_stride;    // words; 0 if all heads share a layout
  int64_t rows;           // blocks of queries
  int64_t row_words;
  int shift;  // log2 of the tokens of a block

  DS_HOST_DEVICE uint32_t word(int64_t head, int64_t query, int64_t key) const {
    const int64_t row = query >> shift, last = rows - 1;
    return words[head * head_stride + (row < last ? row : last) * row_words + (key >> shift) / 32];
  }
  DS_HOST_DEVICE int bit(int64_t key) const { return static_cast<int>((key >> shift) % 32); }

  /// Returns true if any of `queries` queries from `query` on may see any of `keys` keys from `key`
  /// on. Each count is a power of two up to 128, and its first index is a multiple of it.
  DS_HOST_DEVICE bool meet(int64_t head, int64_t query, int64_t queries, int64_t key,
                           int64_t keys) const {
    if (words == nullptr) return true;
    const int first = bit(key), last = bit(key + keys - 1);
    const uint32_t wanted = ((uint32_t{2} << (last - first)) - 1) << first;
    for (int64_t at = query; at < query + queries; at += int64_t{1} << shift)
      if (word(head, at, key) & wanted) return true;
    return false;
  }
};

/// Computes out = dropout(softmax(scale q k^T + masks)) v. Query head h uses key head h / (H / Hk),
/// where H is a multiple of Hk. A query sees a key if each given condition allows it:
///
///     causal      key s <= t + (S - T) for query t; S > T is a key cache
///     masks       bool: true means seen; numbers are added to the scaled scores, and a number
///                 below kHidingNumber hides
///     documents   the key is of the query's document; a negative document is padding, which sees
///                 nothing and is seen by nothing
///     window w    s > t + (S - T) - w and, unless causal, s < t + (S - T) + w
///     layout      the bit of the key's block is set in the row of the query's block
///
/// With a `cap`, a scaled score s becomes cap tanh(s / cap) before the masks (Gemma 2).
///
/// If a query sees no key, its output is 0. Scores and sums are f32 (f64 for f64).
struct Attention {
  View q;    // [B, H, T, D], last stride 1, other strides free (a packed QKV needs no copy)
  View k;    // [B, Hk, S, D]
  View v;    // [B, Hk, S, D]
  View out;  // [B, H, T, D], last stride 1
  View lse;  // [B, H, T] f32 (f64 for f64) contiguous: log of the sum of exponentials, for the
             // backward
  OptionalView mask;      // [B, H, T, S] bool, f32 or like q; any strides, 0 where it repeats
  OptionalView key_mask;  // [B, S] of the same dtypes, any strides: for all heads and queries
  OptionalView
      key_lengths;  // [B] i32 contiguous: keys from there on are hidden; above S it means all S
  OptionalView query_documents;  // [B, T] i32, any strides; with key_documents or not at all
  OptionalView key_documents;    // [B, S] i32
  OptionalView layout;           // [H or 1, n, ceil(n / 32)] i32 contiguous, n = ceil(T / block),
                                 // T = S: bit j % 32 of word j / 32 belongs to key block j
  AttentionDropout dropout;      // kept weights are multiplied by 1 / (1 - p)
  double scale;
  double cap;      // bound of the scores; 0: none. Allows bool masks and no dropout
  int64_t window;  // 0: none
  int64_t block;   // tokens of a block of the layout
  bool causal;
};

/// Query t sees the keys from t + (S - T) - before to t + (S - T) + after, as far as they exist.
struct AttentionBand {
  int64_t before, after;
};

template <class Op>
AttentionBand band_of(const Op& op) {
  const int64_t queries = op.q.shape[2], keys = op.k.shape[2];
  const int64_t reach = op.window > 0 ? op.window - 1 : std::max(queries, keys);
  return {std::min(reach, keys), op.causal ? 0 : std::min(reach, queries)};
}

template <class Op>
BlockLayout layout_of(const Op& op) {
  const View& layout = op.layout;
  if (!layout) return {};
  int shift = 0;
  while (int64_t{1} << shift < op.block) ++shift;
  const int64_t rows = layout.shape[1], row_words = layout.shape[2];
  const int64_t head_stride = layout.shape[0] == 1 ? 0 : rows * row_words;
  return {layout.template as<uint32_t>(), head_stride, rows, row_words, shift};
}

/// Checks that `v` is [B, H, rows, D] with last stride 1 and the dtype of `like`.
inline void check_heads(const char* name, const View& v, const char* what, const View& like) {
  require_rows(name, v, 4, what, "[B, H, rows, D]");
  require_same_dtype(name, like, v);
}

/// Like check_heads(), and checks that the shape is that of `like`.
inline void check_heads_like(const char* name, const View& v, const char* what, const View& like) {
  check_heads(name, v, what, like);
  require_same_shape(name, like, v);
}

/// Checks that `mask` is absent, or [sizes] of bool, f32 or the dtype of `q`.
inline void check_mask(const char* name, const View& mask, const char* what,
                       std::initializer_list<int64_t> sizes, const View& q) {
  if (!mask) return;
  View expected = mask;
  expected.ndim = static_cast<int32_t>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), expected.shape);
  DS_CHECK_SHAPE(mask.same_shape(expected), name, text(what, " ", expected.describe()),
                 mask.describe());
  if (mask.dtype != DType::boolean && mask.dtype != DType::f32 && mask.dtype != q.dtype)
    unsupported(name, mask.dtype, text("bool, f32 or ", name_of(q.dtype), " as ", what).c_str());
}

/// Checks that `documents` is absent, or [rows, tokens] i32.
inline void check_documents(const char* name, const View& documents, const char* what, int64_t rows,
                            int64_t tokens) {
  if (!documents) return;
  require_dtype(name, documents, DType::i32, what);
  const int64_t* const shape = documents.shape;
  DS_CHECK_SHAPE(documents.ndim == 2 && shape[0] == rows && shape[1] == tokens, name,
                 text(what, " [", rows, ", ", tokens, "]"), documents.describe());
}

/// Checks that `layout` is absent, or valid for H heads or one shared head, with T queries and T
/// keys.
template <class Op>
void check_layout(const char* name, const Op& op) {
  const View& layout = op.layout;
  if (!layout) return;
  require_dtype(name, layout, DType::i32, "layout");
  require_contiguous(name, layout, "layout");
  const int64_t block = op.block;
  if (block < kLeastBlock || (block & (block - 1)) != 0)
    throw Error("DS_ARGUMENT", name,
                text("a block of the layout that is a power of two and at least ", kLeastBlock),
                text(block));
  const int64_t heads = op.q.shape[1], queries = op.q.shape[2], keys = op.k.shape[2];
  DS_CHECK_SHAPE(queries == keys, name, "as many keys as queries with a layout",
                 text(queries, " queries, ", keys, " keys"));
  const int64_t n = (queries + block - 1) / block;
  const int64_t* const shape = layout.shape;
  DS_CHECK_SHAPE(layout.ndim == 3 && (shape[0] == 1 || shape[0] == heads) && shape[1] == n &&
                     shape[2] == (n + 31) / 32,
                 name, text("layout [", heads, " or 1, ", n, ", ", (n + 31) / 32, "]"),
                 layout.describe());
}

/// Checks that the `count` heads of this call are within all heads of the dropout.
inline void check_drawn_heads(const char* name, const AttentionDropout& dropout, int64_t count) {
  const int64_t heads = dropout.heads ? dropout.heads : count;
  if (dropout.head >= 0 && dropout.head + count <= heads) return;
  throw Error("DS_ARGUMENT", name,
              text("head with ", count, " heads from it on, of ", heads, " in all"),
              text("head ", dropout.head));
}

/// Checks that nothing else changes capped scores or weights: the gradient would need the score
/// before the mask, or the weight before dropout.
template <class Op>
void check_capped(const char* name, const Op& op) {
  check_cap(name, op.cap, op.scale);
  if (op.cap == 0) return;
  for (const View* mask :
       {static_cast<const View*>(&op.mask), static_cast<const View*>(&op.key_mask)})
    if (*mask && mask->dtype != DType::boolean)
      unsupported(name, mask->dtype, "bool as a mask of capped scores");
  if (op.dropout.p > 0)
    throw Error("DS_ARGUMENT", name, "no dropout with a cap", text("p = ", op.dropout.p));
}

/// Preconditions of the forward and the backward.
template <class Op>
void check_attention(const char* name, const Op& op) {
  require_floating(name, op.q);
  check_heads(name, op.q, "q", op.q);
  check_heads(name, op.k, "k", op.q);
  check_heads_like(name, op.v, "v", op.k);
  check_heads_like(name, op.out, "out", op.q);
  const int64_t* const q = op.q.shape;
  const int64_t* const k = op.k.shape;
  DS_CHECK_SHAPE(k[0] == q[0] && k[3] == q[3], name,
                 text("k with the batch and head dim of q ", op.q.describe()), op.k.describe());
  DS_CHECK_SHAPE(q[1] == 0 || (k[1] > 0 && q[1] % k[1] == 0), name,
                 "query heads a multiple of key heads",
                 text(q[1], " query heads, ", k[1], " key heads"));
  check_mask(name, op.mask, "mask", {q[0], q[1], q[2], k[2]}, op.q);
  check_mask(name, op.key_mask, "key_mask", {q[0], k[2]}, op.q);
  if (op.key_lengths) require_list(name, op.key_lengths, q[0], DType::i32, "key_lengths");
  DS_CHECK_SHAPE(bool(op.query_documents) == bool(op.key_documents), name,
                 "query_documents and key_documents, or neither",
                 op.query_documents ? "query_documents only" : "key_documents only");
  check_documents(name, op.query_documents, "query_documents", q[0], q[2]);
  check_documents(name, op.key_documents, "key_documents", q[0], k[2]);
  if (op.window < 0)
    throw Error("DS_ARGUMENT", name, "a window of 0 (none) or more", text(op.window));
  check_layout(name, op);
  check_capped(name, op);
  check_dropout(name, op.dropout);
  check_drawn_heads(name, op.dropout, q[1]);
  const View& lse = op.lse;
  DS_CHECK_SHAPE(lse.ndim == 3 && std::equal(q, q + 3, lse.shape), name,
                 text("lse [", q[0], ", ", q[1], ", ", q[2], "]"), lse.describe());
  require_dtype(name, lse, statistic_of(op.q.dtype), "lse");
  require_contiguous(name, lse, "lse");
}

inline void check(const Attention& op) { check_attention("attention", op); }

/// Computes the gradients dq, dk and dv, which may be slices of a packed buffer. Masks get no
/// gradient. (The statistic of a row that kernels call delta is sum(out * dout).)
struct AttentionBackward {
  View q;  // as in the forward
  View k;
  View v;
  View out;           // the forward's result
  View dout;          // [B, H, T, D], last stride 1
  View lse;           // the forward's
  View dq;            // like q
  View dk;            // like k
  View dv;            // like v
  OptionalView mask;  // as in the forward; they get no gradient
  OptionalView key_mask;
  OptionalView key_lengths;
  OptionalView query_documents;
  OptionalView key_documents;
  OptionalView layout;
  AttentionDropout dropout;
  double scale;
  double cap;
  int64_t window;
  int64_t block;
  bool causal;
};

inline void check(const AttentionBackward& op) {
  constexpr const char* kOp = "attention_backward";
  check_attention(kOp, op);
  check_heads_like(kOp, op.dout, "dout", op.q);
  check_heads_like(kOp, op.dq, "dq", op.q);
  check_heads_like(kOp, op.dk, "dk", op.k);
  check_heads_like(kOp, op.dv, "dv", op.k);
}

}  // namespace ds
