// manifest.json: written last, it says what a complete checkpoint consists of and where every tensor lies.
import { createHash } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { type DType, dtypes } from '../runtime/dtype.js';
import { syncPath } from '../runtime/file.js';
import { isCheckpointFile } from './directory.js';
import { fileInside } from './folder.js';
import type { FileSum } from './safetensors-writer.js';
import { type Part, requireWhole, type TensorInfo } from './shard.js';

export const MANIFEST = 'manifest.json';

const FORMAT = 2;
const MAX_BYTES = 256 * 2 ** 20;

export interface FileRecord extends FileSum {
  name: string;
}

export interface TensorRecord extends TensorInfo {
  /** In the order of their elements; together they are all of them, each once. */
  parts: readonly Part[];
}

export interface Manifest {
  /** The version of the library that saved it. */
  library: string;
  /** When, in milliseconds since 1970. */
  savedAt: number;
  worldSize: number;
  files: readonly FileRecord[];
  /** Weights and buffers by name. */
  model: ReadonlyMap<string, TensorRecord>;
  /** "<parameter>.fp32" (master weights), "<parameter>.<state>". */
  optimizer: ReadonlyMap<string, TensorRecord>;
  /** What all ranks share. */
  state: JsonObject;
  /** What each rank has of its own. */
  ranks: readonly JsonObject[];
  /** How other libraries know this model; null when nobody has said. */
  description: JsonObject | null;
}

/** Writes `folder`/manifest.json, closed by a digest of what precedes it, and returns when it is on disk. */
export async function writeManifest(folder: string, manifest: Manifest): Promise<void> {
  const { model, optimizer, ...rest } = manifest;
  const tensors = { model: Object.fromEntries(model), optimizer: Object.fromEntries(optimizer) };
  const body = JSON.stringify({ format: FORMAT, ...rest, ...tensors }).slice(0, -1);
  const path = join(folder, MANIFEST);
  await writeFile(path, `${body},\n"sha256":"${digest(body)}"}\n`);
  await syncPath(path);
}

/**
 * The manifest of the checkpoint in `folder`. Throws DS_CHECKPOINT when there is none, it is not what was written, or
 * it contradicts itself: tensors that are not whole, files outside the folder.
 */
export async function readManifest(folder: string): Promise<Manifest> {
  const { path, bytes } = await fileInside(folder, MANIFEST).catch((cause) => {
    throw damaged(folder, `a complete checkpoint with ${MANIFEST}`, (cause as DsError).got);
  });
  if (bytes > MAX_BYTES) throw damaged(path, `at most ${MAX_BYTES} bytes`, `${bytes}`);
  return parseManifest(await readFile(path, 'utf8'), path);
}

/** See readManifest; `place` is named in errors. */
export function parseManifest(text: string, place: string): Manifest {
  const [, body, sum] = /^(.*),\n"sha256":"([0-9a-f]{64})"\}\n$/s.exec(text) ?? [];
  if (body === undefined || sum !== digest(body)) throw damagedOrOld(text, place);
  const value = parseJson(`${body}}`, place);
  if (value.format !== FORMAT) throw otherFormat(place, value);
  const reader = new Fields(place);
  const files = reader.list(value.files, 'files').map((item) => fileRecord(reader, item));
  return {
    library: reader.text(value.library, 'library'),
    savedAt: reader.count(value.savedAt, 'savedAt'),
    worldSize: reader.count(value.worldSize, 'worldSize'),
    files,
    model: tensorRecords(reader, value.model, files.length),
    optimizer: tensorRecords(reader, value.optimizer, files.length),
    state: reader.object(value.state, 'state'),
    ranks: reader.list(value.ranks, 'ranks').map((item) => reader.object(item, 'ranks')),
    description:
      value.description === null ? null : reader.object(value.description, 'description'),
  };
}

/** Checks values of unknown origin. Throws DS_CHECKPOINT naming the field. */
class Fields {
  constructor(readonly place: string) {}

  object(value: unknown, name: string): JsonObject {
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) {
      return value as JsonObject;
    }
    throw this.bad(name, 'an object');
  }

  list(value: unknown, name: string): unknown[] {
    if (Array.isArray(value)) return value;
    throw this.bad(name, 'a list');
  }

  text(value: unknown, name: string): string {
    if (typeof value === 'string') return value;
    throw this.bad(name, 'text');
  }

  count(value: unknown, name: string): number {
    if (Number.isSafeInteger(value) && (value as number) >= 0) return value as number;
    throw this.bad(name, 'a whole number');
  }

  dtype(value: unknown, name: string): DType {
    if ((dtypes as readonly unknown[]).includes(value)) return value as DType;
    throw this.bad(name, dtypes.join(', '));
  }

  bad(name: string, expected: string): DsError {
    return damaged(`${this.place}: ${name}`, expected, 'something else');
  }
}

function fileRecord(reader: Fields, item: unknown): FileRecord {
  const { name, bytes, crc32c } = reader.object(item, 'files');
  const file = reader.text(name, 'files');
  if (!isCheckpointFile(file)) {
    const expected = 'names of checkpoint files in its own folder';
    throw damaged(`${reader.place}: files`, expected, JSON.stringify(file.slice(0, 200)));
  }
  const place = `files ${file}`;
  return { name: file, bytes: reader.count(bytes, place), crc32c: reader.count(crc32c, place) };
}

function tensorRecords(
  reader: Fields,
  value: unknown,
  fileCount: number,
): Map<string, TensorRecord> {
  const records = new Map<string, TensorRecord>();
  for (const [name, item] of Object.entries(reader.object(value, 'tensors'))) {
    const place = `tensor ${name}`;
    const { dtype, shape, buffer, parts } = reader.object(item, place);
    const info: TensorInfo = {
      dtype: reader.dtype(dtype, place),
      shape: reader.list(shape, place).map((size) => reader.count(size, place)),
    };
    if (buffer === true) info.buffer = true;
    const size = info.shape.reduce((n, length) => n * BigInt(length), 1n);
    if (size > BigInt(Number.MAX_SAFE_INTEGER)) throw reader.bad(place, 'a shape that exists');
    const ranges = reader.list(parts, place).map((part) => {
      const [file, from, count, ...rest] = reader
        .list(part, place)
        .map((number) => reader.count(number, place));
      if (count === undefined || rest.length > 0 || (file as number) >= fileCount) {
        throw reader.bad(place, 'parts [file, from, numel]');
      }
      return [file, from, count] as Part;
    });
    const whole = requireWhole(`${reader.place}: ${place}`, info, ranges);
    records.set(name, { ...info, parts: whole });
  }
  return records;
}

function parseJson(text: string, place: string): JsonObject {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) {
      return value as JsonObject;
    }
  } catch (cause) {
    throw damaged(place, 'JSON', (cause as Error).message.slice(0, 200));
  }
  throw damaged(place, 'a JSON object', 'other JSON');
}

function digest(body: string): string {
  return createHash('sha256').update(body).digest('hex');
}

/** Formats before this one closed differently. */
function damagedOrOld(text: string, place: string): DsError {
  try {
    const value = parseJson(text, place);
    if (value.format !== FORMAT && typeof value.format === 'number') {
      return otherFormat(place, value);
    }
  } catch {
    // It is damaged, as said below.
  }
  return damaged(place, 'its own digest', 'another one');
}

function otherFormat(op: string, { format, library }: JsonObject): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op,
    expected: `format ${FORMAT}`,
    got: `format ${JSON.stringify(format)}, saved by version ${JSON.stringify(library)}`,
    hint: 'Load it with the version of this library that saved it, and export the weights.',
  });
}

function damaged(op: string, expected: string, got: string): DsError {
  const hint = 'The checkpoint is damaged or incomplete: load another tag.';
  return new DsError({ code: 'DS_CHECKPOINT', op, expected, got, hint });
}
