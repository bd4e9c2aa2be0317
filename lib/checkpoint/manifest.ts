// Reads and writes manifest.json. A save writes it last. It lists the files of a complete
// checkpoint, and the file of every part of every tensor.

import { createHash } from 'node:crypto';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { type Box, canonical, isInside, isSameBox, wholeBox } from '../runtime/box.js';
import { dtypes } from '../runtime/dtypes.generated.js';
import { syncPath } from '../runtime/file.js';
import type { InputFile } from '../runtime/input-file.js';
import { isObject } from '../runtime/is-object.js';
import { required } from '../runtime/required.js';
import { errorMessage } from '../runtime/system-error.js';
import { numel } from '../runtime/view.js';
import { isCheckpointFile, MANIFEST } from './directory.js';
import { damagedError, Fields } from './fields.js';
import { openInside } from './folder.js';
import type { FileSum } from './safetensors-writer.js';
import { type Part, requireWhole, type TensorInfo } from './shard.js';

/** Format 3 added boxes to parts; format 2 is otherwise the same. */
const FORMATS = { written: 3, read: [2, 3] } as const;
/** Matches the end of the file: the SHA-256 digest of the text before it. */
const SEAL = /^,\n"sha256":"([0-9a-f]{64})"\}\n$/;
const SEAL_BYTES = 79;
const MAX_BYTES = 256 * 2 ** 20;
/** Maximum number of dimensions of a tensor with boxes. */
const MAX_BOX_DIMS = 6;

export interface FileRecord extends FileSum {
  name: string;
}

export interface TensorRecord extends TensorInfo {
  /** Disjoint parts that together contain every element. */
  parts: readonly Part[];
}

export interface Manifest {
  /** The version of the library that saved the checkpoint. */
  library: string;
  /** Time of the save, in milliseconds since 1970. */
  savedAt: number;
  /** Number of data ranks, without replicas: the length of `ranks`. */
  worldSize: number;
  files: readonly FileRecord[];
  /** Weights and buffers by name. */
  model: ReadonlyMap<string, TensorRecord>;
  /**
   * Optimizer state: "<parameter>.fp32" is a master weight, "<parameter>.<state>" another tensor.
   */
  optimizer: ReadonlyMap<string, TensorRecord>;
  /** State that is the same on all ranks. */
  state: JsonObject;
  /** State of each data rank, such as its generator, without replicas. */
  ranks: readonly JsonObject[];
  /** Description of the model for other libraries, or null. */
  description: JsonObject | null;
}

/**
 * Writes `folder`/manifest.json. It ends with a digest of the text before it. Resolves after the
 * file is on disk.
 */
export async function writeManifest(folder: string, manifest: Manifest): Promise<void> {
  const { model, optimizer, ...rest } = manifest;
  const tensors = { model: serializeRecords(model), optimizer: serializeRecords(optimizer) };
  const body = JSON.stringify({ format: FORMATS.written, ...rest, ...tensors }).slice(0, -1);
  const path = join(folder, MANIFEST);
  await writeFile(path, `${body},\n"sha256":"${digest(body)}"}\n`);
  await syncPath(path);
}

/**
 * Serializes each part as [file, from, numel]. If the part lies in a box other than the whole
 * tensor, the offset and the shape of the box follow.
 */
function serializeRecords(records: ReadonlyMap<string, TensorRecord>): Record<string, object> {
  const entries = Array.from(records, ([name, { parts, ...info }]) => {
    const lists = parts.map(({ file, from, numel: count, box }) => {
      const range = [file, from, count];
      return box.shape.join() === info.shape.join() ? range : [...range, box.offset, box.shape];
    });
    return [name, { ...info, parts: lists }];
  });
  return Object.fromEntries(entries);
}

/** A manifest that was read from a file. */
export interface StoredManifest extends Manifest {
  /**
   * The digest at the end of the file. Because it covers checksums and save time, it identifies a
   * save.
   */
  id: string;
}

/**
 * Reads the manifest of the checkpoint in `folder`. Throws DS_IO if it cannot be read. Throws
 * DS_CHECKPOINT if it is missing, was changed, or contradicts itself: for example an incomplete
 * tensor, or a file outside of the folder.
 */
export async function readManifest(folder: string): Promise<StoredManifest> {
  return withManifest(folder, async (file) => {
    const { path, bytes } = file;
    if (bytes > MAX_BYTES) throw damagedError(path, `at most ${MAX_BYTES} bytes`, `${bytes}`);
    return parseManifest(await file.text(MAX_BYTES), path);
  });
}

/** Returns the id of the manifest that is in `folder` now. Throws as readManifest() does. */
export async function manifestId(folder: string): Promise<string> {
  return withManifest(folder, async (file) => {
    const from = Math.max(0, file.bytes - SEAL_BYTES);
    const end = new TextDecoder().decode(await file.slice(from, file.bytes - from));
    return SEAL.exec(end)?.[1] ?? 'none';
  });
}

async function withManifest<T>(folder: string, body: (file: InputFile) => Promise<T>): Promise<T> {
  const file = await openInside(folder, MANIFEST).catch((cause: DsError) => {
    if (cause.code !== 'DS_CHECKPOINT') throw cause;
    throw damagedError(folder, `a complete checkpoint with ${MANIFEST}`, cause.got);
  });
  try {
    return await body(file);
  } finally {
    await file.close();
  }
}

/** Parses the text of a manifest; see readManifest(). Errors name the file `location`. */
export function parseManifest(text: string, location: string): StoredManifest {
  const seal = SEAL.exec(text.slice(-SEAL_BYTES));
  const body = text.slice(0, -SEAL_BYTES);
  const id = seal?.[1];
  if (id === undefined || id !== digest(body)) throw damagedOrOld(text, location);
  const value = parseJson(`${body}}`, location);
  if (!isRead(value.format)) throw otherFormatError(location, value);
  const reader = new Fields(location);
  const files = fileRecords(reader, reader.objects(value.files, 'files'));
  const ranks = reader.objects(value.ranks, 'ranks');
  const worldSize = reader.integer(value.worldSize, 'worldSize', 1);
  if (ranks.length !== worldSize) throw reader.bad('ranks', `a list of ${worldSize}`, ranks);
  const { description } = value;
  return {
    id,
    library: reader.text(value.library, 'library'),
    savedAt: reader.count(value.savedAt, 'savedAt'),
    worldSize,
    files,
    model: tensorRecords(reader, value, 'model', files.length),
    optimizer: tensorRecords(reader, value, 'optimizer', files.length),
    state: reader.object(value.state, 'state'),
    ranks,
    description: description === null ? null : reader.object(description, 'description'),
  };
}

const isRead = (format: unknown): boolean => (FORMATS.read as readonly unknown[]).includes(format);

function fileRecords(reader: Fields, all: readonly JsonObject[]): FileRecord[] {
  const known = new Set<string>();
  return all.map(({ name, bytes, crc32c }, index) => {
    const location = `files[${index}]`;
    const file = reader.text(name, `${location}.name`);
    if (!isCheckpointFile(file)) {
      throw reader.bad(`${location}.name`, 'a checkpoint file in its own folder', file);
    }
    if (known.has(file)) {
      throw reader.refusal(`${location}.name`, 'every file once', `${file} twice`);
    }
    known.add(file);
    const sum = reader.count(crc32c, `${location}.crc32c`);
    if (sum >= 2 ** 32) throw reader.bad(`${location}.crc32c`, '32 bits', sum);
    return { name: file, bytes: reader.count(bytes, `${location}.bytes`), crc32c: sum };
  });
}

function tensorRecords(
  reader: Fields,
  manifest: JsonObject,
  section: 'model' | 'optimizer',
  fileCount: number,
): Map<string, TensorRecord> {
  const records = new Map<string, TensorRecord>();
  for (const [name, item] of Object.entries(reader.object(manifest[section], section))) {
    const location = `${section} ${name}`;
    const { dtype, shape, buffer, parts } = reader.object(item, location);
    const info: TensorInfo = {
      dtype: reader.oneOf(dtype, `${location}.dtype`, dtypes),
      shape: reader
        .list(shape, `${location}.shape`)
        .map((n) => reader.count(n, `${location}.shape`)),
    };
    if (buffer !== undefined && reader.flag(buffer, `${location}.buffer`)) info.buffer = true;
    const size = info.shape.reduce((n, length) => n * BigInt(length), 1n);
    if (size > BigInt(Number.MAX_SAFE_INTEGER)) {
      throw reader.refusal(
        `${location}.shape`,
        'a shape of at most 2^53 - 1 elements',
        `[${info.shape.join(', ')}]`,
      );
    }
    const of = { ...info, fileCount, tensorBox: wholeBox(info.shape), format: manifest.format };
    const list = reader.list(parts, `${location}.parts`);
    const all = list.map((part) => partOf(reader, part, `${location}.parts`, of));
    requireWhole(`${reader.location}: ${location}`, info, all);
    records.set(name, { ...info, parts: all });
  }
  return records;
}

interface PartOf extends TensorInfo {
  fileCount: number;
  tensorBox: Box;
  format: unknown;
}

/**
 * Parses [file, from, numel] or [file, from, numel, offset, shape]. Throws DS_CHECKPOINT unless the
 * part lies inside the tensor and is in canonical form.
 */
function partOf(reader: Fields, value: unknown, location: string, of: PartOf): Part {
  const items = reader.list(value, location);
  const numbers = items.slice(0, 3).map((number) => reader.count(number, location));
  // A list that is too short fails the check of its length below.
  const [file = 0, from = 0, count = 0] = numbers;
  const hasBox = items.length === 5 && of.format !== 2;
  if ((items.length !== 3 && !hasBox) || file >= of.fileCount) {
    const boxes = of.format === 2 ? '' : ' or [file, from, numel, offset, shape]';
    throw reader.refusal(location, `parts [file, from, numel]${boxes}`, formatItems(items));
  }
  const box = hasBox ? boxOf(reader, items, location) : of.tensorBox;
  const part = { file, from, numel: count, box };
  const isWithin = !hasBox || isInside(box, of.shape);
  if (!isWithin || from + count > numel(box.shape)) {
    throw reader.refusal(location, `a part inside [${of.shape.join(', ')}]`, formatItems(items));
  }
  if (hasBox && !isOfBox(part, of)) {
    const expected = `a box of at most ${MAX_BOX_DIMS} dims that is not contiguous in`;
    throw reader.refusal(
      location,
      `${expected} [${of.shape.join(', ')}], or no box`,
      formatItems(items),
    );
  }
  return part;
}

/** Returns whether the part is in canonical form: it needs its box to describe its elements. */
function isOfBox(part: Part, { shape, tensorBox }: PartOf): boolean {
  const { box, numel: count } = part;
  const isOwnForm = !isSameBox(box, tensorBox) && isSameBox(canonical(shape, part).box, box);
  return count > 0 && isOwnForm && shape.length <= MAX_BOX_DIMS;
}

/** Formats numbers and lists of numbers for an error; deeper lists become "...". */
function formatItems(items: readonly unknown[]): string {
  const formatItem = (item: unknown): string => (typeof item === 'number' ? `${item}` : '...');
  const parts = items.map((item) =>
    Array.isArray(item) ? `[${item.map(formatItem)}]` : formatItem(item),
  );
  return `[${parts.join(', ')}]`.slice(0, 80);
}

function boxOf(reader: Fields, items: readonly unknown[], location: string): Box {
  const [offset, shape] = items
    .slice(3)
    .map((list) => reader.list(list, location).map((n) => reader.count(n, location)));
  return { offset: required(offset), shape: required(shape) };
}

function parseJson(text: string, location: string): JsonObject {
  try {
    const value: unknown = JSON.parse(text);
    if (isObject<JsonObject>(value)) return value;
  } catch (cause) {
    throw damagedError(location, 'JSON', errorMessage(cause).slice(0, 200));
  }
  throw damagedError(location, 'a JSON object', 'another JSON value');
}

function digest(body: string): string {
  return createHash('sha256').update(body).digest('hex');
}

/**
 * Returns the error of a wrong digest. Checks the format first, because earlier formats have no
 * digest at the end.
 */
function damagedOrOld(text: string, location: string): DsError {
  try {
    const value = parseJson(text, location);
    if (!isRead(value.format) && typeof value.format === 'number')
      return otherFormatError(location, value);
  } catch {
    // The text is no JSON: the error below reports the damage.
  }
  return damagedError(location, 'contents that match the digest in the file', 'changed contents');
}

function otherFormatError(op: string, { format, library }: JsonObject): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op,
    expected: `format ${FORMATS.read.join(' or ')}`,
    got: `format ${JSON.stringify(format)}, saved by version ${JSON.stringify(library)}`,
    hint: 'Load it with the version of this library that saved it, and export the weights.',
  });
}
