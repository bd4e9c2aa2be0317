// Opens libnccl and finds its functions.
#include "nccl.h"

#include "../core/error.h"

namespace ds::cuda {

namespace {

constexpr int kOldestVersion = 21800;

LibraryRequest request() {
  return {"NCCL",
          {"libnccl.so.2", "libnccl.so"},
          "Collectives between GPUs need NCCL 2.18 or newer: install it (for example the package "
          "libnccl2) and put its folder on LD_LIBRARY_PATH."};
}

}  // namespace

Nccl::Nccl()
    : library(DynamicLibrary::open(request())),
      version(library.symbol<nccl::VersionFn*>("ncclGetVersion")),
      unique_id(library.symbol<nccl::UniqueIdFn*>("ncclGetUniqueId")),
      init(library.symbol<nccl::InitFn*>("ncclCommInitRankConfig")),
      split(library.symbol<nccl::SplitFn*>("ncclCommSplit")),
      comm_abort(library.symbol<nccl::AbortFn*>("ncclCommAbort")),
      async_error(library.symbol<nccl::AsyncErrorFn*>("ncclCommGetAsyncError")),
      error_string(library.symbol<nccl::ErrorStringFn*>("ncclGetErrorString")),
      last_error(library.symbol<nccl::LastErrorFn*>("ncclGetLastError")),
      all_reduce(library.symbol<nccl::AllReduceFn*>("ncclAllReduce")),
      reduce_scatter(library.symbol<nccl::ReduceScatterFn*>("ncclReduceScatter")),
      all_gather(library.symbol<nccl::AllGatherFn*>("ncclAllGather")),
      broadcast(library.symbol<nccl::BroadcastFn*>("ncclBroadcast")),
      reduce(library.symbol<nccl::ReduceFn*>("ncclReduce")),
      send(library.symbol<nccl::SendFn*>("ncclSend")),
      receive(library.symbol<nccl::ReceiveFn*>("ncclRecv")),
      group_start(library.symbol<nccl::GroupFn*>("ncclGroupStart")),
      group_end(library.symbol<nccl::GroupFn*>("ncclGroupEnd")) {
  int found = 0;
  version(&found);
  if (found < kOldestVersion) {
    throw Error("DS_LIBRARY", "NCCL", text("version ", kOldestVersion, " or newer"), text(found),
                request().hint);
  }
}

const Nccl& Nccl::get() {
  static const Nccl* opened = new Nccl();  // never closed: it owns threads
  return *opened;
}

}  // namespace ds::cuda
