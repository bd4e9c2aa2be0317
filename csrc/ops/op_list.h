// Defines the ops. Every struct with a View in a header of this folder is an op.
// scripts/gen-ops.mjs generates the table of ops, the TypeScript functions and their types from
// these headers.
//
// The contract of an op <Name>:
//  * its header declares `struct Name`, whose fields are View, OptionalView, double, int64_t,
//    bool, an enum of int32_t or a struct of such numbers, in the order of the generated
//    TypeScript function;
//  * `void ds::check(const Name&)` in the same header holds the preconditions of all back ends.
//    The boundary calls it before any body runs. Bodies check only conditions of their back end
//    (indices in the CPU's memory, limits of the GPU);
//  * `void ds::cpu::run(const Name&, CpuContext&)` is the plain oracle (<file>_cpu.cc);
//  * `void ds::cuda::run(const Name&, CudaContext&)` is the kernel and its launcher (<file>.cu);
//  * all outputs are overwritten. If a field `accumulate` is true, the op adds to them
//    (accumulator precision inside, one rounding at the end);
//  * "FLOPs: 5 per element of out, 1 of residual." above the struct is the count of the profiler.
//    Without such a line, lib/profiler/flop-counts.ts has a formula, or the op counts nothing;
//  * ops never allocate their results, never synchronize and never change their inputs, unless the
//    header says so; every op is deterministic; empty tensors are legal.
#pragma once

#include <cstdint>

#include "op_list.generated.h"

namespace ds {

enum class OpId : int32_t {
#define DS_ROW(name) name,
  DS_OP_LIST(DS_ROW)
#undef DS_ROW
      count
};

#define DS_ROW(name) struct name;
DS_OP_LIST(DS_ROW)
#undef DS_ROW

/// The id of an op's struct: id_of<Matmul>.
template <class Op>
constexpr OpId id_of = OpId::count;
#define DS_ROW(name) \
  template <>        \
  inline constexpr OpId id_of<name> = OpId::name;
DS_OP_LIST(DS_ROW)
#undef DS_ROW

}  // namespace ds
