// Gradients, masters and weights that a program sets hold on one rank, also inside a gathered body.
import { type Engine, initialize, nn, noGrad, scope, Tensor, zero } from '../../lib/index.js';
import type { Parameter } from '../../lib/nn/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { tinyBatch, tinyConfig, tinyEngine, tinyModel } from '../e2e/tiny-training.js';
import { thrownBy } from '../support/refusal.js';

const fillTensor = ({ shape, numel }: Parameter, start: number): Tensor =>
  Tensor.from(
    Float32Array.from({ length: numel }, (_, i) => start + 2 ** -(i % 7)),
    { shape },
  ).keep();

const numbers = (tensor: Tensor | null): number[] =>
  scope(() => noGrad(() => (tensor as Tensor).to('f32').reshape([-1]).toArray() as number[]));

/** The values of a tensor that a getter returns, which is disposed. */
function takeValues(get: (parameter: Parameter) => Tensor | null, parameter: Parameter): number[] {
  const tensor = get(parameter) as Tensor;
  const values = numbers(tensor);
  tensor.dispose();
  return values;
}

describe.each([1, 2, 3] as const)('stage %j', (stage) => {
  let engine: Engine;
  beforeEach(async () => {
    engine = await tinyEngine({ precision: 'bf16', offload: false, zero: { stage } }, cpu());
  });
  afterEach(() => engine.destroy());

  test('a gradient is set between backward() and step()', () => {
    const { tokens, targets } = tinyBatch(0, engine.device);
    const parameter = engine.module.parameters()[4] as Parameter;
    engine.backward(engine.forward<Tensor>(tokens, targets));
    const value = fillTensor(parameter, 1);
    zero.safeSetFullGrad(parameter, value);
    expect(takeValues(zero.safeGetFullGrad, parameter)).toEqual(numbers(value));
    engine.step();
    for (const tensor of [tokens, targets, value]) tensor.dispose();
  });

  test('a master is set, and forwards compute with its weights', () => {
    const parameter = engine.module.parameters()[4] as Parameter;
    const value = fillTensor(parameter, 2);
    zero.safeSetFullFp32Param(parameter, value);
    expect(takeValues(zero.safeGetFullFp32Param, parameter)).toEqual(numbers(value));
    expect(engine.withFullWeights(() => numbers(parameter))).toEqual(numbers(value));
    value.dispose();
  });

  test('a body writes one parameter and sets another of the same layer', () => {
    const [written, set] = ['h.0.ln_1.weight', 'h.0.ln_1.bias'].map(
      (name) => [...engine.module.namedParameters()].find(([one]) => one.endsWith(name))?.[1],
    ) as [Parameter, Parameter];
    const other = fillTensor(set, 1);
    const localValues = new Array<number>(written.numel).fill(3);
    zero.GatheredParameters(engine, { modifierRank: 0 }, () => {
      noGrad(() => written.fill_(3));
      zero.safeSetFullFp32Param(set, other);
      expect([numbers(written), numbers(set)]).toEqual([localValues, numbers(other)]);
    });
    expect(takeValues(zero.safeGetFullFp32Param, written)).toEqual(localValues);
    expect(takeValues(zero.safeGetFullFp32Param, set)).toEqual(numbers(other));
    other.dispose();
  });
});

test('a frozen parameter outside of units belongs to its engine until destroy()', async () => {
  const model = tinyModel();
  const frozen = model.parameters()[0] as Parameter;
  frozen.requiresGrad = false;
  const config = tinyConfig({ precision: 'fp32', offload: false });
  const { engine } = await initialize({ model, config, device: cpu() });
  const write = (modifierRank: number): void =>
    zero.GatheredParameters(frozen, { modifierRank }, () => void noGrad(() => frozen.fill_(0.5)));
  expect(() => write(3)).toThrow(/modifierRank/);
  write(0);
  expect(new Set(numbers(frozen))).toEqual(new Set([0.5]));
  engine.destroy();
  // Without an engine the body runs alone.
  expect(() => write(3)).not.toThrow();
});

test('a gradient is that of the whole step, before clipping and without the loss scale', async () => {
  const options = { precision: 'fp32', offload: false, accumulation: 2, clip: 1e-3 } as const;
  const engine = await tinyEngine(options, cpu());
  const parameter = engine.module.parameters()[4] as Parameter;
  const { tokens, targets } = tinyBatch(0, engine.device);
  const half = (): void => engine.backward(engine.forward<Tensor>(tokens, targets));
  expect(zero.safeGetFullGrad(parameter)).toBeNull();
  half();
  expect(zero.safeGetFullGrad(parameter)).toBeNull();
  expect(thrownBy(() => zero.safeSetFullGrad(parameter, parameter))).toMatchObject({
    code: 'DS_AUTOGRAD',
    op: 'safeSetFullGrad',
    got: 'a parameter without a gradient',
  });
  engine.step();
  half();
  const grad = takeValues(zero.safeGetFullGrad, parameter);
  // Both micro-batches are equal, so their mean is the gradient of one of them.
  const alone = await tinyEngine({ ...options, accumulation: 1 }, cpu());
  alone.backward(alone.forward<Tensor>(tokens, targets));
  const values = takeValues(zero.safeGetFullGrad, alone.module.parameters()[4] as Parameter);
  for (const [i, value] of values.entries()) expect(grad[i]).toBeCloseTo(value, 6);
  const norm = engine.getGlobalGradNorm() as number;
  const larger = Tensor.from(
    grad.map((value) => value * 1000),
    { shape: parameter.shape },
  ).keep();
  zero.safeSetFullGrad(parameter, larger);
  engine.step();
  // The norm of the step is that of the gradient that was set.
  expect(engine.getGlobalGradNorm()).toBeGreaterThan(10 * norm);
  expect(zero.safeGetFullGrad(parameter)).toBeNull();
  for (const engineOf of [engine, alone]) engineOf.destroy();
  for (const tensor of [tokens, targets, larger]) tensor.dispose();
});

test('shapes, names and owners are checked', async () => {
  const engine = await tinyEngine({ precision: 'fp32', offload: false }, cpu());
  const parameter = engine.module.parameters()[4] as Parameter;
  const wrong = Tensor.from([1, 2, 3]).keep();
  const other = new nn.Linear(2, 2).weight;
  const setters: [string, (parameter: Parameter, value: Tensor) => void][] = [
    ['safeSetFullGrad', zero.safeSetFullGrad],
    ['safeSetFullFp32Param', zero.safeSetFullFp32Param],
    [
      'safeSetFullOptimizerState',
      (parameter, value) => zero.safeSetFullOptimizerState(parameter, value, 'exp_avg'),
    ],
  ];
  for (const [op, set] of setters) {
    expect(thrownBy(() => set(parameter, wrong))).toMatchObject({
      code: 'DS_SHAPE',
      op,
      expected: `[${parameter.shape.join(', ')}]`,
    });
    expect(thrownBy(() => set(other, wrong))).toMatchObject({
      code: 'DS_ARGUMENT',
      op,
      expected: 'a parameter that an engine trains',
    });
  }
  for (const get of [zero.safeGetFullGrad, zero.safeGetFullFp32Param])
    expect(get(other)).toBeNull();
  const state = (key: string) => zero.safeGetFullOptimizerState(parameter, key);
  expect(thrownBy(() => state('momentum'))).toMatchObject({
    code: 'DS_ARGUMENT',
    op: 'optimizer state',
    got: '"momentum"',
    expected: expect.stringMatching(/^fp32, exp_avg, exp_avg_sq \(the state of AdamW\)$/),
  });
  const value = fillTensor(parameter, 3);
  zero.safeSetFullOptimizerState(parameter, value, 'exp_avg');
  expect(numbers(state('exp_avg'))).toEqual(numbers(value));
  zero.safeSetFullOptimizerState(parameter, value, 'fp32');
  expect(numbers(state('fp32'))).toEqual(numbers(value));
  expect(engine.withFullWeights(() => numbers(parameter))).toEqual(numbers(value));
  engine.destroy();
  for (const tensor of [wrong, value]) tensor.dispose();
});

test('zero.Init takes a function of a model without values', () => {
  const model = zero.Init(() => new nn.Linear(2, 2));
  expect(model).toBeInstanceOf(nn.Linear);
  for (const bad of [model, undefined, 3]) {
    expect(thrownBy(() => zero.Init(bad as never))).toMatchObject({
      op: 'zero.Init',
      expected: 'a function that makes a model',
    });
  }
  expect(thrownBy(() => zero.Init((() => Promise.resolve(model)) as never)).got).toBe(
    'a function that returns a promise',
  );
  expect(thrownBy(() => zero.Init(() => ({}) as never)).op).toBe('zero.Init');
  model.bias?.toArray();
  expect(thrownBy(() => zero.Init(() => model))).toMatchObject({
    code: 'DS_ARGUMENT',
    op: 'zero.Init',
    got: 'values of bias in memory',
  });
});
