// Tests that beam search finds the texts of transformers.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type BeamOptions, beamSearch } from '../../lib/inference/beams.js';
import { fromPretrained } from '../../lib/models/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { liveTensors } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';
import { quiet } from '../support/quiet.js';

/** Recorded by scripts/record-beams.py. */
interface Golden {
  newTokens: number;
  searches: {
    family: string;
    prompt: number[];
    stopTokens: number[];
    options: Partial<BeamOptions>;
    texts: { tokens: number[]; score: number }[];
  }[];
}

export const folderOf = (family: string): string =>
  join(packageRoot(), 'test/golden/transformers/models', family);

const golden: Golden = JSON.parse(
  readFileSync(join(packageRoot(), 'test/golden/beams.json'), 'utf8'),
);

export const cases: Case[] = golden.searches.map(({ family, options, ...search }) => ({
  name: `beams: ${family} with ${JSON.stringify(options)}`,
  run: async (device) => {
    const { prompt, stopTokens, texts } = search;
    const read = await fromPretrained(folderOf(family), { dtype: 'f32' });
    const model = read.to(device);
    model.eval();
    try {
      const { newTokens: maxNewTokens } = golden;
      const input = { numBeams: 1, ...options, maxNewTokens, stopTokens };
      // The first forward creates the caches of the model.
      await beamSearch(model, prompt, { numBeams: 1, maxNewTokens: 1 });
      await quiet();
      const before = liveTensors();
      const found = await beamSearch(model, prompt, input);
      await quiet();
      assert.equal(liveTensors(), before);
      assert.deepEqual(
        found.map(({ tokens }) => tokens),
        texts.map(({ tokens }) => tokens),
      );
      for (const [i, { score }] of found.entries()) {
        const expected = texts[i]?.score as number;
        assert.ok(Math.abs(score - expected) < 1e-3, `${score}, not ${expected}`);
      }
    } finally {
      for (const parameter of model.parameters()) parameter.dispose();
    }
  },
}));
