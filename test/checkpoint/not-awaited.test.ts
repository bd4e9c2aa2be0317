// Tests saves and loads without await: calls that change their state throw, and destroy() ends them
// with an error that names the missing await.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Engine, findLatest, zeros } from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { stateBits, tinyBatch, tinyEngine, trainTiny, weightBits } from '../e2e/tiny-training.js';

let dir: string;
let engine: Engine;
beforeEach(async () => {
  dir = mkdtempSync(join(tmpdir(), 'ds-not-awaited-'));
  engine = await tinyEngine({ precision: 'fp32', offload: false }, cpu());
});
afterEach(() => {
  engine.destroy();
  rmSync(dir, { recursive: true, force: true });
});

const refusal = (op: string, under: string) => ({
  code: 'DS_AUTOGRAD',
  op,
  expected: `a call after the end of ${under}()`,
});

test('steps during a synchronous save are refused, and it saves the state of its call', async () => {
  trainTiny(engine, 0, 1);
  const saved = stateBits(engine);
  const saving = engine.saveCheckpoint(dir);
  expect(() => trainTiny(engine, 1, 2)).toThrow(
    expect.objectContaining(refusal('engine.backward', 'saveCheckpoint')),
  );
  expect(() => engine.step()).toThrow(/Await saveCheckpoint\(\)\. With { asynchronous: true }/);
  await saving;
  trainTiny(engine, 1, 2);
  expect(stateBits(engine)).not.toEqual(saved);
  await engine.loadCheckpoint(dir);
  expect(stateBits(engine)).toEqual(saved);
});

test('during a load, every computation, save and load is refused', async () => {
  await engine.saveCheckpoint(dir);
  const loading = engine.loadCheckpoint(dir);
  expect(() => engine.forward(zeros([1, 1]))).toThrow(
    expect.objectContaining(refusal('engine.forward', 'loadCheckpoint')),
  );
  expect(() => engine.step()).toThrow(/Await loadCheckpoint\(\)\./);
  await expect(engine.loadCheckpoint(dir)).rejects.toMatchObject(
    refusal('loadCheckpoint', 'loadCheckpoint'),
  );
  for (const options of [{}, { asynchronous: true }]) {
    await expect(engine.saveCheckpoint(dir, options)).rejects.toMatchObject(
      refusal('saveCheckpoint', 'loadCheckpoint'),
    );
  }
  await loading;
  trainTiny(engine, 0, 1);
});

test('during a save, evaluation and another save are allowed', async () => {
  const weights = weightBits(engine);
  const saves = [engine.saveCheckpoint(join(dir, 'a')), engine.saveCheckpoint(join(dir, 'b'))];
  const { tokens, targets } = tinyBatch(0, cpu());
  engine.eval();
  engine.forward(tokens, targets);
  await Promise.all(saves);
  expect(weightBits(engine)).toEqual(weights);
  tokens.dispose();
  targets.dispose();
});

test.each([
  ['saveCheckpoint', () => engine.saveCheckpoint(join(dir, 'new'))],
  ['loadCheckpoint', () => engine.loadCheckpoint(join(dir, 'old'))],
  ['save16bitModel', () => engine.save16bitModel(join(dir, 'new'))],
])('destroy() ends %s with an error that names it', async (op, call) => {
  await engine.saveCheckpoint(join(dir, 'old'));
  const called = call();
  engine.destroy();
  await expect(called).rejects.toMatchObject({
    code: 'DS_AUTOGRAD',
    op,
    expected: 'engine.destroy() after the call ends',
    hint: `Await ${op}() before engine.destroy().`,
  });
  expect(await findLatest(join(dir, 'new'))).toBeNull();
});
