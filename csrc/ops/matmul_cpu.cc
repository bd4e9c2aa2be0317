// Matrix products on the CPU. Output tiles run in parallel: an OpenBLAS call (dot products for a
// few rows), then the epilogue.
#include "matmul.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "../cpu/blas.h"
#include "../cpu/few_rows.h"
#include "../cpu/rows.h"
#include "unary_math.h"

namespace ds::cpu {
namespace {

constexpr const char* kOp = "matmul";
constexpr int64_t kInlineFlops = 1 << 20;  // with less work, waking a thread does not pay
constexpr int64_t kTileFlops = 1 << 23;
constexpr int64_t kTileSide = 512, kTileSideMin = 64, kTargetTiles = 32;
constexpr int64_t kManyWeights = 1 << 16;
constexpr int64_t kInnerBlock = 512;  // columns of a and rows of b converted at a time
// Longer f32 sums are split into pieces that are added in f64, because a long sum accumulates
// rounding errors. OpenBLAS may split sums further, depending on processor and shape. Dot products
// keep eight partial sums, so their limit is higher. On Arm, OpenBLAS keeps fewer partial sums per
// row.
#ifdef __aarch64__
constexpr int64_t kPiece = 1 << 9;
#else
constexpr int64_t kPiece = 1 << 11;
#endif
constexpr int64_t kLongest = 1 << 14;
constexpr int64_t kFewRowsLongest = 1 << 16, kFewRowsPiece = 1 << 14;

/// The sizes of a call. `batch` is 1 for plain matrices.
struct Sizes {
  int64_t batch, m, n, k;
};

Sizes sizes_of(const Matmul& op) {
  return {op.out.ndim == 3 ? op.out.shape[0] : 1, op.out.size(-2), op.out.size(-1),
          op.a.size(op.trans_a ? -2 : -1)};
}

int64_t batch_stride(const View& v) { return v.ndim == 3 ? v.strides[0] : 0; }
int64_t row_stride(const View& v) { return v.strides[v.ndim - 2]; }

/// An operand with elements of type T, `rows` x `cols` after transposition.
template <class T>
struct Operand {
  const T* data;
  int64_t ld;
  bool transposed;

  const T* at(int64_t row, int64_t col) const {
    return transposed ? data + col * ld + row : data + row * ld + col;
  }

  /// Returns true if OpenBLAS can read it in place. Broadcast and very large row strides need a
  /// copy.
  bool direct(int64_t rows, int64_t cols) const {
    const int64_t length = transposed ? rows : cols;
    return std::is_same_v<T, compute_t<T>> && ld >= std::max<int64_t>(1, length) &&
           ld <= std::numeric_limits<int>::max();
  }

  Matrix<compute_t<T>> in_place(int64_t row, int64_t col) const {
    return {reinterpret_cast<const compute_t<T>*>(at(row, col)), ld, transposed};
  }

  /// Copies the block at (row, col) to `panel` in the compute type, in the same orientation.
  Matrix<compute_t<T>> widened(int64_t row, int64_t col, int64_t rows, int64_t cols,
                               compute_t<T>* panel) const {
    const int64_t lines = transposed ? cols : rows, length = transposed ? rows : cols;
    for (int64_t line = 0; line < lines; ++line)
      widen(at(row, col) + line * ld, panel + line * length, length);
    return {panel, std::max<int64_t>(1, length), transposed};
  }
};

template <class T>
Operand<T> operand(const View& v, int64_t batch, bool transposed) {
  return {v.as<T>() + batch * batch_stride(v), row_stride(v), transposed};
}

/// A tile of the output.
struct Tile {
  int64_t batch, row, col, rows, cols;
};

/// Tile sizes. They depend only on the shape, and are halved until there is work for many threads.
struct Tiling {
  int64_t rows, cols;

  explicit Tiling(const Sizes& s)
      : rows(std::min(kTileSide, std::max<int64_t>(1, s.m))),
        cols(std::min(kTileSide, std::max<int64_t>(1, s.n))) {
    if (s.m == 1) rows = 1;
    while (s.batch * row_tiles(s) * col_tiles(s) < kTargetTiles &&
           2 * rows * cols * s.k > kTileFlops && std::max(rows, cols) > kTileSideMin) {
      int64_t& side = rows >= cols ? rows : cols;
      side = std::max(kTileSideMin, (side / 2 + 31) / 32 * 32);
    }
  }
  int64_t row_tiles(const Sizes& s) const { return (s.m + rows - 1) / rows; }
  int64_t col_tiles(const Sizes& s) const { return (s.n + cols - 1) / cols; }
};

/// The product for inputs of type T and an output of type O, which is T or f32.
template <class T, class O>
class Product {
  using C = compute_t<T>;

 public:
  Product(const Matmul& op, const Sizes& sizes) : op_(op), s_(sizes) {}

  void run(ThreadPool& pool) const {
    if constexpr (sizeof(T) == 2) {
      if (reads_most()) return run_few_rows(pool);
    }
    const Tiling tiling(s_);
    const int64_t across = tiling.col_tiles(s_), down = tiling.row_tiles(s_);
    const auto tiles = [&](int64_t begin, int64_t end) {
      std::vector<C> scratch;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / across % down * tiling.rows, col = i % across * tiling.cols;
        run_tile({i / across / down, row, col, std::min(tiling.rows, s_.m - row),
                  std::min(tiling.cols, s_.n - col)},
                 scratch);
      }
    };
    const int64_t count = s_.batch * down * across;
    const int64_t flops = 2 * tiling.rows * tiling.cols * std::max<int64_t>(1, s_.k);
    const int64_t grain = std::max<int64_t>(1, kInlineFlops / flops);
    if (count <= grain) tiles(0, count);
    else pool.parallel_for(count, grain, tiles);
  }

 private:
  const Matmul& op_;
  const Sizes s_;

  /// Returns true if reading the weights [n, k] takes most of the time, because there are few rows.
  /// OpenBLAS would need an f32 copy of the weights.
  bool reads_most() const {
    return s_.batch == 1 && s_.m <= kFewRows && s_.n * s_.k >= kManyWeights && !op_.trans_a &&
           op_.trans_b;
  }

  void run_few_rows(ThreadPool& pool) const {
    const auto a = operand<T>(op_.a, 0, false), b = operand<T>(op_.b, 0, true);
    const int64_t length = s_.k > kFewRowsLongest ? kFewRowsPiece : s_.k;
    std::vector<FewRows> pieces;
    for (int64_t k = 0; k < s_.k; k += length)
      pieces.emplace_back(a.data + k, a.ld, s_.m, std::min(length, s_.k - k));
    pool.parallel_for(s_.n, kFewRowsOutputs, [&](int64_t begin, int64_t end) {
      const Tile tile{0, 0, begin, s_.m, end - begin};
      float sums[kFewRows * kFewRowsOutputs];
      const auto multiply = [&](size_t i) {
        const DenseRows<T> weights{b.data + static_cast<int64_t>(i) * length, b.ld, length};
        pieces[i].multiply(weights, begin, tile.cols, sums);
      };
      if (pieces.size() == 1) multiply(0);
      else sum_pieces(tile, pieces.size(), multiply, sums);
      finish(tile, sums, kFewRowsOutputs, false);
    });
  }

  /// Adds, in f64, the results that `multiply` writes to `sums` for each piece.
  template <class Multiply>
  static void sum_pieces(const Tile& t, size_t pieces, const Multiply& multiply, float* sums) {
    double totals[kFewRows * kFewRowsOutputs] = {};
    const auto each = [&](auto&& body) {
      for (int64_t i = 0; i < t.rows; ++i)
        for (int64_t j = 0; j < t.cols; ++j) body(i * kFewRowsOutputs + j);
    };
    for (size_t piece = 0; piece < pieces; ++piece) {
      multiply(piece);
      each([&](int64_t at) { totals[at] += static_cast<double>(sums[at]); });
    }
    each([&](int64_t at) { sums[at] = static_cast<float>(totals[at]); });
  }

  O* out_at(const View& v, const Tile& t) const {
    return v.as<O>() + t.batch * batch_stride(v) + t.row * row_stride(v) + t.col;
  }

  /// Computes a tile. OpenBLAS writes to the output if it has the compute type, otherwise to
  /// scratch memory.
  void run_tile(const Tile& t, std::vector<C>& scratch) const {
    const int64_t ld = row_stride(op_.out);
    const bool in_place =
        std::is_same_v<O, C> && ld >= t.cols && ld <= std::numeric_limits<int>::max();
    if (in_place) {
      C* const c = reinterpret_cast<C*>(out_at(op_.out, t));
      multiply(t, c, ld, op_.accumulate, scratch);
      finish(t, c, ld, true);
    } else {
      std::vector<C> c(static_cast<size_t>(t.rows * t.cols));
      multiply(t, c.data(), t.cols, false, scratch);
      finish(t, c.data(), t.cols, false);
    }
  }

  /// Computes c (+)= the product of the tile.
  void multiply(const Tile& t, C* c, int64_t ldc, bool add, std::vector<C>& scratch) const {
    if (std::is_same_v<C, float> && s_.k > kLongest) multiply_pieces(t, c, ldc, add, scratch);
    else multiply_inner(t, {0, s_.k}, c, ldc, add, scratch);
  }

  /// Like multiply_inner(), with f64 sums over pieces of the inner dim.
  void multiply_pieces(const Tile& t, C* c, int64_t ldc, bool add, std::vector<C>& scratch) const {
    std::vector<C> piece(static_cast<size_t>(t.rows * t.cols));
    std::vector<double> sums(piece.size(), 0.0);
    for (int64_t k = 0; k < s_.k; k += kPiece) {
      multiply_inner(t, {k, std::min(s_.k, k + kPiece)}, piece.data(), t.cols, false, scratch);
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<double>(piece[i]);
    }
    for (int64_t i = 0; i < t.rows; ++i) {
      for (int64_t j = 0; j < t.cols; ++j) {
        const double sum = sums[static_cast<size_t>(i * t.cols + j)];
        C& out = c[i * ldc + j];
        out = static_cast<C>(add ? static_cast<double>(out) + sum : sum);
      }
    }
  }

  struct Inner {
    int64_t begin, end;
  };

  /// Computes c (+)= the product over a range of the inner dim. Converts panels of a and b that
  /// OpenBLAS cannot read in place.
  void multiply_inner(const Tile& t, Inner inner, C* c, int64_t ldc, bool add,
                      std::vector<C>& scratch) const {
    const int64_t length = inner.end - inner.begin;
    const auto a = operand<T>(op_.a, t.batch, op_.trans_a);
    const auto b = operand<T>(op_.b, t.batch, op_.trans_b);
    const bool direct = a.direct(s_.m, s_.k) && b.direct(s_.k, s_.n);
    const int64_t block = direct ? int64_t{1} << 30 : kInnerBlock;
    const int64_t a_panel = t.rows * std::min(length, block);
    if (!direct) scratch.resize(static_cast<size_t>((t.rows + t.cols) * std::min(length, block)));
    if (length == 0 && !add) {
      for (int64_t i = 0; i < t.rows; ++i) std::fill_n(c + i * ldc, t.cols, C(0));
    }
    for (int64_t k = inner.begin; k < inner.end; k += block) {
      const int64_t depth = std::min(block, inner.end - k);
      const auto left =
          direct ? a.in_place(t.row, k) : a.widened(t.row, k, t.rows, depth, scratch.data());
      const auto right = direct ? b.in_place(k, t.col)
                                : b.widened(k, t.col, depth, t.cols, scratch.data() + a_panel);
      gemm<C>(t.rows, t.cols, depth, C(1), left, right, add || k > inner.begin ? C(1) : C(0), c,
              ldc);
    }
  }

  /// Adds the bias and the old output, applies the epilogue, and rounds once, row by row.
  void finish(const Tile& t, C* c, int64_t ldc, bool in_place) const {
    if (in_place && !op_.bias && op_.epilogue == MatmulEpilogue::none) return;
    std::vector<C> row(static_cast<size_t>(t.cols)), bias(row.size());
    if (op_.bias) widen(op_.bias.as<O>() + t.col, bias.data(), t.cols);
    for (int64_t i = 0; i < t.rows; ++i) {
      C* const x = c + i * ldc;
      O* const out = out_at(op_.out, t) + i * row_stride(op_.out);
      if (op_.bias)
        for (int64_t j = 0; j < t.cols; ++j) x[j] += bias[j];
      if (op_.accumulate && !in_place) {
        widen(out, row.data(), t.cols);
        for (int64_t j = 0; j < t.cols; ++j) x[j] += row[j];
      }
      if (op_.epilogue == MatmulEpilogue::gelu) {
        if (op_.aux) narrow(x, out_at(op_.aux, t) + i * row_stride(op_.aux), t.cols);
        for (int64_t j = 0; j < t.cols; ++j) x[j] = unary_value<UnaryOp::gelu_tanh>(x[j]);
      } else if (op_.epilogue == MatmulEpilogue::gelu_grad) {
        widen(out_at(op_.aux, t) + i * row_stride(op_.aux), row.data(), t.cols);
        for (int64_t j = 0; j < t.cols; ++j) x[j] *= unary_derivative<UnaryOp::gelu_tanh>(row[j]);
      }
      if (!in_place) narrow(x, out, t.cols);
    }
  }
};

}  // namespace

void run(const Matmul& op, CpuContext& ctx) {
  const Sizes sizes = sizes_of(op);
  if (sizes.batch == 0 || sizes.m == 0 || sizes.n == 0) return;
  for_floating(kOp, op.a.dtype, [&]<class T>(TypeTag<T>) {
    if constexpr (!std::is_same_v<T, double>) {
      if (op.out.dtype == DType::f32) return Product<T, float>(op, sizes).run(ctx.pool);
    }
    Product<T, T>(op, sizes).run(ctx.pool);
  });
}

}  // namespace ds::cpu
