// Tests tensors that files store in slices, and that a read needs a tensor of the saved shape.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { inFileSlices, readSliceNames } from '../../lib/checkpoint/file-slices.js';
import { SafetensorsFile } from '../../lib/checkpoint/safetensors-file.js';
import { type TensorSource, writeSafetensors } from '../../lib/checkpoint/safetensors-writer.js';
import { cpu } from '../../lib/runtime/device.js';
import { held, Tensor } from '../../lib/tensor/index.js';

const dir = mkdtempSync(join(tmpdir(), 'ds-file-slices-'));
afterAll(() => rmSync(dir, { recursive: true }));

const whole = (): Tensor =>
  held(() =>
    Tensor.from(
      Float32Array.from({ length: 24 }, (_, i) => i),
      { shape: [2, 4, 3], device: cpu() },
    ),
  );

test('slices are parts of one tensor, which is freed with the last slice', async () => {
  let tensor: Tensor | undefined;
  const values = async (): Promise<Tensor> => {
    tensor = whole();
    return tensor;
  };
  const source: TensorSource = { name: 'experts', dtype: 'f32', shape: [2, 4, 3], values };
  const before = cpu().memory.inUse;
  const slices = inFileSlices(source, ['up.*', 'gate.*']);
  expect(slices.map(({ name, shape }) => [name, shape])).toEqual([
    ['up.0', [2, 3]],
    ['gate.0', [2, 3]],
    ['up.1', [2, 3]],
    ['gate.1', [2, 3]],
  ]);
  const numbers: number[] = [];
  for (const { values: read } of slices) {
    const slice = await (read as () => Promise<Tensor>)();
    numbers.push(...(slice.toArray() as number[]));
    slice.release();
  }
  expect(numbers).toEqual(Array.from({ length: 24 }, (_, i) => i));
  expect(cpu().memory.inUse).toBe(before);
  expect(inFileSlices(source, undefined)).toEqual([source]);
});

test.each([
  [undefined, {}],
  [null, {}],
  [{ experts: ['up.*', 'gate.*'] }, { experts: ['up.*', 'gate.*'] }],
  [{ experts: ['up.*', 7] }, null],
  [{ experts: [7, 'up.*'] }, null],
  [{ experts: [] }, null],
  [{ experts: 'up.*' }, null],
  [[['up.*']], null],
  ['up.*', null],
])('names of slices %j', (value, names) => {
  expect(readSliceNames(value)).toEqual(names);
});

test('a read into another shape is refused and changes nothing', async () => {
  const path = join(dir, 'model.safetensors');
  const values = whole();
  await writeSafetensors(path, [{ name: 'w', dtype: 'f32', shape: [2, 4, 3], values }]);
  values.release();
  const file = await SafetensorsFile.open(path);
  const [entry] = file.entries;
  for (const shape of [[2, 4], [2, 4, 4], [4, 2, 3], [2, 3, 4], [25]]) {
    const into = held(() => Tensor.from(new Float32Array(100), { device: cpu() }));
    const view = held(() => into.alias(shape));
    await expect(file.readInto(entry as never, view)).rejects.toThrow(/w: expected/);
    expect(new Set(into.toArray())).toEqual(new Set([0]));
    for (const tensor of [view, into]) tensor.release();
  }
  await file.close();
});
