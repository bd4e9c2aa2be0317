// The short causal convolution on the CPU, the channels of a token at a time.
#include "short_conv.h"

#include <algorithm>
#include <vector>

#include "../cpu/index_check.h"
#include "../cpu/rows.h"
#include "unary_math.h"

namespace ds::cpu {
namespace {

/// Rows [T, C] of a sequence, and the first token of each token's document.
template <class T>
struct Text {
  const T* x;
  int64_t stride, count, channels, taps;
  const int32_t* documents;

  /// Returns true if token `from` is in t's document and not after t.
  bool sees(int64_t t, int64_t from) const {
    if (from < 0) return false;
    if (!documents) return true;
    for (int64_t i = from; i < t; ++i)
      if (documents[i] != documents[i + 1]) return false;
    return true;
  }
};

/// Returns weight [C, K] as [K, C] in the compute type, followed by the bias, or zeros.
template <class T>
std::vector<compute_t<T>> taps_of(const View& weight, const View& bias) {
  const int64_t c = weight.shape[0], k = weight.shape[1];
  std::vector<compute_t<T>> out(static_cast<size_t>(c * (k + 1)));
  for (int64_t i = 0; i < c * k; ++i)
    out[(i % k) * c + i / k] = static_cast<compute_t<T>>(weight.as<T>()[i]);
  if (bias) widen(bias.as<T>(), out.data() + k * c, c);
  return out;
}

template <class T>
Text<T> text_of(const View& x, const View& weight, const View& documents, int64_t batch) {
  return {x.as<T>() + batch * x.strides[0],
          x.strides[1],
          x.shape[1],
          x.shape[2],
          weight.shape[1],
          documents ? documents.as<int32_t>() + batch * x.shape[1] : nullptr};
}

/// Writes the convolution at token t to `sums`.
template <class T, class C>
void convolve(const Text<T>& text, const std::vector<C>& weight, int64_t t, C* sums, C* row) {
  const int64_t c = text.channels;
  std::copy_n(weight.data() + text.taps * c, c, sums);
  for (int64_t j = 0; j < text.taps; ++j) {
    const int64_t from = t - text.taps + 1 + j;
    if (!text.sees(t, from)) continue;
    widen(text.x + from * text.stride, row, c);
    const C* const w = weight.data() + j * c;
    for (int64_t i = 0; i < c; ++i) sums[i] += w[i] * row[i];
  }
}

/// Computes the gradients of a sequence: writes dx and adds to dweight [K + 1, C]; the last row is
/// the gradient of the bias.
template <class T, class C>
void backward(const Text<T>& text, const std::vector<C>& weight, const T* dout, int64_t stride,
              T* dx, std::vector<C>& dweight) {
  const int64_t c = text.channels, n = text.count;
  std::vector<C> sums(static_cast<size_t>(c)), row(sums), grad(sums);
  std::vector<C> all(static_cast<size_t>(n * c));
  for (int64_t t = 0; t < n; ++t) {
    convolve(text, weight, t, sums.data(), row.data());
    widen(dout + t * stride, grad.data(), c);
    for (int64_t i = 0; i < c; ++i) {
      const C s = sigmoid_of(sums[i]);
      grad[i] *= s * (C(1) + sums[i] * (C(1) - s));
      dweight[text.taps * c + i] += grad[i];
    }
    for (int64_t j = 0; j < text.taps; ++j) {
      const int64_t from = t - text.taps + 1 + j;
      if (!text.sees(t, from)) continue;
      widen(text.x + from * text.stride, row.data(), c);
      for (int64_t i = 0; i < c; ++i) {
        dweight[j * c + i] += grad[i] * row[i];
        all[from * c + i] += grad[i] * weight[j * c + i];
      }
    }
  }
  narrow(all.data(), dx, n * c);
}

}  // namespace

void run(const ShortConv& op, CpuContext& ctx) {
  const int64_t t = op.x.shape[1], c = op.x.shape[2];
  if (op.out.numel() == 0) return;
  for_floating("short_conv", op.x.dtype, [&]<class T>(TypeTag<T>) {
    using C = compute_t<T>;
    const std::vector<C> weight = taps_of<T>(op.weight, op.bias);
    ctx.pool.parallel_for(op.x.shape[0] * t, 16, [&](int64_t begin, int64_t end) {
      std::vector<C> sums(static_cast<size_t>(c)), row(sums);
      for (int64_t i = begin; i < end; ++i) {
        const Text<T> text = text_of<T>(op.x, op.weight, op.documents, i / t);
        convolve(text, weight, i % t, sums.data(), row.data());
        for (C& x : sums) x = x * sigmoid_of(x);
        narrow(sums.data(), op.out.as<T>() + i * c, c);
      }
    });
  });
}

void run(const ShortConvBackward& op, CpuContext& ctx) {
  const int64_t t = op.x.shape[1], c = op.x.shape[2], k = op.weight.shape[1], b = op.x.shape[0];
  for_floating("short_conv_backward", op.x.dtype, [&]<class T>(TypeTag<T>) {
    using C = compute_t<T>;
    const std::vector<C> weight = taps_of<T>(op.weight, op.bias);
    std::vector<std::vector<C>> parts(static_cast<size_t>(b));
    ctx.pool.parallel_for(b, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        parts[i].assign(static_cast<size_t>(c * (k + 1)), C(0));
        backward<T, C>(text_of<T>(op.x, op.weight, op.documents, i), weight,
                       op.dout.as<T>() + i * op.dout.strides[0], op.dout.strides[1],
                       op.dx.as<T>() + i * t * c, parts[i]);
      }
    });
    const auto total = [&](int64_t at) {
      C sum = 0;
      for (const auto& part : parts) sum += part[at];
      return sum;
    };
    for (int64_t i = 0; i < c * k; ++i) op.dweight.as<C>()[i] = total((i % k) * c + i / k);
    for (int64_t i = 0; op.dbias && i < c; ++i) op.dbias.as<C>()[i] = total(k * c + i);
  });
}

void run(const ShortConvStep& op, CpuContext& ctx) {
  constexpr const char* kOp = "short_conv_step";
  const int64_t sequences = op.lengths.numel(), rows = op.x.shape[0], c = op.x.shape[1];
  const int64_t history = op.weight.shape[1] - 1;
  if (sequences == 0) return;
  const auto *starts = op.starts.as<int32_t>(), *lengths = op.lengths.as<int32_t>();
  const auto* slots = op.slots.as<int32_t>();
  for (int64_t s = 0; s < sequences; ++s) {
    require_index(kOp, starts[s] - starts[0], rows + 1, "the tokens");
    require_index(kOp, starts[s + 1] - starts[s], rows + 1 - (starts[s] - starts[0]), "the tokens");
    if (slots[s] >= 0) require_index(kOp, slots[s], op.pool.shape[0], "the slots");
  }
  for_floating(kOp, op.x.dtype, [&]<class T>(TypeTag<T>) {
    using C = compute_t<T>;
    const std::vector<C> weight = taps_of<T>(op.weight, op.bias);
    ctx.pool.parallel_for(sequences, 1, [&](int64_t begin, int64_t end) {
      std::vector<C> sums(static_cast<size_t>(c)), row(sums);
      for (int64_t s = begin; s < end; ++s) {
        const int64_t first = starts[s] - starts[0], count = starts[s + 1] - starts[s];
        T* const kept = slots[s] < 0 ? nullptr : op.pool.as<T>() + slots[s] * history * c;
        // The earlier inputs, then the new ones.
        std::vector<T> all(static_cast<size_t>((history + count) * c), T(0.0f));
        if (kept && lengths[s] > count) std::copy_n(kept, history * c, all.data());
        for (int64_t t = 0; t < count; ++t)
          std::copy_n(op.x.as<T>() + (first + t) * op.x.strides[0], c,
                      all.data() + (history + t) * c);
        const Text<T> text{all.data(), c, history + count, c, history + 1, nullptr};
        for (int64_t t = 0; t < count; ++t) {
          convolve(text, weight, history + t, sums.data(), row.data());
          for (C& x : sums) x = x * sigmoid_of(x);
          narrow(sums.data(), op.out.as<T>() + (first + t) * c, c);
        }
        if (kept) std::copy_n(all.data() + count * c, history * c, kept);
      }
    });
  });
}

}  // namespace ds::cpu
