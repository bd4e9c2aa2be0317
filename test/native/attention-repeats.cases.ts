// Attention and its backward give the same bits in every run, into poisoned outputs.
import assert from 'node:assert/strict';
import * as kernels from '../../lib/runtime/kernels.generated.js';
import type { View } from '../../lib/runtime/view.js';
import type { Case } from '../support/case.js';
import { allSeen } from './matrix/attention-reference.js';
import { Arena } from './matrix/big.js';

function bytesOf(view: View): Uint8Array {
  const bytes = new Uint8Array(view.buffer.bytes);
  view.buffer.read(0, bytes);
  return bytes;
}

/** B2, 6 query heads, 2 key heads, bf16. */
function repeats(t: number, d: number, window: number): Case {
  return {
    name: `attention T${t} D${d} window ${window} repeats its bits`,
    skip: (device) => (device.kind === 'cpu' ? 'tests the kernels of a GPU' : null),
    run(device) {
      const arena = new Arena(device);
      const [queries, keys] = [
        [2, 6, t, d],
        [2, 2, t, d],
      ];
      const [q, dout] = [arena.normal(queries, 'bf16'), arena.normal(queries, 'bf16')];
      const [k, v] = [arena.normal(keys, 'bf16'), arena.normal(keys, 'bf16')];
      const run = (): Uint8Array[] => {
        const [out, dq] = [arena.empty(queries, 'bf16'), arena.empty(queries, 'bf16')];
        const [dk, dv] = [arena.empty(keys, 'bf16'), arena.empty(keys, 'bf16')];
        const lse = arena.empty([2, 6, t], 'f32');
        const call = { q, k, v, out, lse, ...allSeen, window, scale: d ** -0.5, causal: true };
        kernels.attention(call);
        kernels.attentionBackward({ ...call, dout, dq, dk, dv });
        return [out, lse, dq, dk, dv].map(bytesOf);
      };
      const first = run();
      for (let i = 0; i < 20; ++i) assert.deepEqual(run(), first, `run ${i + 2}`);
      arena.release();
    },
  };
}

export const cases: Case[] = [64, 80, 128, 256].flatMap((d) => [
  repeats(777, d, 0),
  repeats(1025, d, 200),
  repeats(65, d, 0),
]);
