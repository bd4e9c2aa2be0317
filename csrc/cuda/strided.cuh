// Iterates over strided operands in kernels. The host merges dims, splits walks that exceed 32-bit
// indices, and selects vector loads. The device converts an item's index to element offsets.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "vector.cuh"

namespace ds::cuda {

/// Divides by a number known at run time. Exact for dividends and divisors below 2^31. Source:
/// Granlund & Montgomery 1994.
struct FastDivisor {
  uint32_t divisor = 1, magic = 1, shift = 0;
  FastDivisor() = default;
  explicit FastDivisor(uint32_t d) : divisor(d) {
    while ((uint64_t{1} << shift) < d) ++shift;
    magic = static_cast<uint32_t>((((uint64_t{1} << shift) - d) << 32) / d + 1);
  }
  __device__ __forceinline__ uint32_t quotient(uint32_t n) const {
    return (__umulhi(n, magic) + n) >> shift;
  }
};

/// A walk for the device: dims innermost first, strides in elements, all in 32 bits.
template <int kOperands>
struct Steps {
  uint32_t count;    // items, each of `width` consecutive elements
  uint32_t uniform;  // bit o: an item of operand o is one element, repeated
  int32_t ndim;
  FastDivisor shape[kMaxDims];
  int32_t strides[kOperands][kMaxDims];

  __device__ __forceinline__ void offsets(uint32_t item, int32_t (&at)[kOperands]) const {
#pragma unroll
    for (int o = 0; o < kOperands; ++o) at[o] = 0;
#pragma unroll
    for (int d = 0; d < kMaxDims; ++d) {
      const bool last = d == ndim - 1;
      const uint32_t rest = last ? 0 : shape[d].quotient(item);
      const int32_t index = static_cast<int32_t>(item - rest * shape[d].divisor);
#pragma unroll
      for (int o = 0; o < kOperands; ++o) at[o] += index * strides[o][d];
      if (last) break;
      item = rest;
    }
  }
};

/// A walk for the host: dims innermost first, of any size. Operand 0 leads and has the shape.
template <int kOperands>
struct Walk {
  int ndim = 0;
  int64_t shape[kMaxDims] = {};
  int64_t strides[kOperands][kMaxDims] = {};
  char* data[kOperands] = {};
  int element[kOperands] = {};  // bytes of an element

  int64_t numel() const {
    int64_t n = 1;
    for (int d = 0; d < ndim; ++d) n *= shape[d];
    return n;
  }
};

/// Returns true if all operands step evenly from dim `inner` to dim `outer`.
template <int kOperands>
bool mergeable(const Walk<kOperands>& w, int inner, int outer) {
  for (int o = 0; o < kOperands; ++o)
    if (w.strides[o][outer] != w.strides[o][inner] * w.shape[inner]) return false;
  return true;
}

template <int kOperands>
void copy_dim(Walk<kOperands>& w, int to, int from) {
  w.shape[to] = w.shape[from];
  for (int o = 0; o < kOperands; ++o) w.strides[o][to] = w.strides[o][from];
}

/// Merges neighbouring dims that are evenly spaced in all operands.
template <int kOperands>
void merge_dims(Walk<kOperands>& w) {
  int kept = 0;
  for (int d = 1; d < w.ndim; ++d) {
    if (mergeable(w, kept, d)) w.shape[kept] *= w.shape[d];
    else copy_dim(w, ++kept, d);
  }
  w.ndim = w.ndim == 0 ? 0 : kept + 1;
}

/// Appends an outer dim, unless its size is 1.
template <int kOperands>
void add_dim(Walk<kOperands>& w, int64_t size, const int64_t (&strides)[kOperands]) {
  if (size == 1) return;
  w.shape[w.ndim] = size;
  for (int o = 0; o < kOperands; ++o) w.strides[o][w.ndim] = strides[o];
  ++w.ndim;
}

/// Orders dims by the leader's stride (smallest innermost), then merges them. Use it only if the
/// order of visits does not matter, as in element-wise work.
template <int kOperands>
Walk<kOperands> plan_walk(const View* const (&views)[kOperands]) {
  Walk<kOperands> w;
  for (int o = 0; o < kOperands; ++o) {
    w.data[o] = views[o]->template as<char>();
    w.element[o] = static_cast<int>(size_of(views[o]->dtype));
  }
  int order[kMaxDims];
  const View& lead = *views[0];
  for (int d = 0; d < lead.ndim; ++d) order[d] = lead.ndim - 1 - d;
  std::stable_sort(order, order + lead.ndim, [&](int a, int b) {
    return std::llabs(lead.strides[a]) < std::llabs(lead.strides[b]);
  });
  for (int i = 0; i < lead.ndim; ++i) {
    int64_t strides[kOperands];
    for (int o = 0; o < kOperands; ++o) strides[o] = views[o]->strides[order[i]];
    add_dim(w, lead.shape[order[i]], strides);
  }
  merge_dims(w);
  return w;
}

/// Returns true if all indices and offsets are below 2^31.
template <int kOperands>
bool fits_32_bits(const Walk<kOperands>& w) {
  constexpr int64_t limit = (int64_t{1} << 31) - 1;
  if (w.numel() > limit) return false;
  for (int o = 0; o < kOperands; ++o) {
    int64_t extent = 0;
    for (int d = 0; d < w.ndim; ++d) extent += (w.shape[d] - 1) * std::llabs(w.strides[o][d]);
    if (extent > limit) return false;
  }
  return true;
}

/// Calls f(part) for parts of the walk that fit 32-bit indices. It splits the largest dim in
/// halves.
template <int kOperands, class F>
void for_each_part(const Walk<kOperands>& w, F&& f) {
  if (fits_32_bits(w)) return f(w);
  int widest = 0;
  double best = -1;
  for (int d = 0; d < w.ndim; ++d) {
    int64_t stride = 1;
    for (int o = 0; o < kOperands; ++o)
      stride = std::max<int64_t>(stride, std::llabs(w.strides[o][d]));
    const double extent = static_cast<double>(w.shape[d] - 1) * static_cast<double>(stride);
    if (extent > best) best = extent, widest = d;
  }
  Walk<kOperands> low = w, high = w;
  const int64_t half = w.shape[widest] / 2, first = half > 64 ? half / 64 * 64 : half;
  low.shape[widest] = first;
  high.shape[widest] = w.shape[widest] - first;
  for (int o = 0; o < kOperands; ++o) high.data[o] += first * w.strides[o][widest] * w.element[o];
  for_each_part(low, f);
  for_each_part(high, f);
}

/// Returns a walk for the device. It must fit 32 bits. Items have `width` elements of the innermost
/// dim.
template <int kOperands>
Steps<kOperands> steps_of(const Walk<kOperands>& w, int width) {
  Steps<kOperands> s = {};
  s.ndim = std::max(w.ndim, 1);
  s.count = static_cast<uint32_t>(w.numel() / width);
  for (int d = 0; d < w.ndim; ++d) {
    const int64_t size = d == 0 ? w.shape[0] / width : w.shape[d];
    s.shape[d] = FastDivisor(static_cast<uint32_t>(std::max<int64_t>(size, 1)));
    for (int o = 0; o < kOperands; ++o)
      s.strides[o][d] = static_cast<int32_t>(d == 0 ? w.strides[o][0] * width : w.strides[o][d]);
  }
  for (int o = 0; o < kOperands; ++o)
    if (w.ndim == 0 || w.strides[o][0] == 0) s.uniform |= 1u << o;
  return s;
}

/// Returns true if items of `width` elements can be loaded as vectors: innermost stride 1 (or 0 in
/// a broadcast operand), other strides multiples of `width`, and aligned data.
template <int kOperands>
bool vectorizable(const Walk<kOperands>& w, int width) {
  if (w.ndim == 0) return false;
  if (w.ndim > 1 && w.shape[0] % width != 0) return false;
  for (int o = 0; o < kOperands; ++o) {
    if (w.strides[o][0] == 0 && o > 0) continue;
    if (w.strides[o][0] != 1) return false;
    if (reinterpret_cast<uintptr_t>(w.data[o]) % std::min(16, width * w.element[o]) != 0)
      return false;
    for (int d = 1; d < w.ndim; ++d)
      if (w.strides[o][d] % width != 0) return false;
  }
  return true;
}

/// Calls launch(std::integral_constant<int, width>, steps, data) for each part of the walk. The
/// width is kWidth where vectors are possible, otherwise 1, also for the tail of a contiguous
/// range.
template <int kWidth, int kOperands, class Launch>
void walk_vectors(const Walk<kOperands>& walk, Launch&& launch) {
  using One = std::integral_constant<int, 1>;
  if (walk.numel() == 0) return;
  for_each_part(walk, [&](const Walk<kOperands>& part) {
    if (kWidth == 1 || !vectorizable(part, kWidth))
      return launch(One{}, steps_of(part, 1), part.data);
    Walk<kOperands> body = part, tail = part;
    const int64_t odd = part.shape[0] % kWidth;
    body.shape[0] -= odd;
    if (body.shape[0] > 0)
      launch(std::integral_constant<int, kWidth>{}, steps_of(body, kWidth), body.data);
    if (odd == 0) return;
    tail.shape[0] = odd;
    for (int o = 0; o < kOperands; ++o)
      tail.data[o] += body.shape[0] * part.strides[o][0] * part.element[o];
    launch(One{}, steps_of(tail, 1), tail.data);
  });
}

/// Loads an item of an operand: N elements, or N copies of one element.
template <int N, class T>
__device__ __forceinline__ Vector<T, N> load_item(const T* p, bool uniform) {
  if (N == 1 || !uniform) return load_vector<N>(p);
  Vector<T, N> out;
  const T x = *p;
#pragma unroll
  for (int i = 0; i < N; ++i) out.v[i] = x;
  return out;
}

}  // namespace ds::cuda
