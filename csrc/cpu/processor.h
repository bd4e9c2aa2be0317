// Features of the CPU.
#pragma once

namespace ds::cpu {

/// Returns true if code for target("arch=x86-64-v4"), which is AVX-512, runs here.
inline bool runs_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

}  // namespace ds::cpu
