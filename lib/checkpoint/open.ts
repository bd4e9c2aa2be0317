// Opening a checkpoint: verified as a whole, then read part by part from whichever files hold them.
import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { type Box, canonical, intersect, isInside, wholeBox } from '../runtime/box.js';
import type { InputFile } from '../runtime/input-file.js';
import { describe, numel } from '../runtime/view.js';
import type { Tensor } from '../tensor/index.js';
import { find } from './commit.js';
import { missingTag, readLatest, requireTag } from './directory.js';
import { openInside } from './folder.js';
import type { TensorEntry } from './header.js';
import { manifestId, readManifest, type StoredManifest, type TensorRecord } from './manifest.js';
import { readPart } from './read-part.js';
import { SafetensorsFile } from './safetensors-file.js';
import { type Opened, openSteadily } from './steady.js';
import { entriesByName, requireEntry, verify } from './verify.js';
import { type CheckpointWorld, inUnison, soloWorld } from './world.js';

/** Weights and buffers, or master weights and optimizer state. */
export type Section = 'model' | 'optimizer';

/** A tag's manifest and its files, all of the same save. */
interface Files extends Opened {
  path: string;
  tag: string;
  manifest: StoredManifest;
  /** In the order of the manifest. */
  files: readonly InputFile[];
}

interface Payload {
  path: string;
  file: SafetensorsFile;
  entries: ReadonlyMap<string, TensorEntry>;
}

/** The first exchange of a load. */
export const BEGIN_LOAD = 'loading a checkpoint';

/**
 * A verified checkpoint, whatever the number of ranks that saved it. Whoever opens one closes it.
 */
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
   * Opens `dir/tag`, by default what `latest` names; a tag that rank 0 alone is given counts. Every
   * file is opened once and for all, and read once by one of the ranks: loading cannot fail halfway
   * over damage, and a save that replaces the checkpoint meanwhile changes nothing of what is read.
   * Throws on all ranks DS_CHECKPOINT: different tags, no such tag (with those there are), a
   * half-written checkpoint, a damaged file (named), one that is replaced again and again; DS_IO.
   */
  static async open(
    dir: string,
    tag?: string,
    world: CheckpointWorld = soloWorld,
  ): Promise<Checkpoint> {
    const wishes = await inUnison(world, BEGIN_LOAD, async () => {
      if (tag !== undefined) requireTag(tag);
      return tag ?? null;
    });
    requireOneTag(wishes);
    const opened = await openSteadily(world, dir, () => openFiles(dir, wishes[0] as string | null));
    try {
      await verify(world, opened.manifest, opened.files);
      return new Checkpoint(opened);
    } catch (error) {
      await opened.close();
      throw error;
    }
  }

  /** Tensors can no longer be read. */
  close(): Promise<void> {
    return this.opened.close();
  }

  /**
   * Throws DS_IO when a file was written to, in place, since it was opened: what was read may not
   * be what was verified.
   */
  async requireUnchanged(): Promise<void> {
    for (const file of this.opened.files) await file.requireUnchanged();
  }

  /** What all ranks share. */
  get state(): JsonObject {
    return this.manifest.state;
  }

  /** What each rank had of its own. */
  get ranks(): readonly JsonObject[] {
    return this.manifest.ranks;
  }

  /** How other libraries know the model. */
  get description(): JsonObject | null {
    return this.manifest.description;
  }

  tensors(section: Section): ReadonlyMap<string, TensorRecord> {
    return this.manifest[section];
  }

  /**
   * Overwrites `into` (contiguous, on any device) with the elements of `box`, by default the whole
   * tensor, from number `from` of it on, whatever the parts in which they were saved. Host memory
   * beyond it: one buffer of 32 MiB. Throws DS_CHECKPOINT naming the tensor when there is none of
   * that name, or of another dtype or size.
   */
  async read(
    section: Section,
    name: string,
    { box, from = 0 }: { box?: Box; from?: number },
    into: Tensor,
  ): Promise<void> {
    const record = this.record(section, name);
    const { shape, dtype } = record;
    const wanted = { box: box ?? wholeBox(shape), from, numel: into.numel };
    const isPart = isInside(wanted.box, shape) && from + into.numel <= numel(wanted.box.shape);
    if (dtype !== into.dtype || !isPart) {
      const place = box ? ` of [${box.shape.join(', ')}] at [${box.offset.join(', ')}]` : '';
      const want = `elements ${from} to ${from + into.numel}${place} of ${into.dtype}`;
      throw this.otherModel(name, want, describe(record));
    }
    const range = canonical(shape, wanted);
    for (const part of record.parts) {
      if (!intersect(part, range)) continue;
      const payload = await this.payload(part.file);
      const entry = requireEntry(payload, name, record, part);
      await readPart(payload.file, { entry, range: part }, range, into);
    }
  }

  /** The whole of a tensor into one of its shape, or a flat one. See read(). */
  async readInto(section: Section, name: string, into: Tensor): Promise<void> {
    const record = this.record(section, name);
    const isFlat = into.ndim === 1 && into.numel === numel(record.shape);
    if (!isFlat && into.shape.join() !== record.shape.join()) {
      throw this.otherModel(name, describe(into), describe(record));
    }
    await this.read(section, name, {}, into);
  }

  private record(section: Section, name: string): TensorRecord {
    const found = this.manifest[section].get(name);
    if (found) return found;
    throw this.otherModel(name, 'this tensor', `${this.manifest[section].size} others`);
  }

  private payload(index: number): Promise<Payload> {
    const known = this.payloads.get(index);
    if (known) return known;
    const input = this.opened.files[index] as InputFile;
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
      hint: 'It was saved from another model or with another precision.',
    });
  }
}

async function openFiles(dir: string, requested: string | null): Promise<Files> {
  const tag = requested ?? (await readLatest(dir));
  const path = await locate(dir, tag);
  const manifest = await readManifest(path);
  const files = await openAll(path, manifest);
  return {
    ...{ id: manifest.id, path, tag, manifest, files },
    idNow: async () => manifestId(await locate(dir, tag)),
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

/** All or none. */
async function openAll(folder: string, manifest: StoredManifest): Promise<InputFile[]> {
  const { files } = manifest;
  const opening = await Promise.allSettled(files.map(({ name }) => openInside(folder, name)));
  const opened = opening.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []));
  const failed = opening.find((one) => one.status === 'rejected');
  if (!failed) return opened;
  for (const file of opened) await file.close();
  throw failed.reason;
}

/** Throws DS_CHECKPOINT where a rank is given a tag that is not rank 0's. */
function requireOneTag([first = null, ...others]: readonly (string | null)[]): void {
  const other = others.findIndex((tag) => tag !== null && tag !== first);
  if (other < 0) return;
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: 'checkpoint tag',
    expected: 'the same tag on every rank',
    got: `${first === null ? 'none' : `"${first}"`} on rank 0 and "${others[other]}" on rank ${other + 1}`,
    hint: 'Give every rank the same tag, or none for what `latest` names.',
  });
}
