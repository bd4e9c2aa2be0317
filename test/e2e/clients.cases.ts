// Tests parameter groups, optimizers and schedules that the caller passes to initialize(), and the
// getters that report them.
import assert from 'node:assert/strict';
import {
  type Clients,
  type DsConfig,
  type Engine,
  initialize,
  type nn,
  optim,
} from '../../lib/index.js';
import type { Parameter } from '../../lib/nn/parameter.js';
import type { Device } from '../../lib/runtime/device.js';
import { seed } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';
import { tinyConfig, tinyModel, trainTiny, weightBits } from './tiny-training.js';

const STEPS = 5;

interface Run {
  engine: Engine;
  before: Map<string, string>;
  after: Map<string, string>;
}

/** Trains the tiny GPT-2 with the options that `clients` returns. */
async function run(
  device: Device,
  clients: (model: nn.models.GPT2) => Clients,
  config: Partial<DsConfig> = {},
): Promise<Run> {
  seed(1234);
  const model = tinyModel();
  const whole = { ...tinyConfig({ precision: 'fp32', offload: false }), ...config };
  const { engine } = await initialize({ model, config: whole, device, ...clients(model) });
  const before = weightBits(engine);
  trainTiny(engine, 0, STEPS);
  const after = weightBits(engine);
  return { engine, before, after };
}

const isMatrix = (parameter: Parameter): boolean => parameter.shape.length > 1;

/** Matrices have weight decay, vectors do not: the usual grouping. */
function decayGroups(model: nn.models.GPT2): Clients {
  const parameters = model.parameters();
  return {
    modelParameters: [
      { params: parameters.filter(isMatrix), weightDecay: 0.5 },
      { params: parameters.filter((parameter) => !isMatrix(parameter)), weightDecay: 0 },
    ],
  };
}

async function groupsDecayApart(device: Device): Promise<void> {
  const plain = await run(device, () => ({}), noDecay);
  const grouped = await run(device, decayGroups);
  assert.equal(grouped.engine.getLr().length, 2);
  const named = [...grouped.engine.module.namedParameters()];
  const first = (shape: number): string =>
    (named.find(([, { shape: own }]) => own.length === shape) as [string, Parameter])[0];
  assert.notEqual(grouped.after.get(first(2)), plain.after.get(first(2)));
  // In the first step the vectors move as without weight decay, because the forward is the same.
  const [one, other] = [await firstStep(device, decayGroups), await firstStep(device, () => ({}))];
  for (const [name, parameter] of named) {
    assert.equal(one.get(name) === other.get(name), !isMatrix(parameter), name);
  }
  for (const { engine } of [plain, grouped]) engine.destroy();
}

const noDecay: Partial<DsConfig> = {
  optimizer: { type: 'AdamW', params: { lr: 3e-3, betas: [0.9, 0.95], weight_decay: 0 } },
};

async function firstStep(
  device: Device,
  clients: (model: nn.models.GPT2) => Clients,
): Promise<Map<string, string>> {
  seed(1234);
  const model = tinyModel();
  const config = { ...tinyConfig({ precision: 'fp32', offload: false }), ...noDecay };
  const { engine } = await initialize({ model, config, device, ...clients(model) });
  trainTiny(engine, 0, 1);
  const bits = weightBits(engine);
  engine.destroy();
  return bits;
}

/** Groups of one optimizer in several units equal one group with the same settings, bit for bit. */
const equalGroupsEqualOne =
  (offload: 'none' | 'cpu', superOffload: boolean) =>
  async (device: Device): Promise<void> => {
    const config: Partial<DsConfig> = {
      zero_optimization: {
        stage: 1,
        offload_optimizer: { device: offload, super_offload: superOffload },
      },
    };
    const fullRun = await run(device, () => ({}), config);
    const split = await run(
      device,
      (model) => ({
        modelParameters: [0, 1, 2].map((rest) => ({
          params: model.parameters().filter((_, i) => i % 3 === rest),
        })),
      }),
      config,
    );
    assert.deepEqual(split.after, fullRun.after);
    for (const { engine } of [fullRun, split]) engine.destroy();
  };

async function parametersOutsideAreFrozen(device: Device): Promise<void> {
  const { engine, before, after } = await run(device, (model) => ({
    modelParameters: model.parameters().filter(isMatrix),
  }));
  for (const [name, parameter] of engine.module.namedParameters()) {
    assert.equal(before.get(name) === after.get(name), !isMatrix(parameter), name);
  }
  engine.destroy();
}

const ADAMW = { lr: 3e-3, betas: [0.9, 0.95] as const, weightDecay: 0.1 };

async function clientOptimizersEqualTheFiles(device: Device): Promise<void> {
  const expected = await run(device, () => ({}));
  const object = await run(
    device,
    (model) => ({ optimizer: new optim.AdamW(model.parameters(), ADAMW) }),
    { optimizer: { type: 'AdamW', params: { lr: 1 } } },
  );
  const result = await run(
    device,
    () => ({ optimizer: (p) => new optim.AdamW(p as never, ADAMW) }),
    {
      optimizer: null,
    },
  );
  assert.deepEqual(object.after, expected.after);
  assert.deepEqual(result.after, expected.after);
  for (const { engine } of [expected, object, result]) engine.destroy();
}

async function clientSchedules(device: Device): Promise<void> {
  const schedule = new optim.StepLr({ baseLr: 0.5, stepSize: 2, gamma: 0.1 });
  const object = await run(device, () => ({ lrScheduler: schedule }));
  assert.deepEqual(object.engine.getLr(), [schedule.lr(STEPS)]);
  class Halving extends optim.PureSchedule {
    readonly name = 'Halving';
    lr(appliedSteps: number): number {
      return 0.5 ** appliedSteps;
    }
  }
  const localRun = await run(device, () => ({ lrScheduler: new Halving() }));
  assert.deepEqual(localRun.engine.getLr(), [0.5 ** STEPS]);
  const apart = await run(device, (model) => ({
    ...decayGroups(model),
    lrScheduler: ({ groups }) =>
      groups.map((_, i) => new optim.ConstantLr({ baseLr: 1e-3 * (i + 1), factor: 1, steps: 1 })),
  }));
  assert.deepEqual(apart.engine.getLr(), [1e-3, 2e-3]);
  await assert.rejects(
    run(device, (model) => ({ ...decayGroups(model), lrScheduler: () => [schedule] })),
    /one for each of 2 groups/,
  );
  for (const { engine } of [object, localRun, apart]) engine.destroy();
}

/** Without a schedule, the caller may set the rate of a group at any time. */
async function ratesAreTheCallers(device: Device): Promise<void> {
  const { engine, after } = await run(device, () => ({}), { scheduler: null });
  const [group] = engine.optimizer.groups;
  assert.ok(group);
  group.lr = 0;
  trainTiny(engine, STEPS, STEPS + 2);
  assert.deepEqual(engine.getLr(), [0]);
  assert.deepEqual(weightBits(engine), after);
  engine.destroy();
}

async function wrongGroups(device: Device): Promise<void> {
  const reject = (clients: (model: nn.models.GPT2) => Clients, message: RegExp): Promise<void> =>
    assert.rejects(run(device, clients), message);
  await reject(() => ({ modelParameters: [] }), /at least one parameter/);
  const adam: Clients['optimizer'] = (params) => new optim.AdamW(params, { lr: 1 });
  for (const optimizer of [undefined, adam]) {
    await reject((model) => {
      for (const parameter of model.parameters()) parameter.requireGrad(false);
      return { optimizer, modelParameters: undefined };
    }, /initialize: .*requires a gradient, got a model with \d+ frozen parameters/);
  }
  await reject(() => ({ modelParameters: tinyModel().parameters() }), /parameters of the model/);
  await reject(
    (model) => ({
      modelParameters: [{ params: model.parameters() }, { params: model.parameters().slice(3, 4) }],
    }),
    /every parameter in one group/,
  );
  await reject(
    () => ({ optimizer: undefined, modelParameters: undefined, lrScheduler: () => [] }),
    /one for each of 1 groups/,
  );
}

/** The engine rejects PyTorch-style schedules; the message names the kind that it accepts. */
async function wrongSchedules(device: Device): Promise<void> {
  const torch = { step: () => {}, getLastLr: () => [1] } as unknown as optim.LrSchedule;
  await assert.rejects(
    run(device, () => ({ lrScheduler: torch })),
    /new optim\.LambdaLr\(\{/,
  );
  const linear = ({ lr }: { lr: number }) => new optim.LinearLr({ baseLr: lr, steps: 10 });
  const wrapOptimizer = (optimizer: optim.Optimizer) => new optim.LrScheduler(optimizer, linear);
  const lrScheduler = wrapOptimizer as unknown as Clients['lrScheduler'];
  await assert.rejects(
    run(device, () => ({ lrScheduler })),
    /class LrScheduler\. The engine advances schedules\. Pass the argument of LrScheduler/,
  );
}

async function saysWhatItIs(device: Device): Promise<void> {
  const { engine } = await run(device, () => ({}), { steps_per_print: 7, gradient_clipping: 0.5 });
  assert.equal(engine.stepsPerPrint(), 7);
  assert.equal(engine.gradientClipping(), 0.5);
  assert.equal(engine.zeroOptimizationStage(), 1);
  assert.deepEqual([engine.globalRank, engine.localRank, engine.worldSize], [0, 0, 1]);
  assert.equal(engine.device, device);
  assert.equal(engine.globalSteps, STEPS);
  assert.equal(engine.optimizer.name, 'AdamW');
  assert.equal(engine.lrScheduler.name, 'WarmupLR');
  engine.destroy();
}

export const cases: Case[] = [
  { name: 'groups: weight decay of matrices alone', run: groupsDecayApart },
  { name: 'equal groups equal one group', run: equalGroupsEqualOne('none', false) },
  { name: 'equal groups equal one group, offload', run: equalGroupsEqualOne('cpu', false) },
  { name: 'equal groups equal one group, speculative', run: equalGroupsEqualOne('cpu', true) },
  { name: 'parameters in no group are frozen', run: parametersOutsideAreFrozen },
  {
    name: 'optimizers of the caller equal those of the configuration',
    run: clientOptimizersEqualTheFiles,
  },
  { name: 'schedules of the caller: one for all groups, one per group', run: clientSchedules },
  { name: 'without a schedule rates are the caller’s', run: ratesAreTheCallers },
  { name: 'wrong groups are refused', run: wrongGroups },
  {
    name: 'a value that is no schedule is refused, and the error describes a schedule',
    run: wrongSchedules,
  },
  { name: 'the engine reports its settings', run: saysWhatItIs },
];
