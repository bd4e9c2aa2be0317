// Element-wise arithmetic, comparison, selection and activations on the GPU: functors for
// cuda/map.cuh.
#include "elementwise.h"

#include "../core/exact_math.h"
#include "../cuda/map.cuh"
#include "unary_math.h"

namespace ds::cuda {
namespace {

/// Returns the value that an op writes: the result, plus the old element if it accumulates, rounded
/// once.
template <class T, class C>
__device__ __forceinline__ T settle(bool accumulate, T old, C value) {
  return narrow<T>(accumulate ? widen(old) + value : value);
}

template <class T, UnaryOp kOp>
struct UnaryValue {
  static constexpr bool accumulate = false;
  template <int N>
  __device__ void operator()(Vector<T, N>& out, const Vector<T, N>& in) const {
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] = narrow<T>(unary_value<kOp>(widen(in.v[i])));
  }
};

template <class T, UnaryOp kOp>
struct UnaryGradient {
  bool accumulate;
  template <int N>
  __device__ void operator()(Vector<T, N>& dx, const Vector<T, N>& in,
                             const Vector<T, N>& dout) const {
#pragma unroll
    for (int i = 0; i < N; ++i)
      dx.v[i] =
          settle(accumulate, dx.v[i], widen(dout.v[i]) * unary_derivative<kOp>(widen(in.v[i])));
  }
};

/// True for functions that are rarely used. They share a kernel, which keeps the library small.
constexpr bool is_seldom(UnaryOp op) { return op > UnaryOp::gelu_erf; }
constexpr int kSeldomWidth = 2;

/// Calls f with `op` as a constant.
template <class F>
__device__ __forceinline__ void choose_seldom(UnaryOp op, F f) {
  const auto is = [&]<UnaryOp kOp>(std::integral_constant<UnaryOp, kOp> kind) {
    static_assert(is_seldom(kOp));
    if (op == kOp) f(kind);
  };
  is(std::integral_constant<UnaryOp, UnaryOp::floor>{});
  is(std::integral_constant<UnaryOp, UnaryOp::ceil>{});
  is(std::integral_constant<UnaryOp, UnaryOp::round>{});
  is(std::integral_constant<UnaryOp, UnaryOp::trunc>{});
  is(std::integral_constant<UnaryOp, UnaryOp::erf>{});
  is(std::integral_constant<UnaryOp, UnaryOp::log1p>{});
  is(std::integral_constant<UnaryOp, UnaryOp::expm1>{});
  is(std::integral_constant<UnaryOp, UnaryOp::tan>{});
}

template <class T>
struct SeldomValue {
  static constexpr bool accumulate = false;
  UnaryOp op;
  template <int N>
  __device__ void operator()(Vector<T, N>& out, const Vector<T, N>& in) const {
    choose_seldom(op, [&](auto kind) { UnaryValue<T, decltype(kind)::value>{}(out, in); });
  }
};

template <class T>
struct SeldomGradient {
  bool accumulate;
  UnaryOp op;
  template <int N>
  __device__ void operator()(Vector<T, N>& dx, const Vector<T, N>& in,
                             const Vector<T, N>& dout) const {
    choose_seldom(
        op, [&](auto kind) { UnaryGradient<T, decltype(kind)::value>{accumulate}(dx, in, dout); });
  }
};

/// Selects the op per item instead of per element: all threads take the same branch, which memory
/// traffic hides.
template <class T>
struct Arithmetic {
  bool accumulate;
  BinaryOp op;
  using C = compute_t<T>;

  template <int N, class F>
  __device__ void each(Vector<T, N>& out, const Vector<T, N>& a, const Vector<T, N>& b, F f) const {
#pragma unroll
    for (int i = 0; i < N; ++i)
      out.v[i] = settle(accumulate, out.v[i], f(widen(a.v[i]), widen(b.v[i])));
  }
  template <int N>
  __device__ void operator()(Vector<T, N>& out, const Vector<T, N>& a,
                             const Vector<T, N>& b) const {
    switch (op) {
      case BinaryOp::add: return each(out, a, b, [](C x, C y) { return x + y; });
      case BinaryOp::sub: return each(out, a, b, [](C x, C y) { return x - y; });
      case BinaryOp::mul: return each(out, a, b, [](C x, C y) { return x * y; });
      case BinaryOp::div: return each(out, a, b, [](C x, C y) { return x / y; });
      case BinaryOp::maximum:
        return each(out, a, b, [](C x, C y) { return x > y || x != x ? x : y; });
      default: return each(out, a, b, [](C x, C y) { return x < y || x != x ? x : y; });
    }
  }
};

/// pow and atan2, for floating dtypes only.
template <class T>
struct Transcendental {
  bool accumulate, power;

  template <int N, class F>
  __device__ void each(Vector<T, N>& out, const Vector<T, N>& a, const Vector<T, N>& b, F f) const {
#pragma unroll
    for (int i = 0; i < N; ++i)
      out.v[i] = settle(accumulate, out.v[i], f(to_float(a.v[i]), to_float(b.v[i])));
  }
  template <int N>
  __device__ void operator()(Vector<T, N>& out, const Vector<T, N>& a,
                             const Vector<T, N>& b) const {
    if (power) each(out, a, b, [](float x, float y) { return powf(x, y); });
    else each(out, a, b, [](float x, float y) { return atan2f(x, y); });
  }
};

template <class T>
struct Comparison {
  static constexpr bool accumulate = false;
  CompareOp op;
  using C = compute_t<T>;

  template <int N, class F>
  __device__ void each(Vector<bool, N>& out, const Vector<T, N>& a, const Vector<T, N>& b,
                       F f) const {
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] = f(widen(a.v[i]), widen(b.v[i]));
  }
  template <int N>
  __device__ void operator()(Vector<bool, N>& out, const Vector<T, N>& a,
                             const Vector<T, N>& b) const {
    switch (op) {
      case CompareOp::eq: return each(out, a, b, [](C x, C y) { return x == y; });
      case CompareOp::ne: return each(out, a, b, [](C x, C y) { return x != y; });
      case CompareOp::lt: return each(out, a, b, [](C x, C y) { return x < y; });
      case CompareOp::le: return each(out, a, b, [](C x, C y) { return x <= y; });
      case CompareOp::gt: return each(out, a, b, [](C x, C y) { return x > y; });
      default: return each(out, a, b, [](C x, C y) { return x >= y; });
    }
  }
};

template <class T>
struct Affine {
  bool accumulate;
  float scale, shift;
  template <int N>
  __device__ void operator()(Vector<T, N>& out, const Vector<T, N>& in) const {
#pragma unroll
    for (int i = 0; i < N; ++i)
      out.v[i] = settle(accumulate, out.v[i], add_rn(mul_rn(to_float(in.v[i]), scale), shift));
  }
};

/// Selects words of the element's size, because it does not interpret them.
template <class W>
struct Select {
  static constexpr bool accumulate = false;
  template <int N>
  __device__ void operator()(Vector<W, N>& out, const Vector<bool, N>& condition,
                             const Vector<W, N>& a, const Vector<W, N>& b) const {
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] = condition.v[i] ? a.v[i] : b.v[i];
  }
};

}  // namespace

void run(const Unary& op, CudaContext& ctx) {
  for_floating("unary", op.in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    dispatch_unary("unary", op.op, [&](auto kind) {
      constexpr UnaryOp kOp = decltype(kind)::value;
      if constexpr (!is_seldom(kOp))
        map<kPacket<T>, T, T>("unary", ctx.stream, UnaryValue<T, kOp>{}, op.out, op.in);
      else map<kSeldomWidth, T, T>("unary", ctx.stream, SeldomValue<T>{kOp}, op.out, op.in);
    });
  });
}

void run(const UnaryBackward& op, CudaContext& ctx) {
  for_floating("unary_backward", op.in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    dispatch_unary("unary_backward", op.op, [&](auto kind) {
      constexpr UnaryOp kOp = decltype(kind)::value;
      constexpr const char* kName = "unary_backward";
      if constexpr (!is_seldom(kOp)) {
        const UnaryGradient<T, kOp> f{op.accumulate};
        map<kPacket<T>, T, T, T>(kName, ctx.stream, f, op.dx, op.in, op.dout);
      } else {
        const SeldomGradient<T> f{op.accumulate, kOp};
        map<kSeldomWidth, T, T, T>(kName, ctx.stream, f, op.dx, op.in, op.dout);
      }
    });
  });
}

void run(const Binary& op, CudaContext& ctx) {
  if (op.op == BinaryOp::pow || op.op == BinaryOp::atan2)
    return for_floating("binary", op.out.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const Transcendental<T> f{op.accumulate, op.op == BinaryOp::pow};
      map<kPacket<T>, T, T, T>("binary", ctx.stream, f, op.out, op.a, op.b);
    });
  for_all("binary", op.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<T, bool>) {
      const Arithmetic<T> f{op.accumulate, op.op};
      map<kPacket<T>, T, T, T>("binary", ctx.stream, f, op.out, op.a, op.b);
    }
  });
}

void run(const Compare& op, CudaContext& ctx) {
  for_all("compare", op.a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    map<kPacket<T>, bool, T, T>("compare", ctx.stream, Comparison<T>{op.op}, op.out, op.a, op.b);
  });
}

void run(const Scale& op, CudaContext& ctx) {
  for_floating("scale", op.in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Affine<T> f{op.accumulate, static_cast<float>(op.scale), static_cast<float>(op.shift)};
    map<kPacket<T>, T, T>("scale", ctx.stream, f, op.out, op.in);
  });
}

void run(const Where& op, CudaContext& ctx) {
  const auto select = [&]<class W>(TypeTag<W>) {
    map<kPacket<W>, W, bool, W, W>("where", ctx.stream, Select<W>{}, op.out, op.condition, op.a,
                                   op.b);
  };
  switch (size_of(op.out.dtype)) {
    case 1: return select(TypeTag<uint8_t>{});
    case 2: return select(TypeTag<uint16_t>{});
    case 4: return select(TypeTag<uint32_t>{});
    default: return select(TypeTag<uint64_t>{});
  }
}

}  // namespace ds::cuda
