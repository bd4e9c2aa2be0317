// Folds the contributions of all ranks to the same elements, in rank order.
#pragma once

#include <vector>

#include "engine.h"

namespace ds::comm {

/// output[i] = inputs[0][i] op inputs[1][i] op ... for i < count. Every element is folded from left
/// to right in the order of `inputs` (the ranks); f16 and bf16 are folded in f32 with one rounding
/// at the end. So its bits depend neither on count nor on its index. `output` may be one of the
/// inputs. Average divides the sum. Throws DS_DTYPE for the average of integers, and for bool
/// unless minimum or maximum.
void fold(ReduceOp op, DType dtype, const std::vector<const void*>& inputs, void* output,
          int64_t count);

/// The same check without data.
void require_foldable(const char* name, ReduceOp op, DType dtype);

}  // namespace ds::comm
