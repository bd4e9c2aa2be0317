// Element-wise arithmetic, comparison, selection and activations on the CPU, over cpu/map.h.
#include "elementwise.h"

#include "../cpu/map.h"
#include "unary_math.h"

namespace ds::cpu {
namespace {

[[noreturn]] void unknown(const char* name, const char* expected, int32_t op) {
  throw Error("DS_ARGUMENT", name, expected, text("op ", op));
}

/// Integer division truncates; the smallest integer over -1 wraps around.
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

template <class T>
void arithmetic(const Binary& op, CpuContext& ctx) {
  using C = compute_t<T>;
  const auto with = [&](auto f) { map<T, T>(ctx, op.accumulate, f, op.out, op.a, op.b); };
  switch (op.op) {
    case BinaryOp::add: return with([](C a, C b) { return wrapping_add(a, b); });
    case BinaryOp::sub: return with([](C a, C b) { return subtract(a, b); });
    case BinaryOp::mul: return with([](C a, C b) { return wrapping_multiply(a, b); });
    case BinaryOp::div: return with([](C a, C b) { return divide(a, b); });
    // A NaN on either side is the result.
    case BinaryOp::maximum: return with([](C a, C b) { return (a > b) | (a != a) ? a : b; });
    case BinaryOp::minimum: return with([](C a, C b) { return (a < b) | (a != a) ? a : b; });
    default: break;
  }
  if constexpr (std::is_floating_point_v<C>) {
    if (op.op == BinaryOp::pow) return with([](C a, C b) { return std::pow(a, b); });
    if (op.op == BinaryOp::atan2) return with([](C a, C b) { return std::atan2(a, b); });
  }
  unknown("binary", "a binary op", static_cast<int32_t>(op.op));
}

template <class T>
void comparison(const Compare& op, CpuContext& ctx) {
  using C = compute_t<T>;
  const auto with = [&](auto f) { map<bool, T>(ctx, false, f, op.out, op.a, op.b); };
  switch (op.op) {
    case CompareOp::eq: return with([](C a, C b) { return a == b; });
    case CompareOp::ne: return with([](C a, C b) { return a != b; });
    case CompareOp::lt: return with([](C a, C b) { return a < b; });
    case CompareOp::le: return with([](C a, C b) { return a <= b; });
    case CompareOp::gt: return with([](C a, C b) { return a > b; });
    case CompareOp::ge: return with([](C a, C b) { return a >= b; });
  }
  unknown("compare", "a comparison", static_cast<int32_t>(op.op));
}

/// Moves words of the element's size, because selection never interprets them.
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
      const auto value = [](compute_t<T> x) { return unary_value<decltype(kind)::value>(x); };
      map<T, T>(ctx, false, value, op.out, op.in);
    });
  });
}

void run(const UnaryBackward& op, CpuContext& ctx) {
  for_floating("unary_backward", op.in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    dispatch_unary("unary_backward", op.op, [&](auto kind) {
      const auto gradient = [](compute_t<T> x, compute_t<T> dout) {
        return dout * unary_derivative<decltype(kind)::value>(x);
      };
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
