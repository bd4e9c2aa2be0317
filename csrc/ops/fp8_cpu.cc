// FP8 on the CPU: codes are rounded as the format requires; products use dequantized f32 matrices.
#include "fp8.h"

#include <algorithm>
#include <vector>

#include "../cpu/map.h"
#include "../cpu/rows.h"
#include "matmul.h"

namespace ds::cpu {

void run(const Matmul& op, CpuContext& ctx);

namespace {

/// The matrix to quantize: `in` or its transpose.
template <class T>
struct Source {
  const T* data;
  int64_t rows, columns, row_stride, column_stride;

  float at(int64_t row, int64_t column) const {
    return static_cast<float>(data[row * row_stride + column * column_stride]);
  }
  uint32_t largest(int64_t row, int64_t row_end, int64_t column, int64_t column_end) const {
    uint32_t bits = 0;
    for (int64_t r = row; r < row_end; ++r)
      for (int64_t c = column; c < column_end; ++c) bits = std::max(bits, fp8_magnitude(at(r, c)));
    return bits;
  }
};

/// Writes codes and scales of rows [begin, end); begin is a multiple of kFp8Group. `of_tensor` is
/// the multiplier of Fp8Scaling::tensor.
template <Fp8Format kFormat, class T>
void quantize_rows(const Source<T>& in, Fp8Scaling scaling, float of_tensor, int64_t begin,
                   int64_t end, uint8_t* codes, float* scales) {
  const int64_t pitch = fp8_padded(in.columns), groups = fp8_groups(in.columns);
  const auto multiplier = [&](int64_t row, int64_t row_end, int64_t column, int64_t column_end) {
    return fp8_multiplier(in.largest(row, row_end, column, column_end), kFormat, scaling);
  };
  const auto emit = [&](int64_t row, int64_t column, int64_t column_end, float by) {
    for (int64_t c = column; c < column_end; ++c)
      codes[row * pitch + c] = fp8_code<kFormat>(mul_rn(in.at(row, c), by));
  };
  for (int64_t row = begin; row < end; ++row) {
    std::fill_n(codes + row * pitch + in.columns, pitch - in.columns, uint8_t{0});
    if (scaling == Fp8Scaling::tensor) emit(row, 0, in.columns, of_tensor);
    if (scaling != Fp8Scaling::row) continue;
    const float by = multiplier(row, row + 1, 0, in.columns);
    scales[row] = fp8_scale_of(by);
    emit(row, 0, in.columns, by);
  }
  if (scaling < Fp8Scaling::group) return;
  const int64_t square_row = fp8_scale_row(groups), group_row = fp8_scale_row(in.rows);
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t column = g * kFp8Group, column_end = std::min(in.columns, column + kFp8Group);
    if (scaling == Fp8Scaling::square) {
      const float by = multiplier(begin, end, column, column_end);
      scales[begin / kFp8Group * square_row + g] = fp8_scale_of(by);
      for (int64_t row = begin; row < end; ++row) emit(row, column, column_end, by);
      continue;
    }
    for (int64_t row = begin; row < end; ++row) {
      const float by = multiplier(row, row + 1, column, column_end);
      scales[g * group_row + row] = fp8_scale_of(by);
      emit(row, column, column_end, by);
    }
  }
}

template <Fp8Format kFormat, class T>
void quantize(const Source<T>& in, Fp8Scaling scaling, float of_tensor, const View& codes,
              const View& scale, CpuContext& ctx) {
  // Padding scales get the value of an empty group.
  if (scaling >= Fp8Scaling::group) {
    std::fill_n(scale.as<float>(), scale.numel(),
                fp8_scale_of(fp8_multiplier(0, kFormat, scaling)));
  }
  ctx.pool.parallel_for(fp8_groups(in.rows), 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t row = block * kFp8Group;
      quantize_rows<kFormat>(in, scaling, of_tensor, row, std::min(in.rows, row + kFp8Group),
                             codes.as<uint8_t>(), scale.as<float>());
    }
  });
}

/// Returns the f32 values of codes [rows, columns].
std::vector<float> values_of(const View& codes, const View& scale, Fp8Format format,
                             Fp8Scaling scaling, CpuContext& ctx) {
  float table[256];
  for (int code = 0; code < 256; ++code)
    table[code] = fp8_value(static_cast<uint8_t>(code), format);
  const int64_t rows = codes.shape[0], columns = codes.shape[1];
  std::vector<float> values(static_cast<size_t>(rows * columns));
  const int64_t grain = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, columns));
  ctx.pool.parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
    const float* const scales = scale.as<float>();
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t c = 0; c < columns; ++c) {
        int64_t at = 0;
        if (scaling == Fp8Scaling::row) at = row;
        if (scaling == Fp8Scaling::group) at = c / kFp8Group * fp8_scale_row(rows) + row;
        if (scaling == Fp8Scaling::square)
          at = row / kFp8Group * fp8_scale_row(fp8_groups(columns)) + c / kFp8Group;
        values[row * columns + c] =
            mul_rn(table[codes.as<uint8_t>()[row * columns + c]], scales[at]);
      }
    }
  });
  return values;
}

View matrix(void* data, DType dtype, int64_t rows, int64_t columns) {
  View v;
  v.data = data;
  v.dtype = dtype;
  v.ndim = 2;
  v.shape[0] = rows;
  v.shape[1] = columns;
  v.strides[0] = std::max<int64_t>(1, columns);
  v.strides[1] = 1;
  return v;
}

}  // namespace

void run(const Fp8Quantize& op, CpuContext& ctx) {
  for_floating("fp8_quantize", op.in.dtype, [&]<class T>(TypeTag<T>) {
    const View& v = op.in;
    const Source<T> in{v.as<T>(), v.shape[0], v.shape[1], v.strides[0], 1};
    const Source<T> flipped{v.as<T>(), v.shape[1], v.shape[0], 1, v.strides[0]};
    float of_tensor = 0.0f;
    if (op.scaling == Fp8Scaling::tensor) {
      of_tensor =
          fp8_multiplier(in.largest(0, in.rows, 0, in.columns), op.format, Fp8Scaling::tensor);
      *op.scale.as<float>() = fp8_scale_of(of_tensor);
    }
    const auto of_format = [&](auto format) {
      if (op.out) quantize<format.value>(in, op.scaling, of_tensor, op.out, op.scale, ctx);
      if (op.transposed)
        quantize<format.value>(flipped, op.scaling, of_tensor, op.transposed, op.transposed_scale,
                               ctx);
    };
    if (op.format == Fp8Format::e4m3)
      of_format(std::integral_constant<Fp8Format, Fp8Format::e4m3>{});
    else of_format(std::integral_constant<Fp8Format, Fp8Format::e5m2>{});
  });
}

void run(const Fp8Matmul& op, CpuContext& ctx) {
  const int64_t m = op.out.shape[0], n = op.out.shape[1], k = op.a.shape[1];
  if (m == 0 || n == 0) return;
  std::vector<float> a = values_of(op.a, op.a_scale, op.a_format, op.a_scaling, ctx);
  std::vector<float> b = values_of(op.b, op.b_scale, op.b_format, op.b_scaling, ctx);
  std::vector<float> product(static_cast<size_t>(m * n));
  run(Matmul{matrix(a.data(), DType::f32, m, k),
             matrix(b.data(), DType::f32, n, k),
             {},
             {},
             matrix(product.data(), DType::f32, m, n),
             false,
             true,
             MatmulEpilogue::none,
             false},
      ctx);
  for_floating("fp8_matmul", op.out.dtype, [&]<class T>(TypeTag<T>) {
    const int64_t grain = std::max<int64_t>(1, kElementGrain / n);
    ctx.pool.parallel_for(m, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* const out = op.out.as<T>() + row * op.out.strides[0];
        for (int64_t c = 0; c < n; ++c) {
          float sum = product[static_cast<size_t>(row * n + c)];
          if (op.bias) sum += static_cast<float>(op.bias.as<T>()[c]);
          if (op.accumulate) sum += static_cast<float>(out[c]);
          out[c] = static_cast<T>(sum);
        }
      }
    });
  });
}

}  // namespace ds::cpu
