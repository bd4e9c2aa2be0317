// Element-wise arithmetic, comparison, selection and activations on the CPU, over cpu/map.h.
#include "elementwise.h"

#include "../cpu/map.h"
#include "unary_math.h"

namespace ds::cpu {
namespace {

[[noreturn]] void unknown(const char* name, const char* expected, int32_t op) {
  throw Error("DS_ARGUMENT", name, expected, text("op ", op));
}

/// Integer division truncates. The smallest integer divided by -1 wraps around.
int64_t divide(int64_t a, int64_t b) {
  if (b == 0) {
    throw Error("DS_ARGUMENT", "binary", "a divisor that is not 0", "integer division by 0",
                "Cast to a floating dtype, or mask the zeros first.");
  }
  return b == -1 ? static_cast<int64_t>(0 - static_cast<uint64_t>(a)) : a / b;
}
float divide(float a, float b) { return a / b; }
double divide(double a, double b) { return a / b; }

template <class C>
C subtract(C a, C b) {
  if constexpr (std::is_integral_v<C>)
    return static_cast<C>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
  else return a - b;
}

// These functions have the same type for all dtypes, so that dtypes with one compute type share
// loops.
constexpr std::false_type kOverwrite{};
constexpr auto add = [](auto a, auto b) { return wrapping_add(a, b); };
constexpr auto sub = [](auto a, auto b) { return subtract(a, b); };
constexpr auto mul = [](auto a, auto b) { return wrapping_multiply(a, b); };
constexpr auto div = [](auto a, auto b) { return divide(a, b); };
// If either side is NaN, the result is NaN.
constexpr auto maximum = [](auto a, auto b) { return (a > b) | (a != a) ? a : b; };
constexpr auto minimum = [](auto a, auto b) { return (a < b) | (a != a) ? a : b; };
constexpr auto pow = [](auto a, auto b) { return std::pow(a, b); };
constexpr auto atan2 = [](auto a, auto b) { return std::atan2(a, b); };

constexpr auto eq = [](auto a, auto b) { return a == b; };
constexpr auto ne = [](auto a, auto b) { return a != b; };
constexpr auto lt = [](auto a, auto b) { return a < b; };
constexpr auto le = [](auto a, auto b) { return a <= b; };
constexpr auto gt = [](auto a, auto b) { return a > b; };
constexpr auto ge = [](auto a, auto b) { return a >= b; };

template <UnaryOp kOp>
struct UnaryValue {
  template <class C>
  C operator()(C x) const {
    return unary_value<kOp>(x);
  }
};

template <UnaryOp kOp>
struct UnaryGradient {
  template <class C>
  C operator()(C x, C dout) const {
    return dout * unary_derivative<kOp>(x);
  }
};

template <class T>
void arithmetic(const Binary& op, CpuContext& ctx) {
  const auto with = [&](auto f) { map<T, T>(ctx, op.accumulate, f, op.out, op.a, op.b); };
  switch (op.op) {
    case BinaryOp::add: return with(add);
    case BinaryOp::sub: return with(sub);
    case BinaryOp::mul: return with(mul);
    case BinaryOp::div: return with(div);
    case BinaryOp::maximum: return with(maximum);
    case BinaryOp::minimum: return with(minimum);
    default: break;
  }
  if constexpr (std::is_floating_point_v<compute_t<T>>) {
    if (op.op == BinaryOp::pow) return with(pow);
    if (op.op == BinaryOp::atan2) return with(atan2);
  }
  unknown("binary", "a binary op", static_cast<int32_t>(op.op));
}

template <class T>
void comparison(const Compare& op, CpuContext& ctx) {
  const auto with = [&](auto f) { map<bool, T>(ctx, kOverwrite, f, op.out, op.a, op.b); };
  switch (op.op) {
    case CompareOp::eq: return with(eq);
    case CompareOp::ne: return with(ne);
    case CompareOp::lt: return with(lt);
    case CompareOp::le: return with(le);
    case CompareOp::gt: return with(gt);
    case CompareOp::ge: return with(ge);
  }
  unknown("compare", "a comparison", static_cast<int32_t>(op.op));
}

/// Selects words of the element's size, because it does not interpret them.
template <class W>
void select(const Where& op, CpuContext& ctx) {
  const View* const views[4] = {&op.out, &op.condition, &op.a, &op.b};
  const Walk<4> walk = plan_walk(views);
  for_each_run(ctx, walk, [&](const int64_t(&at)[4], int64_t n) {
    W* const out = op.out.as<W>() + at[0];
    const bool* const condition = op.condition.as<bool>() + at[1];
    const W *const a = op.a.as<W>() + at[2], *const b = op.b.as<W>() + at[3];
    const int64_t so = walk.strides[0][0], sc = walk.strides[1][0], sa = walk.strides[2][0],
                  sb = walk.strides[3][0];
    if (so == 1 && sc == 1 && sa == 1 && sb == 1) {
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) {
        const W x = a[i], y = b[i];
        out[i] = condition[i] ? x : y;
      }
    } else {
      for (int64_t i = 0; i < n; ++i) out[i * so] = condition[i * sc] ? a[i * sa] : b[i * sb];
    }
  });
}

}  // namespace

void run(const Unary& op, CpuContext& ctx) {
  for_floating("unary", op.in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    dispatch_unary("unary", op.op, [&](auto kind) {
      map<T, T>(ctx, kOverwrite, UnaryValue<decltype(kind)::value>{}, op.out, op.in);
    });
  });
}

void run(const UnaryBackward& op, CpuContext& ctx) {
  for_floating("unary_backward", op.in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    dispatch_unary("unary_backward", op.op, [&](auto kind) {
      const UnaryGradient<decltype(kind)::value> gradient;
      map<T, T>(ctx, op.accumulate, gradient, op.dx, op.in, op.dout);
    });
  });
}

void run(const Binary& op, CpuContext& ctx) {
  for_all("binary", op.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<T, bool>) arithmetic<T>(op, ctx);
  });
}

void run(const Compare& op, CpuContext& ctx) {
  for_all("compare", op.a.dtype,
          [&](auto tag) { comparison<typename decltype(tag)::type>(op, ctx); });
}

void run(const Scale& op, CpuContext& ctx) {
  for_floating("scale", op.in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = compute_t<T>;
    const C scale = static_cast<C>(op.scale), shift = static_cast<C>(op.shift);
    map<T, T>(
        ctx, op.accumulate, [=](C x) { return x * scale + shift; }, op.out, op.in);
  });
}

void run(const Where& op, CpuContext& ctx) {
  switch (size_of(op.out.dtype)) {
    case 1: return select<uint8_t>(op, ctx);
    case 2: return select<uint16_t>(op, ctx);
    case 4: return select<uint32_t>(op, ctx);
    default: return select<uint64_t>(op, ctx);
  }
}

}  // namespace ds::cpu
