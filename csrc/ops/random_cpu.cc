// Uniform and normal random tensors on the CPU, a Philox block per four elements.
#include "random.h"

#include "../core/random_math.h"
#include "../cpu/map.h"

namespace ds::cpu {
namespace {

struct Four {
  float v[4];
};

/// Returns the words of block `block` of the op's stream.
template <class Op>
Philox4 words_of(const Op& op, uint64_t block) {
  return philox(static_cast<uint64_t>(op.seed), static_cast<uint64_t>(op.offset), block);
}

/// Writes value(b).v[j] to the element with index 4 b + j.
template <class Op, class F>
void generate(const char* name, const Op& op, CpuContext& ctx, F value) {
  const Part part = part_of(op);
  for_floating(name, op.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* const out = op.out.template as<T>();
    ctx.pool.parallel_for(op.out.numel(), kElementGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end;) {
        int64_t place = part.place(i);
        for (const int64_t last = i + part.run(i, end - i); i < last;) {
          const Four x = value(static_cast<uint64_t>(place / 4));
          for (int64_t word = place % 4; word < 4 && i < last; ++word, ++place, ++i)
            out[i] = convert<T>(x.v[word]);
        }
      }
    });
  });
}

}  // namespace

void run(const RandomUniform& op, CpuContext& ctx) {
  const UniformRange range = uniform_range(op.low, op.high, op.out.dtype);
  generate("random_uniform", op, ctx, [&](uint64_t block) {
    const Philox4 words = words_of(op, block);
    Four x;
    for (int j = 0; j < 4; ++j) x.v[j] = uniform_between(words.v[j], range);
    return x;
  });
}

void run(const RandomNormal& op, CpuContext& ctx) {
  const float mean = static_cast<float>(op.mean), stddev = static_cast<float>(op.stddev);
  generate("random_normal", op, ctx, [&](uint64_t block) {
    const Philox4 words = words_of(op, block);
    const NormalPair a = box_muller(words.v[0], words.v[1]), b = box_muller(words.v[2], words.v[3]);
    Four x{{a.first, a.second, b.first, b.second}};
    for (float& v : x.v) v = normal_with(v, mean, stddev);
    return x;
  });
}

}  // namespace ds::cpu
