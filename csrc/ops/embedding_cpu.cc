// Embedding lookup on the CPU, and its gradient by a stable counting sort of the indices.
#include "embedding.h"

#include <vector>

#include "../cpu/index_check.h"
#include "../cpu/map.h"

namespace ds::cpu {
namespace {

int64_t row_grain(int64_t columns) {
  return std::max<int64_t>(1, kElementGrain / std::max<int64_t>(columns, 1));
}

/// The positions of each index v in ascending order: positions[starts[v]] to positions[starts[v +
/// 1] - 1].
struct Occurrences {
  std::vector<int64_t> starts, positions;
};

template <class I>
Occurrences occurrences(const char* name, const View& index, int64_t rows) {
  const I* const values = index.as<I>();
  const int64_t n = index.numel();
  Occurrences result;
  result.starts.assign(static_cast<size_t>(rows) + 2, 0);
  result.positions.resize(static_cast<size_t>(n));
  // Counts are stored two entries later, so that filling the positions turns them into the starts.
  for (int64_t i = 0; i < n; ++i) {
    require_index(name, values[i], rows, "the table's rows");
    ++result.starts[static_cast<size_t>(values[i]) + 2];
  }
  for (size_t v = 2; v < result.starts.size(); ++v) result.starts[v] += result.starts[v - 1];
  for (int64_t i = 0; i < n; ++i)
    result.positions[static_cast<size_t>(result.starts[static_cast<size_t>(values[i]) + 1]++)] = i;
  return result;
}

/// Computes rows [begin, end) of dweight: the sum of the rows of dout at its positions, rounded
/// once.
template <class T>
void sum_rows(const EmbeddingBackward& op, const Occurrences& where, int64_t begin, int64_t end) {
  using C = compute_t<T>;
  const int64_t columns = op.dweight.shape[1];
  std::vector<C> sum(static_cast<size_t>(columns)), row(static_cast<size_t>(columns));
  for (int64_t v = begin; v < end; ++v) {
    T* const out = op.dweight.as<T>() + v * columns;
    const int64_t first = where.starts[static_cast<size_t>(v)];
    const int64_t last = where.starts[static_cast<size_t>(v) + 1];
    if (first == last) {
      if (!op.accumulate) std::fill_n(out, columns, convert<T>(C(0)));
      continue;
    }
    std::fill(sum.begin(), sum.end(), C(0));
    const auto add = [&](const T* source) {
      const C* const x = load_block(source, 1, columns, row.data());
      apply_block(
          sum.data(), columns, [](C a, C b) { return a + b; }, sum.data(), x);
    };
    for (int64_t k = first; k < last; ++k)
      add(op.dout.as<T>() + where.positions[static_cast<size_t>(k)] * columns);
    if (op.accumulate) add(out);
    narrow(sum.data(), out, columns);
  }
}

}  // namespace

void run(const Embedding& op, CpuContext& ctx) {
  constexpr const char* kOp = "embedding";
  const int64_t n = op.index.shape[0], rows = op.weight.shape[0], columns = op.weight.shape[1];
  const size_t element = size_of(op.out.dtype), bytes = static_cast<size_t>(columns) * element;
  for_all(kOp, op.out.dtype, [](auto) {});
  dispatch_index(kOp, op.index.dtype, [&](auto tag) {
    using I = typename decltype(tag)::type;
    ctx.pool.parallel_for(n, row_grain(columns), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t v = op.index.as<I>()[i];
        require_index(kOp, v, rows, "the table's rows");
        const int64_t from = v * op.weight.strides[0] * static_cast<int64_t>(element);
        char* const to = op.out.as<char>() + static_cast<size_t>(i) * bytes;
        if (bytes > 0) std::memcpy(to, op.weight.as<char>() + from, bytes);
      }
    });
  });
}

void run(const EmbeddingBackward& op, CpuContext& ctx) {
  constexpr const char* kOp = "embedding_backward";
  const int64_t rows = op.dweight.shape[0];
  for_floating(kOp, op.dweight.dtype, [&](auto tag) {
    dispatch_index(kOp, op.index.dtype, [&](auto index) {
      const Occurrences where = occurrences<typename decltype(index)::type>(kOp, op.index, rows);
      ctx.pool.parallel_for(rows, row_grain(op.dweight.shape[1]), [&](int64_t begin, int64_t end) {
        sum_rows<typename decltype(tag)::type>(op, where, begin, end);
      });
    });
  });
}

}  // namespace ds::cpu
