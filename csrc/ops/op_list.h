// The table of ops: one row per op, from which the binding, the TypeScript types and the native
// test matrix follow. Each name is a struct declared in a header of this folder.
//
// The contract of an op <Name>:
//  * its header declares `struct Name`, whose fields are View, double, int64_t, bool, an enum of
//    int32_t or a struct of such numbers, in the order of the generated TypeScript function; a View
//    may be absent only where the field's comment says "optional";
//  * `void ds::cpu::run(const Name&, CpuContext&)` is the plain oracle (<file>_cpu.cc);
//  * `void ds::cuda::run(const Name&, CudaContext&)` is the kernel and its launcher (<file>.cu);
//  * all outputs are overwritten unless a field `accumulate` says otherwise: then, when it is true,
//    the op adds to them (accumulator precision inside, one rounding at the end);
//  * ops never allocate their results, never synchronise and never change their inputs, unless the
//    header says so; every op is deterministic; empty tensors are legal.
#pragma once

#include <cstdint>

#define DS_OP_LIST(ROW)     \
  ROW(Fill)                 \
  ROW(Arange)               \
  ROW(RandomUniform)        \
  ROW(RandomNormal)         \
  ROW(Copy)                 \
  ROW(Unary)                \
  ROW(UnaryBackward)        \
  ROW(Binary)               \
  ROW(Compare)              \
  ROW(Scale)                \
  ROW(Where)                \
  ROW(Reduce)               \
  ROW(ArgMax)               \
  ROW(Softmax)              \
  ROW(SoftmaxBackward)      \
  ROW(Matmul)               \
  ROW(Embedding)            \
  ROW(EmbeddingBackward)    \
  ROW(Gather)               \
  ROW(GatherBackward)       \
  ROW(LayerNorm)            \
  ROW(LayerNormBackward)    \
  ROW(RmsNorm)              \
  ROW(RmsNormBackward)      \
  ROW(Dropout)              \
  ROW(Rope)                 \
  ROW(Attention)            \
  ROW(AttentionBackward)    \
  ROW(CrossEntropy)         \
  ROW(CrossEntropyBackward) \
  ROW(Accumulate)           \
  ROW(SumOfSquares)         \
  ROW(GradientControl)      \
  ROW(AdamW)                \
  ROW(AdamWSpeculate)       \
  ROW(Sgd)                  \
  ROW(Adagrad)              \
  ROW(Lion)                 \
  ROW(LambMoments)          \
  ROW(LambCoefficients)     \
  ROW(LambApply)            \
  ROW(MuonMomentum)         \
  ROW(MuonDirection)        \
  ROW(MuonApply)

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
