// Splits f32 master weights into two 16-bit halves and joins them. The upper half is the bf16
// weight: see core/master_halves.h.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// Joins halves to f32 masters. Every float except NaN is restored bit for bit.
struct JoinMaster {
  View high;  // [n] bf16: the weights
  View low;   // [n] bf16 as storage: the lower 16 bits of each master
  View ties;  // [ceil(n / 8)] u8: one bit per master, lowest first
  View out;   // [n] f32
};

/// Splits f32 masters. `high` is rounded to nearest even.
struct SplitMaster {
  View in;    // [n] f32
  View high;  // [n] bf16
  View low;   // [n] bf16
  View ties;  // [ceil(n / 8)] u8; bits beyond n become 0
};

/// Checks an op with the fields high, low and ties, for n elements.
template <class Op>
void check_halves(const char* name, const Op& op, int64_t n) {
  require_list(name, op.high, n, DType::bf16, "high");
  require_list(name, op.low, n, DType::bf16, "low");
  require_list(name, op.ties, (n + 7) / 8, DType::u8, "ties");
}

inline void check(const JoinMaster& op) {
  require_list("join_master", op.out, op.out.numel(), DType::f32, "out");
  check_halves("join_master", op, op.out.numel());
}

inline void check(const SplitMaster& op) {
  require_list("split_master", op.in, op.in.numel(), DType::f32, "in");
  check_halves("split_master", op, op.in.numel());
}

}  // namespace ds
