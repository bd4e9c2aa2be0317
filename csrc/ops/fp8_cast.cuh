// Kernels that cast to FP8 codes: magnitudes of a matrix, and casts of its rows and columns.
#pragma once

#include "fp8_tile.cuh"

namespace ds::cuda {

/// Where codes and scales are written. Null pointers are skipped.
struct Fp8Codes {
  uint8_t* out;
  uint8_t* transposed;
  float* scale;
  float* transposed_scale;
  int64_t pitch, transposed_pitch;              // between rows of codes
  int64_t scale_pitch, transposed_scale_pitch;  // between groups or squares
};

/// Computes the largest magnitude for Fp8Scaling::tensor, if rows are contiguous. The grid starts
/// at the end, which the producer wrote last and which is still in the L2 cache.
template <class T>
__global__ void __launch_bounds__(kFp8Threads)
    fp8_largest_kernel(const T* data, int64_t n, uint32_t* largest) {
  constexpr int kWidth = kPacket<T>, kLoads = 4;
  constexpr int64_t kStep = kFp8Threads * kLoads;
  const int64_t packets = n / kWidth, steps = (packets + kStep - 1) / kStep;
  uint32_t word = 0;
  for (int64_t step = steps - 1 - blockIdx.x; step >= 0; step -= gridDim.x) {
    Vector<T, kWidth> x[kLoads]{};
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int64_t packet = step * kStep + i * kFp8Threads + threadIdx.x;
      if (packet < packets) x[i] = load_vector<kWidth>(data + packet * kWidth);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) word = Fp8Magnitudes<T>(x[i]).largest_with(word);
  }
  uint32_t bits = Fp8Magnitudes<T>::of_word(word);
  const int64_t rest = packets * kWidth + threadIdx.x;
  if (blockIdx.x == 0 && rest < n) bits = max(bits, fp8_magnitude(to_float(data[rest])));
  bits = largest_of_block(bits);
  if (threadIdx.x == 0) atomicMax(largest, bits);
}

constexpr int kFp8Warps = kFp8Threads / 32;
/// Rows that a warp of fp8_largest_lines_kernel has in flight.
constexpr int kFp8RowsInFlight = 4;
constexpr int kFp8RowStep = kFp8Warps * kFp8RowsInFlight;

/// Computes the largest magnitudes of rows (in.of_rows) or columns (in.of_columns), or with kOne of
/// the matrix (in.of_rows). A block has `rows` rows of 32 packets. kFull: all blocks are full and
/// rows consist of packets.
template <class T, bool kOne, bool kFull>
__global__ void __launch_bounds__(kFp8Threads)
    fp8_largest_lines_kernel(Fp8Source<T> in, int64_t rows) {
  constexpr int kWidth = kPacket<T>, kSpan = 32 * kWidth;
  __shared__ uint32_t words[kFp8Warps][32 * 4];
  const int64_t spans = (in.columns + kSpan - 1) / kSpan;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t first = int64_t{blockIdx.x} / spans * rows;
  const int64_t start = int64_t{blockIdx.x} % spans * kSpan, column = start + lane * kWidth;
  const int64_t end = min(in.rows, first + rows);
  Fp8Magnitudes<T> columns;
  for (int64_t row = first + warp; row < end; row += kFp8RowStep) {
    Vector<T, kWidth> x[kFp8RowsInFlight];
#pragma unroll
    for (int i = 0; i < kFp8RowsInFlight; ++i)
      x[i] = in.template packet<kFull>(row + i * kFp8Warps, column);
#pragma unroll
    for (int i = 0; i < kFp8RowsInFlight; ++i) {
      const Fp8Magnitudes<T> sizes(x[i]);
      columns.include(sizes);
      if (kOne || !in.of_rows) continue;
      const uint32_t bits = Fp8Magnitudes<T>::of_word(
          Fp8Magnitudes<T>::template largest_of<32>(sizes.largest_with(0)));
      const int64_t r = row + i * kFp8Warps;
      if (lane == 0 && (kFull || r < end)) atomicMax(in.of_rows + r, bits);
    }
  }
  if constexpr (kOne) {
    const uint32_t bits = largest_of_block(Fp8Magnitudes<T>::of_word(columns.largest_with(0)));
    if (threadIdx.x == 0) atomicMax(in.of_rows, bits);
    return;
  }
  if (!in.of_columns) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) words[warp][i * 32 + lane] = columns.word[i];
  __syncthreads();
  const int at = static_cast<int>(threadIdx.x);
  if (at >= kSpan || start + at >= in.columns) return;
  constexpr int kEach = kWidth / 4;  // elements of a word
  const int place = at % kWidth / kEach * 32 + at / kWidth;
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < kFp8Warps; ++i) word = Fp8Magnitudes<T>::larger(word, words[i][place]);
  atomicMax(in.of_columns + start + at, Fp8Magnitudes<T>::of_element(word, at % kEach));
}

/// Stores the codes of a packet. Codes of elements from `limit` on are 0.
template <Fp8Format kFormat, class T>
__device__ __forceinline__ void store_codes(uint8_t* at, const Vector<T, kPacket<T>>& x, float by,
                                            int64_t limit) {
  constexpr int kWidth = kPacket<T>;
  uint32_t codes[kWidth / 4];
#pragma unroll
  for (int j = 0; j < kWidth; j += 4) {
    const float four[4] = {to_float(x.v[j]), to_float(x.v[j + 1]), to_float(x.v[j + 2]),
                           to_float(x.v[j + 3])};
    codes[j / 4] = four_codes<kFormat>(four, by);
  }
  if (limit < kWidth) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j)
      if (j >= limit) codes[j / 4] &= ~(0xffu << j % 4 * 8);
  }
  if constexpr (kWidth == 8) *reinterpret_cast<uint2*>(at) = make_uint2(codes[0], codes[1]);
  else *reinterpret_cast<uint32_t*>(at) = codes[0];
}

/// Casts rows with Fp8Scaling::row in one pass: a block keeps a row in registers.
template <class T, Fp8Format kFormat, int kPackets>
__global__ void __launch_bounds__(kFp8RowThreads) fp8_rows_kernel(Fp8Source<T> in, Fp8Codes to) {
  constexpr int kWidth = kPacket<T>;
  const int64_t row = blockIdx.x;
  Vector<T, kWidth> x[kPackets];
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < kPackets; ++i)
    x[i] = in.packet(row, int64_t{threadIdx.x + i * blockDim.x} * kWidth);
#pragma unroll
  for (int i = 0; i < kPackets; ++i) word = Fp8Magnitudes<T>(x[i]).largest_with(word);
  const uint32_t bits = largest_of_block(Fp8Magnitudes<T>::of_word(word));
  const float by = fp8_multiplier(bits, kFormat, Fp8Scaling::row);
  if (threadIdx.x == 0) to.scale[row] = fp8_scale_of(by);
#pragma unroll
  for (int i = 0; i < kPackets; ++i) {
    const int64_t c = int64_t{threadIdx.x + i * blockDim.x} * kWidth;
    if (c < to.pitch) store_codes<kFormat>(to.out + row * to.pitch + c, x[i], by, in.columns - c);
  }
}

/// Bytes of dynamic shared memory of fp8_cast_kernel with columns: a tile, and the codes of its
/// columns.
template <class T>
constexpr int kFp8CastBytes = kFp8Tile * kFp8Tile * (static_cast<int>(sizeof(T)) + 1);

/// Casts rows, columns or both, in tiles of 128 x 128. Fp8Scaling::tensor and row read precomputed
/// magnitudes. kFull: all tiles are full and rows consist of packets.
template <class T, Fp8Format kFormat, Fp8Scaling kScaling, bool kFull>
__global__ void __launch_bounds__(kFp8Threads, kFull && sizeof(T) == 2 ? 3 : 2)
    fp8_cast_kernel(Fp8Source<T> in, Fp8Codes to) {
  extern __shared__ __align__(16) unsigned char shared[];
  using Part = Fp8TilePart<T>;
  __shared__ __align__(8) uint32_t largest[4][kFp8Tile];  // magnitudes of quarters of columns
  __shared__ float multipliers[2][kFp8Tile];              // multipliers of rows and columns
  const int64_t down = int64_t{blockIdx.x} / in.tiles_across;
  const int64_t across = int64_t{blockIdx.x} % in.tiles_across;
  const int64_t row = down * kFp8Tile, column = across * kFp8Tile;
  const auto multiplier = [](uint32_t bits) { return fp8_multiplier(bits, kFormat, kScaling); };
  T* const tile = reinterpret_cast<T*>(shared);
  float of_all = 0.0f;
  {
    Part part;
    part.template load<kFull>(in, row, column);
    if (to.transposed) part.put(tile);
    if constexpr (kScaling == Fp8Scaling::tensor) {
      of_all = multiplier(*in.of_rows);
      if (blockIdx.x == 0 && threadIdx.x == 0) *to.scale = fp8_scale_of(of_all);
    }
    if constexpr (kScaling == Fp8Scaling::square) {
      uint32_t word = 0;
#pragma unroll
      for (int i = 0; i < Part::kPackets; ++i)
        word = Fp8Magnitudes<T>(part.x[i]).largest_with(word);
      of_all = multiplier(largest_of_block(Fp8Magnitudes<T>::of_word(word)));
      if (threadIdx.x == 0) {
        if (to.scale) to.scale[down * to.scale_pitch + across] = fp8_scale_of(of_all);
        if (to.transposed_scale)
          to.transposed_scale[across * to.transposed_scale_pitch + down] = fp8_scale_of(of_all);
      }
    }
    if constexpr (kScaling == Fp8Scaling::row) {
      // Each thread divides once, for a row or a column.
      const int at = static_cast<int>(threadIdx.x) % kFp8Tile;
      const bool of_rows = threadIdx.x < kFp8Tile;
      const int64_t line = (of_rows ? row : column) + at;
      const uint32_t* const magnitudes = of_rows ? in.of_rows : in.of_columns;
      if (magnitudes && (kFull || line < (of_rows ? in.rows : in.columns))) {
        const float by = multiplier(magnitudes[line]);
        multipliers[of_rows ? 0 : 1][at] = by;
        if ((of_rows ? across : down) == 0)
          (of_rows ? to.scale : to.transposed_scale)[line] = fp8_scale_of(by);
      }
      __syncthreads();
    }
    if (to.out) {
      const int64_t c = column + part.across;
      float of_group = 0.0f;
      if constexpr (kScaling == Fp8Scaling::group) {
        // The threads of a row hold packets of kPackets rows. Each divides for one of them.
        const int mine = static_cast<int>(threadIdx.x) % Part::kAcross % Part::kPackets;
        uint32_t bits = 0;
#pragma unroll
        for (int i = 0; i < Part::kPackets; ++i) {
          const Fp8Magnitudes<T> sizes(part.x[i]);
          const uint32_t word =
              Fp8Magnitudes<T>::template largest_of<Part::kAcross>(sizes.largest_with(0));
          if (i == mine) bits = word;
        }
        of_group = multiplier(Fp8Magnitudes<T>::of_word(bits));
        const int64_t r = row + part.down + mine * Part::kDown;
        if (static_cast<int>(threadIdx.x) % Part::kAcross < Part::kPackets && r < to.scale_pitch)
          to.scale[across * to.scale_pitch + r] = fp8_scale_of(of_group);
      }
#pragma unroll
      for (int i = 0; i < Part::kPackets; ++i) {
        const int64_t r = row + part.down + i * Part::kDown;
        float by = of_all;
        if constexpr (kScaling == Fp8Scaling::group)
          by = __shfl_sync(0xffffffffu, of_group, i, Part::kAcross);
        if (!kFull && r >= in.rows) continue;
        if constexpr (kScaling == Fp8Scaling::row) by = multipliers[0][part.down + i * Part::kDown];
        if (kFull || c < to.pitch)
          store_codes<kFormat>(to.out + r * to.pitch + c, part.x[i], by,
                               kFull ? Part::kWidth : in.columns - c);
      }
    }
  }

  if (!to.transposed) return;
  __syncthreads();
  const Fp8ColumnPair<T> pair(tile);
  if constexpr (kScaling == Fp8Scaling::group) {
    uint32_t bits[2];
    pair.largest(bits);
    *reinterpret_cast<uint2*>(&largest[pair.quarter][pair.column]) = make_uint2(bits[0], bits[1]);
    __syncthreads();
  }
  float by[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int64_t c = column + pair.column + j;
    by[j] = of_all;
    if constexpr (kScaling == Fp8Scaling::group) {
      const int at = pair.column + j;
      by[j] =
          multiplier(max(max(largest[0][at], largest[1][at]), max(largest[2][at], largest[3][at])));
      if (pair.quarter == 0 && c < to.transposed_scale_pitch)
        to.transposed_scale[down * to.transposed_scale_pitch + c] = fp8_scale_of(by[j]);
    }
    if constexpr (kScaling == Fp8Scaling::row) by[j] = multipliers[1][pair.column + j];
  }
  uint4* const stage = reinterpret_cast<uint4*>(shared + kFp8Tile * kFp8Tile * sizeof(T));
#pragma unroll
  for (int i = 0; i < kFp8Quarter; i += 16) {
    uint32_t codes[2][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      Vector<T, 2> x[4];
#pragma unroll
      for (int m = 0; m < 4; ++m) x[m] = pair[i + k * 4 + m];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float four[4] = {to_float(x[0].v[j]), to_float(x[1].v[j]), to_float(x[2].v[j]),
                               to_float(x[3].v[j])};
        codes[j][k] = four_codes<kFormat>(four, by[j]);
      }
    }
    const int64_t first = row + pair.quarter * kFp8Quarter + i;
    if (!kFull && first + 16 > in.rows) {
#pragma unroll
      for (int k = 0; k < 16; ++k) {
        if (first + k < in.rows) continue;
        codes[0][k / 4] &= ~(0xffu << k % 4 * 8);
        codes[1][k / 4] &= ~(0xffu << k % 4 * 8);
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j)
      stage[staged(pair.column + j, pair.quarter * 2 + i / 16)] =
          make_uint4(codes[j][0], codes[j][1], codes[j][2], codes[j][3]);
  }
  __syncthreads();
  // Eight threads write the 128 codes of a column, which are whole cache lines.
  const int chunk = static_cast<int>(threadIdx.x) % kFp8Chunks;
  const int64_t from = row + chunk * 16;
  if (!kFull && from >= to.transposed_pitch) return;
#pragma unroll
  for (int i = 0; i < kFp8Tile; i += kFp8Threads / kFp8Chunks) {
    const int at = i + static_cast<int>(threadIdx.x) / kFp8Chunks;
    const int64_t c = column + at;
    if (kFull || c < in.columns)
      *reinterpret_cast<uint4*>(to.transposed + c * to.transposed_pitch + from) =
          stage[staged(at, chunk)];
  }
}

}  // namespace ds::cuda
