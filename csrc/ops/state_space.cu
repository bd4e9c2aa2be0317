// The recurrence of state space layers on the GPU. Each block keeps 16 lines of a head's state
// [N, P] in registers and iterates over tokens. Lines are columns in the forward and the gradient
// of x, and rows in the gradients of b and c. No line depends on another.
#include "state_space.h"

#include "recurrence.cuh"

namespace ds::cuda {
namespace {

using namespace recurrence;

/// Both directions, for a line s of the state or of its gradient, with vectors `left` and `right`
/// and one `scalar` for each token:
///
///   forward    s = e^decay s + step scalar left;  the result is s'right
///   backward   s = s + scalar right;  the result is s'left;  then s = e^decay s
///
/// The four results are:
///
///              direction   lines     left   right   scalar
///   out        forward     columns   b      c       x
///   dc         forward     rows      x      dout    b
///   dx / step  backward    columns   b      c       dout
///   db / step  backward    rows      x      dout    c
enum class Direction { forward, backward };

template <class T, class Out>
struct Scan {
  Rows<const T> left, right, scalar;
  Rows<Out> out;
  const float *decay, *step;  // [B, T, H]
  const int* documents;       // [B, T], or null
  // For packed sequences. Null for rows of a batch.
  const int *starts, *lengths, *slots;
  float* pool;
  int64_t slot_count, rows;
  // Heads that share a vector, and a scalar. Lines of a head, and their elements.
  int vector_group, scalar_group, lines, depth;
  int t, heads, slices;
  bool is_scaled;  // whether results are multiplied by the step
};

/// Scans the tokens of a sequence. A block per (sequence, head, kLines lines), N elements of a line
/// per thread. Vectors of kTokens tokens at a time are in shared memory.
template <class T, class Out, int N, Direction kDirection>
__global__ void __launch_bounds__(kThreads) space_kernel(Scan<T, Out> a) {
  constexpr bool kBackwards = kDirection == Direction::backward;
  constexpr int kDepth = N * kLanes;
  constexpr int kTokens = kDepth > 128 ? 8 : 16;  // tokens in shared memory
  __shared__ __align__(16) float vectors[2][kTokens][kDepth];
  __shared__ float scalars[kTokens][kLines];
  __shared__ float factors[kTokens], steps[kTokens];
  __shared__ bool resets[kTokens];

  const int slice = blockIdx.x % a.slices, rest = blockIdx.x / a.slices;
  const int head = rest % a.heads;
  const Span span = span_of(a, rest / a.heads);
  const int lane = threadIdx.x % kLanes, own = threadIdx.x / kLanes;
  const int line = slice * kLines + own;
  const bool is_line = line < a.lines;

  float state[N];
#pragma unroll
  for (int r = 0; r < N; ++r) state[r] = 0.0f;
  float* const kept =
      span.slot >= 0 ? a.pool + (int64_t{span.slot} * a.heads + head) * a.depth * a.lines : nullptr;
  if (!kBackwards && span.keeps && is_line) {
#pragma unroll
    for (int r = 0; r < N; ++r) {
      const int i = depth_of(r, lane);
      if (i < a.depth) state[r] = kept[int64_t{i} * a.lines + line];
    }
  }

  for (int64_t done = 0; done < span.count; done += kTokens) {
    const int count = static_cast<int>(min(int64_t{kTokens}, span.count - done));
    // Backwards, row i of the stage holds token span.count - 1 - done - i.
    const auto token = [&](int i) { return kBackwards ? span.count - 1 - done - i : done + i; };
    __syncthreads();
    for (int i = threadIdx.x; i < count * kDepth; i += kThreads) {
      const int row = i / kDepth, at = i % kDepth;
      const int64_t in = span.first + token(row);
      const bool inside = at < a.depth;
      const int shared = head / a.vector_group;
      vectors[0][row][at] = inside ? to_float(a.left.at(span.batch, in, shared)[at]) : 0.0f;
      vectors[1][row][at] = inside ? to_float(a.right.at(span.batch, in, shared)[at]) : 0.0f;
    }
    for (int i = threadIdx.x; i < count * kLines; i += kThreads) {
      const int row = i / kLines, l = slice * kLines + i % kLines;
      const int64_t in = span.first + token(row);
      scalars[row][i % kLines] =
          l < a.lines ? to_float(a.scalar.at(span.batch, in, head / a.scalar_group)[l]) : 0.0f;
    }
    if (threadIdx.x < count) {
      const int64_t t = token(threadIdx.x);
      const int64_t at = (span.batch * a.t + span.first + t) * a.heads + head;
      factors[threadIdx.x] = expf(a.decay[at]);
      steps[threadIdx.x] = a.step[at];
      const int* const documents = a.documents ? a.documents + span.batch * a.t : nullptr;
      resets[threadIdx.x] =
          (t == 0 && !span.keeps) || (documents && t > 0 && documents[t] != documents[t - 1]);
    }
    __syncthreads();
    for (int row = 0; row < count; ++row) {
      const float factor = resets[row] ? 0.0f : factors[row], scalar = scalars[row][own];
      float left[N], right[N], sum = 0.0f;
      load_row(vectors[0][row], lane, left);
      load_row(vectors[1][row], lane, right);
      if constexpr (kBackwards) {
#pragma unroll
        for (int r = 0; r < N; ++r) {
          state[r] += scalar * right[r];
          sum += state[r] * left[r];
          state[r] *= factor;
        }
      } else {
        const float weight = steps[row] * scalar;
#pragma unroll
        for (int r = 0; r < N; ++r) {
          state[r] = state[r] * factor + weight * left[r];
          sum += state[r] * right[r];
        }
      }
      sum = line_sum(sum);
      if (a.is_scaled) sum *= steps[row];
      if (lane == 0 && is_line)
        a.out.at(span.batch, span.first + token(row), head)[line] = from_float<Out>(sum);
    }
  }
  if (!kBackwards && kept && is_line && span.count > 0) {
#pragma unroll
    for (int r = 0; r < N; ++r) {
      const int i = depth_of(r, lane);
      if (i < a.depth) kept[int64_t{i} * a.lines + line] = state[r];
    }
  }
}

/// The gradients of b and c of each head, before the factor step of db, [B, T, H, N].
struct HeadGradients {
  const float *dc, *db, *step;
  int t, heads, groups, group, n;
};

/// Computes dstep = b.db and each token's own part of ddecay, for a head.
template <class T>
__global__ void __launch_bounds__(kThreads)
    space_dots_kernel(HeadGradients a, Rows<const T> c, Rows<const T> b, float* ddecay,
                      float* dstep, int64_t count) {
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (at >= count) return;
  const int lane = threadIdx.x % 32, head = static_cast<int>(at % a.heads);
  const int64_t row = at / a.heads, batch = row / a.t, t = row % a.t;
  const T *const own_c = c.at(batch, t, head / a.group), *const own_b =
                                                             b.at(batch, t, head / a.group);
  float asked = 0.0f, written = 0.0f;
  for (int i = lane; i < a.n; i += 32) {
    asked += to_float(own_c[i]) * a.dc[at * a.n + i];
    written += to_float(own_b[i]) * a.db[at * a.n + i];
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    asked += __shfl_xor_sync(0xffffffffu, asked, mask);
    written += __shfl_xor_sync(0xffffffffu, written, mask);
  }
  if (lane > 0) return;
  dstep[at] = written;
  ddecay[at] = asked - a.step[at] * written;
}

/// Sums dc and db of groups over their heads.
template <class T>
__global__ void __launch_bounds__(kThreads)
    space_groups_kernel(HeadGradients a, T* dc, T* db, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t row = i / a.n, column = i % a.n;
  const int64_t first = (row / a.groups) * a.heads + (row % a.groups) * a.group;
  float c = 0.0f, b = 0.0f;
  for (int64_t head = first; head < first + a.group; ++head) {
    c += a.dc[head * a.n + column];
    b += a.step[head] * a.db[head * a.n + column];
  }
  dc[i] = from_float<T>(c);
  db[i] = from_float<T>(b);
}

/// Returns a scan over columns, with the vectors b and c and the scalars `x`.
template <class Out, class T, class Op>
Scan<T, Out> columns_of(const Op& op, const View& x, const View& out) {
  Scan<T, Out> a = {};
  a.left = rows_of<const T>(op.b);
  a.right = rows_of<const T>(op.c);
  a.scalar = rows_of<const T>(x);
  a.out = rows_of<Out>(out);
  a.decay = op.decay.template as<float>();
  a.step = op.step.template as<float>();
  a.t = static_cast<int>(op.x.shape[op.x.ndim - 3]);
  a.heads = static_cast<int>(op.x.size(-2));
  a.vector_group = static_cast<int>(op.x.size(-2) / op.c.size(-2));
  a.scalar_group = 1;
  a.lines = static_cast<int>(op.x.size(-1));
  a.depth = static_cast<int>(op.c.size(-1));
  return a;
}

/// Returns a scan over rows, with the vectors x and dout and the scalars `b`, which writes to `out`
/// [B, T, H, N].
template <class T>
Scan<T, float> rows_scan(const StateSpaceBackward& op, const View& b, float* out) {
  Scan<T, float> a = columns_of<float, T>(op, b, op.dstep);
  a.left = rows_of<const T>(op.x);
  a.right = rows_of<const T>(op.dout);
  std::swap(a.vector_group, a.scalar_group);
  std::swap(a.lines, a.depth);
  const int64_t n = a.lines, heads = a.heads;
  a.out = {out, a.t * heads * n, heads * n, n};
  return a;
}

template <Direction kDirection, class T, class Out>
void launch(const char* op, Scan<T, Out> a, int64_t sequences, CudaContext& ctx) {
  a.slices = (a.lines + kLines - 1) / kLines;
  const auto blocks = static_cast<unsigned>(sequences * a.heads * a.slices);
  if (blocks == 0) return;
  const auto kernel = a.depth <= 32    ? space_kernel<T, Out, 4, kDirection>
                      : a.depth <= 64  ? space_kernel<T, Out, 8, kDirection>
                      : a.depth <= 128 ? space_kernel<T, Out, 16, kDirection>
                                       : space_kernel<T, Out, 32, kDirection>;
  kernel<<<blocks, kThreads, 0, ctx.stream>>>(a);
  DS_CUDA_LAUNCHED(op);
}

}  // namespace

void run(const StateSpace& op, CudaContext& ctx) {
  constexpr const char* kOp = "state_space";
  if (op.out.numel() == 0) return;
  require_width(kOp, op.c.shape[3], op.x.shape[3]);
  for_floating(kOp, op.c.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Scan<T, T> a = columns_of<T, T>(op, op.x, op.out);
    a.documents = op.documents ? op.documents.as<int>() : nullptr;
    launch<Direction::forward>(kOp, a, op.x.shape[0], ctx);
  });
}

void run(const StateSpaceBackward& op, CudaContext& ctx) {
  constexpr const char* kOp = "state_space_backward";
  const int64_t batches = op.x.shape[0], t = op.x.shape[1], heads = op.x.shape[2];
  const int64_t groups = op.c.shape[2], n = op.c.shape[3], count = batches * t * heads;
  if (count == 0) {
    if (op.dc.numel() == 0) return;
    throw Error("DS_SHAPE", kOp, "heads of x on a GPU", op.x.describe());
  }
  require_width(kOp, n, op.x.shape[3]);
  for_floating(kOp, op.c.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int* const documents = op.documents ? op.documents.as<int>() : nullptr;
    const auto numbers = static_cast<size_t>(count * n);
    auto *const dc = ctx.scratch_of<float>(numbers), *const db = ctx.scratch_of<float>(numbers);
    Scan<T, T> values = columns_of<T, T>(op, op.dout, op.dx);
    Scan<T, float> reads = rows_scan<T>(op, op.b, dc), writes = rows_scan<T>(op, op.c, db);
    values.documents = reads.documents = writes.documents = documents;
    values.is_scaled = true;
    launch<Direction::backward>(kOp, values, batches, ctx);
    launch<Direction::forward>(kOp, reads, batches, ctx);
    launch<Direction::backward>(kOp, writes, batches, ctx);
    const HeadGradients all = {dc,
                               db,
                               op.step.as<float>(),
                               static_cast<int>(t),
                               static_cast<int>(heads),
                               static_cast<int>(groups),
                               static_cast<int>(heads / groups),
                               static_cast<int>(n)};
    auto* const ddecay = op.ddecay.as<float>();
    space_dots_kernel<T><<<blocks_for(count * 32), kThreads, 0, ctx.stream>>>(
        all, rows_of<const T>(op.c), rows_of<const T>(op.b), ddecay, op.dstep.as<float>(), count);
    DS_CUDA_LAUNCHED(kOp);
    later_sums_kernel<<<blocks_for(batches * heads * 32), kThreads, 0, ctx.stream>>>(
        ddecay, documents, batches, static_cast<int>(t), static_cast<int>(heads));
    DS_CUDA_LAUNCHED(kOp);
    const int64_t shared = op.dc.numel();
    if (shared == 0) return;
    space_groups_kernel<T><<<blocks_for(shared), kThreads, 0, ctx.stream>>>(all, op.dc.as<T>(),
                                                                            op.db.as<T>(), shared);
    DS_CUDA_LAUNCHED(kOp);
  });
}

void run(const StateSpaceStep& op, CudaContext& ctx) {
  constexpr const char* kOp = "state_space_step";
  if (op.out.numel() == 0) return;
  require_width(kOp, op.c.shape[2], op.x.shape[2]);
  for_floating(kOp, op.c.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Scan<T, T> a = columns_of<T, T>(op, op.x, op.out);
    a.starts = op.starts.as<int>();
    a.lengths = op.lengths.as<int>();
    a.slots = op.slots.as<int>();
    a.pool = op.pool.as<float>();
    a.slot_count = op.pool.shape[0];
    a.rows = op.x.shape[0];
    launch<Direction::forward>(kOp, a, op.lengths.numel(), ctx);
  });
}

}  // namespace ds::cuda
