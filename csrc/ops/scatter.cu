// Scatter and ScatterAdd on the GPU without atomics, with the same bits in every run. Short lines
// compare their indices; long lines use a stable sort of the destinations.
#include "scatter.h"

#include <algorithm>

#include "../cuda/block_reduce.cuh"
#include "../cuda/map.cuh"
#include "../cuda/sort_pairs.h"

namespace ds::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kShortLine = 32;          // up to this length, indices are compared pairwise
constexpr int64_t kMostSorted = 1 << 24;    // entries per sort, unless a line has more
constexpr uint32_t kNowhere = 0xffffffffu;  // key of an invalid index, above all destinations
constexpr uint32_t kRun = 32;               // entries of a destination that a thread adds
constexpr uint32_t kOwned =
    kThreads * kRun;  // entries of a block, which adds the longer runs that begin in them

/// The lines of out, src and index along the dim. Each has `count` entries and `size` destinations.
struct Lines {
  Steps<3> steps;
  int64_t count, size, index_stride;
};

/// The operands. Strides are in elements, along the dim.
template <class T>
struct Problem : Lines {
  T* out;
  const T* src;
  int64_t out_stride, src_stride;
};

/// Numbers the entries of a group of lines that are sorted together. Consecutive entries in memory
/// have consecutive numbers; the numbers of a line ascend with j.
struct Numbering {
  uint32_t first, lines;
  uint32_t count;
  bool lines_inside;

  struct Entry {
    uint32_t line, j;
  };
  __device__ __forceinline__ Entry entry(uint32_t e) const {
    if (lines_inside) return {first + e % lines, e / lines};
    return {first + e / count, e % count};
  }
};

template <class T>
__device__ __forceinline__ void add_to(T* place, compute_t<T> sum) {
  *place = narrow<T>(widen(*place) + sum);
}

// -------------------------------------------------------------------------------------------------
// Short lines: a thread per entry.

/// The first entry of a destination adds all its entries in order. With `store`, the last one
/// writes.
template <bool kStore, class T, class I>
__global__ void __launch_bounds__(kThreads) short_lines_kernel(Problem<T> p, const I* index) {
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x, line = thread / p.count;
  const int64_t j = thread - line * p.count;
  if (line >= p.steps.count) return;
  int32_t at[3];
  p.steps.offsets(static_cast<uint32_t>(line), at);
  const I* const row = index + at[2];
  const I place = row[j * p.index_stride];
  if (place < 0 || place >= p.size) return;
  T* const out = p.out + at[0] + static_cast<int64_t>(place) * p.out_stride;
  const T* const src = p.src + at[1];
  if constexpr (kStore) {
    for (int64_t k = j + 1; k < p.count; ++k)
      if (row[k * p.index_stride] == place) return;
    *out = src[j * p.src_stride];
  } else {
    for (int64_t k = 0; k < j; ++k)
      if (row[k * p.index_stride] == place) return;
    compute_t<T> sum = 0;
    for (int64_t k = j; k < p.count; ++k)
      if (row[k * p.index_stride] == place) sum += widen(src[k * p.src_stride]);
    add_to(out, sum);
  }
}

// -------------------------------------------------------------------------------------------------
// Long lines: entries sorted by place.

/// Writes the destination of each entry as its sort key, and the number of the entry.
template <class I>
__global__ void __launch_bounds__(kThreads)
    places_kernel(Lines lines, const I* index, Numbering numbering, uint32_t n, uint32_t* keys,
                  uint32_t* positions) {
  const uint32_t e = blockIdx.x * kThreads + threadIdx.x;
  if (e >= n) return;
  const auto [line, j] = numbering.entry(e);
  int32_t at[3];
  lines.steps.offsets(line, at);
  const int64_t place = index[at[2] + j * lines.index_stride];
  const bool bad = place < 0 || place >= lines.size;
  keys[e] = bad ? kNowhere : static_cast<uint32_t>((line - numbering.first) * lines.size + place);
  positions[e] = e;
}

/// The sorted entries of a group of lines.
struct Sorted {
  const uint32_t *keys, *positions;
  uint32_t n;
  Numbering numbering;

  /// Returns true if entry i is the first one of a valid destination.
  __device__ __forceinline__ bool starts(uint32_t i) const {
    return keys[i] != kNowhere && (i == 0 || keys[i - 1] != keys[i]);
  }
};

/// Returns the element of src of sorted entry i.
template <class T>
__device__ __forceinline__ const T* source_of(const Problem<T>& p, const Sorted& s, uint32_t i) {
  const auto [line, j] = s.numbering.entry(s.positions[i]);
  int32_t at[3];
  p.steps.offsets(line, at);
  return p.src + at[1] + j * p.src_stride;
}

/// Returns the element of out to which a key belongs.
template <class T>
__device__ __forceinline__ T* place_of(const Problem<T>& p, const Sorted& s, uint32_t key) {
  const uint32_t line = static_cast<uint32_t>(key / p.size);
  int32_t at[3];
  p.steps.offsets(s.numbering.first + line, at);
  return p.out + at[0] + (key - line * p.size) * p.out_stride;
}

/// The last entry of each destination writes.
template <class T>
__global__ void __launch_bounds__(kThreads) store_kernel(Problem<T> p, Sorted s) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= s.n) return;
  const uint32_t key = s.keys[i];
  if (key == kNowhere || (i + 1 < s.n && s.keys[i + 1] == key)) return;
  *place_of(p, s, key) = *source_of(p, s, i);
}

/// The first entry of a destination adds its run, if that has at most kRun entries. A thread per
/// entry.
template <class T>
__global__ void __launch_bounds__(kThreads) add_short_runs_kernel(Problem<T> p, Sorted s) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= s.n || !s.starts(i)) return;
  const uint32_t key = s.keys[i];
  if (i + kRun < s.n && s.keys[i + kRun] == key) return;
  compute_t<T> sum = 0;
  for (uint32_t k = i; k < s.n && s.keys[k] == key; ++k) sum += widen(*source_of(p, s, k));
  add_to(place_of(p, s, key), sum);
}

/// A block adds, one by one, the longer runs that begin in its kOwned entries. At most one of them
/// begins in the kRun entries that a thread scans.
template <class T>
__global__ void __launch_bounds__(kThreads) add_long_runs_kernel(Problem<T> p, Sorted s) {
  __shared__ uint32_t begins[kThreads];
  const uint32_t first = blockIdx.x * kOwned + threadIdx.x * kRun;
  uint32_t found = s.n;
  for (uint32_t i = first; i < first + kRun && i + kRun < s.n; ++i)
    if (s.keys[i + kRun] == s.keys[i] && s.starts(i)) found = i;
  begins[threadIdx.x] = found;
  if (!__syncthreads_or(found < s.n)) return;
  for (int thread = 0; thread < kThreads; ++thread) {
    const uint32_t begin = begins[thread];
    if (begin == s.n) continue;
    const uint32_t key = s.keys[begin];
    uint32_t end = begin + kRun + 1, beyond = s.n;  // end of the run, by bisection
    while (end < beyond) {
      const uint32_t middle = end + (beyond - end) / 2;
      if (s.keys[middle] == key) end = middle + 1;
      else beyond = middle;
    }
    compute_t<T> sum = 0;
#pragma unroll 4
    for (uint32_t i = begin + threadIdx.x; i < end; i += kThreads)
      sum += widen(*source_of(p, s, i));
    sum = block_sum(sum);
    if (threadIdx.x == 0) add_to(place_of(p, s, key), sum);
  }
}

// -------------------------------------------------------------------------------------------------
// Launching

unsigned blocks_for(int64_t items, int64_t per_block = kThreads) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

/// Sorts the entries of lines in groups of about kMostSorted and calls body(group).
template <class T, class I, class Body>
void for_each_group(const char* op, const Problem<T>& p, const I* index, CudaContext& ctx,
                    Body&& body) {
  const int64_t sortable = std::min(kMostSorted / p.count, int64_t{kNowhere - 1} / p.size);
  const int64_t group = std::clamp<int64_t>(sortable, 1, p.steps.count);
  DS_CHECK_SHAPE(group * p.size < kNowhere && group * p.count < int64_t{1} << 31, op,
                 "fewer than 2^31 indices and 2^32 - 1 elements along a dim",
                 text(p.count, " indices and ", p.size, " elements"));
  SortedPairs pairs(op, group * p.count, ctx);
  const bool lines_inside = std::llabs(p.index_stride) > 1;
  for (int64_t first = 0; first < p.steps.count; first += group) {
    const int64_t lines = std::min<int64_t>(group, p.steps.count - first);
    const uint32_t n = static_cast<uint32_t>(lines * p.count);
    const Numbering numbering = {static_cast<uint32_t>(first), static_cast<uint32_t>(lines),
                                 static_cast<uint32_t>(p.count), lines_inside};
    places_kernel<<<blocks_for(n), kThreads, 0, ctx.stream>>>(p, index, numbering, n, pairs.keys,
                                                              pairs.positions);
    DS_CUDA_LAUNCHED(op);
    // An invalid index has the largest key, whatever the number of bits, which hold one value more
    // than there are destinations.
    pairs.sort(n, bits_for(static_cast<uint64_t>(lines * p.size)));
    body(Sorted{pairs.keys, pairs.positions, n, numbering});
  }
}

template <bool kStore, class T, class I>
void write_long_lines(const char* op, const Problem<T>& p, const I* index, CudaContext& ctx) {
  for_each_group(op, p, index, ctx, [&](const Sorted& s) {
    if constexpr (kStore) {
      store_kernel<<<blocks_for(s.n), kThreads, 0, ctx.stream>>>(p, s);
    } else {
      add_short_runs_kernel<<<blocks_for(s.n), kThreads, 0, ctx.stream>>>(p, s);
      DS_CUDA_LAUNCHED(op);
      add_long_runs_kernel<<<blocks_for(s.n, kOwned), kThreads, 0, ctx.stream>>>(p, s);
    }
    DS_CUDA_LAUNCHED(op);
  });
}

/// Returns the walk over lines of out, src and index along `dim`.
Walk<3> plan_lines(const char* name, const View (&operands)[3], int64_t dim) {
  View first[3];
  const View* views[3];
  for (int o = 0; o < 3; ++o) {
    first[o] = operands[o];
    first[o].shape[dim] = 1;
    views[o] = &first[o];
  }
  const Walk<3> walk = plan_walk(views);
  DS_CHECK_SHAPE(fits_32_bits(walk), name, "fewer than 2^31 elements outside the dim",
                 operands[0].describe());
  return walk;
}

template <class T, bool kStore, class Op>
void write(const char* name, const Op& op, CudaContext& ctx) {
  if (op.src.numel() == 0) return;
  const Walk<3> walk = plan_lines(name, {op.out, op.src, op.index}, op.dim);
  Problem<T> p = {};
  p.steps = steps_of(walk, 1);
  p.count = op.src.shape[op.dim];
  p.size = op.out.shape[op.dim];
  p.index_stride = op.index.strides[op.dim];
  p.out = op.out.template as<T>();
  p.src = op.src.template as<T>();
  p.out_stride = op.out.strides[op.dim];
  p.src_stride = op.src.strides[op.dim];
  if (p.size == 0) return;
  dispatch_index(name, op.index.dtype, [&](auto tag) {
    const auto* const index = op.index.template as<typename decltype(tag)::type>();
    if (p.count > kShortLine) return write_long_lines<kStore>(name, p, index, ctx);
    const unsigned blocks = blocks_for(int64_t{p.steps.count} * p.count);
    short_lines_kernel<kStore><<<blocks, kThreads, 0, ctx.stream>>>(p, index);
    DS_CUDA_LAUNCHED(name);
  });
}

struct Zero {
  static constexpr bool accumulate = false;
  template <class T, int N>
  __device__ void operator()(Vector<T, N>& out) const {
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] = narrow<T>(compute_t<T>(0));
  }
};

}  // namespace

void run(const Scatter& op, CudaContext& ctx) {
  constexpr const char* kOp = "scatter";
  switch (size_of(op.out.dtype)) {
    case 1: return write<uint8_t, true>(kOp, op, ctx);
    case 2: return write<uint16_t, true>(kOp, op, ctx);
    case 4: return write<uint32_t, true>(kOp, op, ctx);
    default: return write<uint64_t, true>(kOp, op, ctx);
  }
}

void run(const ScatterAdd& op, CudaContext& ctx) {
  constexpr const char* kOp = "scatter_add";
  for_all(kOp, op.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<T, bool>) {
      if (!op.accumulate) map<kPacket<T>, T>(kOp, ctx.stream, Zero{}, op.out);
      write<T, false>(kOp, op, ctx);
    }
  });
}

}  // namespace ds::cuda
