// Gradients, masters and weights that a program sets hold on one rank, also inside a gathered body.
import { type Engine, initialize, noGrad, scope, Tensor, zero } from '../../lib/index.js';
import type { Parameter } from '../../lib/nn/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { tinyBatch, tinyConfig, tinyEngine, tinyModel } from '../e2e/tiny-training.js';

const filled = ({ shape, numel }: Parameter, start: number): Tensor =>
  Tensor.from(
    Float32Array.from({ length: numel }, (_, i) => start + 2 ** -(i % 7)),
    { shape },
  ).keep();

const numbers = (tensor: Tensor | null): number[] =>
  scope(() => noGrad(() => (tensor as Tensor).to('f32').reshape([-1]).toArray() as number[]));

/** The values of a tensor that a getter returns, which is disposed. */
function taken(get: (parameter: Parameter) => Tensor | null, parameter: Parameter): number[] {
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
    const value = filled(parameter, 1);
    zero.safeSetFullGrad(parameter, value);
    expect(taken(zero.safeGetFullGrad, parameter)).toEqual(numbers(value));
    engine.step();
    for (const one of [tokens, targets, value]) one.dispose();
  });

  test('a master is set, and forwards compute with its weights', () => {
    const parameter = engine.module.parameters()[4] as Parameter;
    const value = filled(parameter, 2);
    zero.safeSetFullFp32Param(parameter, value);
    expect(taken(zero.safeGetFullFp32Param, parameter)).toEqual(numbers(value));
    expect(engine.withFullWeights(() => numbers(parameter))).toEqual(numbers(value));
    value.dispose();
  });

  test('a body writes one parameter and sets another of the same layer', () => {
    const [written, set] = ['h.0.ln_1.weight', 'h.0.ln_1.bias'].map(
      (name) => [...engine.module.namedParameters()].find(([one]) => one.endsWith(name))?.[1],
    ) as [Parameter, Parameter];
    const other = filled(set, 1);
    const own = new Array<number>(written.numel).fill(3);
    zero.GatheredParameters(engine, { modifierRank: 0 }, () => {
      noGrad(() => written.fill_(3));
      zero.safeSetFullFp32Param(set, other);
      expect([numbers(written), numbers(set)]).toEqual([own, numbers(other)]);
    });
    expect(taken(zero.safeGetFullFp32Param, written)).toEqual(own);
    expect(taken(zero.safeGetFullFp32Param, set)).toEqual(numbers(other));
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
