// The product of one row with codes of 8 or 4 bits around the middle one. Sums are those of plain
// multiplications: tensor cores, which serve more rows, were measured up to twice as slow for one.
#pragma once

#include "../cuda/block_reduce.cuh"
#include "one_row.cuh"
#include "quantized_codes.cuh"

namespace ds::cuda {

/// out [outputs] = x [inputs] by weights + bias; of gates, [outputs / 2]: see OneRow.
template <class T>
struct OneCodedRow {
  const uint32_t* packed;     // [outputs, words], of packets of 4 words
  const T *scale, *x, *bias;  // scale [outputs, groups]; bias may be null
  T* out;
  int64_t outputs;
  int inputs, words, groups, shift;  // shift: log2 of the inputs of a group, where they are several
  bool settled;                      // weights may be read before the kernel in front has ended
};

constexpr int kCodedThreads = 256, kCodedSharers = 4, kCodedOutputs = 4;  // sharers: warps
constexpr int kCodedTeams = kCodedThreads / 32 / kCodedSharers;

/// 8 neighbouring codes of a packet as floats: of 8 bits without the middle one, of 4 bits in turn
/// with q + 4 beside q, and 128 too high.
template <int kBits>
__device__ __forceinline__ void codes_of_8(float (&w)[8], const uint4& packet, int i) {
  const uint32_t words[4] = {packet.x, packet.y, packet.z, packet.w};
  if constexpr (kBits == 8) {
#pragma unroll
    for (int j = 0; j < 8; ++j) w[j] = code_as_float(words[2 * i + j / 4], j % 4) - 8388736.f;
  } else {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const uint32_t pair = (words[i] >> (4 * q) & 0x000f000fu) | 0x43004300u;
      w[q] = __uint_as_float(pair << 16);
      w[q + 4] = __uint_as_float(pair & 0xffff0000u);
    }
  }
}

/// Adds the products of a packet of each output, at input k, to `sums`.
template <int kBits, class T>
__device__ __forceinline__ void add_packets(const OneCodedRow<T>& a, int k,
                                            const uint4 (&packets)[kCodedOutputs],
                                            const float (&scales)[kCodedOutputs],
                                            float (&sums)[kCodedOutputs]) {
  float here[kCodedOutputs] = {}, total = 0.f;
#pragma unroll
  for (int i = 0; i < 16 / kBits; ++i) {
    const Vector<T, 8> packed = load_vector<8>(a.x + k + i * 8);
    float x[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      x[j] = to_float(packed.v[j]);
      if constexpr (kBits == 4) total += x[j];
    }
#pragma unroll
    for (int r = 0; r < kCodedOutputs; ++r) {
      float w[8];
      codes_of_8<kBits>(w, packets[r], i);
#pragma unroll
      for (int j = 0; j < 8; ++j) here[r] = fmaf(w[j], x[j], here[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kCodedOutputs; ++r) {
    if constexpr (kBits == 4) sums[r] = fmaf(scales[r], fmaf(-136.f, total, here[r]), sums[r]);
    else sums[r] += here[r];
  }
}

/// A team of warps for each kCodedOutputs outputs, which share the inputs.
template <int kBits, bool kGated, class T>
__global__ void __launch_bounds__(kCodedThreads, 3)
    one_coded_row_kernel(const __grid_constant__ OneCodedRow<T> a) {
  constexpr int kRun = 128 / kBits, kSpan = 32 * kCodedSharers;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int team = warp / kCodedSharers, first = warp % kCodedSharers * 32 + lane;
  const int64_t unit = int64_t{blockIdx.x} * kCodedTeams + team;
  const int packets = a.inputs / kRun;
  uint4 codes[kCodedOutputs];
  float scales[kCodedOutputs];
  const auto load = [&](int at) {
#pragma unroll
    for (int r = 0; r < kCodedOutputs; ++r) {
      const int64_t n = one_row_output<kGated>(a.outputs, unit, r, kCodedOutputs);
      const bool inside = at < packets && n < a.outputs;
      codes[r] = uint4{0, 0, 0, 0};
      scales[r] = 0.f;
      if (!inside) continue;
      codes[r] = load_once_16(a.packed + n * a.words + at * 4);
      if constexpr (kBits == 4)
        scales[r] = to_float(a.scale[n * a.groups + (a.groups == 1 ? 0 : at * kRun >> a.shift)]);
    }
  };
  let_next_begin();
  if (!a.settled) await_previous();
  load(first);
  if (a.settled) await_previous();
  float sums[kCodedOutputs] = {};
  for (int at = first; at - first < packets; at += kSpan) {
    if (at != first) load(at);
    if (at < packets) add_packets<kBits>(a, at * kRun, codes, scales, sums);
  }
  __shared__ float partial[kCodedTeams][kCodedOutputs][kCodedSharers];
#pragma unroll
  for (int r = 0; r < kCodedOutputs; ++r) {
    const float sum = warp_sum(sums[r]);
    if (lane == 0) partial[team][r][warp % kCodedSharers] = sum;
  }
  __syncthreads();
  constexpr int kFinished = kGated ? kCodedOutputs / 2 : kCodedOutputs;
  if (warp % kCodedSharers != 0 || lane >= kFinished) return;
  const int64_t n = one_row_output<kGated>(a.outputs, unit, lane, kCodedOutputs);
  if (n >= a.outputs) return;
  const auto total = [&](int r, int64_t output) {
    float sum = 0.f;
#pragma unroll
    for (int w = 0; w < kCodedSharers; ++w) sum += partial[team][r][w];
    // Fused by name: the kernels with and without gates have the same bits.
    if constexpr (kBits == 8)
      return fmaf(sum, to_float(a.scale[output]), a.bias ? to_float(a.bias[output]) : 0.f);
    else return a.bias ? sum + to_float(a.bias[output]) : sum;
  };
  if constexpr (kGated)
    a.out[n] = gated<T>(total(lane, n), total(lane + kFinished, n + a.outputs / 2));
  else a.out[n] = from_float<T>(total(lane, n));
}

/// Whether the kernel is for this op: one row, symmetric codes, scales of x's dtype, of a row or of
/// 2^n packets of 4 bits. `Op` is QuantizedLinear or what has its operands.
template <int kBits, class T, class Op>
bool is_one_coded_row(const Op& op, const CodeMatrix& w) {
  if (op.x.shape[0] != 1 || op.zero || op.scale.dtype != op.x.dtype) return false;
  if (!takes_packets<T>(op, w)) return false;
  return w.groups == 1 || (kBits == 4 && w.shift >= 5);
}

template <int kBits, bool kGated, class T, class Op>
void launch_one_coded_row(const char* name, const Op& op, const CodeMatrix& w, CudaContext& ctx) {
  const OneCodedRow<T> a{w.packed,
                         static_cast<const T*>(w.scale),
                         op.x.template as<T>(),
                         op.bias.template as<T>(),
                         op.out.template as<T>(),
                         w.outputs,
                         static_cast<int>(w.inputs),
                         static_cast<int>(w.words),
                         static_cast<int>(w.groups),
                         w.shift,
                         codes_are_settled(op, ctx)};
  constexpr int64_t kEach = kCodedTeams * kCodedOutputs;
  const auto blocks = static_cast<unsigned>((w.outputs + kEach - 1) / kEach);
  launch_behind(ctx, {name, dim3(blocks), dim3(kCodedThreads), ctx.stream},
                one_coded_row_kernel<kBits, kGated, T>, a);
}

}  // namespace ds::cuda
