// Tests the declared state of optimizers: invalid declarations throw, and each part of a parameter
// has its portion of the state.
import {
  declaredState,
  kindOf,
  perBlock,
  perElement,
  perParameter,
  portionOf,
  type StateTensor,
} from '../../lib/optim/declared-state.js';
import { Adafactor, AdamW8bit } from '../../lib/optim/index.js';
import { Tensor } from '../../lib/tensor/index.js';
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './declared-state.cases.js';

const keeper = (state: Record<string, StateTensor>) => ({
  name: 'Mine',
  declareState: () => state,
});

test.each<[what: string, state: Record<string, StateTensor>, message: RegExp]>([
  ['a name with a dot', { 'a.b': perElement([6]) }, /without dots.*a\.b/],
  ['a name that is taken', { master: perElement([6]) }, /master/],
  ['too few elements', { m: perElement([5]) }, /6 elements, one per 1/],
  ['too many blocks', { m: { ...perBlock([6], 4), shape: [3] } }, /2 elements, one per 4/],
  ['blocks of three', { m: { ...perBlock([6], 4), per: 3 } }, /power of two/],
  ['blocks of none', { m: { ...perBlock([6], 4), per: 0 } }, /power of two/],
])('%s is refused', (_, state, message) => {
  expect(() => declaredState(keeper(state), 0, [2, 3])).toThrow(
    expect.objectContaining({ code: 'DS_ARGUMENT', message: expect.stringMatching(message) }),
  );
});

test('the state of a part of a parameter', () => {
  const shape = [10, 100];
  const all = { from: 0, numel: 1000 };
  const states = [perElement(shape), perBlock(shape, 256), perParameter([10])];
  expect(states.map((state) => portionOf(state, all).numel)).toEqual([1000, 4, 10]);
  const [element, block, whole] = states as [StateTensor, StateTensor, StateTensor];
  expect(portionOf(element, { from: 512, numel: 300 })).toEqual({ from: 512, numel: 300 });
  // A block belongs to the part with its first element.
  expect(portionOf(block, { from: 0, numel: 512 })).toEqual({ from: 0, numel: 2 });
  expect(portionOf(block, { from: 512, numel: 488 })).toEqual({ from: 2, numel: 2 });
  expect(portionOf(block, { from: 513, numel: 200 })).toEqual({ from: 3, numel: 0 });
  expect(portionOf(whole, { from: 999, numel: 1 })).toEqual({ from: 0, numel: 10 });
});

test('kinds of state follow from names, dtypes and blocks, not from sizes', () => {
  const parameter = Tensor.from([1]);
  const eight = new AdamW8bit([parameter]);
  const kind = (shape: number[]) => kindOf(eight.declareState(0, shape));
  expect(kind([64, 64])).toBe(kind([100, 100]));
  expect(kind([64, 63])).not.toBe(kind([64, 64]));
  const factored = new Adafactor([parameter]);
  expect(Object.keys(factored.declareState(0, [4, 5, 6]))).toEqual([
    'exp_avg_sq_row',
    'exp_avg_sq_col',
    'row_factor',
    'column_factor',
  ]);
  const { exp_avg_sq_row: rows, exp_avg_sq_col: columns } = factored.declareState(0, [4, 5, 6]);
  expect([rows?.shape, columns?.shape]).toEqual([
    [4, 5],
    [4, 6],
  ]);
  expect(Object.keys(factored.declareState(0, [6]))).toEqual(['exp_avg_sq']);
  expect(Object.keys(factored.declareState(0, [0, 6]))).toEqual(['exp_avg_sq']);
  parameter.dispose();
});

test.each([
  [{ lr: 1e-3, relativeStep: true }, /lr or relativeStep/],
  [{ relativeStep: false }, /expected lr/],
  [{ lr: 1e-3, warmupInit: true }, /relativeStep with warmupInit/],
  [{ clipThreshold: 0 }, /clipThreshold/],
  [{ decayRate: 0.8 }, /decayRate/],
  [{ beta1: 1 }, /beta1/],
  [{ eps: [1e-30, -1] as const }, /eps\[1\]/],
])('Adafactor refuses %j', (options, message) => {
  const parameter = Tensor.from([1]);
  expect(() => new Adafactor([parameter], options)).toThrow(message);
  parameter.dispose();
});

testOnCpu('declared state', cases);
