// Stands in for Apple's header in scripts/check-system: the functions that csrc/cpu/blas.h calls.
#pragma once

enum CBLAS_ORDER { CblasRowMajor = 101, CblasColMajor = 102 };
enum CBLAS_TRANSPOSE { CblasNoTrans = 111, CblasTrans = 112, CblasConjTrans = 113 };

extern "C" {
void cblas_sgemm(CBLAS_ORDER, CBLAS_TRANSPOSE, CBLAS_TRANSPOSE, int m, int n, int k, float alpha,
                 const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc);
void cblas_dgemm(CBLAS_ORDER, CBLAS_TRANSPOSE, CBLAS_TRANSPOSE, int m, int n, int k, double alpha,
                 const double* a, int lda, const double* b, int ldb, double beta, double* c,
                 int ldc);
void cblas_sgemv(CBLAS_ORDER, CBLAS_TRANSPOSE, int m, int n, float alpha, const float* a, int lda,
                 const float* x, int step_x, float beta, float* y, int step_y);
void cblas_dgemv(CBLAS_ORDER, CBLAS_TRANSPOSE, int m, int n, double alpha, const double* a, int lda,
                 const double* x, int step_x, double beta, double* y, int step_y);
}
