// manifest.json: written last, it says what a complete checkpoint consists of.
import { createHash } from 'node:crypto';
import { readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { checksumFile, syncPath } from '../runtime/file.js';
import type { FileSum } from './safetensors.js';

export const MANIFEST = 'manifest.json';

const FORMAT = 1;

export interface Manifest {
  /** Of this file; a reader refuses newer ones. */
  format: number;
  /** The version of the library that saved it. */
  library: string;
  files: Record<string, FileSum>;
  /** What the engine keeps beside tensors. */
  state: JsonObject;
}

/** Writes `folder`/manifest.json, with a digest of itself, and returns when it is on disk. */
export async function writeManifest(
  folder: string,
  content: Omit<Manifest, 'format'>,
): Promise<void> {
  const { library, files, state } = content;
  const manifest: Manifest = { format: FORMAT, library, files, state };
  const path = join(folder, MANIFEST);
  const text = JSON.stringify({ ...manifest, sha256: digest(manifest) }, null, 2);
  await writeFile(path, `${text}\n`);
  await syncPath(path);
}

/**
 * Reads the manifest and verifies every file it names: present, of the right size, with the right
 * checksum. Throws DS_CHECKPOINT naming the file that is not.
 */
export async function readVerified(folder: string): Promise<Manifest> {
  const manifest = await readManifest(folder);
  for (const [name, expected] of Object.entries(manifest.files)) {
    const path = join(folder, name);
    const status = await stat(path).catch(() => null);
    if (status?.size !== expected.bytes) {
      const got = status ? `${status.size}` : 'no such file';
      throw damaged(path, `${expected.bytes} bytes`, got);
    }
    const sum = await checksumFile(path);
    if (sum !== expected.crc32c) {
      throw damaged(path, `checksum ${hex(expected.crc32c)}`, hex(sum));
    }
  }
  return manifest;
}

async function readManifest(folder: string): Promise<Manifest> {
  const path = join(folder, MANIFEST);
  const text = await readFile(path, 'utf8').catch(() => {
    throw damaged(folder, `a complete checkpoint with ${MANIFEST}`, 'none');
  });
  let parsed: (Manifest & { sha256: string }) | null;
  try {
    parsed = JSON.parse(text);
  } catch (cause) {
    throw damaged(path, 'JSON', (cause as Error).message);
  }
  const { sha256, ...manifest } = parsed ?? ({} as Manifest & { sha256: string });
  if (sha256 !== digest(manifest)) throw damaged(path, 'its own digest', 'another one');
  if (manifest.format > FORMAT) {
    throw new DsError({
      code: 'DS_CHECKPOINT',
      op: path,
      expected: `format ${FORMAT} or older`,
      got: `format ${manifest.format}, saved by version ${manifest.library}`,
      hint: 'Update this library.',
    });
  }
  return manifest;
}

function digest(manifest: Manifest): string {
  return createHash('sha256').update(JSON.stringify(manifest)).digest('hex');
}

function hex(sum: number): string {
  return sum.toString(16).padStart(8, '0');
}

function damaged(op: string, expected: string, got: string): DsError {
  const hint = 'The checkpoint is damaged or incomplete: load another tag.';
  return new DsError({ code: 'DS_CHECKPOINT', op, expected, got, hint });
}
