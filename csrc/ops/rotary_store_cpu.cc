// RotaryStore on the CPU, a head of a token at a time.
#include "rotary_store.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "../cpu/index_check.h"
#include "../cpu/rows.h"
#include "../cpu/strided.h"
#include "fp8.h"

namespace ds::cpu {
namespace {

constexpr const char* kOp = "rotary_store";

/// Throws DS_INDEX for an invalid position or slot, before anything is written.
void check_indices(const RotaryStore& op) {
  const auto *slots = op.slots.as<int32_t>(), *positions = op.positions.as<int32_t>();
  const int64_t places = op.pool.shape[0] * op.pool.shape[3];
  for (int64_t n = 0; n < op.q.shape[0]; ++n) {
    require_index(kOp, positions[n], op.cos.shape[0], "the rows of cos and sin");
    if (slots[n] >= 0) require_index(kOp, slots[n], places, "the pool");
  }
}

/// Normalizes x as RmsNorm does, rounded to T.
template <class T>
void normalize(compute_t<T>* x, T* rounded, const View& norm, int64_t d, double eps) {
  using C = compute_t<T>;
  const C squares = sum_of<C>(d, [&](int64_t i) { return x[i] * x[i]; });
  const C variance = std::max(squares / static_cast<C>(d), C(0));
  const C scale = C(1) / std::sqrt(variance + static_cast<C>(eps));
  const T* const weight = norm.as<T>();
  for (int64_t i = 0; i < d; ++i) x[i] = x[i] * scale * static_cast<C>(weight[i]);
  narrow(x, rounded, d);
  widen(rounded, x, d);
}

/// Processes the heads of one token, with buffers of D elements that its thread reuses.
template <class T>
struct Heads {
  using C = compute_t<T>;
  const RotaryStore& op;
  int64_t d = op.q.shape[2];
  std::vector<C> x = std::vector<C>(static_cast<size_t>(d));
  std::vector<T> rounded = std::vector<T>(static_cast<size_t>(d));
  std::vector<T> rotated = std::vector<T>(static_cast<size_t>(d));

  static const T* row(const View& v, int64_t n, int64_t head) {
    return v.as<T>() + n * v.strides[0] + head * v.strides[1];
  }

  /// Writes a head of queries or keys to `to`, normalized if `norm` is present, and rotated.
  void rotate(const View& from, const View& norm, int64_t n, int64_t head, T* to) {
    widen(row(from, n, head), x.data(), d);
    if (norm) normalize<T>(x.data(), rounded.data(), norm, d, op.eps);
    const int64_t half = d / 2, angles = op.positions.as<int32_t>()[n] * half;
    const C *const cos = op.cos.as<C>() + angles, *const sin = op.sin.as<C>() + angles;
    for (int64_t i = 0; i < half; ++i) {
      const C a = x[static_cast<size_t>(i)], b = x[static_cast<size_t>(half + i)];
      x[static_cast<size_t>(i)] = a * cos[i] - b * sin[i];
      x[static_cast<size_t>(half + i)] = b * cos[i] + a * sin[i];
    }
    narrow(x.data(), to, d);
  }

  /// Returns the index of the first element of a slot's key. Its value is `values` elements behind
  /// it.
  int64_t key(int32_t slot, int64_t head) const {
    const int64_t block = op.pool.shape[3], heads = op.pool.shape[2];
    return ((slot / block * 2 * heads + head) * block + slot % block) * d;
  }

  /// Stores a head as elements or codes.
  void store(const T* from, int64_t at) {
    if (op.pool.dtype != DType::u8) {
      std::copy_n(from, d, op.pool.as<T>() + at);
      return;
    }
    for (int64_t i = 0; i < d; ++i)
      op.pool.as<uint8_t>()[at + i] =
          fp8_code<Fp8Format::e4m3>(static_cast<float>(static_cast<C>(from[i])));
  }

  /// Writes the queries of token n, and stores its keys and values unless its slot is negative.
  void process_token(int64_t n) {
    for (int64_t h = 0; h < op.q.shape[1]; ++h)
      rotate(op.q, op.q_norm, n, h, const_cast<T*>(row(op.out, n, h)));
    const int32_t slot = op.slots.as<int32_t>()[n];
    if (slot < 0) return;
    const int64_t values = op.pool.shape[2] * op.pool.shape[3] * d;
    for (int64_t h = 0; h < op.k.shape[1]; ++h) {
      rotate(op.k, op.k_norm, n, h, rotated.data());
      store(rotated.data(), key(slot, h));
      store(row(op.v, n, h), key(slot, h) + values);
    }
  }
};

}  // namespace

void run(const RotaryStore& op, CpuContext& ctx) {
  check_indices(op);
  const int64_t width = std::max<int64_t>(1, (op.q.shape[1] + op.k.shape[1]) * op.q.shape[2]);
  for_floating(kOp, op.q.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    ctx.pool.parallel_for(op.q.shape[0], std::max<int64_t>(1, kElementGrain / width),
                          [&](int64_t begin, int64_t end) {
                            Heads<T> heads{op};
                            for (int64_t n = begin; n < end; ++n) heads.process_token(n);
                          });
  });
}

}  // namespace ds::cpu
