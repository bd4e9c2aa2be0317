// The product of one row with codes of 8 bits around the middle one. Sums are those of plain
// multiplications: tensor cores, which serve more rows, were measured slower for one.
#pragma once

#include "../cuda/block_reduce.cuh"
#include "one_row.cuh"
#include "quantized_codes.cuh"

namespace ds::cuda {

/// out [outputs] = x [inputs] by weights + bias; of gates, [outputs / 2]: see OneRow.
template <class T>
struct OneByteRow {
  const uint32_t* packed;     // [outputs, words], of packets of 4 words
  const T *scale, *x, *bias;  // scale [outputs]; bias may be null
  T* out;
  int64_t outputs;
  int inputs, words;
  bool settled;  // codes may be read before the kernel in front has ended
};

constexpr int kByteThreads = 256, kByteSharers = 4, kByteOutputs = 4;  // sharers: warps
constexpr int kByteTeams = kByteThreads / 32 / kByteSharers;

/// 8 neighbouring codes of a packet as floats, without the middle one.
__device__ __forceinline__ void codes_of_8(float (&w)[8], const uint4& packet, int i) {
  const uint32_t words[4] = {packet.x, packet.y, packet.z, packet.w};
#pragma unroll
  for (int j = 0; j < 8; ++j) w[j] = code_as_float(words[2 * i + j / 4], j % 4) - 8388736.f;
}

/// Adds the products of a packet of each output, at input k, to `sums`.
template <class T>
__device__ __forceinline__ void add_packets(const OneByteRow<T>& a, int k,
                                            const uint4 (&packets)[kByteOutputs],
                                            float (&sums)[kByteOutputs]) {
  float here[kByteOutputs] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const Vector<T, 8> packed = load_vector<8>(a.x + k + i * 8);
    float x[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = to_float(packed.v[j]);
#pragma unroll
    for (int r = 0; r < kByteOutputs; ++r) {
      float w[8];
      codes_of_8(w, packets[r], i);
#pragma unroll
      for (int j = 0; j < 8; ++j) here[r] = fmaf(w[j], x[j], here[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kByteOutputs; ++r) sums[r] += here[r];
}

/// A team of warps for each kByteOutputs outputs, which share the inputs. The next kernel does not
/// begin early: see one_row_kernel.
template <bool kGated, class T>
__global__ void __launch_bounds__(kByteThreads, 3)
    one_byte_row_kernel(const __grid_constant__ OneByteRow<T> a) {
  constexpr int kRun = 16, kSpan = 32 * kByteSharers;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int team = warp / kByteSharers, first = warp % kByteSharers * 32 + lane;
  const int64_t unit = int64_t{blockIdx.x} * kByteTeams + team;
  const int packets = a.inputs / kRun;
  uint4 codes[kByteOutputs];
  const auto load = [&](int at) {
#pragma unroll
    for (int r = 0; r < kByteOutputs; ++r) {
      const int64_t n = one_row_output<kGated>(a.outputs, unit, r, kByteOutputs);
      codes[r] = uint4{0, 0, 0, 0};
      if (at < packets && n < a.outputs) codes[r] = load_once_16(a.packed + n * a.words + at * 4);
    }
  };
  if (!a.settled) await_previous();
  load(first);
  if (a.settled) await_previous();
  float sums[kByteOutputs] = {};
  for (int at = first; at - first < packets; at += kSpan) {
    if (at != first) load(at);
    if (at < packets) add_packets(a, at * kRun, codes, sums);
  }
  __shared__ float partial[kByteTeams][kByteOutputs][kByteSharers];
#pragma unroll
  for (int r = 0; r < kByteOutputs; ++r) {
    const float sum = warp_sum(sums[r]);
    if (lane == 0) partial[team][r][warp % kByteSharers] = sum;
  }
  __syncthreads();
  constexpr int kFinished = kGated ? kByteOutputs / 2 : kByteOutputs;
  if (warp % kByteSharers != 0 || lane >= kFinished) return;
  const int64_t n = one_row_output<kGated>(a.outputs, unit, lane, kByteOutputs);
  if (n >= a.outputs) return;
  const auto total = [&](int r, int64_t output) {
    float sum = 0.f;
#pragma unroll
    for (int w = 0; w < kByteSharers; ++w) sum += partial[team][r][w];
    // Fused by name: the kernels with and without gates have the same bits.
    return fmaf(sum, to_float(a.scale[output]), a.bias ? to_float(a.bias[output]) : 0.f);
  };
  if constexpr (kGated)
    a.out[n] = gated<T>(total(lane, n), total(lane + kFinished, n + a.outputs / 2));
  else a.out[n] = from_float<T>(total(lane, n));
}

/// One row, one scale for each output.
template <bool kGated, class T, class Op>
void launch_one_byte_row(const char* name, const Op& op, const CodeMatrix& w, CudaContext& ctx) {
  const OneByteRow<T> a{w.packed,
                        static_cast<const T*>(w.scale),
                        op.x.template as<T>(),
                        op.bias.template as<T>(),
                        op.out.template as<T>(),
                        w.outputs,
                        static_cast<int>(w.inputs),
                        static_cast<int>(w.words),
                        codes_are_settled(op, ctx)};
  constexpr int64_t kEach = kByteTeams * kByteOutputs;
  const auto blocks = static_cast<unsigned>((w.outputs + kEach - 1) / kEach);
  launch_behind(ctx, {name, dim3(blocks), dim3(kByteThreads), ctx.stream},
                one_byte_row_kernel<kGated, T>, a);
}

}  // namespace ds::cuda
