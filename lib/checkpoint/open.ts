// Opening a checkpoint: verified as a whole, then read range by range from whichever files hold them.
import { join } from 'node:path';

import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { describe, numel } from '../runtime/view.js';
import type { Tensor } from '../tensor/index.js';
import { find } from './commit.js';
import { listTags, missingTag, readLatest, requireTag } from './directory.js';
import type { TensorEntry } from './header.js';
import { type Manifest, readManifest, type TensorRecord } from './manifest.js';
import { SafetensorsFile } from './safetensors-file.js';
import { requireEntry, verify } from './verify.js';
import { type CheckpointWorld, inUnison, soloWorld } from './world.js';

/** Weights and buffers, or master weights and optimizer state. */
export type Section = 'model' | 'optimizer';

interface OpenFile {
  path: string;
  file: SafetensorsFile;
  entries: ReadonlyMap<string, TensorEntry>;
}

/** A verified checkpoint, whatever the number of ranks that saved it. */
export class Checkpoint {
  private readonly files = new Map<number, Promise<OpenFile>>();

  private constructor(
    readonly path: string,
    readonly tag: string,
    private readonly manifest: Manifest,
  ) {}

  /**
   * Opens `dir/tag`, by default the one that `latest` names on rank 0. Every file is read once by one of the ranks, so
   * that loading cannot fail halfway. Throws on all ranks DS_CHECKPOINT: no such tag (with those there are), a
   * half-written checkpoint, a damaged file (named).
   */
  static async open(
    dir: string,
    tag?: string,
    world: CheckpointWorld = soloWorld,
  ): Promise<Checkpoint> {
    const wishes = await inUnison(world, 'loading a checkpoint', async () => {
      return world.rank === 0 ? (tag ?? (await readLatest(dir))) : null;
    });
    const wanted = wishes[0] as string;
    let found: { path: string; manifest: Manifest } | null = null;
    const savedAt = await inUnison(world, 'reading the manifest', async () => {
      requireTag(wanted);
      const path = await find(dir, wanted);
      if (path === null) throw missingTag(dir, `a checkpoint "${wanted}"`, await listTags(dir));
      found = { path, manifest: await readManifest(path) };
      return found.manifest.savedAt;
    });
    const { path, manifest } = found as unknown as { path: string; manifest: Manifest };
    if (savedAt[0] !== manifest.savedAt) throw differentFolders(path);
    await verify(world, path, manifest);
    return new Checkpoint(path, wanted, manifest);
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
   * Overwrites `into` (contiguous, on any device) with the elements from `from` on. Throws DS_CHECKPOINT naming the
   * tensor when there is none of that name, or of another dtype or size.
   */
  async readRange(section: Section, name: string, from: number, into: Tensor): Promise<void> {
    const record = this.record(section, name);
    const end = from + into.numel;
    if (record.dtype !== into.dtype || end > numel(record.shape)) {
      const want = `elements ${from} to ${end} of ${into.dtype}`;
      throw this.otherModel(name, want, describe(record));
    }
    for (const [index, start, count] of record.parts) {
      const low = Math.max(from, start);
      const high = Math.min(end, start + count);
      if (low >= high) continue;
      const opened = await this.open(index);
      const entry = requireEntry(opened, name, record, [start, count]);
      const range = { from: low - start, to: low - from, numel: high - low };
      await opened.file.readRange(entry, range, into);
    }
  }

  /** The whole of a tensor into one of its shape, or a flat one. See readRange. */
  async readInto(section: Section, name: string, into: Tensor): Promise<void> {
    const record = this.record(section, name);
    const isFlat = into.ndim === 1 && into.numel === numel(record.shape);
    if (!isFlat && into.shape.join() !== record.shape.join()) {
      throw this.otherModel(name, describe(into), describe(record));
    }
    await this.readRange(section, name, 0, into);
  }

  private record(section: Section, name: string): TensorRecord {
    const found = this.manifest[section].get(name);
    if (found) return found;
    throw this.otherModel(name, 'this tensor', `${this.manifest[section].size} others`);
  }

  private open(index: number): Promise<OpenFile> {
    const known = this.files.get(index);
    if (known) return known;
    const { name } = this.manifest.files[index] as Manifest['files'][number];
    const path = join(this.path, name);
    const opened = SafetensorsFile.open(path).then((file) => {
      return { path, file, entries: new Map(file.entries.map((entry) => [entry.name, entry])) };
    });
    this.files.set(index, opened);
    return opened;
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

function differentFolders(path: string): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op: path,
    expected: 'the checkpoint that rank 0 sees',
    got: 'another one of this name',
    hint: 'All ranks must see the same folder.',
  });
}
