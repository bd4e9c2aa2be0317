// A destroyed engine leaves memory, although the caller keeps the model and trains it again.
import { setImmediate } from 'node:timers/promises';
import { type Engine, initialize } from '../../lib/index.js';
import type { CausalLM } from '../../lib/models/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { tinyConfig, tinyModel, trainTiny } from '../e2e/tiny-training.js';
import { collectGarbage } from '../support/quiet.js';

/** Whether the engine is collected within so many turns of the event loop. */
async function isCollected(engine: WeakRef<object>, turns = 200): Promise<boolean> {
  for (let turn = 0; turn < turns; ++turn) {
    // deref() keeps its target until the job ends: look in another one.
    await setImmediate();
    collectGarbage();
    await setImmediate();
    if (engine.deref() === undefined) return true;
  }
  return false;
}

async function train(model: CausalLM, stage: 0 | 1 | 3): Promise<Engine> {
  const options = { precision: 'bf16', offload: false, zero: { stage } } as const;
  const { engine } = await initialize({ model, config: tinyConfig(options), device: cpu() });
  trainTiny(engine, 0, 1);
  return engine;
}

/** Trains and destroys an engine, and holds nothing of it. */
async function releaseEngine(model: CausalLM, stage: 0 | 1 | 3): Promise<WeakRef<Engine>> {
  const engine = await train(model, stage);
  engine.destroy();
  return new WeakRef(engine);
}

/** Parameters that are trained, frozen and sharded (stage 3), or frozen and whole. */
const models: [string, 0 | 1 | 3, boolean][] = [
  ['all parameters are trained', 0, false],
  ['all parameters are trained and shared out', 3, false],
  ['some parameters are frozen, and whole', 1, true],
  ['some parameters are frozen, and shared out', 3, true],
];

test.each(models)('%s: stage %d', async (_, stage, isFrozen) => {
  const model = tinyModel();
  const parameters = [...model.parameters()];
  if (isFrozen) for (const one of parameters.slice(0, 3)) one.requireGrad(false);
  expect(await isCollected(await releaseEngine(model, stage))).toBe(true);
  // It is the caller's again.
  const next = await train(model, stage);
  next.destroy();
  expect(parameters.every(({ requiresGrad }, i) => requiresGrad !== (isFrozen && i < 3))).toBe(
    true,
  );
});

test('an engine that is not destroyed lives as long as its model', async () => {
  const model = tinyModel();
  const held = await (async () => new WeakRef(await train(model, 1)))();
  expect(await isCollected(held, 10)).toBe(false);
  held.deref()?.destroy();
  expect(model.vocabSize).toBe(131);
});
