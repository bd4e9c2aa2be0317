// The gated delta rule on the GPU. Each block keeps 16 lines of a head's state [D, E] in registers
// and iterates over tokens. No block waits for another: lines are columns in the forward and the
// gradient of v, and rows in the gradients of q and k, after the gradient of v is known. Such lines
// do not depend on each other.
#include "gated_delta.h"

#include "recurrence.cuh"

namespace ds::cuda {
namespace {

using namespace recurrence;

/// The recurrences, with their lines and vectors:
///
///   forward   columns; k, q: missing = v - S'k, out = S'q
///   values    columns, backwards; k, q: w = beta X'k, where X is the gradient of the state
///   reads     rows; w, dout: -S w, and dq = S dout
///   writes    rows, backwards; w, dout, missing: y = X missing
enum class Pass { forward, values, reads, writes };

template <class T>
struct Delta {
  Rows<const T> q, k, v, dout;
  Rows<T> out, dv;
  // [B, T, H, E] or [B, T, H, D]
  float *missing, *w, *dq, *read, *y;
  const float *decay, *beta;  // [B, T, H]
  const int* documents;       // [B, T], or null
  // For packed sequences. Null for rows of a batch.
  const int *starts, *lengths, *slots;
  float* pool;
  int64_t slot_count, rows;
  int t, heads, group, d, e, lines, slices;
};

/// Runs a recurrence over the tokens of a sequence. A block per (sequence, head, kLines lines), N
/// elements of a line per thread. Vectors of kTokens tokens at a time are in shared memory.
template <class T, int N, Pass kPass>
__global__ void __launch_bounds__(kThreads) delta_kernel(Delta<T> a) {
  constexpr bool kBackwards = kPass == Pass::values || kPass == Pass::writes;
  constexpr bool kColumns = kPass == Pass::forward || kPass == Pass::values;
  constexpr int kDepth = N * kLanes;
  constexpr int kVectors = kColumns ? 2 : 3;
  constexpr int kTokens = kDepth > 128 ? 8 : 16;  // tokens in shared memory
  __shared__ __align__(16) float vectors[kVectors][kTokens][kDepth];
  __shared__ float scalars[2][kTokens][kLines];
  __shared__ float factors[kTokens], betas[kTokens];
  __shared__ bool resets[kTokens];

  const int slice = blockIdx.x % a.slices, rest = blockIdx.x / a.slices;
  const int head = rest % a.heads, key = head / a.group;
  const Span span = span_of(a, rest / a.heads);
  const int lane = threadIdx.x % kLanes, own = threadIdx.x / kLanes;
  const int line = slice * kLines + own;
  const bool is_line = line < a.lines;
  const int depth = kColumns ? a.d : a.e;

  float state[N];
#pragma unroll
  for (int r = 0; r < N; ++r) state[r] = 0.0f;
  float* const kept =
      span.slot >= 0 ? a.pool + (int64_t{span.slot} * a.heads + head) * a.d * a.e : nullptr;
  if (kPass == Pass::forward && span.keeps && is_line) {
#pragma unroll
    for (int r = 0; r < N; ++r) {
      const int i = depth_of(r, lane);
      if (i < a.d) state[r] = kept[int64_t{i} * a.e + line];
    }
  }

  // Returns the row of a token in tensors [B, T, H].
  const auto place = [&](int64_t t) {
    return ((span.batch * a.t + span.first + t) * a.heads + head);
  };
  for (int64_t done = 0; done < span.count; done += kTokens) {
    const int count = static_cast<int>(min(int64_t{kTokens}, span.count - done));
    // Backwards, row i of the stage holds token span.count - 1 - done - i.
    const auto token = [&](int i) { return kBackwards ? span.count - 1 - done - i : done + i; };
    __syncthreads();
    for (int i = threadIdx.x; i < count * kDepth; i += kThreads) {
      const int row = i / kDepth, at = i % kDepth;
      const int64_t t = token(row), in = span.first + t;
      const bool inside = at < depth;
      if constexpr (kColumns) {
        vectors[0][row][at] = inside ? to_float(a.k.at(span.batch, in, key)[at]) : 0.0f;
        vectors[1][row][at] = inside ? to_float(a.q.at(span.batch, in, key)[at]) : 0.0f;
      } else {
        vectors[0][row][at] = inside ? a.w[place(t) * a.e + at] : 0.0f;
        vectors[1][row][at] = inside ? to_float(a.dout.at(span.batch, in, head)[at]) : 0.0f;
        vectors[2][row][at] = inside ? a.missing[place(t) * a.e + at] : 0.0f;
      }
    }
    for (int i = threadIdx.x; i < count * kLines; i += kThreads) {
      const int row = i / kLines, l = slice * kLines + i % kLines;
      const int64_t t = token(row), in = span.first + t;
      float first = 0.0f, second = 0.0f;
      if (l < a.lines) {
        if constexpr (kPass == Pass::forward) first = to_float(a.v.at(span.batch, in, head)[l]);
        else if constexpr (kPass == Pass::values)
          first = to_float(a.dout.at(span.batch, in, head)[l]);
        else {
          first = to_float(a.k.at(span.batch, in, key)[l]);
          if constexpr (kPass == Pass::writes) second = to_float(a.q.at(span.batch, in, key)[l]);
        }
      }
      scalars[0][row][i % kLines] = first;
      scalars[1][row][i % kLines] = second;
    }
    if (threadIdx.x < count) {
      const int64_t t = token(threadIdx.x);
      factors[threadIdx.x] = expf(a.decay[place(t)]);
      betas[threadIdx.x] = a.beta[place(t)];
      const int* const documents = a.documents ? a.documents + span.batch * a.t : nullptr;
      resets[threadIdx.x] =
          (t == 0 && !span.keeps) || (documents && t > 0 && documents[t] != documents[t - 1]);
    }
    __syncthreads();
    for (int row = 0; row < count; ++row) {
      const int64_t t = token(row), at = place(t);
      const float factor = resets[row] ? 0.0f : factors[row], beta = betas[row];
      const float first = scalars[0][row][own];
      float left[N], right[N];
      load_row(vectors[0][row], lane, left);
      load_row(vectors[1][row], lane, right);
      if constexpr (kPass == Pass::forward) {
        float sum = 0.0f;
#pragma unroll
        for (int r = 0; r < N; ++r) {
          state[r] *= factor;
          sum += state[r] * left[r];
        }
        const float missing = first - line_sum(sum), u = beta * missing;
        sum = 0.0f;
#pragma unroll
        for (int r = 0; r < N; ++r) {
          state[r] += left[r] * u;
          sum += state[r] * right[r];
        }
        sum = line_sum(sum);
        if (lane == 0 && is_line) {
          if (a.out.data) a.out.at(span.batch, span.first + t, head)[line] = from_float<T>(sum);
          if (a.missing) a.missing[at * a.e + line] = missing;
        }
      } else if constexpr (kPass == Pass::values) {
        float sum = 0.0f;
#pragma unroll
        for (int r = 0; r < N; ++r) {
          state[r] += right[r] * first;
          sum += state[r] * left[r];
        }
        const float w = beta * line_sum(sum);
#pragma unroll
        for (int r = 0; r < N; ++r) state[r] = (state[r] - left[r] * w) * factor;
        if (lane == 0 && is_line) {
          a.w[at * a.e + line] = w;
          a.dv.at(span.batch, span.first + t, head)[line] = from_float<T>(w);
        }
      } else if constexpr (kPass == Pass::reads) {
        float third[N], sum = 0.0f, other = 0.0f;
        load_row(vectors[2][row], lane, third);
        const float scale = first * beta;
#pragma unroll
        for (int r = 0; r < N; ++r) {
          state[r] *= factor;
          sum += state[r] * left[r];
          state[r] += scale * third[r];
          other += state[r] * right[r];
        }
        sum = line_sum(sum);
        other = line_sum(other);
        if (lane == 0 && is_line) {
          a.read[at * a.d + line] = -sum;
          a.dq[at * a.d + line] = other;
        }
      } else {
        float third[N], sum = 0.0f;
        load_row(vectors[2][row], lane, third);
        const float query = scalars[1][row][own];
#pragma unroll
        for (int r = 0; r < N; ++r) {
          state[r] += query * right[r];
          sum += state[r] * third[r];
          state[r] = (state[r] - first * left[r]) * factor;
        }
        sum = line_sum(sum);
        if (lane == 0 && is_line) a.y[at * a.d + line] = sum;
      }
    }
  }
  if (kPass == Pass::forward && kept && is_line && span.count > 0) {
#pragma unroll
    for (int r = 0; r < N; ++r) {
      const int i = depth_of(r, lane);
      if (i < a.d) kept[int64_t{i} * a.e + line] = state[r];
    }
  }
}

/// Computes dbeta = k.y and each token's own part of ddecay, for a value head.
template <class T>
__global__ void __launch_bounds__(kThreads)
    delta_dots_kernel(Delta<T> a, float* ddecay, float* dbeta, int64_t count) {
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (at >= count) return;
  const int lane = threadIdx.x % 32, head = static_cast<int>(at % a.heads);
  const int64_t row = at / a.heads, b = row / a.t, t = row % a.t;
  const T *const q = a.q.at(b, t, head / a.group), *const k = a.k.at(b, t, head / a.group);
  float asked = 0.0f, written = 0.0f;
  for (int i = lane; i < a.d; i += 32) {
    const int64_t p = at * a.d + i;
    const float key = to_float(k[i]);
    asked += to_float(q[i]) * a.dq[p] + key * a.read[p];
    written += key * a.y[p];
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    asked += __shfl_xor_sync(0xffffffffu, asked, mask);
    written += __shfl_xor_sync(0xffffffffu, written, mask);
  }
  if (lane > 0) return;
  dbeta[at] = written;
  ddecay[at] = asked - a.beta[at] * written;
}

/// Sums dq and dk of key heads over their value heads.
template <class T>
__global__ void __launch_bounds__(kThreads)
    delta_keys_kernel(Delta<T> a, T* dq, T* dk, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t row = i / a.d, column = i % a.d, keys = a.heads / a.group;
  const int64_t first = (row / keys) * a.heads + (row % keys) * a.group;
  float query = 0.0f, key = 0.0f;
  for (int64_t head = first; head < first + a.group; ++head) {
    const int64_t p = head * a.d + column;
    query += a.dq[p];
    key += a.beta[head] * a.y[p] + a.read[p];
  }
  dq[i] = from_float<T>(query);
  dk[i] = from_float<T>(key);
}

template <class T>
Delta<T> delta_of(const View& q, const View& k, const View& v, const View& decay,
                  const View& beta) {
  Delta<T> a = {};
  a.q = rows_of<const T>(q);
  a.k = rows_of<const T>(k);
  a.v = rows_of<const T>(v);
  a.decay = decay.as<float>();
  a.beta = beta.as<float>();
  a.t = static_cast<int>(v.shape[v.ndim - 3]);
  a.heads = static_cast<int>(v.size(-2));
  a.group = static_cast<int>(v.size(-2) / q.size(-2));
  a.d = static_cast<int>(q.size(-1));
  a.e = static_cast<int>(v.size(-1));
  return a;
}

template <Pass kPass, class T>
void launch(const char* op, Delta<T> a, int64_t sequences, CudaContext& ctx) {
  constexpr bool kColumns = kPass == Pass::forward || kPass == Pass::values;
  a.lines = kColumns ? a.e : a.d;
  a.slices = (a.lines + kLines - 1) / kLines;
  const int depth = kColumns ? a.d : a.e;
  const auto blocks = static_cast<unsigned>(sequences * a.heads * a.slices);
  if (blocks == 0) return;
  const auto kernel = depth <= 32    ? delta_kernel<T, 4, kPass>
                      : depth <= 64  ? delta_kernel<T, 8, kPass>
                      : depth <= 128 ? delta_kernel<T, 16, kPass>
                                     : delta_kernel<T, 32, kPass>;
  kernel<<<blocks, kThreads, 0, ctx.stream>>>(a);
  DS_CUDA_LAUNCHED(op);
}

}  // namespace

void run(const GatedDelta& op, CudaContext& ctx) {
  constexpr const char* kOp = "gated_delta";
  if (op.out.numel() == 0) return;
  require_width(kOp, op.q.shape[3], op.v.shape[3]);
  for_floating(kOp, op.q.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Delta<T> a = delta_of<T>(op.q, op.k, op.v, op.decay, op.beta);
    a.out = rows_of<T>(op.out);
    a.documents = op.documents ? op.documents.as<int>() : nullptr;
    launch<Pass::forward>(kOp, a, op.v.shape[0], ctx);
  });
}

void run(const GatedDeltaBackward& op, CudaContext& ctx) {
  constexpr const char* kOp = "gated_delta_backward";
  if (op.v.numel() == 0 || op.q.numel() == 0) return;
  const int64_t b = op.v.shape[0], t = op.v.shape[1], heads = op.v.shape[2];
  const int64_t d = op.q.shape[3], e = op.v.shape[3], count = b * t * heads;
  require_width(kOp, d, e);
  for_floating(kOp, op.q.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Delta<T> a = delta_of<T>(op.q, op.k, op.v, op.decay, op.beta);
    a.dout = rows_of<const T>(op.dout);
    a.dv = rows_of<T>(op.dv);
    a.documents = op.documents ? op.documents.as<int>() : nullptr;
    const auto widths = static_cast<size_t>(count);
    a.missing = ctx.scratch_of<float>(widths * static_cast<size_t>(e));
    a.w = ctx.scratch_of<float>(widths * static_cast<size_t>(e));
    a.dq = ctx.scratch_of<float>(widths * static_cast<size_t>(d));
    a.read = ctx.scratch_of<float>(widths * static_cast<size_t>(d));
    a.y = ctx.scratch_of<float>(widths * static_cast<size_t>(d));
    launch<Pass::forward>(kOp, a, b, ctx);
    launch<Pass::values>(kOp, a, b, ctx);
    launch<Pass::reads>(kOp, a, b, ctx);
    launch<Pass::writes>(kOp, a, b, ctx);
    auto* const ddecay = op.ddecay.as<float>();
    delta_dots_kernel<T><<<blocks_for(count * 32), kThreads, 0, ctx.stream>>>(
        a, ddecay, op.dbeta.as<float>(), count);
    DS_CUDA_LAUNCHED(kOp);
    later_sums_kernel<<<blocks_for(b * heads * 32), kThreads, 0, ctx.stream>>>(
        ddecay, a.documents, b, static_cast<int>(t), static_cast<int>(heads));
    DS_CUDA_LAUNCHED(kOp);
    const int64_t keys = op.dq.numel();
    delta_keys_kernel<T>
        <<<blocks_for(keys), kThreads, 0, ctx.stream>>>(a, op.dq.as<T>(), op.dk.as<T>(), keys);
    DS_CUDA_LAUNCHED(kOp);
  });
}

void run(const GatedDeltaStep& op, CudaContext& ctx) {
  constexpr const char* kOp = "gated_delta_step";
  if (op.out.numel() == 0) return;
  require_width(kOp, op.q.shape[2], op.v.shape[2]);
  for_floating(kOp, op.q.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Delta<T> a = delta_of<T>(op.q, op.k, op.v, op.decay, op.beta);
    a.out = rows_of<T>(op.out);
    a.starts = op.starts.as<int>();
    a.lengths = op.lengths.as<int>();
    a.slots = op.slots.as<int>();
    a.pool = op.pool.as<float>();
    a.slot_count = op.pool.shape[0];
    a.rows = op.v.shape[0];
    launch<Pass::forward>(kOp, a, op.lengths.numel(), ctx);
  });
}

}  // namespace ds::cuda
