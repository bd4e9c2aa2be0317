// Routing on the CPU, a token at a time.
#include "route.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "../cpu/index_check.h"
#include "../cpu/map.h"

namespace ds::cpu {
namespace {

/// The terms e^(x - max) of a token's experts, and their sum.
template <class C>
struct Exponentials {
  std::vector<C> values;
  C sum = 0;

  template <class T>
  void of(const T* logits, int64_t n) {
    values.resize(static_cast<size_t>(n));
    widen(logits, values.data(), n);
    const C max = max_of(values.data(), n);
    for (C& x : values) x = std::exp(x - max);
    sum = sum_of<C>(n, [&](int64_t i) { return values[static_cast<size_t>(i)]; });
  }
};

/// Chooses the experts of tokens from their logits.
template <class C>
class Choice {
 public:
  Choice(int64_t experts, int64_t k)
      : k_(k), keys_(static_cast<size_t>(experts)), order_(static_cast<size_t>(experts)) {}

  template <class T>
  void write(const T* logits, bool normalize, int32_t* ids, C* weights) {
    e_.of(logits, static_cast<int64_t>(keys_.size()));
    for (size_t i = 0; i < keys_.size(); ++i) {
      const C x = static_cast<C>(logits[i]);
      keys_[i] = std::isnan(x) ? std::numeric_limits<C>::infinity() : x;
    }
    std::iota(order_.begin(), order_.end(), 0);
    std::partial_sort(order_.begin(), order_.begin() + k_, order_.end(), [&](int32_t a, int32_t b) {
      const C x = keys_[static_cast<size_t>(a)], y = keys_[static_cast<size_t>(b)];
      return x > y || (x == y && a < b);
    });
    C among = 0;
    for (int64_t j = 0; j < k_; ++j) among += chosen(j);
    for (int64_t j = 0; j < k_; ++j) {
      ids[j] = order_[static_cast<size_t>(j)];
      weights[j] = chosen(j) / (normalize ? among : e_.sum);
    }
  }

 private:
  C chosen(int64_t j) const {
    return e_.values[static_cast<size_t>(order_[static_cast<size_t>(j)])];
  }

  const int64_t k_;
  Exponentials<C> e_;
  std::vector<C> keys_;
  std::vector<int32_t> order_;
};

/// Writes the logits of a token.
template <class T>
void write_logits(const RouteTopK& op, int64_t token) {
  const int64_t experts = op.logits.shape[1], channels = op.x.shape[1];
  const T* const x = op.x.as<T>() + token * channels;
  for (int64_t e = 0; e < experts; ++e) {
    const T* const w = op.weight.as<T>() + e * channels;
    double sum = op.bias ? static_cast<double>(op.bias.as<T>()[e]) : 0;
    for (int64_t c = 0; c < channels; ++c)
      sum += static_cast<double>(x[c]) * static_cast<double>(w[c]);
    op.logits.as<T>()[token * experts + e] = static_cast<T>(static_cast<compute_t<T>>(sum));
  }
}

template <class T>
void route(const RouteTopK& op, CpuContext& ctx) {
  using C = compute_t<T>;
  const int64_t experts = op.logits.shape[1], k = op.ids.shape[1];
  const int64_t work = op.x ? experts * op.x.shape[1] : experts;
  const auto tokens = [&](int64_t begin, int64_t end) {
    Choice<C> choice(experts, k);
    for (int64_t t = begin; t < end; ++t) {
      if (op.x) write_logits<T>(op, t);
      choice.write(op.logits.as<T>() + t * experts, op.normalize, op.ids.as<int32_t>() + t * k,
                   op.weights.as<C>() + t * k);
    }
  };
  ctx.pool.parallel_for(op.logits.shape[0],
                        std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, work)), tokens);
}

template <class T>
void backward(const RouteTopKBackward& op, CpuContext& ctx) {
  using C = compute_t<T>;
  const int64_t experts = op.logits.shape[1], k = op.ids.shape[1];
  const int32_t* const all = op.ids.as<int32_t>();
  for (int64_t i = 0; i < op.ids.numel(); ++i)
    require_index("route_top_k_backward", all[i], experts, "the experts");
  const auto tokens = [&](int64_t begin, int64_t end) {
    Exponentials<C> e;
    std::vector<C> slope(static_cast<size_t>(experts)), old(slope.size());
    for (int64_t t = begin; t < end; ++t) {
      const int32_t* const ids = all + t * k;
      const C* const dweights = op.dweights.as<C>() + t * k;
      e.of(op.logits.as<T>() + t * experts, experts);
      C total = e.sum, inner = 0;
      if (op.normalize) {
        total = 0;
        for (int64_t j = 0; j < k; ++j) total += e.values[static_cast<size_t>(ids[j])];
      }
      for (int64_t j = 0; j < k; ++j)
        inner += dweights[j] * (e.values[static_cast<size_t>(ids[j])] / total);
      // Adds the part of the softmax's sum, over all experts or the chosen ones.
      for (size_t i = 0; i < slope.size(); ++i)
        slope[i] = op.normalize ? C(0) : -(e.values[i] / total) * inner;
      for (int64_t j = 0; j < k; ++j) {
        const size_t i = static_cast<size_t>(ids[j]);
        slope[i] += (e.values[i] / total) * (op.normalize ? dweights[j] - inner : dweights[j]);
      }
      T* const out = op.dlogits.as<T>() + t * experts;
      if (op.accumulate) {
        widen(out, old.data(), experts);
        for (size_t i = 0; i < slope.size(); ++i) slope[i] += old[i];
      }
      narrow(slope.data(), out, experts);
    }
  };
  ctx.pool.parallel_for(op.logits.shape[0], std::max<int64_t>(1, kElementGrain / experts), tokens);
}

}  // namespace

void run(const RouteTopK& op, CpuContext& ctx) {
  for_floating("route_top_k", op.logits.dtype, [&]<class T>(TypeTag<T>) { route<T>(op, ctx); });
}

void run(const RouteTopKBackward& op, CpuContext& ctx) {
  for_floating("route_top_k_backward", op.logits.dtype,
               [&]<class T>(TypeTag<T>) { backward<T>(op, ctx); });
}

}  // namespace ds::cpu
