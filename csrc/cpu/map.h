// Element-wise functions over strided views. A block is converted to the compute type, processed in
// one loop that the compiler vectorizes, and rounded once.
#pragma once

#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "rows.h"
#include "strided.h"

namespace ds::cpu {

constexpr int64_t kBlock = 1024;  // elements; the buffers of a few operands fit the L1 cache

/// Truncates towards zero with saturation. NaN gives 0.
template <class C>
int64_t truncated(C x) {
  constexpr C kLimit = static_cast<C>(0x1p63);
  if (x >= kLimit) return std::numeric_limits<int64_t>::max();
  if (x < -kLimit) return std::numeric_limits<int64_t>::min();
  return x == x ? static_cast<int64_t>(x) : 0;
}

/// Converts a compute value to an element type. Floats round to nearest even; float to integer
/// truncates; bool is x != 0.
template <class Out, class C>
Out convert(C x) {
  if constexpr (std::is_same_v<Out, bool>) return x != C(0);
  else if constexpr (std::is_integral_v<Out> && std::is_floating_point_v<C>)
    return static_cast<Out>(truncated(x));
  else if constexpr (std::is_arithmetic_v<Out>) return static_cast<Out>(x);
  else return Out(static_cast<float>(x));
}

/// Returns n elements in the compute type, without a copy if the type and stride allow it, else in
/// `buffer`.
template <class T>
const compute_t<T>* load_block(const T* p, int64_t stride, int64_t n, compute_t<T>* buffer) {
  using C = compute_t<T>;
  if (stride == 1) {
    if constexpr (std::is_same_v<T, C>) return p;
    else widen(p, buffer, n);
  } else if (stride == 0) {
    std::fill_n(buffer, n, static_cast<C>(*p));
  } else {
    for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<C>(p[i * stride]);
  }
  return buffer;
}

/// Stores n compute values as elements. `values` may be `out`.
template <class T, class C>
void store_block(const C* values, T* out, int64_t stride, int64_t n) {
  if (stride != 1) {
    for (int64_t i = 0; i < n; ++i) out[i * stride] = convert<T>(values[i]);
  } else if constexpr (std::is_same_v<T, C>) {
    if (values != out) std::memcpy(out, values, static_cast<size_t>(n) * sizeof(T));
  } else if constexpr (std::is_same_v<C, compute_t<T>> && !std::is_same_v<T, bool>) {
    narrow(values, out, n);
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = convert<T>(values[i]);
  }
}

/// Computes results[i] = f(sources[i]...) for n elements.
template <class R, class F, class... C>
void apply_block(R* results, int64_t n, F f, const C*... sources) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) results[i] = f(sources[i]...);
}

/// Adds. Integers wrap around, as on the GPU.
template <class C>
C wrapping_add(C a, C b) {
  if constexpr (std::is_integral_v<C>)
    return static_cast<C>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  else return a + b;
}

template <class C>
C wrapping_multiply(C a, C b) {
  if constexpr (std::is_integral_v<C>)
    return static_cast<C>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  else return a * b;
}

/// A function that processes one block: results = f(sources), plus `old` unless null.
template <class R, class C>
using Block = void (*)(const void* f, const R* old, const C* const* sources, R* results, int64_t n);

template <class R, class C, class Accumulate, class F, size_t... kInput>
void run_block(const void* function, const R* old, const C* const* sources, R* results, int64_t n) {
  const F f = *static_cast<const F*>(function);
  if constexpr (!std::is_same_v<Accumulate, std::false_type>) {
    if (old != nullptr) {
      const auto add = [f](R was, auto... x) { return wrapping_add<R>(was, f(x...)); };
      return apply_block(results, n, add, old, sources[kInput]...);
    }
  }
  apply_block(results, n, f, sources[kInput]...);
}

/// The part of map() that does not depend on f. It is compiled once for each pair of dtypes.
template <class Out, class In, int kInputs>
void map_blocks(CpuContext& ctx, bool accumulate, Block<compute_t<Out>, compute_t<In>> run,
                const void* f, const View* const (&views)[kInputs + 1]) {
  using C = compute_t<In>;
  using R = compute_t<Out>;
  const Walk<kInputs + 1> walk = plan_walk(views);
  for_each_run(ctx, walk, [&](const int64_t(&offsets)[kInputs + 1], int64_t length) {
    C buffers[kInputs][kBlock];
    R results[kBlock];
    R old_buffer[kBlock];
    const C* sources[kInputs];
    for (int64_t at = 0; at < length; at += kBlock) {
      const int64_t n = std::min(kBlock, length - at), out_stride = walk.strides[0][0];
      for (int o = 0; o < kInputs; ++o) {
        const int64_t stride = walk.strides[o + 1][0];
        const In* const source = views[o + 1]->template as<In>() + offsets[o + 1] + at * stride;
        sources[o] = load_block(source, stride, n, buffers[o]);
      }
      Out* const target = views[0]->template as<Out>() + offsets[0] + at * out_stride;
      R* values = results;
      if constexpr (std::is_same_v<Out, R>)
        if (out_stride == 1) values = target;
      const R* const old = accumulate ? load_block(target, out_stride, n, old_buffer) : nullptr;
      run(f, old, sources, values, n);
      store_block(values, target, out_stride, n);
    }
  });
}

/// Computes out = f(in...), plus out with `accumulate`. f takes and returns compute values. All
/// inputs have element type In and the shape of `out`; `out` may be one of the inputs. If
/// `accumulate` is std::false_type, the sum is not compiled. Dtypes with the same compute type
/// share the loop if f has the same type for them.
template <class Out, class In, class Accumulate, class F, class... Inputs>
void map(CpuContext& ctx, Accumulate accumulate, F f, const View& out, const Inputs&... inputs) {
  const View* const views[sizeof...(Inputs) + 1] = {&out, &inputs...};
  [&]<size_t... kInput>(std::index_sequence<kInput...>) {
    const Block<compute_t<Out>, compute_t<In>> run =
        run_block<compute_t<Out>, compute_t<In>, Accumulate, F, kInput...>;
    map_blocks<Out, In, sizeof...(Inputs)>(ctx, accumulate, run, &f, views);
  }
  (std::index_sequence_for<Inputs...>{});
}

}  // namespace ds::cpu
