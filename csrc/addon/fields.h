// Compile-time reflection: visits the fields of an op's struct in order of declaration.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

namespace ds::addon {

/// Converts to any type, for braces_take().
struct AnyField {
  template <class T>
  operator T() const;
};

template <class T, size_t... I>
constexpr bool braces_take(std::index_sequence<I...>) {
  return requires { T{(static_cast<void>(I), AnyField{})...}; };
}

/// Returns the number of fields of an aggregate without base classes and array members.
template <class T, size_t N = 22>
constexpr size_t field_count() {
  if constexpr (braces_take<T>(std::make_index_sequence<N>{})) return N;
  else return field_count<T, N - 1>();
}

/// Calls visit(field) for each field of `object`, in order.
template <class T, class Visit>
void for_each_field(T& object, Visit&& visit) {
  constexpr size_t n = field_count<T>();
#define DS_FIELDS(count, ...)     \
  if constexpr (n == count) {     \
    auto& [__VA_ARGS__] = object; \
    each_of(visit, __VA_ARGS__);  \
  }
  auto each_of = [](auto& call, auto&... field) { (call(field), ...); };
  DS_FIELDS(1, a)
  DS_FIELDS(2, a, b)
  DS_FIELDS(3, a, b, c)
  DS_FIELDS(4, a, b, c, d)
  DS_FIELDS(5, a, b, c, d, e)
  DS_FIELDS(6, a, b, c, d, e, f)
  DS_FIELDS(7, a, b, c, d, e, f, g)
  DS_FIELDS(8, a, b, c, d, e, f, g, h)
  DS_FIELDS(9, a, b, c, d, e, f, g, h, i)
  DS_FIELDS(10, a, b, c, d, e, f, g, h, i, j)
  DS_FIELDS(11, a, b, c, d, e, f, g, h, i, j, k)
  DS_FIELDS(12, a, b, c, d, e, f, g, h, i, j, k, l)
  DS_FIELDS(13, a, b, c, d, e, f, g, h, i, j, k, l, m)
  DS_FIELDS(14, a, b, c, d, e, f, g, h, i, j, k, l, m, o)
  DS_FIELDS(15, a, b, c, d, e, f, g, h, i, j, k, l, m, o, p)
  DS_FIELDS(16, a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q)
  DS_FIELDS(17, a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r)
  DS_FIELDS(18, a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s)
  DS_FIELDS(19, a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t)
  DS_FIELDS(20, a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u)
  DS_FIELDS(21, a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v)
#undef DS_FIELDS
  static_assert(n >= 1 && n <= 21, "an op has 1 to 21 fields");
}

}  // namespace ds::addon
