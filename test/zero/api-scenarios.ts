// Tests that the functions of the zero namespace read and write the same values at every stage and
// placement.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { isDeepStrictEqual } from 'node:util';
import { type Engine, type nn, noGrad, scope, Tensor, zero } from '../../lib/index.js';
import { Net } from './shape-models.js';
import { forward, type Scenario, step } from './shape-scenarios.js';

type Read = (parameter: nn.Parameter) => Tensor | null;

/** A hash of the bits that `read` returns for all parameters. */
function bitsOf(engine: Engine, read: Read): number {
  const hash = createHash('sha1');
  for (const parameter of engine.module.parameters()) {
    const value = read(parameter);
    assert.ok(value && value.dtype === 'f32' && value.shape.join() === parameter.shape.join());
    hash.update(value.toRaw());
    value.dispose();
  }
  return hash.digest().readUInt32LE();
}

const state = (key: string) => (parameter: nn.Parameter) =>
  zero.safeGetFullOptimizerState(parameter, key);

/** Values that are equal on all ranks. */
function pattern({ shape, numel }: Tensor, device: Engine['device'], scale: number): Tensor {
  const values = Float32Array.from(
    { length: numel },
    (_, i) => scale * (2 + Math.cos(i * 0.37 + 1)),
  );
  return Tensor.from(values, { shape, device }).keep();
}

function readStates(engine: Engine): number[] {
  return [0, 1, 2].flatMap((index) => {
    engine.backward(forward(engine, index));
    const before = [zero.safeGetFullFp32Param, zero.safeGetFullGrad].map((read) =>
      bitsOf(engine, read),
    );
    if (index === 0) expectFirstMoment(engine);
    else engine.step();
    assert.equal(zero.safeGetFullGrad(engine.module.parameters()[0] as nn.Parameter), null);
    return [...before, bitsOf(engine, state('exp_avg')), bitsOf(engine, state('exp_avg_sq'))];
  });
}

/** After the first step exp_avg is (1 - beta1) times the clipped gradient of safeGetFullGrad(). */
function expectFirstMoment(engine: Engine): void {
  const parameters = engine.module.parameters();
  const grads = parameters.map((parameter) => {
    const grad = zero.safeGetFullGrad(parameter) as Tensor;
    const values = grad.toArray();
    grad.dispose();
    return values;
  });
  engine.step();
  const norm = Math.sqrt(grads.flat().reduce((sum, g) => sum + g * g, 0));
  assert.ok(Math.abs(norm / (engine.getGlobalGradNorm() as number) - 1) < 1e-4, `${norm}`);
  const factor = 0.1 * Math.min(1, 0.5 / norm);
  parameters.forEach((parameter, i) => {
    const moment = state('exp_avg')(parameter) as Tensor;
    moment.toArray().forEach((value, j) => {
      const expected = factor * (grads[i]?.[j] as number);
      assert.ok(
        Math.abs(value - expected) <= 1e-4 * Math.abs(expected) + 1e-9,
        `${value}, ${expected}`,
      );
    });
    moment.dispose();
  });
}

function writeStates(engine: Engine): number[] {
  const parameters = engine.module.parameters();
  const set = (i: number, scale: number, write: (p: nn.Parameter, v: Tensor) => void): Tensor => {
    const parameter = parameters[i] as nn.Parameter;
    const value = pattern(parameter, engine.device, scale);
    write(parameter, value);
    return value;
  };
  const holds = (i: number, read: Read, value: Tensor): void => {
    const now = read(parameters[i] as nn.Parameter) as Tensor;
    assert.deepEqual(now.toRaw(), value.toRaw());
    now.dispose();
    value.dispose();
  };
  const losses = [step(engine, 0)];
  const master = set(2, 0.3, zero.safeSetFullFp32Param);
  holds(2, zero.safeGetFullFp32Param, master);
  const moment = set(3, 0.01, (p, v) => zero.safeSetFullOptimizerState(p, v, 'exp_avg_sq'));
  holds(3, state('exp_avg_sq'), moment);
  losses.push(step(engine, 1));
  engine.backward(forward(engine, 2));
  // Powers of two, which are exact in any dtype with any loss scale.
  const grads = [4, 5].map((i) => {
    const parameter = parameters[i] as nn.Parameter;
    const value = Tensor.from(
      Float32Array.from({ length: parameter.numel }, (_, j) => 2 ** -(j % 5)),
      {
        shape: parameter.shape,
        device: engine.device,
      },
    ).keep();
    zero.safeSetFullGrad(parameter, value);
    return value;
  });
  set(6, 0.2, zero.safeSetFullFp32Param).dispose();
  for (const [i, value] of grads.entries()) holds(4 + i, zero.safeGetFullGrad, value);
  engine.step();
  losses.push(engine.getGlobalGradNorm() as number, step(engine, 3));
  return [
    ...losses,
    bitsOf(engine, zero.safeGetFullFp32Param),
    bitsOf(engine, state('exp_avg_sq')),
  ];
}

/** Master weights of all parameters, as text. */
function mastersOf(engine: Engine): string[] {
  return engine.module.parameters().map((parameter) => {
    const value = zero.safeGetFullFp32Param(parameter) as Tensor;
    const text = value.toArray().join();
    value.dispose();
    return text;
  });
}

/** Writes by ranks other than the modifier are lost: weights and masters keep their values. */
function intrude(engine: Engine): number[] {
  const losses = [step(engine, 0), step(engine, 1)];
  const name = [...engine.module.namedParameters()].map(([key]) => key)[1] as string;
  const like = engine.module.parameters()[1] as nn.Parameter;
  const weights = (): number => engine.withFullWeights(() => bitsIn(engine.module.parameters()));
  const before = [mastersOf(engine), weights()];
  const value = pattern(like, engine.device, 0.25 + engine.globalRank);
  zero.GatheredParameters(engine, { modifierRank: 0 }, () => {
    if (engine.globalRank > 0) engine.module.loadStateDict({ [name]: value }, { strict: false });
  });
  value.dispose();
  const isSame = isDeepStrictEqual([mastersOf(engine), weights()], before);
  // Either all ranks throw or no rank does; otherwise they would wait for each other.
  const others = scope(() => {
    const count = Tensor.from([isSame ? 0 : 1], { device: engine.device });
    engine.parts.ranks.world.allReduce(count, { purpose: 'ranks with other weights' }).wait();
    return count.item();
  });
  assert.equal(others, 0);
  return [...losses, step(engine, 2), step(engine, 3)];
}

/** Rank 1 changes two parameters; the masters of the others keep every bit. */
function gatherParameters(engine: Engine): number[] {
  const losses = [step(engine, 0), step(engine, 1)];
  const names = [...engine.module.namedParameters()].map(([name]) => name);
  const before = mastersOf(engine);
  const chosen = [names[1], names[4]] as string[];
  const options = Object.fromEntries(
    chosen.map((name) => {
      const parameter = engine.module.stateDict()[name] as Tensor;
      return [name, pattern(parameter, engine.device, 0.25)];
    }),
  );
  zero.GatheredParameters(engine, { modifierRank: engine.worldSize - 1 }, () => {
    assert.ok(engine.module.parameters().every((parameter) => parameter.toArray().length > 0));
    const isModifier = engine.globalRank === engine.worldSize - 1;
    if (isModifier) engine.module.loadStateDict(options, { strict: false });
    // The body may run forwards, which keep everything in place.
    engine.eval();
    forward(engine, 8);
    engine.train();
    assert.ok(engine.module.parameters().every((parameter) => parameter.toArray().length > 0));
  });
  mastersOf(engine).forEach((text, i) => {
    const value = options[names[i] as string];
    const rounded = value && scope(() => value.to('bf16').to('f32').toArray().join());
    assert.equal(text, rounded ?? before[i], names[i]);
  });
  for (const value of Object.values(options)) value.dispose();
  const first = engine.module.parameters()[0] as nn.Parameter;
  const held = zero.GatheredParameters(first, {}, () => first.toArray().length);
  assert.throws(() => engine.module.loadStateDict({}, { strict: true }), /DS_|values/);
  const all = engine.module.parameters();
  const fullValues = zero.GatheredParameters(engine.module, {}, () =>
    all.map((p) => p.toArray().length),
  );
  assert.deepEqual(
    fullValues,
    all.map(({ numel }) => numel),
  );
  settingInside(engine, first);
  settingBeside(engine);
  const mistyped = { modifierRnk: 0 } as zero.GatherOptions;
  assert.throws(() => zero.GatheredParameters(engine, mistyped, () => 0), /"modifierRank"/);
  return [...losses, held, step(engine, 2), step(engine, 3)];
}

/**
 * A rank with gathered parameters reads values that were set meanwhile, by a function or a nested
 * body.
 */
function settingInside(engine: Engine, parameter: nn.Parameter): void {
  const [name] = [...engine.module.namedParameters()].find(([, one]) => one === parameter) ?? [];
  const read = (): number[] => parameter.toArray().flat(2) as number[];
  engine.withFullWeights(() => {
    const before = read();
    const value = scope(() => noGrad(() => parameter.to('f32').mul(2)));
    zero.safeSetFullFp32Param(parameter, value);
    const doubled = before.map((x) => 2 * x);
    assert.deepEqual(read(), doubled);
    zero.GatheredParameters(engine, { modifierRank: 0 }, () => {
      const half = scope(() => noGrad(() => parameter.mul(0.5)));
      if (engine.globalRank === 0) {
        engine.module.loadStateDict({ [name as string]: half }, { strict: false });
      }
      half.dispose();
    });
    assert.deepEqual(read(), before);
    value.dispose();
  });
}

/**
 * A body writes one parameter of a layer and sets another with safeSetFullFp32Param(). Both writes
 * count, the second with all bits of its master. Writes of other ranks are lost.
 */
function settingBeside(engine: Engine): void {
  const [name, module] = [...engine.module.namedModules()].find(
    ([, one]) => [...one.namedParameters()].length > 1 && [...one.children()].length === 0,
  ) as [string, nn.Module];
  const [[first, written], [, set]] = [...module.namedParameters()] as [
    [string, nn.Parameter],
    [string, nn.Parameter],
  ];
  const root = engine.worldSize - 1;
  const value = pattern(written, engine.device, 0.5 + (engine.globalRank === root ? 0 : 1));
  const exact = pattern(set, engine.device, 1 / 3);
  zero.GatheredParameters(engine, { modifierRank: root }, () => {
    engine.module.loadStateDict({ [`${name}.${first}`]: value }, { strict: false });
    zero.safeSetFullFp32Param(set, exact);
  });
  const expected = pattern(written, engine.device, 0.5);
  const rounded = scope(() => expected.to(written.dtype).to('f32').toArray().join());
  for (const [parameter, text] of [
    [written, rounded],
    [set, exact.toArray().join()],
  ] as const) {
    const master = zero.safeGetFullFp32Param(parameter) as Tensor;
    assert.equal(master.toArray().join(), text);
    master.dispose();
  }
  for (const tensor of [value, exact, expected]) tensor.dispose();
}

/**
 * A body throws on the modifier, then on the other ranks. Writes of the modifier before the error
 * count, and ranks keep equal weights.
 */
function failInside(engine: Engine): number[] {
  const losses = [step(engine, 0)];
  const { globalRank, worldSize } = engine;
  const names = [...engine.module.namedParameters()].map(([name]) => name);
  const parameters = engine.module.parameters();
  const root = worldSize - 1;
  for (const [round, throws] of [globalRank === root, globalRank !== root].entries()) {
    const before = mastersOf(engine);
    const [chosen, other] = [1 + round, 4 + round];
    const index = globalRank === root ? chosen : other;
    const value = pattern(parameters[index] as nn.Parameter, engine.device, 0.25);
    const act = (): string =>
      zero.GatheredParameters(engine, { modifierRank: root }, () => {
        const options = { [names[index] as string]: value };
        engine.module.loadStateDict(options, { strict: false });
        if (throws) throw new Error('a body of mine');
        return 'done';
      });
    if (throws) assert.throws(act, /^Error: a body of mine$/);
    else assert.equal(act(), 'done');
    value.dispose();
    mastersOf(engine).forEach((text, i) => {
      assert.equal(text !== before[i], i === chosen, names[i]);
    });
    losses.push(engine.withFullWeights(() => bitsIn(parameters)));
  }
  return [...losses, step(engine, 1), bitsOf(engine, zero.safeGetFullFp32Param)];
}

/** A hash of the bits of `tensors`. */
function bitsIn(tensors: Iterable<Tensor>): number {
  const hash = createHash('sha1');
  for (const tensor of tensors) hash.update(tensor.toRaw());
  return hash.digest().readUInt32LE();
}

/**
 * After step(), withFullWeights(), a read after synchronize(), and a state dict give the same
 * weights.
 */
function synchronizeOften(engine: Engine): number[] {
  const { module } = engine;
  const isWhole = engine.zeroOptimizationStage() < 3;
  return [0, 1, 2, 3].flatMap((index) => {
    step(engine, index);
    let seen: number | null = null;
    // A different rank reads in each step, in different ways. The others continue, and every
    // collective is complete.
    if (isWhole && engine.globalRank === index % engine.worldSize) {
      if (index < 2) {
        engine.synchronize();
        seen = bitsIn(module.parameters());
      } else {
        seen = bitsIn(Object.values(module.stateDict()));
      }
    }
    const fullValue = engine.withFullWeights(() => bitsIn(module.parameters()));
    return [seen ?? fullValue, fullValue];
  });
}

/** Reads declared state, per parameter and per block, in its own layout, and writes it. */
function readingDeclared(engine: Engine): number[] {
  const losses = [step(engine, 0), step(engine, 1)];
  const { optimizer, units } = engine.parts;
  const entries = units.flatMap((unit) => unit.layout.entries.map((entry) => ({ unit, entry })));
  const found = entries.flatMap(({ unit, entry }) => {
    const parameter = unit.parameterOf(entry);
    const { group, shape } = entry;
    return Object.entries(optimizer.declareState(group, shape)).map(([name, declared]) => {
      const value = zero.safeGetFullOptimizerState(parameter, name) as Tensor;
      const { shape: kept, dtype } = declared;
      assert.deepEqual([value.shape, value.dtype], [kept, dtype], name);
      const bits = bitsIn([value]);
      const other = Tensor.from(new Float32Array(value.numel).fill(3), {
        shape: kept,
        device: engine.device,
      });
      zero.safeSetFullOptimizerState(parameter, other, name);
      const written = zero.safeGetFullOptimizerState(parameter, name) as Tensor;
      assert.ok(
        written.toArray().every((x) => x === 3),
        name,
      );
      zero.safeSetFullOptimizerState(parameter, value, name);
      for (const one of [value, other, written]) one.dispose();
      return bits;
    });
  });
  return [...losses, ...found, step(engine, 2)];
}

const inFp16 = {
  bf16: { enabled: false },
  fp16: { enabled: true, loss_scale: 128 },
};

export const apiScenarios: readonly Scenario[] = [
  { name: 'safeGet', model: () => new Net({ tied: true }), train: readStates },
  { name: 'safeGet, fp16', model: () => new Net(), train: readStates, config: inFp16 },
  { name: 'safeSet', model: () => new Net(), train: writeStates },
  { name: 'safeSet, fp16', model: () => new Net(), train: writeStates, config: inFp16 },
  { name: 'weights after step()', model: () => new Net(), train: synchronizeOften },
  {
    name: 'safeGet of rows and columns',
    model: () => new Net({ tied: true }),
    train: readingDeclared,
    config: { optimizer: { type: 'Adafactor', params: { lr: 1e-2, beta1: 0.9 } } },
  },
  {
    name: 'safeGet of 8-bit blocks',
    model: () => new Net(),
    train: readingDeclared,
    config: { optimizer: { type: 'AdamW8bit', params: { lr: 1e-2, min_8bit_size: 32 } } },
  },
  { name: 'GatheredParameters', model: () => new Net(), train: gatherParameters },
  { name: 'GatheredParameters that throws', model: () => new Net(), train: failInside },
  { name: 'GatheredParameters, other ranks', model: () => new Net(), train: intrude },
  {
    name: 'GatheredParameters, other ranks, fp32',
    model: () => new Net(),
    train: intrude,
    config: { bf16: { enabled: false } },
  },
  {
    name: 'zero.Init',
    model: () => zero.Init(() => new Net()),
  },
];
