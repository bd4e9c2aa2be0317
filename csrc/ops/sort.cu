// The first elements of each row in sorted order on the GPU. Short rows use a bitonic network in
// shared memory. A small top-k of a long row uses radix selection and then that network. All other
// calls use a stable radix sort.
#include "sort.h"

#include <algorithm>

#include "../core/exact_math.h"
#include "../cuda/sort_pairs.h"
#include "../cuda/strided.cuh"

namespace ds::cuda {
namespace {

// -------------------------------------------------------------------------------------------------
// Keys: unsigned numbers in the order of elements. NaN is the greatest, and -0 is 0.

template <class T>
using key_t = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <class T>
constexpr int kKeyBits = static_cast<int>(sizeof(T) * 8);

/// Returns the bits of a floating number, sign first.
__device__ __forceinline__ uint32_t bits_in_key(float x) { return __float_as_uint(x); }
__device__ __forceinline__ uint32_t bits_in_key(__half x) { return __half_as_ushort(x); }
__device__ __forceinline__ uint32_t bits_in_key(__nv_bfloat16 x) { return __bfloat16_as_ushort(x); }

/// Returns the key of x in ascending order.
template <class T>
__device__ __forceinline__ key_t<T> ascending_key(T x) {
  constexpr key_t<T> sign = key_t<T>{1} << (kKeyBits<T> - 1), all = sign | (sign - 1);
  if constexpr (std::is_unsigned_v<T>) return x;
  else if constexpr (is_integer<T>) return static_cast<key_t<T>>(x) ^ sign;
  else {
    const float value = to_float(x);
    if (value != value) return all;
    const uint32_t bits = value == 0.0f ? 0 : bits_in_key(x);
    return bits & sign ? ~bits & all : bits | sign;
  }
}

template <class T>
__device__ __forceinline__ key_t<T> key_of(T x, bool descending) {
  constexpr key_t<T> sign = key_t<T>{1} << (kKeyBits<T> - 1), all = sign | (sign - 1);
  const key_t<T> key = ascending_key(x);
  return descending ? key ^ all : key;
}

/// An element and its column. Places of a row are never equal, so that every sort is stable.
template <class Key>
struct Place {
  Key key;
  uint32_t column;
};

template <class Key>
__device__ __forceinline__ bool precedes(const Place<Key>& a, const Place<Key>& b) {
  return a.key != b.key ? a.key < b.key : a.column < b.column;
}

/// The rows of `in`, and where their first `places` are written.
template <class T>
struct Problem {
  Steps<1> rows;
  const T* in;
  T* values;  // null if only positions are needed
  int64_t* index;
  int64_t stride;  // elements of `in` between columns
  uint32_t columns, places;
  bool descending;

  __device__ __forceinline__ const T* row(uint32_t number) const {
    int32_t at[1];
    rows.offsets(number, at);
    return in + at[0];
  }
  __device__ __forceinline__ Place<key_t<T>> place(const T* row, uint32_t column) const {
    return {key_of(row[column * stride], descending), column};
  }
  __device__ __forceinline__ void store(const T* row, uint32_t number, uint32_t k,
                                        uint32_t column) const {
    const int64_t at = int64_t{number} * places + k;
    index[at] = column;
    if (values) values[at] = row[column * stride];
  }
};

// -------------------------------------------------------------------------------------------------
// The bitonic network. Source: Batcher 1968, "Sorting networks and their applications".

template <class Key>
__device__ __forceinline__ void swap_if(Place<Key>* items, uint32_t i, uint32_t j, bool ascending) {
  const Place<Key> a = items[i], b = items[j];
  if (precedes(b, a) == ascending) {
    items[i] = b;
    items[j] = a;
  }
}

/// Sorts each run of `size` of `count` items in shared memory. Both are powers of two. All threads
/// of the block must call it.
template <class Key>
__device__ void sort_runs(Place<Key>* items, uint32_t count, uint32_t size) {
  for (uint32_t width = 2; width <= size; width *= 2)
    for (uint32_t distance = width / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (uint32_t k = threadIdx.x; k < count / 2; k += blockDim.x) {
        const uint32_t i = 2 * k - (k & (distance - 1));
        swap_if(items, i, i + distance, (i & width & (size - 1)) == 0);
      }
    }
  __syncthreads();
}

constexpr uint32_t kMostInBlock = 2048;  // elements that a block sorts at once

/// Sorts as many rows per block as fit, each padded to `size`, a power of two.
template <class T>
__global__ void __launch_bounds__(512) sort_short_rows_kernel(Problem<T> p, uint32_t size) {
  using Key = key_t<T>;
  __shared__ Place<Key> items[kMostInBlock];
  const uint32_t rows = kMostInBlock / size, first = blockIdx.x * rows;
  for (uint32_t i = threadIdx.x; i < kMostInBlock; i += blockDim.x) {
    const uint32_t number = first + i / size, column = i % size;
    const bool exists = number < p.rows.count && column < p.columns;
    items[i] = exists ? p.place(p.row(number), column) : Place<Key>{static_cast<Key>(~Key{0}), ~0u};
  }
  sort_runs(items, kMostInBlock, size);
  for (uint32_t i = threadIdx.x; i < kMostInBlock; i += blockDim.x) {
    const uint32_t number = first + i / size, k = i % size;
    if (number < p.rows.count && k < p.places) p.store(p.row(number), number, k, items[i].column);
  }
}

// -------------------------------------------------------------------------------------------------
// Radix selection: a block narrows the row down, digit by digit, to the requested first places,
// then sorts them.

constexpr int kDigit = 11, kBins = 1 << kDigit, kSelectThreads = 1024;
constexpr uint32_t kMostSelected = 1024;

/// The known bits of the last place that is kept: those under the masks.
template <class Key>
struct Known {
  Place<Key> bits, mask;

  __device__ __forceinline__ bool holds(const Place<Key>& x) const {
    return (x.key & mask.key) == bits.key && (x.column & mask.column) == bits.column;
  }
  /// Returns true if x is before the known bits or matches them.
  __device__ __forceinline__ bool reaches(const Place<Key>& x) const {
    const Key key = x.key & mask.key;
    return key != bits.key ? key < bits.key : (x.column & mask.column) <= bits.column;
  }
};

/// Returns the bin with the `wanted`-th of the counted items. Sets `wanted` to its rank in the bin
/// and `inside` to the number of items in the bin. Ends with a barrier.
__device__ __forceinline__ uint32_t find_bin(const uint32_t* bins, uint32_t& wanted,
                                             uint32_t& inside) {
  __shared__ uint32_t sums[kSelectThreads / 32], answer[3];
  constexpr int kEach = kBins / kSelectThreads;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t own[kEach], total = 0;
#pragma unroll
  for (int u = 0; u < kEach; ++u) total += own[u] = bins[threadIdx.x * kEach + u];
  uint32_t upto = total;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint32_t below = __shfl_up_sync(0xffffffffu, upto, distance);
    if (lane >= distance) upto += below;
  }
  if (lane == 31) sums[warp] = upto;
  __syncthreads();
  uint32_t before = upto - total;
  for (uint32_t w = 0; w < warp; ++w) before += sums[w];
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    if (before < wanted && wanted <= before + own[u]) {
      answer[0] = threadIdx.x * kEach + u;
      answer[1] = wanted - before;
      answer[2] = own[u];
    }
    before += own[u];
  }
  __syncthreads();
  wanted = answer[1];
  inside = answer[2];
  return answer[0];
}

/// Writes the first `places` elements of a row in order. A block per row.
template <class T>
__global__ void __launch_bounds__(kSelectThreads) select_kernel(Problem<T> p, int column_bits) {
  using Key = key_t<T>;
  __shared__ uint32_t bins[kBins], found;
  __shared__ Place<Key> items[kMostSelected];
  const uint32_t number = blockIdx.x;
  const T* const row = p.row(number);
  Known<Key> last = {};
  uint32_t wanted = p.places, inside = p.columns;
  // Takes bits of the key from the highest on, then of the column, until all remaining items are
  // needed.
  for (int left = kKeyBits<T> + column_bits; left > 0 && inside > wanted;) {
    const bool in_key = left > column_bits;
    const int rest = in_key ? left - column_bits : left, taken = min(kDigit, rest);
    const int shift = rest - taken;
    const uint32_t digit_mask = (1u << taken) - 1;
    for (int b = threadIdx.x; b < kBins; b += kSelectThreads) bins[b] = 0;
    __syncthreads();
#pragma unroll 4
    for (uint32_t c = threadIdx.x; c < p.columns; c += kSelectThreads) {
      const Place<Key> x = p.place(row, c);
      if (!last.holds(x)) continue;
      const uint32_t digit = static_cast<uint32_t>(in_key ? x.key >> shift : x.column >> shift);
      atomicAdd(&bins[digit & digit_mask], 1u);
    }
    __syncthreads();
    const uint32_t bin = find_bin(bins, wanted, inside);
    if (in_key) {
      last.bits.key |= static_cast<Key>(bin) << shift;
      last.mask.key |= static_cast<Key>(digit_mask) << shift;
    } else {
      last.bits.column |= bin << shift;
      last.mask.column |= digit_mask << shift;
    }
    left -= taken;
  }
  if (threadIdx.x == 0) found = 0;
  for (uint32_t i = threadIdx.x; i < kMostSelected; i += kSelectThreads)
    items[i] = {static_cast<Key>(~Key{0}), ~0u};
  __syncthreads();
  // The order of writes does not matter, because a sort follows.
#pragma unroll 4
  for (uint32_t c = threadIdx.x; c < p.columns; c += kSelectThreads) {
    const Place<Key> x = p.place(row, c);
    if (last.reaches(x)) items[atomicAdd(&found, 1u)] = x;
  }
  uint32_t size = 1;
  while (size < p.places) size *= 2;
  sort_runs(items, size, size);
  for (uint32_t k = threadIdx.x; k < p.places; k += kSelectThreads)
    p.store(row, number, k, items[k].column);
}

// -------------------------------------------------------------------------------------------------
// The radix sort of whole long rows, several at once: by the words of the keys, then by row.

constexpr int64_t kMostSorted = 1 << 24;  // elements per sort, unless a row has more

enum class Word { low, high, row };

/// Extracts the word of each element for the next pass. The first pass also numbers the elements.
template <class T>
__global__ void __launch_bounds__(256)
    words_kernel(Problem<T> p, uint32_t first_row, uint32_t n, Word word, bool number,
                 uint32_t* keys, uint32_t* positions) {
  const uint32_t i = blockIdx.x * 256 + threadIdx.x;
  if (i >= n) return;
  if (number) positions[i] = i;
  const uint32_t position = number ? i : positions[i], row = position / p.columns;
  if (word == Word::row) {
    keys[i] = row;
    return;
  }
  const T x = p.row(first_row + row)[(position - row * p.columns) * p.stride];
  const uint64_t key = key_of(x, p.descending);
  keys[i] = static_cast<uint32_t>(word == Word::low ? key : key >> 32);
}

/// Stores the first `places` elements of each row. A thread per element.
template <class T>
__global__ void __launch_bounds__(256)
    gather_sorted_kernel(Problem<T> p, uint32_t first_row, uint32_t rows,
                         const uint32_t* positions) {
  const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
  const uint32_t row = static_cast<uint32_t>(i / p.places);
  if (row >= rows) return;
  const uint32_t k = static_cast<uint32_t>(i - int64_t{row} * p.places);
  const uint32_t column = positions[row * p.columns + k] - row * p.columns;
  p.store(p.row(first_row + row), first_row + row, k, column);
}

constexpr const char* kOp = "sort";

unsigned blocks_for(int64_t items) { return static_cast<unsigned>((items + 255) / 256); }

template <class T>
void sort_long_rows(const Problem<T>& p, CudaContext& ctx) {
  const int64_t group = std::clamp<int64_t>(kMostSorted / p.columns, 1, p.rows.count);
  SortedPairs pairs(kOp, group * p.columns, ctx);
  for (int64_t first = 0; first < p.rows.count; first += group) {
    const uint32_t rows = static_cast<uint32_t>(std::min<int64_t>(group, p.rows.count - first));
    const uint32_t n = rows * p.columns, first_row = static_cast<uint32_t>(first);
    const auto pass = [&](Word word, bool number, int bits) {
      words_kernel<<<blocks_for(n), 256, 0, ctx.stream>>>(p, first_row, n, word, number, pairs.keys,
                                                          pairs.positions);
      DS_CUDA_LAUNCHED(kOp);
      pairs.sort(n, bits);
    };
    pass(Word::low, true, std::min(kKeyBits<T>, 32));
    if (sizeof(T) > 4) pass(Word::high, false, 32);
    if (rows > 1) pass(Word::row, false, bits_for(rows - 1));
    gather_sorted_kernel<<<blocks_for(int64_t{rows} * p.places), 256, 0, ctx.stream>>>(
        p, first_row, rows, pairs.positions);
    DS_CUDA_LAUNCHED(kOp);
  }
}

template <class T>
void sort(const Problem<T>& p, CudaContext& ctx) {
  if (p.columns <= kMostInBlock) {
    uint32_t size = 1;
    while (size < p.columns) size *= 2;
    const uint32_t rows = kMostInBlock / size;
    sort_short_rows_kernel<<<(p.rows.count + rows - 1) / rows, 512, 0, ctx.stream>>>(p, size);
  } else if (p.places <= kMostSelected) {
    select_kernel<<<p.rows.count, kSelectThreads, 0, ctx.stream>>>(p, bits_for(p.columns - 1));
  } else {
    return sort_long_rows(p, ctx);
  }
  DS_CUDA_LAUNCHED(kOp);
}

}  // namespace

void run(const Sort& op, CudaContext& ctx) {
  if (op.index.numel() == 0) return;
  Walk<1> walk;
  for (int d = op.in.ndim - 2; d >= 0; --d) add_dim(walk, op.in.shape[d], {op.in.strides[d]});
  merge_dims(walk);
  DS_CHECK_SHAPE(fits_32_bits(walk), kOp, "an extent below 2^31 elements", op.in.describe());
  const auto with = [&]<class T>(TypeTag<T>) {
    Problem<T> p = {};
    p.rows = steps_of(walk, 1);
    p.in = op.in.as<T>();
    p.values = op.values ? op.values.as<T>() : nullptr;
    p.index = op.index.as<int64_t>();
    p.stride = op.in.strides[op.in.ndim - 1];
    p.columns = static_cast<uint32_t>(op.in.size(-1));
    p.places = static_cast<uint32_t>(op.index.size(-1));
    p.descending = op.descending;
    sort(p, ctx);
  };
  // Booleans are bytes that are 0 or 1.
  if (op.in.dtype == DType::boolean) return with(TypeTag<uint8_t>{});
  for_all(kOp, op.in.dtype, [&](auto tag) {
    if constexpr (!std::is_same_v<typename decltype(tag)::type, bool>) with(tag);
  });
}

}  // namespace ds::cuda
