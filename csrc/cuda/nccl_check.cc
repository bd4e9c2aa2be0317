// Checks at compile time that our nccl.h agrees with NCCL's nccl.h, if that is installed.
#if __has_include(<nccl.h>)

#include <nccl.h>

#include "nccl.h"

namespace ds::cuda {

namespace {

template <class Ours, class Theirs>
constexpr bool equal(Ours ours, Theirs theirs) {
  return static_cast<int64_t>(ours) == static_cast<int64_t>(theirs);
}

#define DS_VALUE(ours, theirs) static_assert(equal(nccl::ours, theirs), #theirs)
DS_VALUE(Result::success, ncclSuccess);
DS_VALUE(Result::remote_error, ncclRemoteError);
DS_VALUE(Result::in_progress, ncclInProgress);
DS_VALUE(DataType::u8, ncclUint8);
DS_VALUE(DataType::i32, ncclInt32);
DS_VALUE(DataType::i64, ncclInt64);
DS_VALUE(DataType::f16, ncclFloat16);
DS_VALUE(DataType::f32, ncclFloat32);
DS_VALUE(DataType::f64, ncclFloat64);
DS_VALUE(DataType::bf16, ncclBfloat16);
DS_VALUE(Op::sum, ncclSum);
DS_VALUE(Op::product, ncclProd);
DS_VALUE(Op::maximum, ncclMax);
DS_VALUE(Op::minimum, ncclMin);
DS_VALUE(Op::average, ncclAvg);

static_assert(sizeof(nccl::UniqueId) == sizeof(ncclUniqueId));
static_assert(sizeof(nccl::Options) <= sizeof(ncclConfig_t));
static_assert(offsetof(nccl::Options, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(nccl::Options, max_ctas) == offsetof(ncclConfig_t, maxCTAs));
static_assert(offsetof(nccl::Options, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(nccl::Options, split_share) == offsetof(ncclConfig_t, splitShare));

}  // namespace

}  // namespace ds::cuda

#endif
