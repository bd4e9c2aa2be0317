// Attention over gathered blocks: parts of a step give the results of the whole step.
import { attendGathered, attendGatheredLatents } from '../../lib/inference/gathered-attention.js';
import { splitLists } from '../../lib/inference/paged-cache.js';
import { Sequence } from '../../lib/inference/sequence.js';
import { buildBatch } from '../../lib/inference/step-batch.js';
import { concat, randn, scope, seed, Tensor } from '../../lib/tensor/index.js';

const [BLOCK, D, H] = [16, 8, 4];

/** Five sequences with one new token, and two prompts of 9 and 21 tokens; each block is its own. */
function step() {
  let block = 0;
  const slices = [30, 5, 47, 16, 1, 9, 21].map((length, i) => {
    const sequence = new Sequence(
      Array.from({ length }, (_, t) => t),
      1,
    );
    sequence.blocks = Array.from({ length: Math.ceil(length / BLOCK) }, () => block++);
    const first = i < 5 ? length - 1 : 0;
    return { sequence, first, count: length - first };
  });
  const { batch } = buildBatch(slices, { blockSize: BLOCK });
  return { batch, blocks: block, on: splitLists(batch, Tensor.from(batch.numbers)) };
}

test.each([
  [{ cap: 3, window: null, slopes: null }],
  [{ cap: 3, window: 7, slopes: null }],
  [{ cap: null, window: null, slopes: [0.5, 0.25, 0.1, 0.05] }],
])('bounded or biased scores are the same in parts: %j', ({ slopes, ...how }) => {
  scope(() => {
    const { batch, blocks, on } = step();
    seed(3);
    const pool = randn([blocks, 2, 2, BLOCK, D]);
    const q = randn([batch.tokens, H, D]);
    const options = { ...how, scale: 0.4, sinks: null, slopes: slopes && Tensor.from(slopes) };
    const whole = attendGathered(pool, on, q, options);
    for (const partBytes of [1, 20_000]) {
      const parts = attendGathered(pool, on, q, { ...options, partBytes });
      expect(parts.shape).toEqual(whole.shape);
      expect(largest(parts.sub(whole))).toBeLessThan(1e-6);
    }
    expect(largest(whole)).toBeGreaterThan(0.1);
  });
});

test('latents are the same in parts', () => {
  scope(() => {
    const { batch, blocks, on } = step();
    seed(4);
    const pool = randn([blocks, 2, 1, BLOCK, D]);
    const q = randn([1, H, batch.tokens, 2 * D]);
    const of = {
      q,
      absorbed: (queries: Tensor) => queries,
      released: (sums: Tensor) => sums,
      expanded: (latents: Tensor) => {
        const k = concat([latents, latents, latents, latents], 1);
        return { k, v: k };
      },
    };
    const run = (...partBytes: number[]) =>
      attendGatheredLatents(pool, on, of as never, 0.4, ...partBytes);
    const whole = run();
    for (const bytes of [1, 20_000]) {
      expect(largest(run(bytes).sub(whole))).toBeLessThan(1e-6);
    }
    expect(largest(whole)).toBeGreaterThan(0.1);
  });
});

/** Returns the largest magnitude of the values. */
const largest = (values: Tensor): number =>
  Math.max(...(values.abs().reshape([-1]).toArray() as number[]));
