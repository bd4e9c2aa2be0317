// Tests that a resumed run has the hyperparameters and the schedule state of the saved one.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Engine, initialize, nn, seed, Tensor } from '../../lib/index.js';

const dir = mkdtempSync(join(tmpdir(), 'ds-hyperparameters-'));
const engines: Engine[] = [];
afterEach(() => {
  for (const engine of engines.splice(0)) engine.destroy();
});
afterAll(() => rmSync(dir, { recursive: true }));

async function start(scheduler: object | undefined): Promise<Engine> {
  seed(1);
  const { engine } = await initialize({
    model: new nn.Linear(3, 2),
    config: {
      train_micro_batch_size_per_gpu: 2,
      optimizer: { type: 'AdamW', params: { lr: 0.1, weight_decay: 0.01 } },
      ...(scheduler ? { scheduler } : {}),
    } as never,
    device: 'cpu',
  });
  engines.push(engine);
  return engine;
}

/** Trains one step; a schedule that observes a metric gets `metrics`. */
function train(engine: Engine, metrics?: number): void {
  const input = Tensor.from([1, 2, 3, 4, 5, 6], { shape: [2, 3], device: engine.device });
  engine.backward(engine.forward<Tensor>(input).square().mean());
  engine.step(metrics === undefined ? {} : { metrics });
  input.dispose();
}

const weightsOf = (engine: Engine): unknown => {
  engine.synchronize();
  return Array.from(engine.module.parameters(), (parameter) => parameter.toArray());
};
const decayOf = (engine: Engine): number =>
  (engine.optimizer.groups[0] as unknown as { weightDecay: number }).weightDecay;

test('hyperparameters that changed in the run go on in the resumed run', async () => {
  const first = await start(undefined);
  train(first);
  Object.assign(first.optimizer.groups[0] as object, { weightDecay: 0.5 });
  train(first);
  await first.saveCheckpoint(dir);
  const resumed = await start(undefined);
  expect(decayOf(resumed)).toBe(0.01);
  await resumed.loadCheckpoint(dir);
  expect(decayOf(resumed)).toBe(0.5);
  for (const engine of [first, resumed]) train(engine);
  expect(weightsOf(resumed)).toEqual(weightsOf(first));
  const afresh = await start(undefined);
  await afresh.loadCheckpoint(dir, { loadOptimizerStates: false });
  expect(decayOf(afresh)).toBe(0.01);
});

test('loadLrSchedulerStates: false resets the observations of a schedule', async () => {
  const plateau = { type: 'ReduceLROnPlateau', params: { factor: 0.5, patience: 0 } };
  const first = await start(plateau);
  for (const metric of [1, 2, 3]) train(first, metric);
  const reduced = first.getLr();
  await first.saveCheckpoint(dir);
  const resumed = await start(plateau);
  const [fresh] = resumed.getLr();
  expect(reduced[0]).toBeLessThan(fresh as number);
  await resumed.loadCheckpoint(dir, { loadLrSchedulerStates: false, loadOptimizerStates: false });
  // No metric was lower than this one: the schedule does not know the earlier ones.
  train(resumed, 5);
  expect(resumed.getLr()).toEqual([fresh]);
});
