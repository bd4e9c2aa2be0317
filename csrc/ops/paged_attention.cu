// Paged attention on the GPU: a group of lanes reads a key once for several rows of queries, and
// the keys of a sequence are split among thread blocks whose parts are combined afterwards.
#include "paged_attention.h"

#include <algorithm>

#include "../cuda/vector.cuh"

namespace ds::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kPart = 8;         // elements of a head that one lane has
constexpr int kMaxHead = 256;    // 32 lanes
constexpr int kFewestKeys = 64;  // of a split
constexpr int kMostSplits = 128;

/// Where the keys and values of sequences lie. A block that is none has no row.
template <class T>
struct PagedRows {
  const T* pool;
  const int* tables;
  int64_t table_stride, blocks;
  int key_heads, block, shift, most, d;  // shift: log2 of block, or -1

  /// The key of `token` in a head; its value lies `value_offset()` behind it.
  __device__ const T* key(int sequence, int head, int token) const {
    const int place = shift >= 0 ? token >> shift : token / block;
    const int64_t b = tables[sequence * table_stride + place];
    if (b < 0 || b >= blocks) return nullptr;
    return pool + ((b * 2 * key_heads + head) * block + (token - place * block)) * d;
  }
  __device__ int64_t value_offset() const { return int64_t{key_heads} * block * d; }
};

template <class T>
struct PagedArguments {
  PagedRows<T> rows;
  const T* q;
  T* out;
  const int *starts, *lengths;
  int64_t q_token, q_head, out_token, out_head;
  int tokens, heads, group, d, window, tiles, splits;
  float scale_log2;
  bool vectors;   // rows of the pool may be read 16 bytes at a time
  int64_t total;  // rows of queries: tokens times heads
  float* sums;    // [splits, total, D], where there are several splits
  float2* marks;  // [splits, total]: the largest score, and the sum of exponentials below it
};

template <class T>
__device__ Vector<T, kPart> load_part(const T* row, int at, int d, bool vectors) {
  Vector<T, kPart> x;
#pragma unroll
  for (int e = 0; e < kPart; ++e) x.v[e] = from_float<T>(0.f);
  if (row == nullptr || at >= d) return x;
  if (vectors) return load_vector<kPart>(row + at);
#pragma unroll
  for (int e = 0; e < kPart; ++e)
    if (at + e < d) x.v[e] = row[at + e];
  return x;
}

/// The rows of queries that a thread block serves: those of one sequence and key head, of which row
/// i is query i / group in head i % group of the head's group.
struct QueryTile {
  int sequence, head, split, first_token, first_row, rows, group, length, count;

  template <class T>
  __device__ QueryTile(const PagedArguments<T>& a, int kRows) {
    int64_t index = blockIdx.x;
    split = static_cast<int>(index % a.splits);
    index /= a.splits;
    head = static_cast<int>(index % a.rows.key_heads);
    index /= a.rows.key_heads;
    first_row = static_cast<int>(index % a.tiles) * kRows;
    sequence = static_cast<int>(index / a.tiles);
    first_token = a.starts[sequence] - a.starts[0];
    count = a.starts[sequence + 1] - a.starts[sequence];
    group = a.group;
    rows = first_token < 0 || first_token + count > a.tokens ? 0 : count * group;
    length = min(a.lengths[sequence], a.rows.most * a.rows.block);
  }
  /// Row `r` of the tile, the last one again where there is none.
  __device__ int row(int r) const { return min(first_row + r, rows - 1); }
  __device__ int token(int r) const { return first_token + row(r) / group; }
  __device__ int query_head(int r) const { return head * group + row(r) % group; }
  /// The tokens that it sees end here.
  __device__ int end(int r) const { return length == 0 ? 0 : length - count + row(r) / group + 1; }
  __device__ int begin(int r, int window) const { return window > 0 ? max(0, end(r) - window) : 0; }
};

/// What a group of lanes has of each row: its lanes hold kPart channels each.
template <int kRows>
struct PartialRows {
  float sum[kRows][kPart], largest[kRows], total[kRows];

  __device__ PartialRows() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      largest[r] = -INFINITY;
      total[r] = 0.f;
#pragma unroll
      for (int e = 0; e < kPart; ++e) sum[r][e] = 0.f;
    }
  }

  /// Adds kKeys keys with these scores, of which those of minus infinity are not seen.
  template <int kKeys, class T>
  __device__ void add(const float (&scores)[kKeys][kRows],
                      const Vector<T, kPart> (&values)[kKeys]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float top = largest[r];
#pragma unroll
      for (int u = 0; u < kKeys; ++u) top = fmaxf(top, scores[u][r]);
      const float base = top == -INFINITY ? 0.f : top, factor = exp2f(largest[r] - base);
      largest[r] = top;
      total[r] *= factor;
#pragma unroll
      for (int e = 0; e < kPart; ++e) sum[r][e] *= factor;
#pragma unroll
      for (int u = 0; u < kKeys; ++u) {
        const float weight = exp2f(scores[u][r] - base);
        total[r] += weight;
#pragma unroll
        for (int e = 0; e < kPart; ++e)
          sum[r][e] = fmaf(weight, to_float(values[u].v[e]), sum[r][e]);
      }
    }
  }
};

/// Reads the keys from `begin` to `stop`, kKeys at a time for each group of lanes.
template <int kLanes, int kRows, int kKeys, class T>
__device__ void read_keys(const PagedArguments<T>& a, const QueryTile& tile, int begin, int stop,
                          PartialRows<kRows>& partial) {
  constexpr int kGroups = kThreads / kLanes;
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes, at = lane * kPart;
  float q[kRows][kPart];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const T* row = a.q + tile.token(r) * a.q_token + tile.query_head(r) * a.q_head;
    const Vector<T, kPart> x = load_part(row, at, a.d, false);
#pragma unroll
    for (int e = 0; e < kPart; ++e) q[r][e] = to_float(x.v[e]) * a.scale_log2;
  }
  for (int base = begin; base < stop; base += kGroups * kKeys) {
    float scores[kKeys][kRows];
    Vector<T, kPart> values[kKeys];
    Vector<T, kPart> keys[kKeys];
    bool missing[kKeys];
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      const int token = base + u * kGroups + group;
      const T* key = token < stop ? a.rows.key(tile.sequence, tile.head, token) : nullptr;
      missing[u] = key == nullptr;
      keys[u] = load_part(key, at, a.d, a.vectors);
      values[u] = load_part(key ? key + a.rows.value_offset() : nullptr, at, a.d, a.vectors);
    }
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      const int token = base + u * kGroups + group;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float dot = 0.f;
#pragma unroll
        for (int e = 0; e < kPart; ++e) dot = fmaf(q[r][e], to_float(keys[u].v[e]), dot);
#pragma unroll
        for (int other = kLanes / 2; other > 0; other /= 2)
          dot += __shfl_xor_sync(0xffffffffu, dot, other, kLanes);
        const bool seen = token < tile.end(r) && token >= tile.begin(r, a.window) && token < stop;
        scores[u][r] = !seen ? -INFINITY : missing[u] ? NAN : dot;
      }
    }
    partial.template add<kKeys>(scores, values);
  }
}

/// Adds up what the groups of lanes have and writes the rows, or this split's part of them.
template <int kLanes, int kRows, class T>
__device__ void write_rows(const PagedArguments<T>& a, const QueryTile& tile,
                           const PartialRows<kRows>& partial) {
  constexpr int kGroups = kThreads / kLanes, kWidth = kLanes * kPart;
  __shared__ float sums[kGroups][kRows][kWidth];
  __shared__ float2 marks[kGroups][kRows];
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int e = 0; e < kPart; ++e) sums[group][r][lane * kPart + e] = partial.sum[r][e];
    if (lane == 0) marks[group][r] = make_float2(partial.largest[r], partial.total[r]);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kRows * kWidth; i += kThreads) {
    const int r = i / kWidth, c = i % kWidth;
    if (tile.first_row + r >= tile.rows || c >= a.d) continue;
    float top = -INFINITY, total = 0.f, sum = 0.f;
    for (int g = 0; g < kGroups; ++g) top = fmaxf(top, marks[g][r].x);
    const float base = top == -INFINITY ? 0.f : top;
    for (int g = 0; g < kGroups; ++g) {
      const float factor = exp2f(marks[g][r].x - base);
      total = fmaf(marks[g][r].y, factor, total);
      sum = fmaf(sums[g][r][c], factor, sum);
    }
    const int64_t token = tile.token(r), head = tile.query_head(r);
    if (a.splits == 1) {
      a.out[token * a.out_token + head * a.out_head + c] =
          from_float<T>(total == 0.f ? 0.f : sum / total);
      continue;
    }
    const int64_t row = tile.split * a.total + token * a.heads + head;
    a.sums[row * a.d + c] = sum;
    if (c == 0) a.marks[row] = make_float2(top, total);
  }
}

template <int kLanes, int kRows, class T>
__global__ void __launch_bounds__(kThreads)
    paged_attention_kernel(const __grid_constant__ PagedArguments<T> a) {
  const QueryTile tile(a, kRows);
  if (tile.first_row >= tile.rows) return;
  const int first = tile.begin(0, a.window), span = max(0, tile.end(kRows - 1) - first);
  const int each = (span + a.splits - 1) / a.splits;
  const int begin = first + min(span, tile.split * each), stop = min(first + span, begin + each);
  PartialRows<kRows> partial;
  constexpr int kKeys = kRows > 4 ? 2 : 4;
  read_keys<kLanes, kRows, kKeys>(a, tile, begin, stop, partial);
  write_rows<kLanes, kRows>(a, tile, partial);
}

/// A warp for each row: its splits' sums, each brought below the largest score of all.
template <class T>
__global__ void __launch_bounds__(kThreads)
    paged_combine_kernel(const __grid_constant__ PagedArguments<T> a) {
  const int64_t row = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (row >= a.total) return;
  float top = -INFINITY, total = 0.f;
  for (int z = 0; z < a.splits; ++z) top = fmaxf(top, a.marks[z * a.total + row].x);
  const float base = top == -INFINITY ? 0.f : top;
  for (int z = 0; z < a.splits; ++z) {
    const float2 mark = a.marks[z * a.total + row];
    total = fmaf(mark.y, exp2f(mark.x - base), total);
  }
  T* out = a.out + row / a.heads * a.out_token + row % a.heads * a.out_head;
  for (int c = threadIdx.x % 32; c < a.d; c += 32) {
    float sum = 0.f;
    for (int z = 0; z < a.splits; ++z) {
      const int64_t part = z * a.total + row;
      sum = fmaf(a.sums[part * a.d + c], exp2f(a.marks[part].x - base), sum);
    }
    out[c] = from_float<T>(total == 0.f ? 0.f : sum / total);
  }
}

template <int kLanes, int kRows, class T>
void launch(PagedArguments<T> a, const PagedAttention& op, CudaContext& ctx) {
  const int64_t rows = std::max<int64_t>(1, op.longest) * a.group, sequences = op.tables.shape[0];
  const int64_t tiles = (rows + kRows - 1) / kRows, work = tiles * sequences * a.rows.key_heads;
  const int64_t context = int64_t{a.rows.most} * a.rows.block;
  const int64_t wanted = (4 * int64_t{ctx.sm_count} + work - 1) / work;
  const int64_t possible = std::max<int64_t>(1, context / kFewestKeys);
  a.tiles = static_cast<int>(tiles);
  a.splits = static_cast<int>(std::min<int64_t>({wanted, possible, kMostSplits}));
  DS_CHECK_SHAPE(work * a.splits < 2147483647, "paged_attention",
                 "fewer than 2^31 tiles of rows over all sequences and heads",
                 text(work * a.splits));
  if (a.splits > 1) {
    a.sums = ctx.scratch_of<float>(static_cast<size_t>(a.splits * a.total * a.d));
    a.marks = ctx.scratch_of<float2>(static_cast<size_t>(a.splits * a.total));
  }
  const auto grid = static_cast<unsigned>(work * a.splits);
  paged_attention_kernel<kLanes, kRows><<<grid, kThreads, 0, ctx.stream>>>(a);
  DS_CUDA_LAUNCHED("paged_attention");
  if (a.splits == 1) return;
  const auto warps = static_cast<unsigned>((a.total + kThreads / 32 - 1) / (kThreads / 32));
  paged_combine_kernel<<<warps, kThreads, 0, ctx.stream>>>(a);
  DS_CUDA_LAUNCHED("paged_attention");
}

template <int kRows, class T>
void launch_for_head(const PagedArguments<T>& a, const PagedAttention& op, CudaContext& ctx) {
  if (a.d <= 4 * kPart) return launch<4, kRows>(a, op, ctx);
  if (a.d <= 8 * kPart) return launch<8, kRows>(a, op, ctx);
  if (a.d <= 16 * kPart) return launch<16, kRows>(a, op, ctx);
  launch<32, kRows>(a, op, ctx);
}

int log2_of(int64_t n) {
  int shift = 0;
  while ((int64_t{1} << shift) < n) ++shift;
  return (int64_t{1} << shift) == n ? shift : -1;
}

template <class T>
PagedArguments<T> arguments_of(const PagedAttention& op) {
  const int64_t* const pool = op.pool.shape;
  const int d = static_cast<int>(op.q.shape[2]), heads = static_cast<int>(op.q.shape[1]);
  const int key_heads = static_cast<int>(pool[2]);
  PagedArguments<T> a{};
  a.rows = {op.pool.as<T>(),
            op.tables.as<int>(),
            op.tables.strides[0],
            pool[0],
            key_heads,
            static_cast<int>(pool[3]),
            log2_of(pool[3]),
            static_cast<int>(op.tables.shape[1]),
            d};
  a.q = op.q.as<T>();
  a.out = op.out.as<T>();
  a.starts = op.starts.as<int>();
  a.lengths = op.lengths.as<int>();
  a.q_token = op.q.strides[0];
  a.q_head = op.q.strides[1];
  a.out_token = op.out.strides[0];
  a.out_head = op.out.strides[1];
  a.tokens = static_cast<int>(op.q.shape[0]);
  a.heads = heads;
  a.group = heads / key_heads;
  a.d = d;
  a.window = static_cast<int>(std::min<int64_t>(op.window, 2147483647));
  a.scale_log2 = static_cast<float>(op.scale * 1.4426950408889634);
  a.vectors = d % kPart == 0 && aligned_for<kPart>(op.pool.as<T>());
  a.total = op.q.shape[0] * heads;
  return a;
}

template <class T>
struct StoreArguments {
  const T *k, *v;
  const int* slots;
  T* pool;
  int64_t k_token, k_head, v_token, v_head, items, places;  // places: slots of the pool
  int heads, block, d;
};

/// Item i is packet i % (D / N) of head i / (D / N) % heads of a token. N divides D.
template <int N, class T>
__global__ void __launch_bounds__(kThreads) paged_store_kernel(StoreArguments<T> a) {
  const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (item >= a.items) return;
  const int64_t packets = a.d / N, row = item / packets, column = (item - row * packets) * N;
  const int64_t token = row / a.heads, head = row - token * a.heads;
  const int slot = a.slots[token];
  if (slot < 0 || slot >= a.places) return;
  const int64_t b = slot / a.block, half = int64_t{a.heads} * a.block * a.d;
  T* to = a.pool + b * 2 * half + (head * a.block + (slot - b * a.block)) * a.d + column;
  store_vector(to, load_vector<N>(a.k + token * a.k_token + head * a.k_head + column));
  store_vector(to + half, load_vector<N>(a.v + token * a.v_token + head * a.v_head + column));
}

bool rows_divide(const View& v, int64_t n) {
  return (v.shape[0] < 2 || v.strides[0] % n == 0) && (v.shape[1] < 2 || v.strides[1] % n == 0);
}

}  // namespace

void run(const PagedStore& op, CudaContext& ctx) {
  constexpr const char* kOp = "paged_store";
  if (op.k.numel() == 0) return;
  for_floating(kOp, op.k.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int N = kPacket<T>;
    const int64_t* const pool = op.pool.shape;
    StoreArguments<T> a{op.k.as<T>(),
                        op.v.as<T>(),
                        op.slots.as<int>(),
                        op.pool.as<T>(),
                        op.k.strides[0],
                        op.k.strides[1],
                        op.v.strides[0],
                        op.v.strides[1],
                        0,
                        pool[0] * pool[3],
                        static_cast<int>(pool[2]),
                        static_cast<int>(pool[3]),
                        static_cast<int>(pool[4])};
    const bool vectors = a.d % N == 0 && aligned_for<N>(a.k) && aligned_for<N>(a.v) &&
                         aligned_for<N>(a.pool) && rows_divide(op.k, N) && rows_divide(op.v, N);
    a.items = op.k.numel() / (vectors ? N : 1);
    const auto kernel = vectors ? paged_store_kernel<N, T> : paged_store_kernel<1, T>;
    kernel<<<static_cast<unsigned>((a.items + kThreads - 1) / kThreads), kThreads, 0, ctx.stream>>>(
        a);
    DS_CUDA_LAUNCHED(kOp);
  });
}

/// Scratch: for each split of the keys, D + 2 floats a row of queries; splits are several only
/// where rows are few. Throws DS_SHAPE for heads above 256 channels.
void run(const PagedAttention& op, CudaContext& ctx) {
  constexpr const char* kOp = "paged_attention";
  if (op.out.numel() == 0) return;
  DS_CHECK_SHAPE(op.q.shape[2] <= kMaxHead, kOp, text("a head dim D up to ", kMaxHead),
                 text("D = ", op.q.shape[2]));
  for_floating(kOp, op.q.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const PagedArguments<T> a = arguments_of<T>(op);
    const int64_t rows = op.longest * a.group;
    if (rows <= 1) return launch_for_head<1>(a, op, ctx);
    if (rows <= 4) return launch_for_head<4>(a, op, ctx);
    launch_for_head<8>(a, op, ctx);
  });
}

}  // namespace ds::cuda
