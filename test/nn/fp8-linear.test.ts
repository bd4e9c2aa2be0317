// Runs the cases of layers in FP8 on the CPU; models of such layers.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn, noGrad, scope, seed, Tensor } from '../../lib/index.js';
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './fp8-linear.cases.js';

testOnCpu('layers in FP8', cases);

const made = (): nn.models.GPT2 => {
  seed(1);
  return new nn.models.GPT2({ vocabSize: 64, maxSeq: 16, layers: 2, heads: 2, channels: 32 });
};
const tokens = (): Tensor => Tensor.from(Int32Array.of(1, 5, 9, 2), { shape: [1, 4] });

test('a model in FP8 computes nearly the same, and its head stays', () => {
  const [plain, coded] = [made(), made()];
  expect(nn.quantizeModel(coded, { bits: 8, format: 'e4m3' })).toBe(coded);
  const kinds = [...coded.modules()].filter((module) => module instanceof nn.Fp8Linear);
  expect(kinds).toHaveLength(2 * 4);
  const [a, b] = [plain, coded].map((model) =>
    noGrad(() => scope(() => (model.call(tokens()) as Tensor).to('f32').toArray())),
  ) as [number[], number[]];
  const top = Math.max(...a.map(Math.abs));
  const far = Math.max(...a.map((value, i) => Math.abs(value - (b[i] as number))));
  expect(far).toBeGreaterThan(0);
  expect(far).toBeLessThan(0.1 * top);
});

test('quantizeModel() refuses other formats, and FP8 with groups or of 4 bits', () => {
  const given = (options: object) => () => nn.quantizeModel(made(), options as never);
  expect(given({ bits: 8, format: 'e5m2' })).toThrow(/format: expected "int" or "e4m3"/);
  expect(given({ bits: 4, format: 'e4m3' })).toThrow(/8 bits without groupSize, got 4 bits/);
  expect(given({ bits: 8, groupSize: 16, format: 'e4m3' })).toThrow(/got 8 bits, groupSize 16/);
});

test('a model in FP8 is not saved for other libraries', async () => {
  const model = nn.quantizeModel(made(), { bits: 8, format: 'e4m3' });
  const dir = mkdtempSync(join(tmpdir(), 'fp8-linear-'));
  try {
    await expect(model.save(join(dir, 'model'))).rejects.toThrow(/got layers in FP8.*Save the/s);
  } finally {
    rmSync(dir, { recursive: true });
  }
});
