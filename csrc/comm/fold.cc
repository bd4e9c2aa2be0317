// fold(): one pass over the inputs per tile, with a wide accumulator.
#include "fold.h"

#include <algorithm>

#include "../cpu/cpu_context.h"

namespace ds::comm {
namespace {

constexpr int64_t kTile = 1024;

/// The type that a fold computes in. Integers are unsigned there, so that they wrap around.
template <class T>
struct Carrier {
  using type = float;
};
template <>
struct Carrier<double> {
  using type = double;
};
template <>
struct Carrier<int32_t> {
  using type = uint32_t;
};
template <>
struct Carrier<int64_t> {
  using type = uint64_t;
};
template <>
struct Carrier<uint8_t> {
  using type = uint8_t;
};
template <class T>
using Wide = typename Carrier<T>::type;

template <class T, class Combine>
void fold_tiles(const std::vector<const void*>& inputs, void* output, int64_t count,
                Combine combine, Wide<T> divisor) {
  Wide<T> tile[kTile];
  auto* out = static_cast<T*>(output);
  for (int64_t begin = 0; begin < count; begin += kTile) {
    const int64_t n = std::min(kTile, count - begin);
    const T* first = static_cast<const T*>(inputs[0]) + begin;
    for (int64_t i = 0; i < n; ++i) tile[i] = static_cast<Wide<T>>(first[i]);
    for (size_t r = 1; r < inputs.size(); ++r) {
      const T* next = static_cast<const T*>(inputs[r]) + begin;
      for (int64_t i = 0; i < n; ++i) tile[i] = combine(tile[i], static_cast<Wide<T>>(next[i]));
    }
    if (divisor != Wide<T>(1)) {
      for (int64_t i = 0; i < n; ++i) tile[i] = static_cast<Wide<T>>(tile[i] / divisor);
    }
    for (int64_t i = 0; i < n; ++i) out[begin + i] = static_cast<T>(tile[i]);
  }
}

/// Returns the smaller or larger value, or NaN if either is NaN. Compares integers as signed.
template <class T, bool kLess>
Wide<T> chosen(Wide<T> a, Wide<T> b) {
  if constexpr (std::is_integral_v<T>) {
    const auto x = static_cast<T>(a), y = static_cast<T>(b);
    return (kLess ? y < x : x < y) ? b : a;
  } else {
    if (a != a) return a;
    return (b != b || (kLess ? b < a : a < b)) ? b : a;
  }
}

template <class T>
void fold_as(ReduceOp op, const std::vector<const void*>& inputs, void* output, int64_t count) {
  using W = Wide<T>;
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::average: {
      const W divisor = op == ReduceOp::average ? static_cast<W>(inputs.size()) : W(1);
      return fold_tiles<T>(
          inputs, output, count, [](W a, W b) { return static_cast<W>(a + b); }, divisor);
    }
    case ReduceOp::product:
      return fold_tiles<T>(
          inputs, output, count, [](W a, W b) { return static_cast<W>(a * b); }, W(1));
    case ReduceOp::minimum: return fold_tiles<T>(inputs, output, count, chosen<T, true>, W(1));
    case ReduceOp::maximum: return fold_tiles<T>(inputs, output, count, chosen<T, false>, W(1));
  }
}

}  // namespace

void require_foldable(const char* name, ReduceOp op, DType dtype) {
  if (op == ReduceOp::average && !is_floating(dtype)) {
    unsupported(name, dtype, "a floating dtype for avg");
  }
  const bool ordering = op == ReduceOp::minimum || op == ReduceOp::maximum;
  if (dtype == DType::boolean && !ordering) unsupported(name, dtype, "min or max for bool");
}

void fold(ReduceOp op, DType dtype, const std::vector<const void*>& inputs, void* output,
          int64_t count) {
  require_foldable("fold", op, dtype);
  const DType stored = dtype == DType::boolean ? DType::u8 : dtype;
  dispatch_all<cpu::CpuTypes>("fold", stored, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<T, bool>) fold_as<T>(op, inputs, output, count);
  });
}

}  // namespace ds::comm
