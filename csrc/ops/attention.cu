// Fused attention on the GPU: tensor-core kernels for bf16 and f16, plain ones for f32.
#include "attention.h"

#include <algorithm>
#include <cmath>

#include "attention_document_copy.cuh"
#include "attention_hopper.cuh"
#include "attention_kinds.cuh"

namespace ds::cuda {
namespace {

constexpr int64_t kMaxRows = int64_t{1} << 30;  // row indices are int32, with room for a tile
constexpr int64_t kTurnBytes = 16 << 20;        // keys and values that fit the L2 cache together

/// Returns the sizes of a call. Throws DS_SHAPE if they exceed the index range of the kernels.
template <class Op>
AttentionSizes checked_sizes(const char* op, const Op& x) {
  const int64_t B = x.q.shape[0], H = x.q.shape[1], T = x.q.shape[2], D = x.q.shape[3];
  const int64_t Hk = x.k.shape[1], S = x.k.shape[2];
  DS_CHECK_SHAPE(T <= kMaxRows && S <= kMaxRows && B <= kMaxRows && H <= kMaxRows, op,
                 text("B, H, T and S up to ", kMaxRows),
                 text(x.q.describe(), " and ", x.k.describe()));
  if (D > kPlainHeadDim)
    throw Error("DS_SHAPE", op, text("a head dim D up to ", kPlainHeadDim), text("D = ", D),
                "Use more, smaller heads.");
  AttentionSizes sizes{};
  sizes.batches = static_cast<int>(B);
  sizes.heads = static_cast<int>(H);
  sizes.key_heads = static_cast<int>(Hk);
  sizes.rows = static_cast<int>(T);
  sizes.keys = static_cast<int>(S);
  sizes.d = static_cast<int>(D);
  sizes.causal = x.causal;
  sizes.scale = static_cast<float>(x.scale);
  sizes.scale_log2 = static_cast<float>(x.scale * 1.4426950408889634);
  const int64_t pair_bytes = std::max<int64_t>(1, (S + T) * D * 2);
  sizes.heads_in_turn = heads_in_even_turns(B * H, std::max<int64_t>(1, kTurnBytes / pair_bytes));
  return sizes;
}

/// Returns a mask [B, H, T, S], or a key mask [B, S] that is repeated for heads and queries.
MaskView mask_view(const View& mask, DType operand) {
  if (!mask) return {};
  const MaskKind kind = mask.dtype == DType::boolean ? MaskKind::flags
                        : mask.dtype == operand      ? MaskKind::operand
                                                     : MaskKind::f32;
  if (mask.ndim == 2) return {mask.data, kind, mask.strides[0], 0, 0, mask.strides[1]};
  return {mask.data, kind, mask.strides[0], mask.strides[1], mask.strides[2], mask.strides[3]};
}

/// Returns the filters that the kernels of a call need. A window can hide all keys from causal
/// queries that precede the first key.
template <class Op>
Hiding hiding_of(const Op& x, const AttentionSizes& sizes) {
  if (x.mask || x.key_mask || x.layout || x.dropout.p > 0 || x.cap > 0) return Hiding::elements;
  const int64_t longest = sizes.causal ? sizes.keys : std::max(sizes.rows, sizes.keys);
  const bool windowed = x.window > 0 && x.window < longest;
  const bool emptied = sizes.causal && sizes.offset() < 0;
  return windowed || emptied || x.key_lengths || x.query_documents ? Hiding::tiles : Hiding::causal;
}

/// Allocates copies of documents [B, tokens].
DocumentSide document_side(const View& documents, CudaContext& ctx) {
  if (!documents) return {};
  const int64_t padded =
      (documents.shape[1] + kDocumentPadding - 1) / kDocumentPadding * kDocumentPadding;
  const auto count = static_cast<size_t>(documents.shape[0] * padded);
  return {ctx.scratch_of<int>(count), ctx.scratch_of<DocumentSpan>(count / kSpan),
          static_cast<int>(padded)};
}

DocumentCopy document_copy(const View& documents, int absent, const DocumentSide& to) {
  return {documents.as<int>(),
          documents.strides[0],
          documents.strides[1],
          static_cast<int>(documents.shape[1]),
          absent,
          to};
}

/// Copies the documents and computes their spans, which later kernels on the stream use to skip
/// tiles.
template <class Op>
void read_documents(const char* op, const Op& x, ScoreFilter& filter, CudaContext& ctx) {
  if (!x.query_documents) return;
  filter.queries = document_side(x.query_documents, ctx);
  filter.keys = document_side(x.key_documents, ctx);
  const int64_t batches = x.q.shape[0];
  const int64_t threads = batches * (int64_t{filter.queries.padded} + filter.keys.padded);
  if (threads == 0) return;
  const auto grid = static_cast<unsigned>((threads + kDocumentThreads - 1) / kDocumentThreads);
  attention_documents_kernel<<<grid, kDocumentThreads, 0, ctx.stream>>>(
      document_copy(x.query_documents, -2, filter.queries),
      document_copy(x.key_documents, -1, filter.keys), batches);
  DS_CUDA_LAUNCHED(op);
}

template <class Op>
ScoreFilter filter_of(const char* op, const Op& x, const AttentionSizes& sizes, CudaContext& ctx) {
  const AttentionBand band = band_of(x);
  ScoreFilter filter{{mask_view(x.mask, x.q.dtype), mask_view(x.key_mask, x.q.dtype)},
                     x.key_lengths.template as<int>(),
                     x.dropout,
                     1.f / (1.f - static_cast<float>(x.dropout.p)),
                     hiding_of(x, sizes),
                     static_cast<int>(band.before),
                     static_cast<int>(band.after),
                     {},
                     {},
                     layout_of(x),
                     score_cap(x.cap, x.scale)};
  read_documents(op, x, filter, ctx);
  return filter;
}

/// Throws DS_SHAPE for too many blocks. Grids are one-dimensional; the smallest tile has 16 rows.
void check_grid(const char* op, const AttentionSizes& sizes) {
  const double rows = std::max(sizes.rows, sizes.keys);
  const double blocks = (rows / 16 + 1) * sizes.heads * sizes.batches;
  DS_CHECK_SHAPE(blocks < 2147483647.0, op, "fewer than 2^31 tiles of 16 rows over all heads",
                 text(blocks));
}

template <class T>
HeadsView<T> heads_view(const View& v) {
  const auto aligned = [](int64_t n) { return n % 8 == 0; };
  const bool vectors = reinterpret_cast<uintptr_t>(v.data) % 16 == 0 && aligned(v.shape[3]) &&
                       (v.shape[0] < 2 || aligned(v.strides[0])) &&
                       (v.shape[1] < 2 || aligned(v.strides[1])) &&
                       (v.shape[2] < 2 || aligned(v.strides[2]));
  return {v.as<T>(), v.strides[0], v.strides[1], v.strides[2], vectors};
}

/// Returns true if the mma.sync kernels support the sizes: head dims up to 128, and a positive
/// scale, which the running maximum needs.
template <class T>
bool tensor_cores_serve(const AttentionSizes& sizes) {
  return sizeof(T) == 2 && sizes.d <= 128 && sizes.scale > 0.f;
}

template <class T>
void run_forward(const ForwardArguments<T>& args, CudaContext& ctx) {
  if constexpr (sizeof(T) == 2) {
    if (run_hopper_forward(args, ctx)) return;
    if (tensor_cores_serve<T>(args.sizes)) return run_attention_forward(args, ctx.stream);
  }
  run_attention_plain(args, ctx.stream);
}

template <class T>
void run_backward(const BackwardArguments<T>& args, CudaContext& ctx) {
  launch_attention_statistics(args, ctx.stream);
  if constexpr (sizeof(T) == 2) {
    if (run_hopper_backward(args, ctx)) return;
    if (tensor_cores_serve<T>(args.sizes)) {
      run_attention_key_gradient(args, ctx.stream);
      return run_attention_query_gradient(args, ctx.stream);
    }
  }
  run_attention_plain_backward(args, ctx.stream);
}

}  // namespace

/// Uses about 4 bytes of scratch per token with documents. Throws DS_SHAPE, and DS_DTYPE unless the
/// dtype is f32, f16 or bf16.
void run(const Attention& x, CudaContext& ctx) {
  const char* op = "attention";
  const AttentionSizes sizes = checked_sizes(op, x);
  if (x.lse.numel() == 0) return;
  check_grid(op, sizes);
  const ScoreFilter filter = filter_of(op, x, sizes, ctx);
  for_floating(op, x.q.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const ForwardArguments<T> args{heads_view<T>(x.q),
                                   heads_view<T>(x.k),
                                   heads_view<T>(x.v),
                                   heads_view<T>(x.out),
                                   x.lse.as<float>(),
                                   sizes,
                                   filter};
    run_forward(args, ctx);
  });
}

/// Uses the forward's scratch, 8 bytes per query row and head, and on compute capability 9.0 for
/// long causal rows up to 1.25 GiB: see launch_hopper_kept(). Throws the errors of the forward.
void run(const AttentionBackward& x, CudaContext& ctx) {
  const char* op = "attention_backward";
  const AttentionSizes sizes = checked_sizes(op, x);
  if (x.q.shape[0] == 0 || x.q.shape[1] == 0) return;
  check_grid(op, sizes);
  auto* statistics = ctx.scratch_of<RowStatistics>(static_cast<size_t>(padded_rows(sizes.rows)) *
                                                   sizes.heads * sizes.batches);
  const ScoreFilter filter = filter_of(op, x, sizes, ctx);
  for_floating(op, x.q.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const BackwardArguments<T> args{heads_view<T>(x.q),
                                    heads_view<T>(x.k),
                                    heads_view<T>(x.v),
                                    heads_view<T>(x.out),
                                    heads_view<T>(x.dout),
                                    heads_view<T>(x.dq),
                                    heads_view<T>(x.dk),
                                    heads_view<T>(x.dv),
                                    x.lse.as<float>(),
                                    statistics,
                                    sizes,
                                    filter};
    run_backward(args, ctx);
  });
}

}  // namespace ds::cuda
