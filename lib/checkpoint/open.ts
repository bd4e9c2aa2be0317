// Checkpoint: opens and verifies a saved checkpoint, then reads any ranges of its tensors.
import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { type Box, canonical, intersectRanges, isInside, wholeBox } from '../runtime/box.js';
import type { InputFile } from '../runtime/input-file.js';
import { required } from '../runtime/required.js';
import { describe, numel } from '../runtime/view.js';
import type { Tensor } from '../tensor/index.js';
import { find } from './commit.js';
import { missingTag, readLatest, requireTag } from './directory.js';
import { damagedError } from './fields.js';
import { openInside } from './folder.js';
import type { TensorEntry } from './header.js';
import {
  type Manifest,
  manifestId,
  readManifest,
  type StoredManifest,
  type TensorRecord,
} from './manifest.js';
import { readPart } from './read-part.js';
import { SafetensorsFile } from './safetensors-file.js';
import { entryName, entryShape, type Part } from './shard.js';
import { type OpenedFiles, openStable } from './stable-files.js';
import { type CheckpointWorld, onAllRanks, soloWorld } from './world.js';

/** "model": weights and buffers. "optimizer": master weights and optimizer state. */
export type Section = 'model' | 'optimizer';

/** The manifest and the open files of a tag. All belong to the same save. */
interface Files extends OpenedFiles {
  path: string;
  tag: string;
  manifest: StoredManifest;
  /** Open files, in the order of the manifest. */
  files: readonly InputFile[];
}

interface Payload {
  path: string;
  file: SafetensorsFile;
  entries: ReadonlyMap<string, TensorEntry>;
}

/** Label of the first exchange of a load. */
export const BEGIN_LOAD = 'loading a checkpoint';

/** A verified checkpoint that any number of ranks saved. The caller of open() closes it. */
export class Checkpoint {
  readonly path: string;
  readonly tag: string;
  private readonly manifest: StoredManifest;
  private readonly payloads = new Map<number, Promise<Payload>>();

  private constructor(private readonly opened: Files) {
    this.path = opened.path;
    this.tag = opened.tag;
    this.manifest = opened.manifest;
  }

  /**
   * Opens `dir`/`tag` on all ranks. Default: the tag in `latest`. Ranks without a tag use that of
   * rank 0.
   *
   * The ranks verify the files: one rank reads each file. So damage is found before the load
   * changes any tensor. All files stay open, so a later save that replaces the checkpoint does not
   * change the data that is read here. Throws on all ranks:
   * - DS_CHECKPOINT: different tags; no such tag (the error names the existing ones); an incomplete
   *   checkpoint; a damaged file; a checkpoint that is replaced repeatedly.
   * - DS_IO: a file cannot be read.
   */
  static async open(
    dir: string,
    tag?: string,
    world: CheckpointWorld = soloWorld,
  ): Promise<Checkpoint> {
    const requests = await onAllRanks(world, BEGIN_LOAD, async () => {
      if (tag !== undefined) requireTag(tag);
      return tag ?? null;
    });
    requireOneTag(requests);
    const opened = await openStable(world, dir, () => openFiles(dir, requests[0] as string | null));
    try {
      await verify(world, opened.manifest, opened.files);
      return new Checkpoint(opened);
    } catch (error) {
      await opened.close();
      throw error;
    }
  }

  close(): Promise<void> {
    return this.opened.close();
  }

  /**
   * Throws DS_IO if a file was written in place since it was opened: the data that was read may
   * then differ from the verified data.
   */
  async requireUnchanged(): Promise<void> {
    for (const file of this.opened.files) await file.requireUnchanged();
  }

  /** State that is the same on all ranks. */
  get state(): JsonObject {
    return this.manifest.state;
  }

  /** State of each rank. */
  get ranks(): readonly JsonObject[] {
    return this.manifest.ranks;
  }

  /** Description of the model for other libraries. */
  get description(): JsonObject | null {
    return this.manifest.description;
  }

  tensors(section: Section): ReadonlyMap<string, TensorRecord> {
    return this.manifest[section];
  }

  /**
   * Overwrites `into` (contiguous, on any device) with elements `from` to `from + into.numel` of
   * `box`, in row-major order, whatever parts were saved. Default of `box`: the whole tensor. Host
   * memory in addition: one buffer of 32 MiB. Throws DS_CHECKPOINT if the tensor does not exist or
   * has another dtype, or if the elements lie outside of it.
   */
  async read(
    section: Section,
    name: string,
    { box, from = 0 }: { box?: Box; from?: number },
    into: Tensor,
  ): Promise<void> {
    const record = this.record(section, name);
    const { shape, dtype } = record;
    const request = { box: box ?? wholeBox(shape), from, numel: into.numel };
    const isPart = isInside(request.box, shape) && from + into.numel <= numel(request.box.shape);
    if (dtype !== into.dtype || !isPart) {
      const location = box ? ` of [${box.shape.join(', ')}] at [${box.offset.join(', ')}]` : '';
      const want = `elements ${from} to ${from + into.numel}${location} of ${into.dtype}`;
      throw this.otherModel(name, want, describe(record));
    }
    const range = canonical(shape, request);
    for (const part of record.parts) {
      if (!intersectRanges(part, range)) continue;
      const payload = await this.payload(part.file);
      const entry = requireEntry(payload, name, record, part);
      await readPart(payload.file, { entry, range: part }, range, into);
    }
  }

  /** Reads a whole tensor into `into`, which has its shape or is flat. See read(). */
  async readInto(section: Section, name: string, into: Tensor): Promise<void> {
    const record = this.record(section, name);
    const isFlat = into.ndim === 1 && into.numel === numel(record.shape);
    if (!isFlat && into.shape.join() !== record.shape.join()) {
      throw this.otherModel(name, describe(into), describe(record));
    }
    await this.read(section, name, {}, into);
  }

  private record(section: Section, name: string): TensorRecord {
    const entry = this.manifest[section].get(name);
    if (entry) return entry;
    throw this.otherModel(name, 'this tensor', `${this.manifest[section].size} other tensors`);
  }

  private payload(index: number): Promise<Payload> {
    const known = this.payloads.get(index);
    if (known) return known;
    const input = required(this.opened.files[index]);
    const payload = SafetensorsFile.of(input).then((file) => {
      return { path: input.path, file, entries: entriesByName(file) };
    });
    this.payloads.set(index, payload);
    return payload;
  }

  private otherModel(name: string, expected: string, got: string): DsError {
    return new DsError({
      code: 'DS_CHECKPOINT',
      op: `${this.path}: ${name}`,
      expected,
      got,
      hint: 'The checkpoint belongs to another model, or has another precision.',
    });
  }
}

async function openFiles(dir: string, requested: string | null): Promise<Files> {
  const tag = requested ?? (await readLatest(dir));
  const path = await locate(dir, tag);
  const manifest = await readManifest(path);
  const files = await openAll(path, manifest);
  return {
    id: manifest.id,
    path,
    tag,
    manifest,
    files,
    currentIds: async () => manifestId(await locate(dir, tag)),
    close: async () => {
      for (const file of files) await file.close();
    },
  };
}

async function locate(dir: string, tag: string): Promise<string> {
  const path = await find(dir, tag);
  if (path !== null) return path;
  throw await missingTag(dir, `a checkpoint "${tag}"`);
}

/** Opens all files. If one fails, closes the others and throws its error. */
async function openAll(folder: string, manifest: StoredManifest): Promise<InputFile[]> {
  const { files } = manifest;
  const opening = await Promise.allSettled(files.map(({ name }) => openInside(folder, name)));
  const opened = opening.flatMap((result) => (result.status === 'fulfilled' ? [result.value] : []));
  const failed = opening.find((result) => result.status === 'rejected');
  if (!failed) return opened;
  for (const file of opened) await file.close();
  throw failed.reason;
}

/** Throws DS_CHECKPOINT if a rank has another tag than rank 0. */
function requireOneTag([first = null, ...others]: readonly (string | null)[]): void {
  const other = others.findIndex((tag) => tag !== null && tag !== first);
  if (other < 0) return;
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: 'checkpoint tag',
    expected: 'the same tag on every rank',
    got: `${first === null ? 'no tag' : `"${first}"`} on rank 0 and "${others[other]}" on rank ${other + 1}`,
    hint: 'Pass the same tag on every rank, or no tag to use `latest`.',
  });
}

// Verification: one rank reads each file and compares it with the manifest.

/**
 * Reads every file once: rank r reads the files i with i modulo the world size = r. `files`: the
 * open files of the manifest, in its order. Throws DS_CHECKPOINT on all ranks if the size, checksum
 * or tensors of a file differ from the manifest; the error names the file.
 */
async function verify(
  world: CheckpointWorld,
  manifest: Manifest,
  files: readonly InputFile[],
): Promise<void> {
  await onAllRanks(world, 'verifying the checkpoint', async () => {
    for (let i = world.rank; i < files.length; i += world.size) {
      await verifyFile(manifest, i, required(files[i]));
    }
    return null;
  });
}

async function verifyFile(manifest: Manifest, index: number, file: InputFile): Promise<void> {
  const { bytes, crc32c } = required(manifest.files[index]);
  const { path } = file;
  if (file.bytes !== bytes) throw damagedError(path, `${bytes} bytes`, `${file.bytes}`);
  const sum = await file.checksum();
  if (sum !== crc32c) throw damagedError(path, `checksum ${hex(crc32c)}`, hex(sum));
  const entries = entriesByName(await SafetensorsFile.of(file));
  for (const records of [manifest.model, manifest.optimizer]) {
    for (const [tensor, record] of records) {
      for (const part of record.parts) {
        if (part.file === index) requireEntry({ path, entries }, tensor, record, part);
      }
    }
  }
}

function entriesByName({ entries }: SafetensorsFile): ReadonlyMap<string, TensorEntry> {
  return new Map(entries.map((entry) => [entry.name, entry]));
}

/**
 * Returns the header entry of a part. Throws DS_CHECKPOINT if the file lacks it, or if it has
 * another dtype or shape than the manifest states.
 */
function requireEntry(
  file: { path: string; entries: ReadonlyMap<string, TensorEntry> },
  tensor: string,
  { dtype, shape }: TensorRecord,
  part: Part,
): TensorEntry {
  const name = entryName(tensor, shape, part);
  const entry = file.entries.get(name);
  const location = `${file.path}: ${name}`;
  if (!entry)
    throw damagedError(location, 'the tensor that the manifest lists', 'no tensor of this name');
  const expectedShape = entryShape(part);
  if (entry.dtype === dtype && entry.shape.join() === expectedShape.join()) return entry;
  const got = `${entry.dtype} [${entry.shape.join(', ')}]`;
  throw damagedError(location, `${dtype} [${expectedShape.join(', ')}], as in the manifest`, got);
}

function hex(sum: number): string {
  return sum.toString(16).padStart(8, '0');
}
