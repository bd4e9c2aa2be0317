// Checkpoints as earlier versions wrote them: each loads, bit for bit, and training goes on as it
// did then.
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { consolidate } from '../../lib/checkpoint/index.js';
import { keptState, stateKey } from '../../lib/engine/saving/engine-shards.js';
import { type Engine, nn } from '../../lib/index.js';
import type { Tensor } from '../../lib/tensor/index.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { GoldenJob, GoldenReport } from './golden-process.js';
import {
  CLIENT_STATE,
  type Continuation,
  GoldenModel,
  goldenEngine,
  KINDS,
  type Kind,
} from './golden-training.js';
import { storedTensors } from './stored-tensors.js';

const FORMATS = ['format-2', 'format-3'];

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'ds-golden-'));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

function bitsOf(tensor: Tensor): string {
  const raw = tensor.toRaw();
  return Buffer.from(raw.buffer, raw.byteOffset, raw.byteLength).toString('base64');
}

/**
 * Weights, buffers, master weights and states of an engine of one rank, under their names in a
 * checkpoint.
 */
function tensorsOf(engine: Engine): Record<string, string> {
  const all = [...engine.module.namedParameters(), ...engine.module.namedBuffers()];
  const bits = Object.fromEntries(all.map(([name, tensor]) => [name, bitsOf(tensor)]));
  for (const partition of engine.parts.stage.partitions) {
    for (const fragment of partition.fragments) {
      for (const state of Object.keys(keptState(engine, fragment.entry))) {
        const tensor = engine.parts.state.lend(partition, fragment, state).tensor;
        bits[stateKey(fragment.entry.name, state)] = bitsOf(tensor);
        tensor.release();
      }
    }
  }
  return bits;
}

/** Other processors round sums of a few hundred numbers in another order. */
function requireAlike(next: Continuation, expected: Continuation, { precision }: Kind): void {
  const { losses, ...rest } = next;
  const { losses: before, ...restBefore } = expected;
  expect(rest).toEqual(restBefore);
  const bound = precision === 'fp32' ? 1e-5 : 5e-3;
  losses.forEach((loss, i) => {
    expect(Math.abs(loss / (before[i] as number) - 1)).toBeLessThan(bound);
  });
}

describe.each(FORMATS)('checkpoints of %s', (format) => {
  const dir = join(__dirname, '..', 'golden', 'checkpoints', format);
  const expected: Record<string, Continuation[]> = JSON.parse(
    readFileSync(join(dir, 'expected.json'), 'utf8'),
  );

  test.each(KINDS)('$name: one rank restores every bit', async (kind) => {
    const { engine } = await goldenEngine({ ...kind, ranks: 1 }, 77);
    const { clientState, tag } = await engine.loadCheckpoint(join(dir, kind.name));
    expect({ clientState, tag }).toEqual({ clientState: CLIENT_STATE, tag: 't' });
    expect(tensorsOf(engine)).toEqual(storedTensors(join(dir, kind.name, 't')));
    engine.destroy();
  });

  test.each([1, 2] as const)(
    'on %d ranks, training continues with the recorded losses',
    async (ranks) => {
      const job: GoldenJob = { what: 'resume', dir, ranks };
      const results = await runRanks('../checkpoint/golden-process', ranks, { job });
      for (const [rank, report] of reportsOf<GoldenReport>(results).entries()) {
        for (const kind of KINDS.filter((kind) => kind.ranks === ranks)) {
          const { next, clientState } = report[kind.name] as GoldenReport[string];
          expect(clientState).toEqual(CLIENT_STATE);
          requireAlike(next, expected[kind.name]?.[rank] as Continuation, kind);
        }
      }
    },
  );

  test('consolidated weights fill the model, and are consolidated the same today', async () => {
    const [model, again] = [new GoldenModel(), new GoldenModel()];
    await nn.loadWeights(model, join(dir, 'consolidated'));
    const stored = storedTensors(join(dir, 'two-stage3', 't'));
    for (const [name, tensor] of [...model.namedParameters(), ...model.namedBuffers()]) {
      expect([name, bitsOf(tensor)]).toEqual([name, stored[name]]);
    }
    const out = join(folder, format);
    await consolidate(join(dir, 'two-stage3'), out);
    await nn.loadWeights(again, out);
    for (const [name, tensor] of [...again.namedParameters(), ...again.namedBuffers()]) {
      expect([name, bitsOf(tensor)]).toEqual([name, stored[name]]);
    }
  });
});
