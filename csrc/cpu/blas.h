// The calls of OpenBLAS (Accelerate on macOS): row-major matrix products on the calling thread.
#pragma once

#ifdef __APPLE__
#define ACCELERATE_NEW_LAPACK
#include <Accelerate/Accelerate.h>
#else
#include <cblas.h>
#endif

#include <cstdint>
#include <type_traits>

namespace ds::cpu {

/// A row-major matrix. `ld` is the number of elements between rows. `transposed` selects its
/// transpose.
template <class C>
struct Matrix {
  const C* data;
  int64_t ld;
  bool transposed = false;
};

/// Computes c [m, n] = alpha a [m, k] b [k, n] + beta c. With beta = 0 it does not read c. Sizes
/// and leading dimensions must fit 32 bits; each ld is at least the length of a row. A single row
/// uses the matrix-vector product, which reads b once. OpenBLAS uses one thread, because the thread
/// pool splits the work at borders that do not depend on the number of threads.
template <class C>
void gemm(int64_t m, int64_t n, int64_t k, C alpha, const Matrix<C>& a, const Matrix<C>& b, C beta,
          C* c, int64_t ldc) {
#ifndef __APPLE__
  static const bool once = (openblas_set_num_threads(1), true);
  (void)once;
#endif
  const auto op = [](bool transposed) { return transposed ? CblasTrans : CblasNoTrans; };
  const int rows = static_cast<int>(m), cols = static_cast<int>(n), inner = static_cast<int>(k);
  const int lda = static_cast<int>(a.ld), ldb = static_cast<int>(b.ld);
  if (m == 1 && k > 0) {
    const int b_rows = b.transposed ? cols : inner, b_cols = b.transposed ? inner : cols;
    const int step = a.transposed ? lda : 1;
    if constexpr (std::is_same_v<C, float>)
      cblas_sgemv(CblasRowMajor, op(!b.transposed), b_rows, b_cols, alpha, b.data, ldb, a.data,
                  step, beta, c, 1);
    else
      cblas_dgemv(CblasRowMajor, op(!b.transposed), b_rows, b_cols, alpha, b.data, ldb, a.data,
                  step, beta, c, 1);
  } else {
    if constexpr (std::is_same_v<C, float>)
      cblas_sgemm(CblasRowMajor, op(a.transposed), op(b.transposed), rows, cols, inner, alpha,
                  a.data, lda, b.data, ldb, beta, c, static_cast<int>(ldc));
    else
      cblas_dgemm(CblasRowMajor, op(a.transposed), op(b.transposed), rows, cols, inner, alpha,
                  a.data, lda, b.data, ldb, beta, c, static_cast<int>(ldc));
  }
}

}  // namespace ds::cpu
