// Multiplies a few rows by a large matrix. It converts weights to f32 in registers and reads them
// once for all rows.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "rows.h"

namespace ds::cpu {

/// Up to this number of rows, the time is that of reading the weights.
constexpr int64_t kFewRows = 8;
/// Number of outputs of a task.
constexpr int64_t kFewRowsOutputs = 32;

/// A SIMD vector of eight numbers.
using Floats = float __attribute__((vector_size(32)));
using Words = uint32_t __attribute__((vector_size(32)));
constexpr int64_t kFloats = 8;

template <class V>
inline V load_vector(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

/// Loads eight values as f32.
inline Floats load_floats(const float* p) { return load_vector<Floats>(p); }

inline Floats load_floats(const bf16* p) {
  using Halves = uint16_t __attribute__((vector_size(16)));
  return (Floats)(__builtin_convertvector(load_vector<Halves>(p), Words) << 16);
}

/// Loads eight bytes as words. For AVX2, the compiler would load the bytes one by one.
inline Words load_bytes(const uint8_t* p) {
#if defined(__AVX2__)
  return (Words)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
  using Bytes = uint8_t __attribute__((vector_size(8)));
  return __builtin_convertvector(load_vector<Bytes>(p), Words);
#endif
}

inline Floats load_floats(const f16* p) {
  float wide[kFloats];
  widen(p, wide, kFloats);
  return load_floats(wide);
}

/// Returns a * b + sum, rounded once if the processor has FMA.
inline Floats multiply_add(Floats a, Floats b, Floats sum) {
#if defined(__FMA__)
  return _mm256_fmadd_ps(a, b, sum);
#elif defined(__ARM_FEATURE_FMA)
  for (int64_t i = 0; i < kFloats; ++i) sum[i] = __builtin_fmaf(a[i], b[i], sum[i]);
  return sum;
#else
  return a * b + sum;
#endif
}

/// Weights [outputs, inputs] of type T for FewRows. row() returns a Row, valid for the inputs from
/// `from` to the next multiple of `run`. Row::at(k) returns the eight weights from input k on.
/// Row::tail(k, count) returns `count` weights, followed by any finite numbers.
template <class T>
struct DenseRows {
  const T* data;
  int64_t ld, run;

  struct Row {
    const T* data;

    Floats at(int64_t k) const { return load_floats(data + k); }
    Floats tail(int64_t k, int64_t count) const {
      T left[kFloats];
      std::memset(left, 0, sizeof left);
      std::memcpy(left, data + k, static_cast<size_t>(count) * sizeof(T));
      return load_floats(left);
    }
  };

  Row row(int64_t output, int64_t /*from*/) const { return {data + output * ld}; }
};

/// Multiplies x [rows, inputs] by the transpose of weights, for 1 to kFewRows rows. The order of a
/// sum depends only on `inputs`, so the bits of a row do not depend on the other rows.
class FewRows {
 public:
  template <class T>
  FewRows(const T* x, int64_t ld, int64_t rows, int64_t inputs) : rows_(rows), inputs_(inputs) {
    while (kept_ < rows) kept_ *= 2;
    x_.resize(static_cast<size_t>((inputs + kFloats - 1) / kFloats * kFloats * kept_));
    for (int64_t k = 0; k < inputs; k += kFloats)
      for (int64_t m = 0; m < rows; ++m)
        widen(x + m * ld + k, x_.data() + k * kept_ + m * kFloats, std::min(kFloats, inputs - k));
  }

  /// Writes sums [rows, columns] of the outputs `first` to `first + columns`. Rows of `sums` are
  /// kFewRowsOutputs apart; `columns` is at most kFewRowsOutputs.
  template <class Weights>
  void multiply(const Weights& weights, int64_t first, int64_t columns, float* sums) const {
    switch (kept_) {
      case 1: return columns_of<1>(weights, first, columns, sums);
      case 2: return columns_of<2>(weights, first, columns, sums);
      case 4: return columns_of<4>(weights, first, columns, sums);
      default: return columns_of<8>(weights, first, columns, sums);
    }
  }

 private:
  int64_t rows_, inputs_;
  int64_t kept_ = 1;      // rows, padded with zeros to a power of two
  std::vector<float> x_;  // [ceil(inputs / kFloats), kept, kFloats]

  /// Processes inputs in blocks, so that a block of x stays in the L2 cache while weights stream.
  template <int kRows, class Weights>
  void columns_of(const Weights& weights, int64_t first, int64_t columns, float* sums) const {
    constexpr int64_t kOutputs = kFewRows / kRows, kDepth = 16384 / kRows;
    Floats lanes[kFewRowsOutputs][kRows] = {};
    for (int64_t from = 0; from < inputs_; from += kDepth)
      for (int64_t n = 0; n < columns; n += kOutputs)
        add_products<kRows>(weights, first + n, std::min(kOutputs, columns - n), from,
                            std::min(inputs_, from + kDepth), lanes + n);
    for (int64_t n = 0; n < columns; ++n)
      for (int64_t m = 0; m < rows_; ++m) sums[m * kFewRowsOutputs + n] = sum_of_lanes(lanes[n][m]);
  }

  /// Adds the products of inputs [from, end). It keeps eight sums, outputs times rows, in
  /// registers. Beyond `count`, it repeats the last output.
  template <int kRows, class Weights>
  void add_products(const Weights& weights, int64_t first, int64_t count, int64_t from, int64_t end,
                    Floats (*sums)[kRows]) const {
    constexpr int kOutputs = kFewRows / kRows;
    Floats lanes[kOutputs][kRows];
    for (int n = 0; n < kOutputs; ++n)
      for (int m = 0; m < kRows; ++m) lanes[n][m] = sums[n][m];
    for (int64_t k = from; k < end;) {
      const int64_t stop = std::min(end, (k / weights.run + 1) * weights.run);
      typename Weights::Row rows[kOutputs];
      for (int64_t n = 0; n < kOutputs; ++n)
        rows[n] = weights.row(first + std::min(n, count - 1), k);
      const auto add = [&](const float* x, auto values) {
        for (int n = 0; n < kOutputs; ++n) {
          const Floats w = values(rows[n]);
          for (int m = 0; m < kRows; ++m)
            lanes[n][m] = multiply_add(load_floats(x + m * kFloats), w, lanes[n][m]);
        }
      };
      for (; k + kFloats <= stop; k += kFloats)
        add(x_.data() + k * kRows, [&](const auto& row) { return row.at(k); });
      if (k == stop) continue;
      add(x_.data() + k * kRows, [&](const auto& row) { return row.tail(k, stop - k); });
      k = stop;
    }
    for (int n = 0; n < kOutputs; ++n)
      for (int m = 0; m < kRows; ++m) sums[n][m] = lanes[n][m];
  }

  static float sum_of_lanes(Floats v) {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
  }
};

}  // namespace ds::cpu
