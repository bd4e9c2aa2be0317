// Tests that speculative offload equals no offload bit for bit, also with clipped, skipped, saved
// or reordered steps.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Engine, Tensor } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import type { UpdateGroup } from '../../lib/zero/optimizer-state.js';
import { Speculative } from '../../lib/zero/schedule/speculative.js';
import type { Case } from '../support/case.js';
import {
  type Precision,
  stateBits,
  type TinyOptions,
  tinyBatch,
  tinyEngine,
  trainTiny,
  weightBits,
} from './tiny-training.js';

const steps = 50;

type Options = Omit<TinyOptions, 'offload' | 'speculative'>;

/** Where the speculative weights are. */
type Weights = Pick<Options, 'zero'>;

const onDevice: Weights = {};
/** Each unit is gathered for its forward and again for its backward. */
const inHostMemory: Weights = {
  zero: {
    stage: 3,
    offload_param: { device: 'cpu' },
    sub_group_size: 1000,
    stage3_param_persistence_threshold: 0,
    stage3_max_reuse_distance: 0,
  },
};
const suffixOf = (weights: Weights): string =>
  weights === onDevice ? '' : ', weights in host memory';

const resident = ({ zero: _, ...options }: Options, device: Device): Promise<Engine> =>
  tinyEngine({ ...options, offload: false }, device);

function speculationOf({ parts }: Engine): Speculative {
  const [{ schedule }] = parts.state.updateGroups as [UpdateGroup];
  assert.ok(schedule instanceof Speculative);
  return schedule;
}

async function speculative(options: Options, device: Device): Promise<Engine> {
  const engine = await tinyEngine({ ...options, offload: true, speculative: true }, device);
  speculationOf(engine);
  return engine;
}

function assertSame(engine: Engine, expected: Engine): void {
  assert.deepEqual(weightBits(engine), weightBits(expected));
  assert.deepEqual(stateBits(engine), stateBits(expected));
  assert.equal(engine.skippedSteps, expected.skippedSteps);
}

/** Trains step by step; returns losses and the gradient norm of every step. */
function trainWithNorms(engine: Engine): { losses: number[]; norms: number[] } {
  const losses: number[] = [];
  const norms: number[] = [];
  for (let step = 0; step < steps; ++step) {
    losses.push(...trainTiny(engine, step, step + 1));
    norms.push(engine.getGlobalGradNorm() as number);
  }
  return { losses, norms };
}

type Clipped = 'always' | 'sometimes' | 'never';

function assertClipped(norms: readonly number[], clip: number, clipped: Clipped): void {
  const count = norms.filter((norm) => clip > 0 && norm > clip).length;
  const seen = count === 0 ? 'never' : count === steps ? 'always' : 'sometimes';
  assert.equal(seen, clipped, `clip ${clip}, norms ${norms}`);
}

function equalCase(label: string, clipped: Clipped, options: Options): Case {
  return {
    name: `speculative offload equals resident: ${label}, ${steps} steps`,
    async run(device) {
      device.setDeterministic(true);
      const plain = await resident(options, device);
      const expected = trainWithNorms(plain);
      assertClipped(expected.norms, options.clip ?? 1, clipped);
      const engine = await speculative(options, device);
      assert.deepEqual(trainTiny(engine, 0, steps), expected.losses);
      assertSame(engine, plain);
      if (options.precision === 'fp16')
        assert.ok(plain.skippedSteps > 0, 'no overflow was provoked');
      plain.destroy();
      engine.destroy();
    },
  };
}

/** Passes over tiles, with steps that are recomputed, skipped and accumulated. */
const tiledCases: Case[] = [1, 64, 1000].flatMap((size) => {
  const zero = { sub_group_size: size };
  const label = `sub-groups of ${size}`;
  return [
    equalCase(`fp32, clipping sometimes, ${label}`, 'sometimes', {
      precision: 'fp32',
      clip: 1.4,
      zero,
    }),
    equalCase(`bf16, clipping every step, ${label}`, 'always', {
      precision: 'bf16',
      clip: 0.05,
      zero,
    }),
    equalCase(`bf16, accumulation 3, ${label}`, 'sometimes', {
      precision: 'bf16',
      accumulation: 3,
      zero,
    }),
    equalCase(`fp16, clipping sometimes, ${label}`, 'sometimes', {
      precision: 'fp16',
      clip: 1.4,
      zero,
    }),
    equalCase(`fp16, no clipping, ${label}`, 'never', { precision: 'fp16', clip: 0, zero }),
  ];
});

/** The engine updates `early` units as their gradients arrive: zero, one, or all. */
function orderCase(early: number, weights: Weights): Case {
  return {
    name: `speculative offload does not depend on its order: ${early} units at once${suffixOf(weights)}`,
    async run(device) {
      device.setDeterministic(true);
      const options = { precision: 'bf16', clip: 1.4, ...weights } as const;
      const plain = await resident(options, device);
      const expected = trainTiny(plain, 0, 20);
      const engine = await speculative(options, device);
      speculationOf(engine).order.fix(early);
      assert.deepEqual(trainTiny(engine, 0, 20), expected);
      assertSame(engine, plain);
      plain.destroy();
      engine.destroy();
    },
  };
}

/**
 * Every step is clipped, and `lateCommits` units get their weights before the commit: zero, one, or
 * all.
 */
function laterCase(later: number, weights: Weights): Case {
  return {
    name: `speculative offload does not depend on what is committed later: ${later} units${suffixOf(weights)}`,
    async run(device) {
      device.setDeterministic(true);
      const options = { precision: 'bf16', clip: 0.05, ...weights } as const;
      const plain = await resident(options, device);
      const expected = trainTiny(plain, 0, steps);
      const engine = await speculative(options, device);
      speculationOf(engine).lateCommits.fix(later);
      assert.deepEqual(trainTiny(engine, 0, steps), expected);
      assertSame(engine, plain);
      plain.destroy();
      engine.destroy();
    },
  };
}

async function inFolder(body: (dir: string) => Promise<void>): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'ds-speculative-'));
  try {
    await body(dir);
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

const savingCase = (weights: Weights): Case => ({
  name: `speculative offload: saving changes nothing, and a resumed run equals one that never stopped${suffixOf(weights)}`,
  run: (device) =>
    inFolder(async (dir) => {
      device.setDeterministic(true);
      const options = { precision: 'bf16', clip: 1.4, ...weights } as const;
      const plain = await resident(options, device);
      const expected = trainTiny(plain, 0, 20);
      const engine = await speculative(options, device);
      const losses = trainTiny(engine, 0, 10);
      await engine.saveCheckpoint(dir);
      losses.push(...trainTiny(engine, 10, 20));
      assert.deepEqual(losses, expected);
      assertSame(engine, plain);
      const resumed = await speculative(options, device);
      await resumed.loadCheckpoint(dir);
      assert.deepEqual(trainTiny(resumed, 10, 20), expected.slice(10));
      assertSame(resumed, plain);
      for (const one of [plain, engine, resumed]) one.destroy();
    }),
});

/** Runs forward and backward of one micro-batch, then `between`, then the step. */
async function stepWith(engine: Engine, between: () => void | Promise<void>): Promise<void> {
  const { tokens, targets } = tinyBatch(10, engine.device);
  engine.backward(engine.forward<Tensor>(tokens, targets));
  tokens.dispose();
  targets.dispose();
  await between();
  engine.step();
}

const betweenBackwardAndStep = (weights: Weights): Case => ({
  name: `speculative offload: weights change at step(), and a checkpoint may be loaded before it${suffixOf(weights)}`,
  run: (device) =>
    inFolder(async (dir) => {
      device.setDeterministic(true);
      const options = { precision: 'bf16', clip: 0, ...weights } as const;
      const engines = [await resident(options, device), await speculative(options, device)];
      for (const engine of engines) {
        const folder = join(dir, engine === engines[0] ? 'resident' : 'speculative');
        trainTiny(engine, 0, 5);
        await engine.saveCheckpoint(folder);
        trainTiny(engine, 5, 10);
        const before = weightBits(engine);
        await stepWith(engine, () => assert.deepEqual(weightBits(engine), before));
        for (const loadOptimizerStates of [false, true]) {
          const load = async () => {
            await engine.loadCheckpoint(folder, { loadOptimizerStates });
          };
          // Loading a checkpoint during a step replaces the state and drops the step's gradients.
          await assert.rejects(stepWith(engine, load), /no gradient since the last step/);
          trainTiny(engine, 11, 15);
        }
      }
      const [plain, engine] = engines as [Engine, Engine];
      assertSame(engine, plain);
      for (const engine of engines) engine.destroy();
    }),
});

const precisions: Precision[] = ['fp32', 'bf16', 'fp16'];

export const cases: Case[] = [
  ...precisions.flatMap((precision) => [
    equalCase(`${precision}, clipping every step`, 'always', { precision, clip: 0.05 }),
    equalCase(`${precision}, clipping sometimes`, 'sometimes', { precision, clip: 1.4 }),
    equalCase(`${precision}, no clipping`, 'never', { precision, clip: 0 }),
    equalCase(
      `${precision}, clipping sometimes, accumulation 2, weights in host memory`,
      'sometimes',
      {
        precision,
        clip: 1.4,
        accumulation: 2,
        ...inHostMemory,
      },
    ),
  ]),
  equalCase('bf16, accumulation 3', 'sometimes', { precision: 'bf16', accumulation: 3 }),
  equalCase('bf16, activation checkpointing, dropout', 'sometimes', {
    precision: 'bf16',
    clip: 1.4,
    checkpointing: true,
    dropout: 0.1,
  }),
  ...tiledCases,
  ...[onDevice, inHostMemory].flatMap((weights) => [
    ...[0, 1, 3].map((early) => orderCase(early, weights)),
    ...[0, 1, 3].map((later) => laterCase(later, weights)),
    savingCase(weights),
    betweenBackwardAndStep(weights),
  ]),
];
