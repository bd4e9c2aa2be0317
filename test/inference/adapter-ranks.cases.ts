// Tests that ranks which share a model serve the same adapters as one rank.
import assert from 'node:assert/strict';
import { initInference } from '../../lib/index.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { Case } from '../support/case.js';
import type { AdapterRanksJob } from './adapter-ranks-process.js';
import { folderOf, withFolders } from './mixed-adapters.cases.js';

const prompts = [
  [3, 1, 4],
  [1, 5, 9, 2, 6, 5, 3, 5],
];

/** Separate and packed projections. */
export const cases: readonly Case[] = ['llama', 'glm'].map((family) => ({
  name: `${family}: two ranks serve several adapters as one rank does`,
  gpus: 2,
  run: async ({ kind }) => {
    const folder = folderOf(family);
    await withFolders(family, async (adapters) => {
      const job: AdapterRanksJob = { kind, ranks: 2, folder, adapters, prompts };
      const ran = await runRanks('../inference/adapter-ranks-process', 2, { job });
      const reports = reportsOf<{ tokens: number[][]; refusal: string }>(ran);
      const engine = await initInference(folder, { dtype: 'fp32', device: 'cpu' }, { adapters });
      const names = [undefined, ...Object.keys(adapters)];
      const expected: number[][] = [];
      for (const adapter of names) {
        for (const prompt of prompts) {
          const [one] = await engine.generate({
            prompt,
            temperature: 0,
            ignoreEos: true,
            maxNewTokens: 8,
            ...(adapter !== undefined && { adapter }),
          });
          expected.push([...one!.tokens]);
        }
      }
      await engine.destroy();
      for (const { tokens, refusal } of reports) {
        assert.deepEqual(tokens, expected);
        assert.match(refusal, /tensor_parallel/);
      }
    });
  },
}));
