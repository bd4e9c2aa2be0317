// One of several processes that save and load checkpoints together; a test sends commands over IPC.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';

import { saveCheckpoint } from '../../lib/checkpoint/index.js';
import { Checkpointer } from '../../lib/engine/saving/checkpointer.js';
import { restoreEngine } from '../../lib/engine/saving/restore.js';
import { createContent } from '../../lib/engine/saving/snapshot.js';
import { StoreWorld } from '../../lib/engine/saving/store-world.js';
import type { Engine } from '../../lib/index.js';
import { Job, type StoreAddress } from '../../lib/runtime/job.js';
import { getRandomState, setRandomState } from '../../lib/tensor/index.js';
import { type Place, partitionEngine, stateBits, tinyEngine } from './partitioned-engine.js';

export interface Command {
  what: 'save' | 'load' | 'export' | 'beside' | 'call' | 'calls';
  /** Separates its exchanges from others. */
  name: string;
  place: Place;
  dir: string;
  tag: string;
  tagValidation?: 'Warn' | 'Ignore' | 'Fail';
  keepLast?: number;
  /** Of "call": the method of a Checkpointer, and options of any kind. */
  method?: 'save' | 'load' | 'exportWeights';
  options?: object;
  /** For "calls": calls of one Checkpointer; some fail. */
  calls?: { method: 'save' | 'load'; options?: object; fails?: boolean; isAwaited?: boolean }[];
  /** In milliseconds. */
  timeout?: number;
}

export interface Answer {
  error?: { code: string; message: string };
}

const STEPS = 3;
const clock = new Int32Array(new SharedArrayBuffer(4));
let reference: Engine;
let job: Job;

function worldOf({ name, place, timeout = 20_000 }: Command): StoreWorld {
  const { rank, size } = place;
  return new StoreWorld(job, { rank, size, name, timeout, check: () => {} });
}

/** Saves this rank's part of the trained engine. */
async function save(command: Command): Promise<void> {
  const { place, dir, tag, tagValidation, keepLast } = command;
  const engine = partitionEngine(reference, place);
  setRandomState({ seed: 100 + place.rank, offset: 7 });
  const content = createContent(engine, { clientState: { note: 'client' } });
  const target = { dir, tag, saveLatest: true, tagValidation, keepLast };
  await saveCheckpoint(target, content, worldOf(command));
}

/** Loads into an engine in another state, and compares all state of this rank afterwards. */
async function load(command: Command): Promise<void> {
  const { place, dir, tag } = command;
  const fresh = await tinyEngine(77, 1);
  const engine = partitionEngine(fresh, place);
  const expected = stateBits(partitionEngine(reference, place));
  assert.notDeepEqual(stateBits(engine), expected);
  const { clientState } = await restoreEngine(engine, dir, { tag }, worldOf(command));
  assert.deepEqual(stateBits(engine), expected);
  assert.deepEqual(clientState, { note: 'client' });
  assert.deepEqual(engine.progress, reference.progress);
  assert.deepEqual(
    engine.optimizer.groups.map(({ lr }) => lr),
    reference.optimizer.groups.map(({ lr }) => lr),
  );
  assert.equal(getRandomState().offset, 7);
  fresh.destroy();
}

/** Writes its part of the weights to `dir`/`tag`. */
async function exportWeights(command: Command): Promise<void> {
  const { place, dir, tag } = command;
  const checkpointer = new Checkpointer(partitionEngine(reference, place), worldOf(command));
  await checkpointer.exportWeights(dir, tag);
}

/** Saves asynchronously, and blocks the event loop until the checkpoint exists. */
async function saveBeside(command: Command): Promise<void> {
  const { place, dir, tag } = command;
  const checkpointer = new Checkpointer(partitionEngine(reference, place), worldOf(command));
  setRandomState({ seed: 100 + place.rank, offset: 7 });
  const clientState = { note: 'client' };
  const path = await checkpointer.save(dir, { tag, clientState, asynchronous: true });
  const deadline = Date.now() + 30_000;
  while (!existsSync(path) && Date.now() < deadline) Atomics.wait(clock, 0, 0, 5);
  assert.equal(await checkpointer.whenDone(), path);
  checkpointer.close();
}

/** Makes one call with the options of the command. */
async function call(command: Command): Promise<void> {
  const { place, dir, tag, method, options = {} } = command;
  const checkpointer = new Checkpointer(partitionEngine(reference, place), worldOf(command));
  if (method === 'exportWeights') await checkpointer.exportWeights(dir, 'file', options);
  else if (method === 'load') await checkpointer.load(dir, { tag, ...options });
  else await checkpointer.save(dir, { tag, ...options });
  await checkpointer.whenDone();
}

/** Makes several calls of one Checkpointer, with exchanges in sequence. */
async function makeCalls(command: Command): Promise<void> {
  const { place, dir, tag, calls = [] } = command;
  const checkpointer = new Checkpointer(partitionEngine(reference, place), worldOf(command));
  const left: Promise<unknown>[] = [];
  for (const { method, options = {}, fails = false, isAwaited = true } of calls) {
    const done = checkpointer[method](dir, { tag, ...options });
    if (!isAwaited) left.push(done);
    else if (fails) await assert.rejects(done);
    else await done;
  }
  if (left.length === 0) await checkpointer.whenDone();
  checkpointer.close();
  await Promise.all(left);
}

const deeds = { save, load, export: exportWeights, beside: saveBeside, call, calls: makeCalls };

async function obey(command: Command): Promise<Answer> {
  try {
    await deeds[command.what](command);
    return {};
  } catch (error) {
    const { code, message } = error as { code: string; message: string };
    return { error: { code, message } };
  }
}

async function main(store: StoreAddress, rank: number, worldSize: number): Promise<void> {
  job = await Job.join({ store, rank, worldSize, timeout: 50_000 });
  reference = await tinyEngine(1234, STEPS);
  process.on('message', async (command: Command) => process.send?.(await obey(command)));
  process.on('disconnect', () => process.exit());
  process.send?.({});
}

const [store, rank, worldSize] = JSON.parse(process.argv[2] ?? '[]');
main(store, rank, worldSize);
