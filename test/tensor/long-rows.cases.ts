// Tests attention over rows so long that the keys and queries of one head exceed the L2 cache.
import assert from 'node:assert/strict';
import { seed, type Tensor } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { attention, randn } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';

const [TOKENS, WINDOW, LAST] = [33_000, 16, 100];

/** Output and gradients of the last rows, with the gradient 1 of these rows. */
function lastOf(inputs: readonly Tensor[]): number[][] {
  const [q, k, v] = inputs.map((input) => input.detach().requireGrad()) as [Tensor, Tensor, Tensor];
  const last = (of: Tensor): Tensor => of.narrow(2, of.size(2) - LAST, LAST);
  const out = attention(q, k, v, { causal: true, window: WINDOW });
  last(out).sum().backward();
  return [out, q.grad, k.grad, v.grad].map((tensor) =>
    last(tensor as Tensor)
      .to('f32')
      .toArray(),
  );
}

/** In a window, the last rows do not depend on the first ones. */
function inWindow(device: Device): void {
  seed(5);
  const draw = (heads: number): Tensor =>
    randn([1, heads, TOKENS, 64], { device }).to('bf16').keep();
  const inputs = [draw(4), draw(1), draw(1)];
  const kept = LAST + WINDOW;
  const got = lastOf(inputs);
  const expected = lastOf(inputs.map((input) => input.narrow(2, TOKENS - kept, kept).contiguous()));
  for (const [i, values] of expected.entries()) {
    const top = Math.max(...values.map(Math.abs));
    for (const [j, value] of values.entries())
      assert.ok(Math.abs((got[i]?.[j] as number) - value) < 0.02 * top, `${i}: element ${j}`);
  }
}

export const cases: Case[] = [{ name: 'a window of 33,000 tokens', run: inWindow }];
