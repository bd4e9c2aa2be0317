// Tests which checkpoints fit an engine: names, shapes, groups and the state of its optimizer. Each
// refusal names the tensor and the option that accepts it.
import {
  requireKnown,
  requireSameGroups,
  requireSameModel,
  requireSameOptimizer,
  requireSameShapes,
  unknownNames,
} from '../../lib/engine/saving/same-model.js';
import { perBlock, perElement } from '../../lib/optim/declared-state.js';
import { wholeRegion } from '../../lib/runtime/box.js';
import { thrownBy } from '../support/refusal.js';

interface Outline {
  dtype: string;
  shape: number[];
}
type Outlines = Record<string, Outline>;

const of = (shape: number[], dtype = 'f32'): Outline => ({ dtype, shape });
const pairsIn = (shape: readonly number[]): number => shape.reduce((a, b) => a * b, 1) / 2;
const WEIGHTS: Outlines = { weight: of([2, 3], 'bf16'), bias: of([2]) };

/** An engine that trains `weight` and, unless it is frozen, `bias`; its one buffer is `seen`. */
function engineOf({ frozen = [] as string[], groups = 1 } = {}) {
  const parameters = Object.entries(WEIGHTS).map(([name, { dtype, shape }]) => [
    name,
    { dtype, region: wholeRegion(shape) },
  ]);
  const entries = Object.entries(WEIGHTS)
    .filter(([name]) => !frozen.includes(name))
    .map(([name, { shape }]) => ({ name, group: 0, shape, region: wholeRegion(shape) }));
  const optimizer = {
    name: 'AdamW',
    groups: Array.from({ length: groups }, () => ({})),
    declareState: (_: number, shape: number[]) => ({
      exp_avg: perElement(shape),
      row: perBlock(shape, 2),
      unsaved: { ...perElement(shape), saved: false },
    }),
  };
  return {
    module: { namedParameters: () => parameters, namedBuffers: () => [['seen', of([1], 'i32')]] },
    optimizer,
    parts: { optimizer, stage: { partitions: [{ unit: { layout: { entries } } }] } },
  } as never;
}

function checkpointOf(model: Outlines, optimizer: Outlines = {}, state: object = {}) {
  const sections = { model, optimizer };
  return {
    path: '/saved/one',
    state,
    tensors: (section: 'model' | 'optimizer') => new Map(Object.entries(sections[section])),
  } as never;
}

const MODEL: Outlines = { ...WEIGHTS, seen: of([1], 'i32') };
const { bias: _, ...WITHOUT_BIAS } = MODEL;

test('an equal model is accepted, with another floating dtype too', () => {
  requireSameModel(engineOf(), checkpointOf(MODEL), true);
  requireSameModel(engineOf(), checkpointOf({ ...MODEL, bias: of([2], 'f16') }), true);
});

test('a missing tensor is refused, and accepted without strict', () => {
  const error = thrownBy(() => requireSameModel(engineOf(), checkpointOf(WITHOUT_BIAS), true));
  expect(error).toMatchObject({
    code: 'DS_CHECKPOINT',
    op: '/saved/one: bias',
    got: "a checkpoint without 1 of this model's tensors",
    hint: expect.stringContaining('{ loadModuleStrict: false } keeps the values'),
  });
  requireSameModel(engineOf(), checkpointOf(WITHOUT_BIAS), false);
});

test('only frozen tensors may be missing where the save excluded them', () => {
  const engine = engineOf({ frozen: ['bias'] });
  const excluded = { excludesFrozen: true };
  requireSameModel(engine, checkpointOf(WITHOUT_BIAS, {}, excluded), true);
  const differencesOf = (outlines: Outlines, state: object) =>
    thrownBy(() => requireSameModel(engine, checkpointOf(outlines, {}, state), true)).op;
  expect(differencesOf(WITHOUT_BIAS, {})).toBe('/saved/one: bias');
  expect(differencesOf(WITHOUT_BIAS, { excludesFrozen: false })).toBe('/saved/one: bias');
  // `weight` is trained, and `seen` is no parameter.
  const { weight: _weight, ...rest } = MODEL;
  expect(differencesOf(rest, excluded)).toBe('/saved/one: weight');
  expect(differencesOf(WEIGHTS, excluded)).toBe('/saved/one: seen');
});

test.each<[name: string, outline: Outline]>([
  ['weight', of([3, 2], 'bf16')],
  ['weight', of([6], 'bf16')],
  ['weight', of([2, 3], 'i32')],
  ['seen', of([1], 'f32')],
  ['seen', of([1], 'i64')],
])('%s as %j is refused, also without strict', (name, outline) => {
  const checkpoint = checkpointOf({ ...MODEL, [name]: outline });
  for (const strict of [true, false]) {
    const error = thrownBy(() => requireSameModel(engineOf(), checkpoint, strict));
    expect([error.code, error.op]).toEqual(['DS_CHECKPOINT', `/saved/one: ${name}`]);
  }
});

test('a tensor that no rank has is refused; one that another rank has is not', () => {
  const checkpoint = checkpointOf({ ...MODEL, a: of([1]), b: of([1]) });
  expect(unknownNames(engineOf(), checkpoint)).toEqual(['a', 'b']);
  requireKnown(checkpoint, []);
  requireKnown(checkpoint, [['a', 'b'], [], ['a']]);
  requireKnown(checkpoint, [['a'], ['b']]);
  const error = thrownBy(() => requireKnown(checkpoint, [['a', 'b'], ['b', 'a'], ['b']]));
  expect(error).toMatchObject({
    code: 'DS_CHECKPOINT',
    op: '/saved/one',
    got: '1 more, "b" among them',
    hint: expect.stringContaining('Build the module that has these names.'),
  });
});

const STATE: Outlines = Object.fromEntries(
  Object.entries(WEIGHTS).flatMap(([name, { shape }]) => [
    [`${name}.fp32`, of(shape)],
    [`${name}.exp_avg`, of(shape)],
    [`${name}.row`, of([pairsIn(shape)])],
  ]),
);

test('state has the declared shapes; a frozen parameter may have a master', () => {
  requireSameShapes(engineOf(), checkpointOf(MODEL, STATE));
  requireSameShapes(engineOf({ frozen: ['bias'] }), checkpointOf(MODEL, STATE));
  requireSameShapes(engineOf(), checkpointOf(MODEL, {}));
});

test.each<[key: string, outline: Outline, frozen: string[]]>([
  ['weight.exp_avg', of([3, 2]), []],
  ['weight.row', of([2, 3]), []],
  ['bias.fp32', of([3]), []],
  ['bias.fp32', of([3]), ['bias']],
  ['weight.exp_avg', of([2, 3], 'i32'), []],
])('%s as %j is refused', (key, outline, frozen) => {
  const checkpoint = checkpointOf(MODEL, { ...STATE, [key]: outline });
  const error = thrownBy(() => requireSameShapes(engineOf({ frozen }), checkpoint));
  expect([error.code, error.op]).toEqual(['DS_CHECKPOINT', `/saved/one: ${key}`]);
});

test('a checkpoint with another number of parameter groups is refused', () => {
  const savedGroups = (count: number) => {
    const groups = Array.from({ length: count }, () => ({}));
    return { location: '/saved/one/state.json', shared: { groups } } as never;
  };
  requireSameGroups(engineOf({ groups: 2 }), savedGroups(2));
  const error = thrownBy(() => requireSameGroups(engineOf({ groups: 2 }), savedGroups(1)));
  expect(error).toMatchObject({
    code: 'DS_CHECKPOINT',
    op: '/saved/one/state.json: state.groups',
    expected: '2 parameter groups',
    got: '1',
    hint: expect.stringContaining('{ loadOptimizerStates: false }'),
  });
});

describe('the state of the optimizer', () => {
  const check = (optimizer: Outlines, strict = true, model = MODEL) =>
    requireSameOptimizer(engineOf(), checkpointOf(model, optimizer), strict);

  test('of another optimizer, or of none, is refused', () => {
    check(STATE);
    const { 'bias.row': _row, ...fewer } = STATE;
    expect(thrownBy(() => check(fewer))).toMatchObject({
      code: 'DS_CHECKPOINT',
      op: '/saved/one: bias',
      got: 'fp32, exp_avg',
      expected: 'fp32, exp_avg, row (the state of AdamW)',
      hint: expect.stringMatching(/^It was saved with another optimizer,/),
    });
    expect(thrownBy(() => check({}))).toMatchObject({
      op: '/saved/one: weight',
      got: 'no optimizer state',
      hint: expect.stringMatching(/^It was not trained then,/),
    });
  });

  test('may have errors of ranks, and names with dots', () => {
    check({ ...STATE, 'bias.worker_error': of([2, 2]), 'bias.server_error': of([2]) });
    check({ ...STATE, 'other.bias.fp32': of([2]) });
  });

  test('without strict, a parameter without weights needs none', () => {
    const withoutBias = Object.entries(STATE).filter(([key]) => !key.startsWith('bias.'));
    check(Object.fromEntries(withoutBias), false, WITHOUT_BIAS);
    expect(thrownBy(() => check(Object.fromEntries(withoutBias), false)).op).toBe(
      '/saved/one: bias',
    );
    expect(thrownBy(() => check(Object.fromEntries(withoutBias), true, WITHOUT_BIAS)).op).toBe(
      '/saved/one: bias',
    );
  });
});
