// Copies documents into the layout of the attention kernels (attention_documents.cuh).
#pragma once

#include "attention_documents.cuh"

namespace ds::cuda {

/// The documents of the queries or of the keys, [B, rows] i32, and where they are copied to.
struct DocumentCopy {
  const int* from;
  int64_t batch_stride, row_stride;
  int rows;
  int absent;  // the id of padding, which no token of the other side has
  DocumentSide to;
};

constexpr int kDocumentThreads = 256;

/// Copies kSpan tokens of the queries or of the keys per warp and computes their span.
__global__ void __launch_bounds__(kDocumentThreads)
    attention_documents_kernel(const __grid_constant__ DocumentCopy queries,
                               const __grid_constant__ DocumentCopy keys, int64_t batches) {
  static_assert(kSpan == 32);
  int64_t span = (int64_t{blockIdx.x} * kDocumentThreads + threadIdx.x) / kSpan;
  const int64_t of_queries = batches * (queries.to.padded / kSpan);
  const DocumentCopy& side = span < of_queries ? queries : keys;
  if (span >= of_queries) span -= of_queries;
  const int spans = side.to.padded / kSpan, lane = threadIdx.x % 32;
  if (span >= batches * spans) return;
  const int batch = static_cast<int>(span / spans);
  const int row = static_cast<int>(span % spans) * kSpan + lane;
  const bool exists = row < side.rows;
  const int id = exists ? side.from[batch * side.batch_stride + row * side.row_stride] : -1;
  side.to.ids[static_cast<int64_t>(batch) * side.to.padded + row] = id < 0 ? side.absent : id;
  const unsigned all = 0xffffffffu;
  int least = __reduce_min_sync(all, id < 0 ? INT_MAX : id), greatest = __reduce_max_sync(all, id);
  if (greatest >= 0 && __any_sync(all, exists && id < 0)) {
    if (greatest < INT_MAX) ++greatest;
    else if (least == greatest) --least;
  }
  if (lane == 0) side.to.spans[span] = {least, greatest};
}

}  // namespace ds::cuda
