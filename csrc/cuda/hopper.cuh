// Instructions of Hopper (sm_90a): wgmma, TMA, mbarriers and register reallocation.
//
// Kernels that use them guard their body with DS_HOPPER_BODY. For other targets the body is empty,
// and the host must not launch them: see hopper_serves() in tensor_map.h.
#pragma once

#include <cstdint>

#include "mma.cuh"
#include "tensor_map.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define DS_HOPPER_BODY 1
#else
#define DS_HOPPER_BODY 0
#endif

namespace ds::cuda {

constexpr int kWarpgroup = 128;  // threads that issue a wgmma together

// ---- barriers in shared memory ------------------------------------------------------------------

/// An mbarrier in shared memory. A phase ends after `arrivals` arrivals and all expected bytes.
struct SharedBarrier {
  uint64_t word;

  __device__ __forceinline__ uint32_t address() const { return shared_address(&word); }

  __device__ __forceinline__ void start(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals)
                 : "memory");
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
  }
  /// Arrives, and makes the phase wait for `bytes` of copies.
  __device__ __forceinline__ void arrive_expecting(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()),
                 "r"(bytes)
                 : "memory");
  }
  /// Arrives when this thread's earlier cp.async copies have ended. It counts as one of `arrivals`.
  __device__ __forceinline__ void arrive_after_copies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address())
                 : "memory");
  }
  /// Waits for the end of the phase with this parity. For a new barrier, parity 1 has already
  /// ended.
  __device__ __forceinline__ void wait(uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra end;\n"
        "bra again;\n"
        "end:\n"
        "}" ::"r"(address()),
        "r"(parity)
        : "memory");
  }
};

/// Makes initialized barriers visible to the copy engine.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Waits at a hardware barrier for `threads` threads. Barrier 0 is that of __syncthreads().
__device__ __forceinline__ void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// Arrives at a hardware barrier without waiting for it.
__device__ __forceinline__ void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// A position in a ring of kStages buffers: the stage, and the parity of its barrier.
template <int kStages>
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// ---- persistent kernels ------------------------------------------------------------------------

constexpr size_t kHopperAlignment = 1024;  // required by the 128-byte swizzle

/// Returns the kernel's shared memory, aligned for the swizzle.
template <class Memory>
__device__ __forceinline__ Memory& hopper_memory(unsigned char* shared) {
  const uint32_t past = shared_address(shared) % kHopperAlignment;
  return *reinterpret_cast<Memory*>(shared +
                                    (past ? static_cast<uint32_t>(kHopperAlignment) - past : 0));
}

/// Returns the next unit of work. Producers call it just before the last copy of a unit, so that
/// the block that finishes first gets the next unit. Earlier calls would give long units to busy
/// blocks.
__device__ __forceinline__ unsigned hopper_next_unit(unsigned* counter, unsigned total) {
  const unsigned taken = atomicAdd(counter, 1);
  if (taken == total - 1) atomicExch(counter, 0);  // a launch takes `total` numbers
  return gridDim.x + taken;
}

/// Signals that this warp no longer reads a stage. All threads of the warp call it.
__device__ __forceinline__ void release_stage(SharedBarrier& empty) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) empty.arrive();
}

// ---- copies by TMA ------------------------------------------------------------------------------

constexpr uint64_t kEvictFirst = 0x12F0000000000000, kEvictLast = 0x14F0000000000000;

/// Prefetches a tensor map, so that the first copy does not wait for it.
__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// Copies a box to shared memory, with zeros outside of the tensor. One thread calls it.
__device__ __forceinline__ void load_box(void* to, const TensorMap& map, SharedBarrier& bar,
                                         uint64_t hint, int column, int row, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(to)),
      "l"(&map), "r"(bar.address()), "r"(column), "r"(row), "r"(head), "r"(batch), "l"(hint)
      : "memory");
}

/// Copies a box from shared memory, without elements outside of the tensor.
__device__ __forceinline__ void store_box(const void* from, const TensorMap& map, int column,
                                          int row, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%1, {%2, %3, %4, %5}], [%0];" ::"r"(
          shared_address(from)),
      "l"(&map), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}
/// Closes the group of this thread's stores by TMA.
__device__ __forceinline__ void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Waits until this thread's stores have read shared memory, which may then be overwritten.
__device__ __forceinline__ void await_store_reads() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
/// Makes this thread's writes to shared memory visible to later reads by TMA or wgmma.
__device__ __forceinline__ void fence_for_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Stores four 8x8 matrices. Lane i provides the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void stmatrix_x4(void* row, uint32_t a, uint32_t b, uint32_t c,
                                            uint32_t d) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
      "r"(a), "r"(b), "r"(c), "r"(d)
      : "memory");
}

// ---- registers ----------------------------------------------------------------------------------

/// Reduces the registers of each thread of this warpgroup to kCount.
template <int kCount>
__device__ __forceinline__ void give_registers() {
#if DS_HOPPER_BODY
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
/// Raises the registers of each thread of this warpgroup to kCount. Waits until they are free.
template <int kCount>
__device__ __forceinline__ void take_registers() {
#if DS_HOPPER_BODY
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}

// ---- wgmma --------------------------------------------------------------------------------------
//
// The accumulators of 64 x N are float[N / 8][4] per thread. In lane l of warp w of the warpgroup,
// element [n][2 h + e] is row 16 w + 8 h + l / 4 and column 8 n + 2 (l % 4) + e. So each warp has
// the layout of mma.sync's accumulators for its 16 rows.

/// Returns the descriptor of a tile [rows][64] of 16-bit elements in the 128-byte swizzle,
/// 1024-byte aligned. If N runs along columns, `leading` is the distance in bytes to the next 64
/// columns.
__device__ __forceinline__ uint64_t tile_descriptor(const void* tile, int leading = 16) {
  return static_cast<uint64_t>((shared_address(tile) & 0x3FFFF) >> 4) |
         static_cast<uint64_t>(leading >> 4) << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

/// Returns the descriptor of a tile `units` of 16 bytes behind that of `d`. Only its lower half
/// changes: a sum of 64 bits would cost five instructions and delay the next wgmma.
__device__ __forceinline__ uint64_t moved_descriptor(uint64_t d, uint32_t units) {
  return (d & 0xFFFFFFFF00000000) | (static_cast<uint32_t>(d) + units);
}
/// Returns x of lane 0. The compiler then treats x as equal in all threads of the warp, and
/// computes addresses once per warp.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

/// Orders earlier accesses of accumulators and operands in registers before the next wgmma.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/// Closes the group of wgmma instructions issued so far.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most kPending wgmma groups of this warpgroup are in flight.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Prevents the compiler from moving accesses of these registers across this point.
template <int kCount>
__device__ __forceinline__ void hold(float (&r)[kCount][4]) {
#pragma unroll
  for (int n = 0; n < kCount; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(r[n][e])::"memory");
}

#define DS_NUMBERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define DS_NUMBERS_32 \
  DS_NUMBERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define DS_NUMBERS_40 DS_NUMBERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define DS_NUMBERS_48 DS_NUMBERS_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define DS_NUMBERS_64 \
  DS_NUMBERS_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define DS_NUMBERS_96                                                                \
  DS_NUMBERS_64                                                                      \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define DS_NUMBERS_128                                                                       \
  DS_NUMBERS_96                                                                              \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, " \
  "%111"                                                                                     \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "   \
  "%126, %127"
#define DS_FOUR(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define DS_SIXTEEN(n) DS_FOUR(n), DS_FOUR(n + 1), DS_FOUR(n + 2), DS_FOUR(n + 3)
#define DS_ACCUMULATORS_16 DS_SIXTEEN(0)
#define DS_ACCUMULATORS_32 DS_ACCUMULATORS_16, DS_SIXTEEN(4)
#define DS_ACCUMULATORS_40 DS_ACCUMULATORS_32, DS_FOUR(8), DS_FOUR(9)
#define DS_ACCUMULATORS_48 DS_ACCUMULATORS_40, DS_FOUR(10), DS_FOUR(11)
#define DS_ACCUMULATORS_64 DS_ACCUMULATORS_48, DS_SIXTEEN(12)
#define DS_ACCUMULATORS_96 DS_ACCUMULATORS_64, DS_SIXTEEN(16), DS_SIXTEEN(20)
#define DS_ACCUMULATORS_128 DS_ACCUMULATORS_96, DS_SIXTEEN(24), DS_SIXTEEN(28)

/// Computes d[64, N] (+)= a b with depth 16. a is in shared memory or registers, b in shared
/// memory. kColumns: N (for a: M) runs along the columns of the tile instead of its rows. Without
/// `add`, d is overwritten.
template <class T, int kN>
struct Wgmma;

#define DS_WGMMA(TYPE, NAME, N, COUNT, X0, X1, X2, X3, X4, X5, X6)                                 \
  template <>                                                                                      \
  struct Wgmma<TYPE, N> {                                                                          \
    template <bool kAColumns = false, bool kBColumns = false>                                      \
    static __device__ __forceinline__ void shared(float (&d)[N / 8][4], uint64_t a, uint64_t b,    \
                                                  bool add) {                                      \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #X2                                        \
                   ", 0;\n"                                                                        \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME                 \
                   " {" DS_NUMBERS_##COUNT "}, %" #X0 ", %" #X1 ", p, 1, 1, %" #X3 ", %" #X4       \
                                           ";\n}"                                                  \
                   : DS_ACCUMULATORS_##COUNT                                                       \
                   : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kAColumns ? 1 : 0),           \
                     "n"(kBColumns ? 1 : 0));                                                      \
    }                                                                                              \
    template <bool kColumns>                                                                       \
    static __device__ __forceinline__ void registers(float (&d)[N / 8][4], const uint32_t (&a)[4], \
                                                     uint64_t b, bool add) {                       \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #X5                                        \
                   ", 0;\n"                                                                        \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME                 \
                   " {" DS_NUMBERS_##COUNT "}, {%" #X0 ", %" #X1 ", %" #X2 ", %" #X3 "}, %" #X4    \
                                           ", p, 1, 1, %" #X6 ";\n}"                               \
                   : DS_ACCUMULATORS_##COUNT                                                       \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                           \
                     "r"(static_cast<int>(add)), "n"(kColumns ? 1 : 0));                           \
    }                                                                                              \
  };
DS_WGMMA(__nv_bfloat16, "bf16", 32, 16, 16, 17, 18, 19, 20, 21, 22)
DS_WGMMA(__nv_bfloat16, "bf16", 64, 32, 32, 33, 34, 35, 36, 37, 38)
DS_WGMMA(__nv_bfloat16, "bf16", 80, 40, 40, 41, 42, 43, 44, 45, 46)
DS_WGMMA(__nv_bfloat16, "bf16", 96, 48, 48, 49, 50, 51, 52, 53, 54)
DS_WGMMA(__nv_bfloat16, "bf16", 128, 64, 64, 65, 66, 67, 68, 69, 70)
DS_WGMMA(__nv_bfloat16, "bf16", 192, 96, 96, 97, 98, 99, 100, 101, 102)
DS_WGMMA(__nv_bfloat16, "bf16", 256, 128, 128, 129, 130, 131, 132, 133, 134)
DS_WGMMA(__half, "f16", 32, 16, 16, 17, 18, 19, 20, 21, 22)
DS_WGMMA(__half, "f16", 64, 32, 32, 33, 34, 35, 36, 37, 38)
DS_WGMMA(__half, "f16", 80, 40, 40, 41, 42, 43, 44, 45, 46)
DS_WGMMA(__half, "f16", 96, 48, 48, 49, 50, 51, 52, 53, 54)
DS_WGMMA(__half, "f16", 128, 64, 64, 65, 66, 67, 68, 69, 70)
DS_WGMMA(__half, "f16", 192, 96, 96, 97, 98, 99, 100, 101, 102)
DS_WGMMA(__half, "f16", 256, 128, 128, 129, 130, 131, 132, 133, 134)
#undef DS_WGMMA

}  // namespace ds::cuda
