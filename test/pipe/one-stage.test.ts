// Tests that a pipeline of one stage computes what a plain engine computes. Pipelines of several
// stages are compared with it, so it must be right by itself.
import {
  type Engine,
  initialize,
  nn,
  type PipelineEngine,
  PipelineModule,
  seed,
  Tensor,
} from '../../lib/index.js';

const MICROS = 3;
const STEPS = 4;

class Plain extends nn.Module {
  readonly layers = [new nn.Linear(3, 4), new nn.Linear(4, 1)];

  forward(x: Tensor, y: Tensor): Tensor {
    const [first, second] = this.layers as [nn.Linear, nn.Linear];
    return second.call(first.call(x)).sub(y).square().mean();
  }
}

const makeStages = (): PipelineModule =>
  new PipelineModule({
    layers: [new nn.Linear(3, 4), new nn.Linear(4, 1)],
    lossFn: (out: Tensor, y: Tensor) => out.sub(y).square().mean(),
  });

async function engineOf(
  make: () => nn.Module,
  more: Parameters<typeof initialize>[0]['config'],
): Promise<Engine> {
  seed(5);
  const { engine } = await initialize({
    model: make(),
    config: {
      train_micro_batch_size_per_gpu: 2,
      gradient_accumulation_steps: MICROS,
      gradient_clipping: 1,
      optimizer: { type: 'AdamW', params: { lr: 0.05 } },
      ...(more as object),
    },
    device: 'cpu',
  });
  return engine;
}

const batch = (i: number): [Tensor, Tensor] => [
  Tensor.from([i / 6, 1 - i / 6, Math.sin(i), 0.5, Math.cos(i), i / 9], { shape: [2, 3] }),
  Tensor.from([Math.cos(i), Math.sin(2 * i)], { shape: [2, 1] }),
];

const weightsOf = (engine: Engine): number[] => {
  engine.synchronize();
  return Array.from(engine.module.parameters()).flatMap(
    (parameter) => parameter.toArray() as number[],
  );
};

interface Run {
  losses: number[];
  norms: (number | null)[];
  weights: number[];
}

async function plain(): Promise<Run & { initial: number[] }> {
  const engine = await engineOf(() => new Plain(), {});
  const run = { losses: [] as number[], norms: [] as (number | null)[] };
  const initial = weightsOf(engine);
  for (let step = 0; step < STEPS; ++step) {
    for (let micro = 0; micro < MICROS; ++micro) {
      const [x, y] = batch(step * MICROS + micro);
      engine.backward(engine.forward<Tensor>(x, y));
      engine.step();
    }
    run.losses.push(engine.getGlobalLoss() as number);
    run.norms.push(engine.getGlobalGradNorm());
  }
  const weights = weightsOf(engine);
  engine.destroy();
  return { ...run, weights, initial };
}

test.each(['1f1b', 'gpipe', 'zero-bubble'])('%s: bit for bit a plain engine', async (schedule) => {
  const { initial, ...expected } = await plain();
  expect(expected.norms.every((norm) => (norm as number) > 0)).toBe(true);
  expect(expected.weights).not.toEqual(initial);
  const engine = await engineOf(makeStages, { pipeline: { stages: 1, schedule } } as never);
  expect(weightsOf(engine)).toEqual(initial);
  let at = 0;
  const batches = { next: async () => ({ value: batch(at++), done: false }) };
  const run: Run = { losses: [], norms: [], weights: [] };
  for (let step = 0; step < STEPS; ++step) {
    await (engine as PipelineEngine).trainBatch(batches as never);
    run.losses.push(engine.getGlobalLoss() as number);
    run.norms.push(engine.getGlobalGradNorm());
  }
  run.weights = weightsOf(engine);
  engine.destroy();
  expect(run).toEqual(expected);
});

test.each([true, false])('evalBatch() leaves training = %s', async (training) => {
  const engine = (await engineOf(makeStages, {
    pipeline: { stages: 1 },
  } as never)) as PipelineEngine;
  engine.module.train(training);
  const modes: boolean[] = [];
  engine.module.registerForwardHook(() => void modes.push(engine.module.training));
  await engine.evalBatch([batch(0), batch(1), batch(2)].values() as never);
  expect(engine.module.training).toBe(training);
  expect(modes).not.toContain(true);
  const [child] = engine.module.modules() as Iterable<nn.Module>;
  expect(child?.training).toBe(training);
  engine.destroy();
});
