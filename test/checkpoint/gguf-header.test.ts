// GGUF headers that are valid: numbers of each type, the order of tensors, and the alignment.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { GgufFile } from '../../lib/checkpoint/gguf/gguf-file.js';
import { readGgufHeader } from '../../lib/checkpoint/index.js';
import { Tensor } from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';

const u32 = (value: number): Buffer => Buffer.from(Uint32Array.of(value).buffer);
const u64 = (value: bigint): Buffer => Buffer.from(BigUint64Array.of(value).buffer);
const words = (value: string): Buffer =>
  Buffer.concat([u64(BigInt(value.length)), Buffer.from(value)]);
const file = (tensors: bigint, pairs: bigint, ...rest: Buffer[]): Buffer =>
  Buffer.concat([Buffer.from('GGUF'), u32(3), u64(tensors), u64(pairs), ...rest]);
const tensor = (name: string, dims: readonly bigint[], offset: bigint): Buffer =>
  Buffer.concat([words(name), u32(dims.length), ...dims.map(u64), u32(0), u64(offset)]);

const headerOf = (bytes: Buffer) =>
  readGgufHeader('file', bytes.length, (at, into) => {
    into.set(bytes.subarray(at, at + into.length));
  });

test.each<[string, number, ArrayBuffer, unknown]>([
  ['u8', 0, Uint8Array.of(200).buffer, 200],
  ['i8', 1, Int8Array.of(-100).buffer, -100],
  ['u16', 2, Uint16Array.of(60_000).buffer, 60_000],
  ['i16', 3, Int16Array.of(-30_000).buffer, -30_000],
  ['u32', 4, Uint32Array.of(4e9).buffer, 4e9],
  ['i32', 5, Int32Array.of(-2e9).buffer, -2e9],
  ['f32', 6, Float32Array.of(1.5).buffer, 1.5],
  ['bool', 7, Uint8Array.of(1).buffer, true],
  ['u64', 10, BigUint64Array.of(2n ** 40n).buffer, 2 ** 40],
  ['i64', 11, BigInt64Array.of(-5n).buffer, -5],
  ['f64', 12, Float64Array.of(0.1).buffer, 0.1],
])('a %s', (_, type, value, expected) => {
  const { metadata } = headerOf(file(0n, 1n, words('key'), u32(type), Buffer.from(value)));
  expect(metadata.get('key')).toBe(expected);
});

test('tensors may be listed in any order, with the last dimension first', () => {
  const header = file(2n, 0n, tensor('last', [2n, 4n], 32n), tensor('first', [8n], 0n));
  const start = Math.ceil(header.length / 32) * 32;
  const bytes = Buffer.concat([header, Buffer.alloc(start - header.length + 64)]);
  for (let i = 0; i < 16; ++i) bytes.writeFloatLE(i, start + 4 * i);
  const { tensors, read } = headerOf(bytes);
  expect(tensors.map(({ name, shape, start: at }) => [name, shape, at - start])).toEqual([
    ['last', [4, 2], 32],
    ['first', [8], 0],
  ]);
  expect(tensors.map((tensor) => read(tensor)[0])).toEqual([8, 0]);
});

test('refuses an alignment that is not a power of 2 up to 2^20', () => {
  const readAligned = (value: number) => () =>
    headerOf(file(0n, 1n, words('general.alignment'), u32(4), u32(value)));
  expect(readAligned(2 ** 20)).not.toThrow();
  for (const value of [2 ** 21, 48]) expect(readAligned(value)).toThrow(/a power of 2 up to 2\^20/);
});

test('a tensor is read in chunks, with an offset that a model adds', async () => {
  const count = 300_000;
  const header = file(1n, 0n, tensor('w', [BigInt(count)], 0n));
  const values = Float32Array.from({ length: count }, (_, i) => i);
  const gap = Buffer.alloc(Math.ceil(header.length / 32) * 32 - header.length);
  const folder = mkdtempSync(join(tmpdir(), 'ds-gguf-header-'));
  const path = join(folder, 'w.gguf');
  writeFileSync(path, Buffer.concat([header, gap, Buffer.from(values.buffer)]));
  for (const add of [undefined, 1]) {
    const opened = await GgufFile.open(path, ({ tensors }) =>
      tensors.map((source) => ({
        name: 'w',
        shape: source.shape,
        source,
        ...(add !== undefined && { change: (value: number) => value + add }),
      })),
    );
    const [entry] = opened.entries;
    const fullTensor = Tensor.empty([count], 'f32', cpu());
    if (entry) await opened.readInto(entry, fullTensor);
    const found = fullTensor.toArray() as number[];
    expect(found.findIndex((value, i) => value !== i + (add ?? 0))).toBe(-1);
    fullTensor.release();
    await opened.close();
  }
  rmSync(folder, { recursive: true });
});
