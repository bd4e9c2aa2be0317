// Folders of tiny models with tensors that a test writes.
import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { WeightFiles } from '../../lib/checkpoint/index.js';
import { nn } from '../../lib/index.js';
import type { JsonObject } from '../../types/json.js';

/** A tensor of a file. */
export interface Stored {
  dtype: string;
  shape: number[];
  bytes: Uint8Array;
}

/** f32 numbers. */
export const floats = (values: number[], shape: number[]): Stored => ({
  dtype: 'F32',
  shape,
  bytes: new Uint8Array(Float32Array.from(values).buffer),
});

/** Bytes of a dtype with one byte, or of codes. */
export const bytesOf = (dtype: string, values: number[], shape: number[]): Stored => ({
  dtype,
  shape,
  bytes: Uint8Array.from(values),
});

/** Words of 32 bits. */
export const words = (values: Uint32Array, shape: number[]): Stored => ({
  dtype: 'I32',
  shape,
  bytes: new Uint8Array(values.buffer),
});

/** Tensors that a folder lacks, and others that it has. */
export interface Changes {
  without: RegExp;
  more: Record<string, Stored>;
}

/** Writes a folder in `home`: `config` without the tensors of `without`, and with `more`. */
export async function writeFolder(
  home: string,
  config: JsonObject,
  section: JsonObject,
  { without, more }: Changes,
): Promise<string> {
  const dir = mkdtempSync(join(home, 'folder-'));
  await nn.models.fromConfig(config).save(dir);
  const files = await WeightFiles.open(dir);
  const all: Record<string, Stored> = {};
  for (const [tensor, { shape }] of files.tensors) {
    if (without.test(tensor)) continue;
    const values = await files.read(tensor);
    all[tensor] = floats(values.toArray(), [...shape]);
    values.release();
  }
  await files.close();
  Object.assign(all, more);
  let at = 0;
  const table = Object.entries(all).map(([tensor, { dtype, shape, bytes }]) => {
    const entry = [tensor, { dtype, shape, data_offsets: [at, at + bytes.length] }];
    at += bytes.length;
    return entry;
  });
  const json = Buffer.from(JSON.stringify(Object.fromEntries(table)));
  const head = Buffer.alloc(8);
  head.writeBigUInt64LE(BigInt(json.length));
  const data = Object.values(all).map(({ bytes }) => bytes);
  writeFileSync(join(dir, 'model.safetensors'), Buffer.concat([head, json, ...data]));
  const saved = JSON.parse(readFileSync(join(dir, 'config.json'), 'utf8'));
  writeFileSync(join(dir, 'config.json'), JSON.stringify({ ...saved, ...section }));
  return dir;
}
