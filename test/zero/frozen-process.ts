// One of two ranks that save, load, read and write frozen parameters that are sharded between them.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { initDistributed } from '../../lib/comm/index.js';
import { type Engine, nn, zero } from '../../lib/index.js';
import { comingAndGoing, fingerprint, frozenEngine, train } from './frozen-engine.js';
import type { Net } from './shape-models.js';
import { step } from './shape-scenarios.js';

export interface FrozenJob {
  device: 'cpu' | 'cuda';
  /** Holds "one", saved by one rank. */
  dir: string;
  /** Hashes of its trained and its frozen parameters. */
  one: [trained: string, frozen: string];
}

export interface FrozenReport {
  all: [trained: string, frozen: string];
}

const both = (engine: Engine): [string, string] => [
  fingerprint(engine, true),
  fingerprint(engine, false),
];

const offloaded = { ...comingAndGoing, offload_param: { device: 'cpu' as const } };

async function savesAndLoads({ dir, one }: FrozenJob): Promise<FrozenReport> {
  const engine = await frozenEngine(1, comingAndGoing);
  train(engine, 2);
  const all = both(engine);
  await engine.saveCheckpoint(dir, { tag: 'all' });
  await engine.saveCheckpoint(dir, { tag: 'part', excludeFrozenParameters: true });
  await engine.saveCheckpoint(dir, {
    tag: 'beside',
    excludeFrozenParameters: true,
    asynchronous: true,
  });
  await engine.checkpointDone();
  await engine.save16bitModel(join(dir, 'whole'));
  await engine.save16bitModel(join(dir, 'part'), 'model.safetensors', {
    excludeFrozenParameters: true,
  });
  const after = step(engine, 2);
  engine.destroy();
  for (const setting of [comingAndGoing, offloaded, { stage: 0 as const }]) {
    const other = await frozenEngine(2, setting);
    const localText = fingerprint(other, false);
    for (const tag of ['part', 'beside']) {
      await other.loadCheckpoint(dir, { tag });
      assert.deepEqual(both(other), [all[0], localText], `${tag} left something else`);
    }
    await other.loadCheckpoint(dir, { tag: 'one' });
    assert.deepEqual(both(other), one);
    await other.loadCheckpoint(dir, { tag: 'all' });
    assert.deepEqual(both(other), all);
    assert.equal(step(other, 2), after);
    other.destroy();
  }
  const more = await frozenEngine(2, comingAndGoing, { more: true });
  await assert.rejects(more.loadCheckpoint(dir, { tag: 'part' }), /last\.weight.* without 2 of/);
  more.destroy();
  return { all };
}

/** A write of one rank to a frozen parameter reaches all ranks. */
async function gathers(setting: Parameters<typeof frozenEngine>[1]): Promise<void> {
  const engine = await frozenEngine(3, setting);
  const { up } = (engine.module as Net).blocks[1] as unknown as { up: nn.Linear };
  assert.throws(() => up.weight.toArray(), /DS_RELEASED|shard/);
  assert.equal(zero.safeGetFullFp32Param(up.weight), null);
  zero.GatheredParameters(up.weight, { modifierRank: 1 }, () => {
    if (engine.globalRank === 1) nn.init.constant(0.25)(up.weight);
  });
  train(engine, 1);
  zero.GatheredParameters(engine, {}, () => {
    assert.deepEqual([...new Set(up.weight.toArray().flat(2) as number[])], [0.25]);
  });
  gathersSeveral(engine);
  engine.destroy();
  assert.throws(() => up.weight.toArray(), /DS_RELEASED|shard/);
}

/** All frozen parameters of one unit at once. */
function gathersSeveral(engine: Engine): void {
  const block = (engine.module as Net).blocks[1] as nn.Module;
  const frozen = block.parameters().filter(({ requiresGrad }) => !requiresGrad);
  zero.GatheredParameters(block, { modifierRank: 1 }, () => {
    if (engine.globalRank !== 1) return;
    for (const [i, parameter] of frozen.entries()) nn.init.constant(i + 1)(parameter);
  });
  zero.GatheredParameters(block, {}, () => {
    const found = frozen.map((parameter) => [...new Set(parameter.toArray().flat(2) as number[])]);
    assert.deepEqual(found, [[1], [2], [3], [4]]);
  });
}

/** The same for a parameter that every rank has whole. Writes of the other rank are lost. */
async function gathersWhole(stage: 1 | 2): Promise<void> {
  const engine = await frozenEngine(3, { stage });
  const { up } = (engine.module as Net).blocks[1] as unknown as { up: nn.Linear };
  for (const [what, value] of [
    [up.weight, 0.25],
    [engine, 0.5],
  ] as const) {
    zero.GatheredParameters(what, { modifierRank: 1 }, () => {
      nn.init.constant(engine.globalRank === 1 ? value : 7)(up.weight);
    });
    assert.deepEqual([...new Set(up.weight.toArray().flat(2) as number[])], [value]);
  }
  zero.GatheredParameters(up.weight, { modifierRank: 1 }, () => {
    if (engine.globalRank === 0) nn.init.constant(7)(up.weight);
  });
  assert.deepEqual([...new Set(up.weight.toArray().flat(2) as number[])], [0.5]);
  engine.destroy();
}

async function main(): Promise<void> {
  const job = JSON.parse(process.argv[2] ?? '') as FrozenJob;
  const world = await initDistributed(job.device === 'cpu' ? { device: 'cpu' } : {});
  const report = await savesAndLoads(job);
  assert.ok(existsSync(join(job.dir, 'part', 'model.safetensors')));
  for (const setting of [comingAndGoing, offloaded]) await gathers(setting);
  for (const stage of [1, 2] as const) await gathersWhole(stage);
  await world.destroy();
  console.log(JSON.stringify(report));
}

void main();
