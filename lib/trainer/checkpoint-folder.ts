// The checkpoint-<step> folders of a run: written, kept, found again and resumed from.
import { readdir, readFile, rm, rmdir, stat, unlink } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import type { JsonObject } from '../../types/json.js';
import { ifThere, orDsError } from '../checkpoint/file-error.js';
import { type CheckpointWorld, findLatest, inUnison } from '../checkpoint/index.js';
import { removeCheckpoint, requireReplaceable } from '../checkpoint/ours.js';
import type { Engine } from '../engine/engine.js';
import { DsError } from '../errors.js';
import type { Tokenizer } from '../text/index.js';
import type { SaveSettings } from './read-options.js';
import { isWeightFile, writeJson, writeWeightFolder } from './weight-folder.js';

/** Says that a checkpoint is whole: it is written last. */
const STATE = 'trainer_state.json';
const NAME = /^checkpoint-(\d+)$/;
const LATEST = 'latest';

/** What a checkpoint is made of; every rank calls what takes it. */
export interface CheckpointSource {
  engine: Engine;
  tokenizer: Tokenizer | null;
  world: CheckpointWorld;
  save: SaveSettings;
}

/** The folder of a step. */
export function checkpointPath(save: SaveSettings, step: number): string {
  return join(save.dir, `checkpoint-${step}`);
}

/**
 * Writes the folder of `step`: the engine's checkpoint, whole weights, the tokenizer, and last
 * trainer_state.json with `state`. Returns its path. Rejects on all ranks with DS_IO,
 * DS_CHECKPOINT.
 */
export async function writeCheckpoint(
  source: CheckpointSource,
  step: number,
  state: JsonObject,
): Promise<string> {
  const { engine, world, save } = source;
  const dir = checkpointPath(save, step);
  await inUnison(world, 'beginning a checkpoint', async () => {
    // An older one of this step is none from now on.
    if (world.rank === 0) await orDsError(dir, () => rm(join(dir, STATE), { force: true }));
    return null;
  });
  if (!save.weightsOnly) await engine.saveCheckpoint(dir, { clientState: { trainer: state } });
  if (save.weights) await writeWeightFolder(source, dir, save.weightsOnly ? null : dir);
  await inUnison(world, 'ending a checkpoint', async () => {
    if (world.rank === 0) await writeJson(dir, STATE, state);
    return null;
  });
  return dir;
}

/**
 * Deletes all but the newest `keep` checkpoints and `best`, of which one is of the newest if it is.
 */
export async function retainCheckpoints(
  { world, save }: CheckpointSource,
  best: string | null,
): Promise<void> {
  const { keep, dir } = save;
  if (keep === null) return;
  await inUnison(world, 'deleting old checkpoints', async () => {
    if (world.rank !== 0) return null;
    const found = await wholeCheckpoints(dir);
    const isBest = (path: string): boolean => best !== null && resolve(path) === resolve(best);
    const others = found.filter((path) => !isBest(path));
    const room = Math.max(1, keep - (found.length - others.length));
    for (const path of others.slice(0, -room)) await removeFolder(path);
    return null;
  });
}

/**
 * The folder to resume from: the newest whole one of `dir`, or `resume` itself. Null where there is
 * none and none is named. Rejects on all ranks with DS_CHECKPOINT where the one that is named is no
 * checkpoint to go on from.
 */
export async function findCheckpoint(
  world: CheckpointWorld,
  dir: string | null,
  resume: true | string,
): Promise<string | null> {
  const [found] = await inUnison(world, 'finding a checkpoint', async () => {
    if (world.rank !== 0) return null;
    if (resume !== true) return requireResumable(resume);
    const all = dir === null ? [] : await wholeCheckpoints(dir);
    for (const path of all.reverse()) if (await isResumable(path)) return path;
    return null;
  });
  return (found as string | null) ?? null;
}

/** Where training was; the engine, its random numbers and the data go on from there. */
export async function readCheckpoint(
  engine: Engine,
  dir: string,
  loadCompanions: boolean,
): Promise<JsonObject> {
  const { clientState } = await engine.loadCheckpoint(dir, { loadCompanions });
  const { trainer } = clientState;
  if (typeof trainer === 'object' && trainer !== null && !Array.isArray(trainer)) return trainer;
  throw notResumable(dir, "a checkpoint of another program's, without a Trainer's state");
}

async function requireResumable(path: string): Promise<string> {
  if (await isResumable(path)) return path;
  const there = await ifThere(path, () => stat(path));
  throw notResumable(path, there ? 'one without an engine in it' : 'nothing of this name');
}

async function isResumable(path: string): Promise<boolean> {
  return (await findLatest(path).catch(() => null)) !== null;
}

/** Paths by step, the newest last. */
async function wholeCheckpoints(dir: string): Promise<string[]> {
  const names = (await ifThere(dir, () => readdir(dir))) ?? [];
  const steps = names.flatMap((name) => NAME.exec(name)?.[1] ?? []).map(Number);
  const paths = steps.sort((a, b) => a - b).map((step) => join(dir, `checkpoint-${step}`));
  const whole: string[] = [];
  for (const path of paths) {
    if (await ifThere(path, () => readFile(join(path, STATE)))) whole.push(path);
  }
  return whole;
}

/** Deletes what a checkpoint is made of. What else lies in the folder stays, with a warning. */
async function removeFolder(path: string): Promise<void> {
  await orDsError(path, async () => {
    await unlink(join(path, STATE));
    for (const name of await readdir(path)) {
      const inside = join(path, name);
      if (name === LATEST || isWeightFile(name)) await rm(inside, { recursive: true });
      else if (await isEngineTag(inside)) await removeCheckpoint(inside);
    }
    const left = await readdir(path);
    if (left.length === 0) return rmdir(path);
    const text = `${path} stays: save.keep does not delete ${left.slice(0, 3).join(', ')}, which no checkpoint has.`;
    process.emitWarning(text, { type: 'DsWarning', code: 'DS_CHECKPOINT' });
  });
}

const isEngineTag = (path: string): Promise<boolean> => requireReplaceable(path).catch(() => false);

function notResumable(op: string, got: string): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op,
    expected: 'a checkpoint-<step> folder of a Trainer',
    got,
    hint: 'Checkpoints of save.weightsOnly hold no optimizer: start from their weights instead.',
  });
}
