// Tests checks at their limits: ranges of a file, names of parts, numbers, dtypes and layouts.
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { convertValues } from '../../lib/checkpoint/convert.js';
import { Fields } from '../../lib/checkpoint/fields.js';
import { readPart } from '../../lib/checkpoint/read-part.js';
import { SafetensorsFile } from '../../lib/checkpoint/safetensors-file.js';
import { writeSafetensors } from '../../lib/checkpoint/safetensors-writer.js';
import { agreeOnTag } from '../../lib/checkpoint/save.js';
import { entryRange } from '../../lib/checkpoint/shard.js';
import { requireContiguous } from '../../lib/checkpoint/staging.js';
import { WeightFiles } from '../../lib/checkpoint/weight-files.js';
import { type Box, wholeBox } from '../../lib/runtime/box.js';
import { cpu } from '../../lib/runtime/device.js';
import { held, noGrad, Tensor, transpose } from '../../lib/tensor/index.js';

const dir = mkdtempSync(join(tmpdir(), 'ds-limits-'));
afterAll(() => rmSync(dir, { recursive: true }));

const vector = (count: number): Tensor =>
  held(() =>
    Tensor.from(
      Float32Array.from({ length: count }, (_, i) => i),
      { device: cpu() },
    ),
  );

/** A file with the tensor "w", 0, 1, ... */
async function fileOf(name: string, shape: readonly number[]): Promise<SafetensorsFile> {
  const path = join(dir, name);
  const values = vector(shape.reduce((a, b) => a * b, 1));
  await writeSafetensors(path, [{ name: 'w', dtype: 'f32', shape, values }]);
  values.release();
  return SafetensorsFile.open(path);
}

test('a range is read up to the last element of file and tensor', async () => {
  const file = await fileOf('range.safetensors', [10]);
  const [entry] = file.entries;
  const into = vector(6);
  const read = (from: number, to: number, numel: number) =>
    file.readRange(entry!, { from, to, numel }, into);
  await read(6, 2, 4);
  expect(into.toArray()).toEqual([0, 1, 6, 7, 8, 9]);
  for (const [from, to, numel] of [
    [7, 2, 4],
    [6, 3, 4],
    [-1, 0, 2],
    [0, -1, 2],
  ] as const) {
    await expect(read(from, to, numel)).rejects.toMatchObject({
      code: 'DS_CHECKPOINT',
      expected: `elements ${from} to ${from + numel}`,
      got: '10 elements',
    });
  }
  expect(into.toArray()).toEqual([0, 1, 6, 7, 8, 9]);
  into.release();
  await file.close();
});

test('long rows of a part are read separately, short rows with the elements between them', async () => {
  const file = await fileOf('rows.safetensors', [4, 2 ** 16]);
  const [entry] = file.entries;
  const read = jest.spyOn(file, 'readRange');
  const counts = async (columns: number): Promise<number[]> => {
    read.mockClear();
    const into = vector(4 * columns);
    const box: Box = { offset: [0, 8], shape: [4, columns] };
    const stored = { box: wholeBox([4, 2 ** 16]), from: 0, numel: 2 ** 18 };
    const expected = { box, from: 0, numel: 4 * columns };
    await readPart(file, { entry: entry!, range: stored }, expected, into);
    const values = into.toArray() as number[];
    expect([values[0], values[columns], values.at(-1)]).toEqual([
      8,
      2 ** 16 + 8,
      3 * 2 ** 16 + 7 + columns,
    ]);
    into.release();
    return read.mock.calls.map(([, { numel }]) => numel);
  };
  expect(await counts(2 ** 15)).toEqual(Array(4).fill(2 ** 15));
  expect(await counts(16)).toEqual([3 * 2 ** 16 + 16]);
  await file.close();
});

test.each<[entry: string, count: number, isThere: boolean]>([
  ['w', 24, true],
  ['w[0:12]', 12, true],
  ['w[12:24]', 12, true],
  // Elements outside of the tensor, or another number of them.
  ['w[12:25]', 13, false],
  ['w[20:24]', 5, false],
  ['w[0:2,0:7]', 14, false],
  ['w[0:0,0:3]', 0, false],
  // Other names for the same elements.
  ['w[0:24]', 24, false],
  ['w[0:4,0:6]', 24, false],
  ['w[0:2,0:6]', 12, false],
  ['w[0:2,0:3]', 6, true],
  ['w[0:2,0:3][0:6]', 6, false],
  ['w[0:2,0:3][1:4]', 3, true],
])('the part %s with %d elements of [4, 6] is possible: %p', (entry, count, isThere) => {
  expect(entryRange(entry, [4, 6], count) !== null).toBe(isThere);
});

test('saved numbers must be in the range of f32 and above their bound', () => {
  const fields = new Fields('file.json');
  const largest = 3.4028234663852886e38;
  for (const value of [-largest, 0, largest]) expect(fields.number(value, 'x')).toBe(value);
  expect(fields.number(0, 'x', 0)).toBe(0);
  for (const value of [-2 * largest, 2 * largest, Number.NaN, '1']) {
    expect(() => fields.number(value, 'x')).toThrow(/file\.json: x: expected a finite number, got/);
  }
  expect(() => fields.number(-1, 'x', 0)).toThrow(/x: expected a number from 0, got -1/);
});

test('a tensor that is not contiguous, and a transpose of a vector, are refused', () => {
  const values = held(() => Tensor.from(new Float32Array(6), { shape: [2, 3], device: cpu() }));
  const turned = noGrad(() => held(() => transpose(values, 0, 1)));
  expect(() => requireContiguous('w', values)).not.toThrow();
  expect(() => requireContiguous('w', turned)).toThrow(
    /checkpoint tensor "w": expected a contiguous tensor, got strides \[1, 3\]/,
  );
  turned.release();
  values.release();
  const inUse = cpu().memory.inUse;
  expect(() => convertValues('w', vector(3), { dtype: 'f32', transposed: true })).toThrow(
    expect.objectContaining({ code: 'DS_CHECKPOINT', op: 'w', expected: 'a matrix to transpose' }),
  );
  expect(cpu().memory.inUse).toBe(inUse);
});

test('ranks with different tags fail, warn or follow rank 0', () => {
  const warn = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
  for (const validation of ['Fail', 'Warn', 'Ignore'] as const) {
    expect(agreeOnTag(['a', 'a'], validation)).toBe('a');
  }
  expect(agreeOnTag(['a', 'b'], 'Ignore')).toBe('a');
  expect(warn).not.toHaveBeenCalled();
  expect(agreeOnTag(['a', 'a', 'b'], 'Warn')).toBe('a');
  expect(warn.mock.calls.map(([text]) => text)).toEqual([
    'Ranks save under different tags, "a" on rank 0 and "b" on rank 2: the tag of rank 0 is used.',
  ]);
  warn.mockRestore();
  expect(() => agreeOnTag(['a', 'b'], 'Fail')).toThrow(
    /checkpoint tag: expected the same tag on every rank, got "a" on rank 0 and "b" on rank 1/,
  );
});

test('no file of weights stays open after close() or a refusal', async () => {
  const folder = mkdtempSync(join(dir, 'weights-'));
  const values = vector(2);
  const path = join(folder, 'model.safetensors');
  await writeSafetensors(path, [{ name: 'w', dtype: 'f32', shape: [2], values }]);
  values.release();
  writeFileSync(join(folder, 'config.json'), '{}');
  const index = { weight_map: { w: 'model.safetensors' } };
  writeFileSync(join(folder, 'model.safetensors.index.json'), JSON.stringify(index));
  const openFiles = () => readdirSync('/proc/self/fd').length;
  const before = openFiles();
  for (let i = 0; i < 3; ++i) await (await WeightFiles.open(folder)).close();
  expect(openFiles()).toBe(before);
  const wrong = { weight_map: { w: 'model.safetensors', v: 'model.safetensors' } };
  writeFileSync(join(folder, 'model.safetensors.index.json'), JSON.stringify(wrong));
  await expect(WeightFiles.open(folder)).rejects.toMatchObject({ code: 'DS_CHECKPOINT' });
  writeFileSync(join(folder, 'config.json'), '[]');
  await expect(WeightFiles.open(folder)).rejects.toMatchObject({ code: 'DS_CHECKPOINT' });
  expect(openFiles()).toBe(before);
});
