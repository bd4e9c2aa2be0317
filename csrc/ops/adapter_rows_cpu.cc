// Low-rank updates by several adapters on the CPU: a dot product per element, in a fixed order.
#include "adapter_rows.h"

#include <algorithm>
#include <vector>

#include "../cpu/index_check.h"
#include "../cpu/rows.h"
#include "unary_math.h"

namespace ds::cpu {
namespace {

/// An entry of a tile.
struct Entry {
  int64_t index, row, adapter;
};

/// Returns the entries of all tiles. Leaves out entries without an adapter unless `with_none`.
/// Throws DS_INDEX before anything is written.
std::vector<Entry> entries_of(const char* op, const View& rows, const View& tiles, int64_t count,
                              int64_t adapters, bool with_none = false) {
  std::vector<Entry> found;
  for (int64_t t = 0; t < tiles.shape[0]; ++t) {
    const int32_t* const tile = tiles.as<int32_t>() + t * 3;
    const int64_t first = tile[1], entries = tile[2];
    if (entries == 0) continue;
    if (entries < 0 || entries > kAdapterTile || first < 0 || first + entries > rows.shape[0])
      throw Error("DS_INDEX", op,
                  text("tiles of 0 to ", kAdapterTile, " of ", rows.shape[0], " entries"),
                  text(entries, " entries from ", first));
    const bool none = tile[0] == -1;
    if (!none) require_index(op, tile[0], adapters, "the adapters");
    for (int64_t e = first; e < first + entries; ++e) {
      require_index(op, rows.as<int32_t>()[e], count, "the rows");
      if (with_none || !none) found.push_back({e, rows.as<int32_t>()[e], tile[0]});
    }
  }
  return found;
}

void require_ranks(const char* op, const View& ranks, int64_t max_rank) {
  for (int64_t s = 0; s < ranks.shape[0]; ++s) {
    const int32_t rank = ranks.as<int32_t>()[s];
    if (rank >= 0 && rank <= max_rank) continue;
    throw Error("DS_INDEX", op, text("ranks from 0 to ", max_rank), text(rank));
  }
}

/// Runs `body` for each entry on the thread pool. `cost` is the number of products per entry.
template <class F>
void for_each_entry(CpuContext& ctx, const std::vector<Entry>& entries, int64_t cost, F body) {
  constexpr int64_t kProducts = 1 << 16;
  const int64_t grain = std::max<int64_t>(1, kProducts / std::max<int64_t>(1, cost));
  ctx.pool.parallel_for(static_cast<int64_t>(entries.size()), grain,
                        [&](int64_t begin, int64_t end) {
                          for (int64_t i = begin; i < end; ++i)
                            body(entries[static_cast<size_t>(i)]);
                        });
}

template <class T, class C>
C product(const C* row, const T* factor, int64_t n) {
  return sum_of<C>(n, [&](int64_t i) { return row[i] * static_cast<C>(factor[i]); });
}

template <class T>
void shrink(const AdapterShrink& op, const std::vector<Entry>& entries, CpuContext& ctx) {
  using C = compute_t<T>;
  const int64_t k = op.x.shape[1], max_rank = op.a.shape[1], count = op.rows.shape[0];
  const View* const factors[] = {&op.a, &op.a2, &op.a3};
  const View* const ranks[] = {&op.ranks, &op.ranks2, &op.ranks3};
  for_each_entry(ctx, entries, k * max_rank, [&](const Entry& entry) {
    std::vector<C> row(static_cast<size_t>(k)), sums(static_cast<size_t>(max_rank));
    widen(op.x.as<T>() + entry.row * k, row.data(), k);
    for (int64_t p = 0; p < op.h.shape[0]; ++p) {
      const T* const a = factors[p]->as<T>() + entry.adapter * max_rank * k;
      const int64_t rank = ranks[p]->as<int32_t>()[entry.adapter];
      std::fill(sums.begin(), sums.end(), C(0));
      for (int64_t j = 0; j < rank; ++j)
        sums[static_cast<size_t>(j)] = product<T>(row.data(), a + j * k, k);
      narrow(sums.data(), op.h.as<T>() + (p * count + entry.index) * max_rank, max_rank);
    }
  });
}

template <class T>
void expand(const AdapterExpand& op, const std::vector<Entry>& entries, CpuContext& ctx) {
  using C = compute_t<T>;
  const int64_t max_rank = op.h.shape[2], count = op.rows.shape[0];
  const View* const factors[] = {&op.b, &op.b2, &op.b3};
  const View* const ranks[] = {&op.ranks, &op.ranks2, &op.ranks3};
  const View* const outs[] = {&op.out, &op.out2, &op.out3};
  for_each_entry(ctx, entries, op.b.shape[1] * max_rank, [&](const Entry& entry) {
    std::vector<C> inner(static_cast<size_t>(max_rank)), sums;
    for (int64_t p = 0; p < op.h.shape[0]; ++p) {
      const int64_t m = factors[p]->shape[1], rank = ranks[p]->as<int32_t>()[entry.adapter];
      if (rank == 0) continue;
      const T* const b = factors[p]->as<T>() + entry.adapter * m * max_rank;
      T* const out = outs[p]->as<T>() + entry.row * outs[p]->strides[0];
      widen(op.h.as<T>() + (p * count + entry.index) * max_rank, inner.data(), max_rank);
      sums.resize(static_cast<size_t>(m));
      widen(out, sums.data(), m);
      for (int64_t c = 0; c < m; ++c)
        sums[static_cast<size_t>(c)] += product<T>(inner.data(), b + c * max_rank, rank);
      narrow(sums.data(), out, m);
    }
  });
}

template <class T>
void sum(const AdapterSum& op, const std::vector<Entry>& entries, CpuContext& ctx) {
  using C = compute_t<T>;
  const int64_t max_rank = op.b.shape[2], slots = op.b.shape[0], columns = op.wide.shape[1];
  const int64_t layers = op.b3 ? 3 : op.b2 ? 2 : 1, width = columns - layers * slots * max_rank;
  const View* const factors[] = {&op.b, &op.b2, &op.b3};
  const View* const ranks[] = {&op.ranks, &op.ranks2, &op.ranks3};
  for_each_entry(ctx, entries, width * max_rank, [&](const Entry& entry) {
    const T* const row = op.wide.as<T>() + entry.row * columns;
    std::vector<C> sums(static_cast<size_t>(width)), inner(static_cast<size_t>(max_rank));
    std::vector<T> rounded(static_cast<size_t>(width));
    widen(row, sums.data(), width);
    C* own = sums.data();
    for (int64_t p = 0; p < layers; own += factors[p++]->shape[1]) {
      if (entry.adapter < 0) continue;
      const int64_t m = factors[p]->shape[1], rank = ranks[p]->as<int32_t>()[entry.adapter];
      const T* const b = factors[p]->as<T>() + entry.adapter * m * max_rank;
      widen(row + width + (p * slots + entry.adapter) * max_rank, inner.data(), max_rank);
      for (int64_t c = 0; rank > 0 && c < m; ++c)
        own[c] += product<T>(inner.data(), b + c * max_rank, rank);
    }
    T* const out = op.out.as<T>() + entry.row * op.out.strides[0];
    narrow(sums.data(), op.gated ? rounded.data() : out, width);
    if (!op.gated) return;
    widen(rounded.data(), sums.data(), width);
    const int64_t half = width / 2;
    for (int64_t c = 0; c < half; ++c) {
      C& gate = sums[static_cast<size_t>(c)];
      gate = unary_value<UnaryOp::silu>(gate) * sums[static_cast<size_t>(half + c)];
    }
    narrow(sums.data(), out, half);
  });
}

}  // namespace

void run(const AdapterShrink& op, CpuContext& ctx) {
  constexpr const char* kOp = "adapter_shrink";
  for (const View* ranks :
       {&op.ranks, static_cast<const View*>(&op.ranks2), static_cast<const View*>(&op.ranks3)})
    if (*ranks) require_ranks(kOp, *ranks, op.a.shape[1]);
  const auto entries = entries_of(kOp, op.rows, op.tiles, op.x.shape[0], op.a.shape[0]);
  for_floating(kOp, op.x.dtype, [&]<class T>(TypeTag<T>) { shrink<T>(op, entries, ctx); });
}

void run(const AdapterExpand& op, CpuContext& ctx) {
  constexpr const char* kOp = "adapter_expand";
  for (const View* ranks :
       {&op.ranks, static_cast<const View*>(&op.ranks2), static_cast<const View*>(&op.ranks3)})
    if (*ranks) require_ranks(kOp, *ranks, op.h.shape[2]);
  const auto entries = entries_of(kOp, op.rows, op.tiles, op.out.shape[0], op.b.shape[0]);
  for_floating(kOp, op.h.dtype, [&]<class T>(TypeTag<T>) { expand<T>(op, entries, ctx); });
}

void run(const AdapterSum& op, CpuContext& ctx) {
  constexpr const char* kOp = "adapter_sum";
  for (const View* ranks :
       {&op.ranks, static_cast<const View*>(&op.ranks2), static_cast<const View*>(&op.ranks3)})
    if (*ranks) require_ranks(kOp, *ranks, op.b.shape[2]);
  const auto entries = entries_of(kOp, op.rows, op.tiles, op.wide.shape[0], op.b.shape[0], true);
  for_floating(kOp, op.wide.dtype, [&]<class T>(TypeTag<T>) { sum<T>(op, entries, ctx); });
}

}  // namespace ds::cpu
