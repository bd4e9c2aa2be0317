// Ranks that share a model out continue texts as one rank does, on the CPU and on GPUs.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { initialize, nn } from '../../lib/index.js';
import type { DeviceKind } from '../../lib/runtime/device.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { type RankResult, reportsOf, runRanks } from '../comm/ranks.js';
import type { Case } from '../support/case.js';
import { type GreedyText, greedyTexts } from '../support/greedy-texts.js';
import type { RanksJob } from './ranks-process.js';

const golden = join(packageRoot(), 'test', 'golden');
const { prompt, tokens } = greedyTexts()['llama-tied']!.at(-1) as GreedyText;
const text = tokens.slice(0, 20);
const folder = join(golden, 'transformers', 'models', 'llama-tied');

/** A training checkpoint of a tiny model. */
async function train(path: string): Promise<void> {
  const sizes = {
    vocabSize: 67,
    maxSeq: 64,
    layers: 2,
    heads: 4,
    kvHeads: 2,
    channels: 24,
    hidden: 37,
  };
  const model = new nn.models.Llama(sizes);
  const optimizer = { type: 'AdamW', params: { lr: 0.1 } } as const;
  const config = { train_micro_batch_size_per_gpu: 1, optimizer };
  const { engine } = await initialize({ model, config, device: 'cpu' });
  await engine.saveCheckpoint(path);
  engine.destroy();
  for (const parameter of model.parameters()) parameter.dispose();
}

async function run(kind: DeviceKind, ranks: number, dies: number | null): Promise<RankResult[]> {
  const home = mkdtempSync(join(tmpdir(), 'ds-ranks-'));
  const job: RanksJob = { kind, ranks, folder, prompt, tokens: text, home, dies };
  try {
    await train(join(home, 'trained'));
    return await runRanks('../inference/ranks-process', ranks, { job });
  } finally {
    rmSync(home, { recursive: true });
  }
}

const shared: Case[] = [2, 4].map((ranks) => ({
  name: `inference over ranks: ${ranks} ranks write what one writes`,
  run: async ({ kind }) => {
    const reports = reportsOf<{ failures: string[]; count: number }>(await run(kind, ranks, null));
    for (const { failures, count } of reports) {
      assert.deepEqual(failures, []);
      assert.ok(count > 15, `${count} checks`);
    }
  },
  gpus: ranks,
}));

const bereaved: Case[] = [0, 1].map((dies) => ({
  name: `inference over ranks: that rank ${dies} is gone is said on the other`,
  run: async ({ kind }) => {
    const results = await run(kind, 2, dies);
    assert.equal(results[dies]?.code, 7);
    assert.match(String(results[1 - dies]?.report), new RegExp(`rank ${dies}`));
  },
  gpus: 2,
}));

const misled: Case = {
  name: 'inference over ranks: an error of a follower ends the texts of the first rank',
  run: async ({ kind }) => {
    const job: RanksJob = {
      kind,
      ranks: 2,
      folder,
      prompt,
      tokens: text,
      home: '',
      dies: null,
      fails: true,
    };
    const results = await runRanks('../inference/ranks-process', 2, { job });
    const [first, second] = reportsOf<string[]>(results);
    assert.deepEqual(second, ['a layer of mine']);
    assert.equal(first?.length, 3);
    for (const message of first) {
      assert.match(message, /every rank to take part, got rank 1 failed: Error: a layer of mine\./);
    }
  },
  gpus: 2,
};

const apart: Case[] = [
  {
    what: 'a folder that is not there',
    odd: { folder: join(golden, 'no such folder') },
    own: /no such folder/,
  },
  {
    what: 'a lack of memory',
    odd: 'no memory' as const,
    own: /Buffer.allocate: expected memory, got none/,
  },
  {
    what: 'a value out of range before the job is joined',
    odd: { config: { max_out_tokens: -1 }, joins: true },
    own: /max_out_tokens/,
  },
  {
    what: 'a configuration that is not there',
    odd: { config: join(golden, 'no such file.json') },
    own: /no such file/,
  },
  {
    what: 'a configuration that is not there before the job is joined',
    odd: { config: join(golden, 'no such file.json'), joins: true },
    own: /no such file/,
  },
  {
    what: 'another number of ranks',
    odd: { config: { tensor_parallel: { tp_size: 3 } } },
    own: /tensor_parallel.tp_size: expected 2, the ranks/,
  },
].map(({ what, odd, own }) => ({
  name: `inference over ranks: ${what} on one rank is said on the other at once`,
  run: async ({ kind }) => {
    const job: RanksJob = {
      kind,
      ranks: 2,
      folder,
      prompt,
      tokens: text,
      home: '',
      dies: null,
      odd,
    };
    const results = await runRanks('../inference/ranks-process', 2, { job });
    const [first = '', second = ''] = reportsOf<string>(results);
    assert.match(second, own);
    assert.match(first, /every rank to take part, got rank 1 failed: DS_/);
    assert.ok(first.includes(second.slice(0, 60)), first);
  },
  gpus: 2,
}));

const unlike: Case = {
  name: 'inference over ranks: different world sizes throw before the job is joined',
  run: async ({ kind }) => {
    const odd = { config: { tensor_parallel: { tp_size: 3 } }, joins: true };
    const job: RanksJob = {
      kind,
      ranks: 2,
      folder,
      prompt,
      tokens: text,
      home: '',
      dies: null,
      odd,
    };
    const environment = { DEEPSPEED_TIMEOUT: '0.5' };
    const results = await runRanks('../inference/ranks-process', 2, { job, environment });
    const [first = '', second = ''] = reportsOf<string>(results);
    const key = 'tensor_parallel.tp_size: expected';
    assert.ok(
      first.startsWith(`${key} the same on every rank: tp 2 as on rank 0, got tp 3`),
      first,
    );
    assert.ok(
      second.startsWith(`${key} sizes with a product that divides 2, the number of ranks`),
      second,
    );
  },
  gpus: 2,
};

const alone: Case = {
  name: 'inference over ranks: a rank that waits for one with an engine of its own says so',
  run: async ({ kind }) => {
    const odd = { config: { tensor_parallel: { tp_size: 1 } }, joins: true };
    const job: RanksJob = {
      kind,
      ranks: 2,
      folder,
      prompt,
      tokens: text,
      home: '',
      dies: null,
      odd,
    };
    // The second line on stderr is a warning, which may be switched off where the tests run.
    const environment = { DEEPSPEED_TIMEOUT: '0.05', NODE_NO_WARNINGS: '0' };
    const results = await runRanks('../inference/ranks-process', 2, { job, environment });
    const [first = '', second] = reportsOf<string>(results);
    assert.equal(second, 'an engine');
    const why = /every rank must set tensor_parallel\.tp_size to 2; .* its own engine/;
    assert.match(first, /in time\./);
    assert.match(first, why);
    assert.match(results[0]?.stderr ?? '', /initInference waits for the other ranks/);
    assert.match(results[0]?.stderr ?? '', why);
  },
  gpus: 2,
};

const afresh: Case = {
  name: 'inference over ranks: configurations that no rank can read leave no mesh behind',
  run: async ({ kind }) => {
    const job: RanksJob = {
      kind,
      ranks: 2,
      folder,
      prompt,
      tokens: text,
      home: '/none',
      dies: null,
      unread: true,
    };
    const results = await runRanks('../inference/ranks-process', 2, { job });
    assert.deepEqual([...reportsOf<string>(results)], ['dp 2', 'dp 2']);
  },
  gpus: 2,
};

/** Each on as many devices as it has ranks. */
export const cases: readonly Case[] = [
  ...shared,
  ...bereaved,
  misled,
  ...apart,
  unlike,
  alone,
  afresh,
];
