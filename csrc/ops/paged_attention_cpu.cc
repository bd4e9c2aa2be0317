// Paged attention on the CPU, for one query and group of heads at a time, or for a block of queries
// if invariant. Sums follow the order of tokens, so the result does not depend on blocks or other
// sequences.
#include "paged_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "../core/exponential.h"
#include "../cpu/few_rows.h"
#include "../cpu/index_check.h"
#include "../cpu/rows.h"
#include "../cpu/strided.h"
#include "fp8.h"

namespace ds::cpu {
namespace {

/// Computes addresses of the rows of a pool.
struct PoolRows {
  int64_t blocks, heads, block, d;

  explicit PoolRows(const View& pool)
      : blocks(pool.shape[0]), heads(pool.shape[2]), block(pool.shape[3]), d(pool.shape[4]) {}

  /// Returns the index of the first element of `row` in block b, among the keys (0) or values (1)
  /// of a head.
  int64_t at(int64_t b, int64_t which, int64_t head, int64_t row) const {
    return (((b * 2 + which) * heads + head) * block + row) * d;
  }
};

/// A query: its sequence, and the range of tokens that it sees.
struct Query {
  int32_t sequence;
  int64_t first, end;
};

void require(bool holds, const char* expected, int64_t got, int64_t sequence) {
  if (holds) return;
  throw Error("DS_INDEX", "paged_attention", text(expected, " in sequence ", sequence), text(got));
}

/// Checks the indices and returns the queries. Throws DS_INDEX.
std::vector<Query> queries_of(const PagedAttention& op) {
  const int64_t rows = op.q.shape[0], most = op.tables.shape[1] * op.pool.shape[3];
  const auto *starts = op.starts.as<int32_t>(), *lengths = op.lengths.as<int32_t>();
  std::vector<Query> out;
  out.reserve(static_cast<size_t>(rows));
  for (int64_t s = 0; s < op.tables.shape[0]; ++s) {
    const int64_t count = int64_t{starts[s + 1]} - starts[s], length = lengths[s];
    require(count >= 0 && count <= op.longest, text("0 to ", op.longest, " queries").c_str(), count,
            s);
    require(length <= most && (length == 0 || length >= count),
            text(count, " to ", most, " tokens").c_str(), length, s);
    const auto* table = op.tables.as<int32_t>() + s * op.tables.strides[0];
    for (int64_t b = 0; b * op.pool.shape[3] < length; ++b)
      require_index("paged_attention", table[b], op.pool.shape[0], "the pool");
    for (int64_t i = 0; i < count; ++i) {
      const int64_t end = length == 0 ? 0 : length - count + i + 1;
      const int64_t first = op.window > 0 ? std::max<int64_t>(0, end - op.window) : 0;
      out.push_back({static_cast<int32_t>(s), first, end});
    }
  }
  require(static_cast<int64_t>(out.size()) == rows, text(rows, " queries in all sequences").c_str(),
          static_cast<int64_t>(out.size()), op.tables.shape[0] - 1);
  return out;
}

/// The keys or values of a sequence in a head, row by row, in the compute type.
template <class T>
class SequenceRows {
 public:
  SequenceRows(const PagedAttention& op, int64_t sequence, int64_t which, int64_t head)
      : rows_(op.pool),
        pool_(op.pool),
        which_(which),
        head_(head),
        table_(op.tables.as<int32_t>() + sequence * op.tables.strides[0]),
        wide_(std::is_same_v<T, compute_t<T>> && !is_coded() ? 0 : static_cast<size_t>(rows_.d)) {}

  /// Returns the row of a token, valid until the next call.
  const compute_t<T>* row(int64_t token) {
    const int64_t at = rows_.at(table_[token / rows_.block], which_, head_, token % rows_.block);
    if (is_coded()) {
      const uint8_t* const codes = pool_.as<uint8_t>() + at;
      for (int64_t i = 0; i < rows_.d; ++i)
        wide_[static_cast<size_t>(i)] = fp8_value(codes[i], Fp8Format::e4m3);
      return wide_.data();
    }
    const T* from = pool_.as<T>() + at;
    if constexpr (std::is_same_v<T, compute_t<T>>) return from;
    else {
      widen(from, wide_.data(), rows_.d);
      return wide_.data();
    }
  }

 private:
  bool is_coded() const { return pool_.dtype == DType::u8; }

  PoolRows rows_;
  const View& pool_;
  int64_t which_, head_;
  const int32_t* table_;
  std::vector<compute_t<T>> wide_;
};

/// Scratch of a thread for a query: its group of heads, their scores and their sums.
template <class C>
struct Scratch {
  std::vector<C> q, scores, sum;
};

/// Returns the logit of a head's sink, or -infinity if there are no sinks.
template <class T>
compute_t<T> sink_of(const PagedAttention& op, int64_t head) {
  using C = compute_t<T>;
  return op.sinks ? static_cast<C>(op.sinks.as<T>()[head]) : -std::numeric_limits<C>::infinity();
}

/// Bounds scores [keys] by `cap`, if it is not 0. Turns them into weights that add up to 1 together
/// with the weight of `sink`. Returns the log-sum-exp of the scores.
template <class C>
C softmax(C* scores, int64_t keys, C sink, C cap) {
  cap_scores(scores, keys, cap);
  const C largest = max_of(scores, keys);
  for (int64_t j = 0; j < keys; ++j) scores[j] = exp_of(scores[j] - largest);
  const C sum = sum_of<C>(keys, [&](int64_t j) { return scores[j]; });
  const C inverse = C(1) / (sum + exp_of(sink - largest));
  for (int64_t j = 0; j < keys; ++j) scores[j] *= inverse;
  return largest + std::log(sum);
}

template <class T>
void attend(const PagedAttention& op, const Query& query, int64_t n, int64_t head,
            Scratch<compute_t<T>>& x) {
  using C = compute_t<T>;
  const int64_t d = op.q.shape[2], group = op.q.shape[1] / op.pool.shape[2];
  const int64_t keys = query.end - query.first;
  x.q.resize(static_cast<size_t>(group * d));
  x.scores.resize(static_cast<size_t>(group * keys));
  x.sum.assign(static_cast<size_t>(group * d), C(0));
  const auto row_of = [&](const View& v, int64_t g) {
    return v.as<T>() + n * v.strides[0] + (head * group + g) * v.strides[1];
  };
  for (int64_t g = 0; g < group; ++g) {
    C* const q = x.q.data() + g * d;
    widen(row_of(op.q, g), q, d);
    for (int64_t i = 0; i < d; ++i) q[i] *= static_cast<C>(op.scale);
  }
  SequenceRows<T> k(op, query.sequence, 0, head), v(op, query.sequence, 1, head);
  for (int64_t j = 0; j < keys; ++j) {
    const C* const key = k.row(query.first + j);
    for (int64_t g = 0; g < group; ++g) {
      const C* const q = x.q.data() + g * d;
      x.scores[static_cast<size_t>(g * keys + j)] =
          sum_of<C>(d, [&](int64_t i) { return q[i] * key[i]; });
    }
  }
  for (int64_t g = 0; g < group; ++g) {
    const C lse = keys > 0 ? softmax(x.scores.data() + g * keys, keys,
                                     sink_of<T>(op, head * group + g), static_cast<C>(op.cap))
                           : -std::numeric_limits<C>::infinity();
    if (op.lse) op.lse.as<C>()[n * op.q.shape[1] + head * group + g] = lse;
  }
  for (int64_t j = 0; j < keys; ++j) {
    const C* const value = v.row(query.first + j);
    for (int64_t g = 0; g < group; ++g) {
      const C weight = x.scores[static_cast<size_t>(g * keys + j)];
      C* const sum = x.sum.data() + g * d;
      for (int64_t i = 0; i < d; ++i) sum[i] += weight * value[i];
    }
  }
  for (int64_t g = 0; g < group; ++g) narrow(x.sum.data() + g * d, row_of(op.out, g), d);
}

constexpr int64_t kQueryBlock = 16, kKeyBlock = 64;

/// Consecutive queries of a sequence: rows `begin` to `end`.
struct QueryBlock {
  int64_t begin, end;
};

std::vector<QueryBlock> blocks_of(const std::vector<Query>& queries) {
  std::vector<QueryBlock> out;
  for (int64_t n = 0; n < static_cast<int64_t>(queries.size()); ++n) {
    const bool joins = !out.empty() && n - out.back().begin < kQueryBlock &&
                       queries[static_cast<size_t>(out.back().begin)].sequence ==
                           queries[static_cast<size_t>(n)].sequence;
    if (joins) out.back().end = n + 1;
    else out.push_back({n, n + 1});
  }
  return out;
}

/// Scratch of a thread for a block of queries. Rows of `values` and `sum` are padded with zeros to
/// a multiple of kSumWidth.
template <class C>
struct BlockScratch {
  std::vector<C> q, scores, sum, keys, values;  // keys: [D, kKeyBlock]; values: [kKeyBlock, D]
};

constexpr int64_t kSumWidth = 4 * kFloats;

/// Writes out[j] = sum of q[i] keys[i, j] over i, in the order of i.
inline void multiply_keys(const float* q, const float* keys, int64_t d, float* out) {
  Floats sums[kKeyBlock / kFloats] = {};
  for (int64_t i = 0; i < d; ++i) {
    const Floats qi = Floats{} + q[i];
    for (int64_t v = 0; v < kKeyBlock / kFloats; ++v)
      sums[v] = multiply_add(qi, load_floats(keys + i * kKeyBlock + v * kFloats), sums[v]);
  }
  std::memcpy(out, sums, sizeof sums);
}

inline void multiply_keys(const double* q, const double* keys, int64_t d, double* out) {
  std::fill_n(out, kKeyBlock, 0.0);
  for (int64_t i = 0; i < d; ++i)
    for (int64_t j = 0; j < kKeyBlock; ++j) out[j] += q[i] * keys[i * kKeyBlock + j];
}

/// Adds weights[j] values[j, c] to sum[c], for `count` rows of `width` elements, in the order of j.
inline void add_values(const float* weights, const float* values, int64_t count, int64_t width,
                       float* sum) {
  for (int64_t c = 0; c < width; c += kSumWidth) {
    Floats sums[4];
    std::memcpy(sums, sum + c, sizeof sums);
    for (int64_t j = 0; j < count; ++j) {
      const Floats weight = Floats{} + weights[j];
      for (int64_t v = 0; v < 4; ++v)
        sums[v] = multiply_add(weight, load_floats(values + j * width + c + v * kFloats), sums[v]);
    }
    std::memcpy(sum + c, sums, sizeof sums);
  }
}

inline void add_values(const double* weights, const double* values, int64_t count, int64_t width,
                       double* sum) {
  for (int64_t j = 0; j < count; ++j)
    for (int64_t c = 0; c < width; ++c) sum[c] += weights[j] * values[j * width + c];
}

/// Computes the attention of a block of queries and their group of heads. It sums a score in the
/// order of channels and an output in the order of tokens. So the bits of a query depend only on
/// its position.
template <class T>
void attend_block(const PagedAttention& op, const std::vector<Query>& queries,
                  const QueryBlock& block, int64_t head, BlockScratch<compute_t<T>>& x) {
  using C = compute_t<T>;
  const int64_t d = op.q.shape[2], group = op.q.shape[1] / op.pool.shape[2];
  const int64_t width = (d + kSumWidth - 1) / kSumWidth * kSumWidth;
  const Query& front = queries[static_cast<size_t>(block.begin)];
  const int64_t first = front.first / kKeyBlock * kKeyBlock;
  const int64_t end = queries[static_cast<size_t>(block.end - 1)].end;
  const int64_t span = (end - first + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
  const int64_t rows = (block.end - block.begin) * group;
  x.q.resize(static_cast<size_t>(rows * d));
  x.scores.resize(static_cast<size_t>(rows * span));
  x.sum.assign(static_cast<size_t>(rows * width), C(0));
  x.keys.assign(static_cast<size_t>(d * kKeyBlock), C(0));
  x.values.assign(static_cast<size_t>(kKeyBlock * width), C(0));
  const auto query_of = [&](int64_t r) -> const Query& {
    return queries[static_cast<size_t>(block.begin + r / group)];
  };
  const auto row_of = [&](const View& v, int64_t r) {
    return v.as<T>() + (block.begin + r / group) * v.strides[0] +
           (head * group + r % group) * v.strides[1];
  };
  for (int64_t r = 0; r < rows; ++r) {
    C* const q = x.q.data() + r * d;
    widen(row_of(op.q, r), q, d);
    for (int64_t i = 0; i < d; ++i) q[i] *= static_cast<C>(op.scale);
  }
  SequenceRows<T> k(op, front.sequence, 0, head), v(op, front.sequence, 1, head);
  for (int64_t from = first; from < end; from += kKeyBlock) {
    for (int64_t j = 0; j < std::min(kKeyBlock, end - from); ++j) {
      const C* const key = k.row(from + j);
      for (int64_t i = 0; i < d; ++i) x.keys[static_cast<size_t>(i * kKeyBlock + j)] = key[i];
    }
    for (int64_t r = 0; r < rows; ++r)
      if (query_of(r).end > from && query_of(r).first < from + kKeyBlock)
        multiply_keys(x.q.data() + r * d, x.keys.data(), d,
                      x.scores.data() + r * span + from - first);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t keys = query_of(r).end - query_of(r).first;
    C* const scores = x.scores.data() + r * span + query_of(r).first - first;
    const C lse = keys > 0 ? softmax(scores, keys, sink_of<T>(op, head * group + r % group),
                                     static_cast<C>(op.cap))
                           : -std::numeric_limits<C>::infinity();
    if (op.lse)
      op.lse.as<C>()[(block.begin + r / group) * op.q.shape[1] + head * group + r % group] = lse;
  }
  for (int64_t from = first; from < end; from += kKeyBlock) {
    for (int64_t j = 0; j < std::min(kKeyBlock, end - from); ++j)
      std::copy_n(v.row(from + j), d, x.values.data() + j * width);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t begin = std::max(from, query_of(r).first);
      const int64_t stop = std::min(from + kKeyBlock, query_of(r).end);
      if (begin < stop)
        add_values(x.scores.data() + r * span + begin - first,
                   x.values.data() + (begin - from) * width, stop - begin, width,
                   x.sum.data() + r * width);
    }
  }
  for (int64_t r = 0; r < rows; ++r) narrow(x.sum.data() + r * width, row_of(op.out, r), d);
}

template <class T>
void store(const View& rows, int64_t n, int64_t which, const PoolRows& place,
           const PagedStore& op) {
  const int32_t slot = op.slots.as<int32_t>()[n];
  for (int64_t h = 0; h < place.heads; ++h) {
    const T* const from = rows.as<T>() + n * rows.strides[0] + h * rows.strides[1];
    const int64_t at = place.at(slot / place.block, which, h, slot % place.block);
    if (op.pool.dtype != DType::u8) {
      std::copy_n(from, place.d, op.pool.as<T>() + at);
      continue;
    }
    for (int64_t i = 0; i < place.d; ++i)
      op.pool.as<uint8_t>()[at + i] =
          fp8_code<Fp8Format::e4m3>(static_cast<float>(static_cast<compute_t<T>>(from[i])));
  }
}

}  // namespace

void run(const PagedStore& op, CpuContext& ctx) {
  const PoolRows place(op.pool);
  const auto* slots = op.slots.as<int32_t>();
  const int64_t tokens = op.k.shape[0], row = std::max<int64_t>(1, place.heads * place.d);
  for (int64_t n = 0; n < tokens; ++n)
    if (slots[n] >= 0)
      require_index("paged_store", slots[n], place.blocks * place.block, "the pool");
  for_floating("paged_store", op.k.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    ctx.pool.parallel_for(tokens, std::max<int64_t>(1, kElementGrain / row),
                          [&](int64_t begin, int64_t end) {
                            for (int64_t n = begin; n < end; ++n) {
                              if (slots[n] < 0) continue;
                              store<T>(op.k, n, 0, place, op);
                              store<T>(op.v, n, 1, place, op);
                            }
                          });
  });
}

/// Uses scratch for a score per key that a query sees, for the heads of a group.
void run(const PagedAttention& op, CpuContext& ctx) {
  const std::vector<Query> queries = queries_of(op);
  if (op.out.numel() == 0) return;
  const int64_t heads = op.pool.shape[2];
  if (op.invariant) {
    const std::vector<QueryBlock> blocks = blocks_of(queries);
    for_floating("paged_attention", op.q.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const auto count = static_cast<int64_t>(blocks.size()) * heads;
      ctx.pool.parallel_for(count, 1, [&](int64_t begin, int64_t end) {
        BlockScratch<compute_t<T>> x;
        for (int64_t i = begin; i < end; ++i)
          attend_block<T>(op, queries, blocks[static_cast<size_t>(i / heads)], i % heads, x);
      });
    });
    return;
  }
  int64_t seen = 1;
  for (const Query& query : queries) seen = std::max(seen, query.end - query.first);
  const int64_t work = seen * op.q.shape[1] / heads * op.q.shape[2];
  for_floating("paged_attention", op.q.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    ctx.pool.parallel_for(op.q.shape[0] * heads, std::max<int64_t>(1, kElementGrain / work),
                          [&](int64_t begin, int64_t end) {
                            Scratch<compute_t<T>> x;
                            for (int64_t i = begin; i < end; ++i)
                              attend<T>(op, queries[static_cast<size_t>(i / heads)], i / heads,
                                        i % heads, x);
                          });
  });
}

}  // namespace ds::cpu
