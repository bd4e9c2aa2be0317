// Saves a checkpoint: the ranks agree on tag and folder, each rank writes its shards, and rank 0
// publishes the checkpoint.

import { basename, join } from 'node:path';
import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import type { BoxRange } from '../runtime/box.js';
import { argumentError } from '../runtime/input-errors.js';
import { required } from '../runtime/required.js';
import { absolutePath } from '../runtime/system-error.js';
import { numel } from '../runtime/view.js';
import { version } from '../version.js';
import { type Catalog, digestOf, mergedCatalog } from './catalog.js';
import { begin, type Draft, finish, publish, requireRoom, retain } from './commit.js';
import {
  isCheckpointFile,
  modelFile,
  modelShardFile,
  optimizerFile,
  type PartNumber,
  requireTag,
} from './directory.js';
import { requireSpaceTogether } from './disk-space.js';
import { openInside, requirePath } from './folder.js';
import type { TensorEntry } from './header.js';
import { type FileRecord, type Manifest, type TensorRecord, writeManifest } from './manifest.js';
import { SafetensorsFile } from './safetensors-file.js';
import { writeSafetensors } from './safetensors-writer.js';
import {
  entryName,
  entryRange,
  entryShape,
  type Part,
  parseEntryName,
  rangeOf,
  requireNames,
  requireWhole,
  type Shard,
  type TensorInfo,
} from './shard.js';
import { type CheckpointWorld, onAllRanks } from './world.js';

/** Label of the first exchange of a save. */
export const BEGIN_SAVE = 'saving a checkpoint';
/** Label of the first exchange after the folder exists. */
const BEGIN_WRITE = 'comparing a checkpoint with the disk';

/**
 * What happens if ranks pass different tags. "Fail" throws. "Warn" and "Ignore" use rank 0's tag.
 */
export type TagValidation = 'Warn' | 'Ignore' | 'Fail';

export interface SaveTarget {
  dir: string;
  tag: string;
  /** Whether `latest` names the tag after the save. */
  saveLatest: boolean;
  /** Number of checkpoints to keep in the folder; the oldest others are deleted. Default: all. */
  keepLast?: number;
  /** Default: "Warn". */
  tagValidation?: TagValidation;
  /** Whether the save runs during training. Must be the same on all ranks. Default: false. */
  asynchronous?: boolean;
}

/** The content that one rank saves. */
export interface CheckpointContent<Kept extends Shard = Shard> {
  /** Identifies this rank's files; null if another rank saves the same content. */
  part: PartNumber | null;
  /** Weights and buffers, or this rank's parts of them. */
  model: readonly Kept[];
  /**
   * Whether each data rank saves its own weights (ZeRO stage 3). If false, data rank 0 of each
   * model partition saves the weights of the partition.
   */
  modelIsSharded: boolean;
  optimizer: readonly Kept[];
  /** All tensors with a part that this rank saves, as whole tensors. */
  catalog: Catalog;
  /**
   * JSON state that is the same on all ranks, such as counters and the schedule. Rank 0's is saved.
   */
  state: JsonObject;
  /** JSON state of this data rank, such as its generator; null if another rank saves the same. */
  rankState: JsonObject | null;
  /** Description of the model for other libraries. Rank 0's is saved. */
  description: JsonObject | null;
}

/** The report of a rank to the others after its write. */
interface Written extends Pick<CheckpointContent, 'part' | 'rankState'> {
  files: readonly FileRecord[];
  /** The digest of the rank's catalog. */
  tensors: string;
}

/**
 * A save that all ranks have begun. Each rank must then call write() or cancel() once. After a
 * crash at any time, the previous or the new checkpoint of the tag is complete.
 */
export class Save {
  private constructor(
    private readonly world: CheckpointWorld,
    private readonly target: SaveTarget,
    /** The draft folder into which all ranks write. */
    private readonly folder: string,
    /** The draft; null on ranks other than 0. */
    private readonly draft: Draft | null,
  ) {}

  /**
   * Agrees with the other ranks on the tag, and creates the draft folder. Rejects with:
   *
   * - DS_ARGUMENT: the path or `keepLast` is invalid.
   * - DS_CHECKPOINT: the tag is invalid; tags differ under "Fail"; `asynchronous` differs between
   *   ranks; or other files are in the way.
   * - DS_COMM: a rank did not call begin().
   * - DS_IO: the folder cannot be created or written.
   */
  static async begin(world: CheckpointWorld, target: SaveTarget): Promise<Save> {
    const { saveLatest } = target;
    const proposals = await onAllRanks(world, BEGIN_SAVE, async () => {
      requirePath('saveCheckpoint', target.dir);
      requireTag(target.tag);
      requireKeep(target.keepLast);
      return { tag: target.tag, asynchronous: target.asynchronous ?? false };
    });
    requireSameMode(proposals.map(({ asynchronous }) => asynchronous));
    const tags = proposals.map(({ tag }) => tag);
    const tag = agreeOnTag(tags, target.tagValidation ?? 'Warn');
    const dir = absolutePath(target.dir);
    let draft: Draft | null = null;
    try {
      const [folder] = await onAllRanks(world, 'making the folder', async () => {
        if (world.rank !== 0) return null;
        await requireRoom(dir, tag, saveLatest);
        draft = await begin(dir, tag);
        return basename(draft.folder);
      });
      return new Save(world, { ...target, tag }, join(dir, String(folder)), draft);
    } catch (error) {
      if (draft) await finish(draft);
      throw error;
    }
  }

  /** The path of the checkpoint. */
  get path(): string {
    return join(this.target.dir, this.target.tag);
  }

  /**
   * Writes this rank's shards, waits for the other ranks, and publishes the checkpoint. Resolves
   * with its path. Tensors must not change until the promise settles.
   *
   * If a rank fails, rejects on all ranks with:
   *
   * - DS_IO: the disk is full, which is checked before the write, or a file call failed.
   * - DS_CHECKPOINT: an element of a tensor is missing or was saved twice.
   * - DS_COMM: a rank did not call write() or cancel().
   */
  async write(content: CheckpointContent): Promise<string> {
    const { world, draft } = this;
    try {
      await requireSpaceTogether(world, BEGIN_WRITE, this.folder, () => bytesOf(content));
      const written = await onAllRanks(world, 'writing shards', async () => {
        const files = await this.writeShards(content);
        const tensors = digestOf(content.catalog);
        const { part, rankState } = content;
        return { part, files, rankState, tensors };
      });
      const digests = written.map(({ tensors }) => tensors);
      const catalog = await mergedCatalog(world, content.catalog, digests);
      await onAllRanks(world, 'committing the checkpoint', async () => {
        if (draft) await this.commit(draft, { ...content, catalog }, written);
        return null;
      });
      return this.path;
    } finally {
      if (draft) await finish(draft);
    }
  }

  /** Cancels the save on this rank. write() rejects on the other ranks with `error`. */
  async cancel(error: unknown): Promise<void> {
    const fail = () => Promise.reject(error);
    await onAllRanks(this.world, BEGIN_WRITE, fail).catch(() => undefined);
    if (this.draft) await finish(this.draft);
  }

  private async commit(
    draft: Draft,
    content: CheckpointContent,
    written: readonly Written[],
  ): Promise<void> {
    const { saveLatest, keepLast } = this.target;
    const files = written.flatMap((written) => written.files);
    const parts = written.filter(({ part }) => part?.model === 0);
    const ranks = parts.map(({ rankState }) => rankState).filter((state) => state !== null);
    await writeManifest(this.folder, await this.describe(content, files, ranks));
    await publish(draft, saveLatest);
    if (keepLast !== undefined) await retain(draft, keepLast);
  }

  private async writeShards(content: CheckpointContent): Promise<FileRecord[]> {
    const files: FileRecord[] = [];
    for (const [name, shards] of payloadsOf(content)) {
      requireNames(shards);
      const sources = shards.map(sourceOf);
      const sum = await writeSafetensors(join(this.folder, name), sources);
      files.push({ name, ...sum });
    }
    return files;
  }

  /**
   * Returns the manifest of the save. Reads the headers of all written files, and checks that they
   * contain every element of every tensor of the catalog.
   */
  private async describe(
    { catalog, state, description }: CheckpointContent,
    files: readonly FileRecord[],
    ranks: JsonObject[],
  ): Promise<Manifest> {
    const parts = { model: new Map<string, Part[]>(), optimizer: new Map<string, Part[]>() };
    for (const [index, { name, bytes }] of files.entries()) {
      const file = await SafetensorsFile.of(await openInside(this.folder, name));
      await file.close();
      if (file.bytes !== bytes || !isCheckpointFile(name)) {
        throw contradictionError(file.path, `${bytes} bytes`, `${file.bytes}`);
      }
      const section = name.includes('_model_') ? 'model' : 'optimizer';
      for (const entry of file.entries) {
        const { name: tensor } = parseEntryName(entry.name);
        const part = partOf(entry, catalog[section].get(tensor));
        if (!part) {
          const location = `${file.path}: ${entry.name}`;
          throw contradictionError(location, 'a tensor of this model', 'an unknown name');
        }
        const list = parts[section].get(tensor) ?? [];
        parts[section].set(tensor, list);
        list.push({ file: index, ...part });
      }
    }
    return {
      library: version,
      savedAt: Date.now(),
      worldSize: ranks.length,
      files,
      state,
      ranks,
      description,
      model: recordsOf(catalog.model, parts.model),
      optimizer: recordsOf(catalog.optimizer, parts.optimizer),
    };
  }
}

/** A file that a rank writes. */
type Payload = readonly [name: string, shards: readonly Shard[]];

function payloadsOf({ part, model, modelIsSharded, optimizer }: CheckpointContent): Payload[] {
  if (part === null) return [];
  const payloads: Payload[] = [[optimizerFile(part), optimizer]];
  if (modelIsSharded) payloads.push([modelShardFile(part), model]);
  else if (part.data === 0) payloads.push([modelFile(part.model), model]);
  return payloads;
}

function bytesOf(content: CheckpointContent): number {
  const shards = payloadsOf(content).flatMap(([, ownShards]) => ownShards);
  return shards.reduce((sum, { tensor }) => sum + tensor.bytes, 0);
}

/** Returns the elements of its tensor that an entry stores; null if they do not fit the tensor. */
function partOf(entry: TensorEntry, info: TensorInfo | undefined): BoxRange | null {
  if (!info || info.dtype !== entry.dtype) return null;
  const range = entryRange(entry.name, info.shape, numel(entry.shape));
  return range && entryShape(range).join() === entry.shape.join() ? range : null;
}

/** Begins and completes a save; see Save. Resolves with the path of the checkpoint. */
export async function saveCheckpoint(
  target: SaveTarget,
  content: CheckpointContent,
  world: CheckpointWorld,
): Promise<string> {
  return (await Save.begin(world, target)).write(content);
}

function recordsOf(
  catalog: ReadonlyMap<string, TensorInfo>,
  parts: ReadonlyMap<string, Part[]>,
): Map<string, TensorRecord> {
  return new Map(
    Array.from(catalog, ([name, info]) => {
      const ownParts = parts.get(name) ?? [];
      requireWhole(`save: ${name}`, info, ownParts);
      return [name, { ...info, parts: ownParts }];
    }),
  );
}

function sourceOf(shard: Shard) {
  const { name, shape, tensor } = shard;
  const range = rangeOf(shard);
  return {
    name: entryName(name, shape, range),
    dtype: tensor.dtype,
    shape: entryShape(range),
    values: tensor,
  };
}

/**
 * Returns the tag of rank 0. If the tag of another rank differs, emits a warning or, with "Fail",
 * throws DS_CHECKPOINT.
 */
export function agreeOnTag(proposals: readonly string[], validation: TagValidation): string {
  const tag = required(proposals[0]);
  const other = proposals.findIndex((proposal) => proposal !== tag);
  if (other < 0 || validation === 'Ignore') return tag;
  const difference = `"${tag}" on rank 0 and "${proposals[other]}" on rank ${other}`;
  if (validation === 'Fail') {
    throw new DsError({
      code: 'DS_CHECKPOINT',
      op: 'checkpoint tag',
      expected: 'the same tag on every rank',
      got: difference,
      hint: 'Pass one tag on all ranks, or set checkpoint.tag_validation to "Warn" to use that of rank 0.',
    });
  }
  const text = `Ranks save under different tags, ${difference}: the tag of rank 0 is used.`;
  process.emitWarning(text, { type: 'DsWarning', code: 'DS_CHECKPOINT' });
  return tag;
}

/** Throws DS_CHECKPOINT if some ranks save asynchronously and others do not. */
function requireSameMode(asynchronous: readonly boolean[]): void {
  if (new Set(asynchronous).size === 1) return;
  const ranksWith = (value: boolean): string => {
    const ranks = asynchronous.flatMap((item, rank) => (item === value ? [rank] : []));
    return `${value} on rank${ranks.length > 1 ? 's' : ''} ${ranks.join(', ')}`;
  };
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: 'saveCheckpoint asynchronous',
    expected: 'the same value on every rank',
    got: `${ranksWith(true)}, ${ranksWith(false)}`,
    hint: 'Pass the same value of asynchronous on every rank.',
  });
}

function requireKeep(keepLast: number | undefined): void {
  if (keepLast === undefined || (Number.isInteger(keepLast) && keepLast > 0)) return;
  throw argumentError('saveCheckpoint keepLast', 'a whole number from 1', String(keepLast));
}

function contradictionError(op: string, expected: string, got: string): DsError {
  const hint = 'All ranks must see the same folder and have the same model.';
  return new DsError({ code: 'DS_CHECKPOINT', op, expected, got, hint });
}
