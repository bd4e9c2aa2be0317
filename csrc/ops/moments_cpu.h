// AdamW's moments of a block of parameters as f32, for both storage dtypes.
#pragma once

#include "../core/bf16_moments.h"
#include "../core/view.h"
#include "update_range_cpu.h"

namespace ds::cpu {

/// m and v of up to kUpdateBlock parameters as f32: the state itself, or copies of a bf16 state.
/// The conversion is not inlined, because it is the same for all dtypes of gradients and weights.
class MomentBlock {
 public:
  MomentBlock(const View& m, const View& v, int64_t at, int64_t n) : n_(n) {
    if (m.dtype == DType::f32) {
      m_ = m.as<float>() + at;
      v_ = v.as<float>() + at;
      return;
    }
    kept_m_ = m.as<uint16_t>() + at;
    kept_v_ = v.as<uint16_t>() + at;
    widen_kept(kept_m_, m_copy_, n);
    widen_kept(kept_v_, v_copy_, n);
  }

  float* m() { return m_; }
  float* v() { return v_; }

  /// Stores the moments after an update of the masters `p`, then reads them back as rounded.
  void store(const float* p) {
    if (kept_m_) round_kept(p, m_copy_, v_copy_, kept_m_, kept_v_, n_);
  }

 private:
  __attribute__((noinline)) static void widen_kept(const uint16_t* __restrict kept,
                                                   float* __restrict out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = float_of_bf16(kept[i]);
  }

  __attribute__((noinline)) static void round_kept(const float* __restrict p, float* __restrict m,
                                                   float* __restrict v, uint16_t* __restrict kept_m,
                                                   uint16_t* __restrict kept_v, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      kept_v[i] = round_v(v[i], p[i], m[i]);
      kept_m[i] = round_m(m[i]);
      v[i] = float_of_bf16(kept_v[i]);
      m[i] = float_of_bf16(kept_m[i]);
    }
  }

  int64_t n_;
  uint16_t* kept_m_ = nullptr;
  uint16_t* kept_v_ = nullptr;
  alignas(64) float m_copy_[kUpdateBlock];
  alignas(64) float v_copy_[kUpdateBlock];
  float* m_ = m_copy_;
  float* v_ = v_copy_;
};

}  // namespace ds::cpu
