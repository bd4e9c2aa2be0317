// Copy on the CPU: memory copies if both sides are dense, tiles for transposes, blocks for casts.
#include "copy.h"

#include "../cpu/map.h"

namespace ds::cpu {
namespace {

constexpr const char* kOp = "copy";
constexpr int64_t kTile = 16;  // elements; both sides of a tile fit the L1 cache

/// Returns the dim along which `in` is dense and `out` is not, or 0.
int transposed_dim(const Walk<2>& walk) {
  if (walk.strides[0][0] != 1 || walk.strides[1][0] <= 1 || walk.shape[0] < kTile) return 0;
  for (int d = 1; d < walk.ndim; ++d)
    if (walk.strides[1][d] == 1 && walk.shape[d] >= kTile) return d;
  return 0;
}

/// Copies tiles of the dims 0 and `dim`, so that both sides use their cache lines completely.
template <class W>
void transpose(W* out, const W* in, const Walk<2>& walk, int dim, CpuContext& ctx) {
  const int64_t cols = walk.shape[0], rows = walk.shape[dim];
  const int64_t in_stride = walk.strides[1][0], out_stride = walk.strides[0][dim];
  const int64_t row_tiles = (rows + kTile - 1) / kTile;
  const int64_t batches = walk.numel / (rows * cols);
  ctx.pool.parallel_for(batches * row_tiles, std::max<int64_t>(1, kElementGrain / (kTile * cols)),
                        [&](int64_t begin, int64_t end) {
                          for (int64_t item = begin; item < end; ++item) {
                            int64_t rest = item / row_tiles, to = 0, from = 0;
                            for (int d = 1; d < walk.ndim; ++d) {
                              if (d == dim) continue;
                              to += rest % walk.shape[d] * walk.strides[0][d];
                              from += rest % walk.shape[d] * walk.strides[1][d];
                              rest /= walk.shape[d];
                            }
                            const int64_t row = item % row_tiles * kTile,
                                          row_end = std::min(rows, row + kTile);
                            for (int64_t col = 0; col < cols; col += kTile) {
                              const int64_t col_end = std::min(cols, col + kTile);
                              for (int64_t r = row; r < row_end; ++r)
                                for (int64_t c = col; c < col_end; ++c)
                                  out[to + r * out_stride + c] = in[from + r + c * in_stride];
                            }
                          }
                        });
}

/// Copies words of the element's size, for any dtype.
template <class W>
void move(const Copy& op, const Walk<2>& walk, CpuContext& ctx) {
  W* const out = op.out.as<W>();
  const W* const in = op.in.as<W>();
  if (const int dim = transposed_dim(walk)) return transpose(out, in, walk, dim, ctx);
  const int64_t out_stride = walk.strides[0][0], in_stride = walk.strides[1][0];
  for_each_run(ctx, walk, [&](const int64_t(&at)[2], int64_t n) {
    W* const to = out + at[0];
    const W* const from = in + at[1];
    if (out_stride == 1 && in_stride == 1)
      std::memcpy(to, from, static_cast<size_t>(n) * sizeof(W));
    else if (out_stride == 1 && in_stride == 0) std::fill_n(to, n, *from);
    else
      for (int64_t i = 0; i < n; ++i) to[i * out_stride] = from[i * in_stride];
  });
}

template <class Out, class In>
void cast(const Copy& op, const Walk<2>& walk, CpuContext& ctx) {
  const int64_t out_stride = walk.strides[0][0], in_stride = walk.strides[1][0];
  for_each_run(ctx, walk, [&](const int64_t(&at)[2], int64_t length) {
    compute_t<In> buffer[kBlock];
    for (int64_t i = 0; i < length; i += kBlock) {
      const int64_t n = std::min(kBlock, length - i);
      const In* const from = op.in.as<In>() + at[1] + i * in_stride;
      store_block(load_block(from, in_stride, n, buffer), op.out.as<Out>() + at[0] + i * out_stride,
                  out_stride, n);
    }
  });
}

}  // namespace

void run(const Copy& op, CpuContext& ctx) {
  if (op.out.numel() == 0) return;
  const View* const views[2] = {&op.out, &op.in};
  const Walk<2> walk = plan_walk(views);
  if (op.in.dtype == op.out.dtype) {
    switch (size_of(op.out.dtype)) {
      case 1: return move<uint8_t>(op, walk, ctx);
      case 2: return move<uint16_t>(op, walk, ctx);
      case 4: return move<uint32_t>(op, walk, ctx);
      default: return move<uint64_t>(op, walk, ctx);
    }
  }
  for_all(kOp, op.out.dtype, [&](auto out_tag) {
    for_all(kOp, op.in.dtype, [&](auto in_tag) {
      using Out = typename decltype(out_tag)::type;
      using In = typename decltype(in_tag)::type;
      if constexpr (!std::is_same_v<Out, In>) cast<Out, In>(op, walk, ctx);
    });
  });
}

}  // namespace ds::cpu
