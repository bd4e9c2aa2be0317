// The part of NCCL that this back end uses. Declared here, so that the build does not need its
// header.
#pragma once

#include <cuda_runtime_api.h>

#include <climits>
#include <cstddef>
#include <cstdint>

#include "../core/dynamic_library.h"

namespace ds::cuda {

// Names, values and layouts agree with nccl.h since 2.18. If that header is installed,
// nccl_check.cc compares them with it.
namespace nccl {

enum class Result : int32_t { success = 0, remote_error = 6, in_progress = 7 };
enum class DataType : int32_t { u8 = 1, i32 = 2, i64 = 4, f16 = 6, f32 = 7, f64 = 8, bf16 = 9 };
enum class Op : int32_t { sum = 0, product = 1, maximum = 2, minimum = 3, average = 4 };

using Comm = struct CommStruct*;

/// Identifies a new communicator. Its content is opaque.
struct UniqueId {
  char internal[128];
};

constexpr int kUndefined = INT_MIN;

/// The first fields of ncclConfig_t. NCCL derives their number from `size`, in bytes.
struct Options {
  size_t size = sizeof(Options);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21800;
  int blocking = 0;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  int traffic_class = kUndefined;  // since 2.26; padding in earlier versions
};

using VersionFn = Result(int*);
using UniqueIdFn = Result(UniqueId*);
using InitFn = Result(Comm*, int size, UniqueId, int rank, Options*);
using SplitFn = Result(Comm parent, int color, int key, Comm*, Options*);
using AbortFn = Result(Comm);
using AsyncErrorFn = Result(Comm, Result*);
using ErrorStringFn = const char*(Result);
using LastErrorFn = const char*(Comm);
using AllReduceFn = Result(const void*, void*, size_t, DataType, Op, Comm, cudaStream_t);
using ReduceScatterFn = AllReduceFn;
using AllGatherFn = Result(const void*, void*, size_t, DataType, Comm, cudaStream_t);
using BroadcastFn = Result(const void*, void*, size_t, DataType, int root, Comm, cudaStream_t);
using ReduceFn = Result(const void*, void*, size_t, DataType, Op, int root, Comm, cudaStream_t);
using SendFn = Result(const void*, size_t, DataType, int peer, Comm, cudaStream_t);
using ReceiveFn = Result(void*, size_t, DataType, int peer, Comm, cudaStream_t);
using GroupFn = Result();

}  // namespace nccl

/// The functions of libnccl, which stays open until the process ends.
struct Nccl {
  /// Opens the library on the first call. Throws DS_LIBRARY with the names of the files that it
  /// tried, or with the version if it is older than 2.18.
  static const Nccl& get();

  DynamicLibrary library;
  nccl::VersionFn* version;
  nccl::UniqueIdFn* unique_id;
  nccl::InitFn* init;
  nccl::SplitFn* split;
  nccl::AbortFn* comm_abort;
  nccl::AsyncErrorFn* async_error;
  nccl::ErrorStringFn* error_string;
  nccl::LastErrorFn* last_error;
  nccl::AllReduceFn* all_reduce;
  nccl::ReduceScatterFn* reduce_scatter;
  nccl::AllGatherFn* all_gather;
  nccl::BroadcastFn* broadcast;
  nccl::ReduceFn* reduce;
  nccl::SendFn* send;
  nccl::ReceiveFn* receive;
  nccl::GroupFn* group_start;
  nccl::GroupFn* group_end;

 private:
  Nccl();
};

}  // namespace ds::cuda
