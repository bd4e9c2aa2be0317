// Writes, deletes and finds the checkpoint-<step> folders of a Trainer's run.
import { lstat, readdir, readFile, stat, unlink } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import type { JsonObject } from '../../types/json.js';
import { removeCheckpoint, removeOwn, requireReplaceable } from '../checkpoint/deletable-files.js';
import { requireSpaceTogether } from '../checkpoint/disk-space.js';
import { ifThere, orDsError } from '../checkpoint/file-error.js';
import { type CheckpointWorld, findLatest, onAllRanks, replaceFile } from '../checkpoint/index.js';
import { makeFolder } from '../checkpoint/make-folder.js';
import type { Engine } from '../engine/engine.js';
import { checkpointBytes } from '../engine/saving/engine-shards.js';
import { DsError } from '../errors.js';
import { lorasOf } from '../peft/index.js';
import { isObject } from '../runtime/is-object.js';
import type { Tokenizer } from '../text/index.js';
import type { SaveSettings } from './report-options.js';
import { isMadeByTrainer } from './trainer-state.js';
import { isSavedFile, writeJson, writeWeightFolder } from './weight-folder.js';

/** The file that is written last: a folder with it is a complete checkpoint. */
const STATE = 'trainer_state.json';
const NAME = /^checkpoint-(\d+)$/;
const LATEST = 'latest';
const WEIGHTS_ONLY_HINT =
  'Checkpoints of save.weightsOnly (--save_only_model) hold no optimizer: start from their weights instead.';
/** A file that marks a folder into which a Trainer has not yet written everything. */
const UNFINISHED = '.unfinished';

/** The sources of a checkpoint. All ranks must call the functions with this argument. */
interface CheckpointSource {
  engine: Engine;
  tokenizer: Tokenizer | null;
  world: CheckpointWorld;
  save: SaveSettings;
}

/** Returns the path of the checkpoint folder of `step`. */
export function checkpointPath(save: SaveSettings, step: number): string {
  return join(save.dir, `checkpoint-${step}`);
}

/**
 * Writes the folder of `step` and returns its path: the engine's checkpoint, whole weights, the
 * tokenizer, and last trainer_state.json with `state`. Rejects on all ranks with DS_IO, and with
 * DS_CHECKPOINT if the path contains anything but a checkpoint of a Trainer; nothing is then
 * changed.
 */
export async function writeCheckpoint(
  source: CheckpointSource,
  step: number,
  state: JsonObject,
): Promise<string> {
  const { engine, world, save } = source;
  const dir = checkpointPath(save, step);
  await onAllRanks(world, 'beginning a checkpoint', async () => {
    if (world.rank === 0) await orDsError(dir, () => beginFolder(dir));
    return null;
  });
  if (!save.weightsOnly) await engine.saveCheckpoint(dir, { clientState: { trainer: state } });
  if (save.weights) await writeWeightFolder(source, dir, save.weightsOnly ? null : dir);
  await onAllRanks(world, 'ending a checkpoint', async () => {
    if (world.rank !== 0) return null;
    await writeJson(dir, STATE, state);
    await orDsError(dir, () => unlink(join(dir, UNFINISHED)));
    return null;
  });
  return dir;
}

/**
 * Rejects on all ranks with DS_IO if the disk of save.dir has too little space for one checkpoint.
 * The run then fails before its first update. Each rank counts an equal part of the bytes.
 */
export async function requireDisk({ engine, world, save }: CheckpointSource): Promise<void> {
  const isAdapter = save.weightsOnly && lorasOf(engine.module).size > 0;
  const bytes = (): number =>
    isAdapter ? 0 : Math.ceil(checkpointBytes(engine, save.weightsOnly) / world.size);
  await requireSpaceTogether(world, 'comparing a first checkpoint with the disk', save.dir, bytes);
}

/**
 * Creates the folder. Deletes the state file of an older checkpoint in it, which is then
 * incomplete.
 */
async function beginFolder(dir: string): Promise<void> {
  await requireReplaceableFolder(dir);
  await makeFolder(dir);
  await replaceFile(join(dir, UNFINISHED), '');
  if (await hasTrainerState(dir)) await unlink(join(dir, STATE));
}

/**
 * Throws DS_CHECKPOINT unless `dir` is missing, is empty, or contains a checkpoint of a Trainer,
 * complete or not.
 */
async function requireReplaceableFolder(dir: string): Promise<void> {
  const status = await ifThere(dir, () => lstat(dir));
  if (!status) return;
  const entries = status.isDirectory() ? await readdir(dir) : null;
  if (
    entries &&
    (entries.length === 0 || entries.includes(UNFINISHED) || (await hasTrainerState(dir)))
  )
    return;
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: dir,
    expected: 'nothing of this name, or a checkpoint of a Trainer to replace',
    got: entries ? `a folder with ${entries.slice(0, 3).join(', ')}` : 'a file or an empty folder',
    hint: 'Nothing was changed: choose another save.dir, or move this folder away.',
  });
}

/**
 * Deletes old checkpoints until `save.keep` are left: the newest ones and `best`. Checkpoints of
 * steps after `step` stay: they belong to another run, because this run has returned to an earlier
 * step.
 */
export async function retainCheckpoints(
  { world, save }: CheckpointSource,
  step: number,
  best: string | null,
): Promise<void> {
  const { keep, dir } = save;
  if (keep === null) return;
  await onAllRanks(world, 'deleting old checkpoints', async () => {
    if (world.rank !== 0) return null;
    const complete = await listCompleteCheckpoints(dir);
    const ownPaths = complete.filter((found) => found.step <= step).map(({ path }) => path);
    const isBest = (path: string): boolean => best !== null && resolve(path) === resolve(best);
    const others = ownPaths.filter((path) => !isBest(path));
    const newest = ownPaths.at(-1);
    const min = newest !== undefined && isBest(newest) ? 0 : 1;
    const room = Math.max(min, keep - (ownPaths.length - others.length));
    for (const path of others.slice(0, Math.max(0, others.length - room)))
      await removeCheckpointFolder(path);
    return null;
  });
}

/**
 * Rejects on all ranks with DS_CHECKPOINT if `dir` has checkpoints of steps after `step`. They
 * belong to another run.
 */
export async function requireNoLaterCheckpoints(
  world: CheckpointWorld,
  dir: string,
  step: number,
): Promise<void> {
  await onAllRanks(world, 'looking for checkpoints', async () => {
    const last = world.rank === 0 ? (await listCompleteCheckpoints(dir)).at(-1) : undefined;
    if (!last || last.step <= step) return null;
    const resumeHint = 'train({ resume: true }) (--resume_from_checkpoint) continues from it.';
    const alternative = (await isResumable(last.path)) ? resumeHint : WEIGHTS_ONLY_HINT;
    throw new DsError({
      code: 'DS_CHECKPOINT',
      op: `Trainer save.dir ${dir}`,
      expected: `a folder without checkpoints of another run, to begin at step ${step}`,
      got: `checkpoint-${last.step}`,
      hint: `${alternative} Else choose another folder, or move the checkpoints away.`,
    });
  });
}

/**
 * Returns the checkpoint folder of a resumed run: `resume` itself. If `resume` is true, returns the
 * newest complete checkpoint in `dir` with an optimizer, or null. Rejects on all ranks with
 * DS_CHECKPOINT if the folder `resume` contains no checkpoint with an optimizer.
 */
export async function findCheckpoint(
  world: CheckpointWorld,
  dir: string | null,
  resume: true | string,
): Promise<string | null> {
  const [newest] = await onAllRanks(world, 'finding a checkpoint', async () => {
    if (world.rank !== 0) return null;
    if (resume !== true) return requireResumable(resume);
    const all = dir === null ? [] : await listCompleteCheckpoints(dir);
    for (const { path } of all.reverse()) if (await isResumable(path)) return path;
    return null;
  });
  return (newest as string | null) ?? null;
}

/**
 * Returns the folder of the best checkpoint, for a run that resumes from `path`. If the run's
 * folder was moved, it is next to `path`; otherwise it is `recorded`. If it does not exist, emits a
 * warning and returns null.
 */
export async function findBest(
  world: CheckpointWorld,
  path: string,
  recorded: string,
): Promise<string | null> {
  const [best] = await onAllRanks(world, 'finding the best checkpoint', async () => {
    if (world.rank !== 0) return null;
    const sibling = join(dirname(path), basename(recorded));
    for (const text of [sibling, recorded]) if (await isComplete(text)) return text;
    const text = `${recorded}, the best checkpoint so far, is missing: the run ends with its last weights.`;
    process.emitWarning(text, { type: 'DsWarning', code: 'DS_CHECKPOINT' });
    return null;
  });
  return (best as string | null) ?? null;
}

/**
 * Loads a checkpoint: the engine, its random state and the position in the data. Returns the state
 * of the Trainer.
 */
export async function readCheckpoint(
  engine: Engine,
  dir: string,
  loadCompanions: boolean,
): Promise<JsonObject> {
  const { clientState } = await engine.loadCheckpoint(dir, { loadCompanions });
  const { trainer } = clientState;
  if (isObject(trainer)) return trainer;
  throw notResumableError(dir, "a checkpoint of another program's, without a Trainer's state");
}

async function requireResumable(path: string): Promise<string> {
  if (await isResumable(path)) return path;
  const exists = await ifThere(path, () => stat(path));
  throw notResumableError(path, exists ? 'one without an engine in it' : 'nothing of this name');
}

async function isResumable(path: string): Promise<boolean> {
  return (await findLatest(path).catch(() => null)) !== null;
}

interface StepFolder {
  step: number;
  path: string;
}

/**
 * Returns the complete checkpoints of a Trainer in `dir`, the newest last. Checkpoints of
 * transformers are not returned.
 */
export async function listCompleteCheckpoints(dir: string): Promise<StepFolder[]> {
  const names = (await ifThere(dir, () => readdir(dir))) ?? [];
  const steps = names.flatMap((name) => NAME.exec(name)?.[1] ?? []).map(Number);
  const complete: StepFolder[] = [];
  for (const step of steps.sort((a, b) => a - b)) {
    const path = join(dir, `checkpoint-${step}`);
    if (await isComplete(path)) complete.push({ step, path });
  }
  return complete;
}

async function isComplete(path: string): Promise<boolean> {
  const status = await ifThere(path, () => lstat(path));
  return status?.isDirectory() ? hasTrainerState(path) : false;
}

/** Returns whether the folder has a trainer_state.json that a Trainer wrote. */
async function hasTrainerState(folder: string): Promise<boolean> {
  const path = join(folder, STATE);
  const text = await ifThere(path, () => readFile(path, 'utf8'));
  return text !== null && isMadeByTrainer(text);
}

/**
 * Deletes the files of a checkpoint. If the folder contains other files, they stay, and a warning
 * names them.
 */
async function removeCheckpointFolder(path: string): Promise<void> {
  await orDsError(path, async () => {
    await unlink(join(path, STATE));
    for (const name of await readdir(path)) {
      if (await isEngineTag(join(path, name))) await removeCheckpoint(join(path, name));
    }
    if (await removeOwn(path, (name) => name === LATEST || isSavedFile(name))) return;
    const left = await readdir(path);
    const text = `${path} was kept: save.keep does not delete ${left.slice(0, 3).join(', ')}, which does not belong to a checkpoint.`;
    process.emitWarning(text, { type: 'DsWarning', code: 'DS_CHECKPOINT' });
  });
}

const isEngineTag = (path: string): Promise<boolean> => requireReplaceable(path).catch(() => false);

function notResumableError(op: string, got: string): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op,
    expected: 'a checkpoint-<step> folder of a Trainer',
    got,
    hint: WEIGHTS_ONLY_HINT,
  });
}
