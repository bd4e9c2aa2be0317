// Reduces the ranks' inputs of the same elements in rank order.
#pragma once

#include <vector>

#include "engine.h"

namespace ds::comm {

/// Writes output[i] = inputs[0][i] op inputs[1][i] op ... for i < count, folded from left to right.
/// f16 and bf16 are folded in f32 and rounded once. So the bits of an element do not depend on
/// `count` or on its index. An average is the sum divided by the number of inputs. `output` may be
/// one of the inputs. Throws DS_DTYPE for an average of integers, and for bool with an op other
/// than minimum and maximum.
void fold(ReduceOp op, DType dtype, const std::vector<const void*>& inputs, void* output,
          int64_t count);

/// Throws DS_DTYPE as fold() would.
void require_foldable(const char* name, ReduceOp op, DType dtype);

}  // namespace ds::comm
