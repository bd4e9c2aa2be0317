// Grouped products on the CPU: gathers rows, then runs a plain product per group.
#include "grouped_matmul.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "../cpu/index_check.h"
#include "../cpu/map.h"
#include "matmul.h"

namespace ds::cpu {

void run(const Matmul& op, CpuContext& ctx);

namespace {

/// Returns a view [rows, columns] at `data`.
View matrix_of(const View& like, void* data, int64_t rows, int64_t columns) {
  View v;
  v.data = data;
  v.dtype = like.dtype;
  v.ndim = 2;
  v.shape[0] = rows;
  v.shape[1] = columns;
  v.strides[0] = std::max<int64_t>(1, columns);
  v.strides[1] = 1;
  return v;
}

char* row_at(const View& v, int64_t row) {
  return v.as<char>() + row * v.shape[1] * static_cast<int64_t>(size_of(v.dtype));
}

char* group_at(const View& v, int64_t group) {
  const int64_t elements = v.shape[1] * v.shape[2];
  return v.as<char>() + group * elements * static_cast<int64_t>(size_of(v.dtype));
}

/// Checks groups and rows. Throws DS_INDEX before anything is written.
void require_groups(const char* op, const View& x, const OptionalView& rows, const View& offsets,
                    int64_t count) {
  const int32_t* const at = offsets.as<int32_t>();
  for (int64_t g = 0; g < offsets.shape[0]; ++g) {
    const int64_t least = g == 0 ? 0 : at[g - 1], most = g == 0 ? 0 : count;
    if (at[g] >= least && at[g] <= most) continue;
    throw Error("DS_INDEX", op, text("offsets that ascend from 0 to at most ", count),
                text(at[g], " as offset ", g));
  }
  for (int64_t r = 0; rows && r < count; ++r)
    if (rows.as<int32_t>()[r] != -1) require_index(op, rows.as<int32_t>()[r], x.shape[0], "x");
}

/// Returns rows first to first + count of the sorted x, copied to `gathered` unless they are
/// contiguous.
View rows_of(const View& x, const OptionalView& rows, int64_t first, int64_t count,
             std::vector<char>& gathered) {
  const int64_t width = x.shape[1];
  if (!rows) return matrix_of(x, row_at(x, first), count, width);
  const size_t bytes = static_cast<size_t>(width) * size_of(x.dtype);
  gathered.resize(std::max<size_t>(1, static_cast<size_t>(count) * bytes));
  for (int64_t r = 0; r < count; ++r) {
    const int32_t from = rows.as<int32_t>()[first + r];
    char* const to = gathered.data() + static_cast<size_t>(r) * bytes;
    if (from < 0) std::memset(to, 0, bytes);
    else std::memcpy(to, row_at(x, from), bytes);
  }
  return matrix_of(x, gathered.data(), count, width);
}

}  // namespace

void run(const GroupedMatmul& op, CpuContext& ctx) {
  constexpr const char* kOp = "grouped_matmul";
  const int64_t count = op.out.shape[0], n = op.out.shape[1], k = op.x.shape[1];
  require_groups(kOp, op.x, op.rows, op.offsets, count);
  for_floating(kOp, op.x.dtype, [](auto) {});
  const int32_t* const offsets = op.offsets.as<int32_t>();
  const int64_t groups = op.offsets.shape[0] - 1;
  std::vector<char> gathered;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t first = offsets[g], rows = offsets[g + 1] - first;
    if (rows == 0) continue;
    const View a = rows_of(op.x, op.rows, first, rows, gathered);
    const View b = op.plain ? matrix_of(op.weight, group_at(op.weight, g), k, n)
                            : matrix_of(op.weight, group_at(op.weight, g), n, k);
    const View out = matrix_of(op.out, row_at(op.out, first), rows, n);
    run(Matmul{a, b, {}, {}, out, false, !op.plain, MatmulEpilogue::none, false}, ctx);
  }
  const int64_t rows_after = count - offsets[groups];
  if (rows_after * n == 0) return;
  std::memset(row_at(op.out, offsets[groups]), 0,
              static_cast<size_t>(rows_after * n) * size_of(op.out.dtype));
}

void run(const GroupedWeightGradient& op, CpuContext& ctx) {
  constexpr const char* kOp = "grouped_weight_gradient";
  const int64_t n = op.dout.shape[1], k = op.x.shape[1];
  require_groups(kOp, op.x, op.rows, op.offsets, op.dout.shape[0]);
  for_floating(kOp, op.x.dtype, [](auto) {});
  const int32_t* const offsets = op.offsets.as<int32_t>();
  std::vector<char> gathered;
  for (int64_t g = 0; g + 1 < op.offsets.shape[0]; ++g) {
    const int64_t first = offsets[g], rows = offsets[g + 1] - first;
    const View b = rows_of(op.x, op.rows, first, rows, gathered);
    const View a = matrix_of(op.dout, row_at(op.dout, first), rows, n);
    const View out = matrix_of(op.dweight, group_at(op.dweight, g), n, k);
    if (out.numel() == 0) continue;
    run(Matmul{a, b, {}, {}, out, true, false, MatmulEpilogue::none, op.accumulate}, ctx);
  }
}

}  // namespace ds::cpu
