// Initial values: bounds and moments from their formulas, the same numbers on every device, and on
// parameters old and new.
import assert from 'node:assert/strict';
import { DsError } from '../../lib/errors.js';
import * as nn from '../../lib/nn/index.js';
import { orthonormalRows } from '../../lib/nn/orthonormal.js';
import { erf } from '../../lib/nn/truncated-normal.js';
import type { Device } from '../../lib/runtime/device.js';
import {
  claim,
  disclaim,
  noGrad,
  ones,
  scope,
  seed,
  Tensor,
  trainerOf,
} from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';

function initCase(name: string, body: (device: Device) => void): Case {
  return { name: `init: ${name}`, run: (device) => scope(() => body(device)) };
}

const refuses = (code: string, body: () => unknown): void =>
  assert.throws(body, (error: unknown) => error instanceof DsError && error.code === code);

function writtenValues(init: nn.Initializer, shape: readonly number[], device: Device): number[] {
  const out = Tensor.empty(shape, 'f32', device);
  init(out);
  return out.toArray();
}

function moments(values: readonly number[]) {
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  const square = values.reduce((a, b) => a + (b - mean) ** 2, 0) / values.length;
  const largest = values.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
  return { mean, stddev: Math.sqrt(square), largest };
}

/** Weight [64, 48, 3]: 144 inputs, 192 outputs. */
const SHAPE = [64, 48, 3];
const spreads: [string, () => nn.Initializer, number][] = [
  ['xavier', () => nn.init.xavierUniform(), Math.sqrt(2 / 336)],
  ['xavier', () => nn.init.xavierNormal(2), 2 * Math.sqrt(2 / 336)],
  ['kaiming', () => nn.init.kaimingUniform({ a: Math.sqrt(5) }), Math.sqrt(2 / 6 / 144)],
  [
    'kaiming',
    () => nn.init.kaimingNormal({ mode: 'fanOut', nonlinearity: 'relu' }),
    Math.sqrt(2 / 192),
  ],
];

/** The matrix of inner products of the rows of [rows, columns]. */
function gram(values: ArrayLike<number>, rows: number, columns: number): number[][] {
  return Array.from({ length: rows }, (_, i) =>
    Array.from({ length: rows }, (_, j) => {
      let sum = 0;
      for (let k = 0; k < columns; ++k) {
        sum += (values[i * columns + k] as number) * (values[j * columns + k] as number);
      }
      return sum;
    }),
  );
}

export const cases: Case[] = [
  ...spreads.map(([name, make, expected], i) =>
    initCase(`${name} ${i % 2 ? 'normal' : 'uniform'}`, (device) => {
      seed(i);
      const { mean, stddev, largest } = moments(writtenValues(make(), SHAPE, device));
      assert.ok(Math.abs(mean) < 0.04 * expected, `mean ${mean}`);
      assert.ok(Math.abs(stddev / expected - 1) < 0.03, `deviation ${stddev}, not ${expected}`);
      if (i % 2 === 0) assert.ok(largest <= Math.sqrt(3) * expected * 1.00001, `most ${largest}`);
    }),
  ),
  initCase('truncated normal: bounds, moments, quantiles', (device) => {
    seed(4);
    const values = writtenValues(
      nn.init.truncNormal({ stddev: 0.5, low: -1, high: 1 }),
      [40000],
      device,
    );
    const { mean, stddev, largest } = moments(values);
    assert.ok(largest <= 1 && Math.abs(mean) < 0.01);
    // Var = 1 - 2 a phi(a) / (2 Phi(a) - 1) at a = 2.
    assert.ok(Math.abs(stddev / (0.5 * 0.879626) - 1) < 0.02, `deviation ${stddev}`);
    for (const at of [-0.8, -0.2, 0.5, 0.95]) {
      const share = values.filter((value) => value < at).length / values.length;
      const expected = (erf(at / 0.5 / Math.SQRT2) / erf(Math.SQRT2) + 1) / 2;
      assert.ok(Math.abs(share - expected) < 0.012, `${share} below ${at}, not ${expected}`);
    }
    const wide = writtenValues(nn.init.truncNormal({ low: -40, high: 40 }), [4000], device);
    assert.ok(wide.every(Number.isFinite) && Math.abs(moments(wide).stddev - 1) < 0.05);
  }),
  initCase('the error function against published values', () => {
    const table = [
      [0.5, 0.5204998778130465],
      [1, 0.8427007929497149],
      [2, 0.9953222650189527],
      [2.5, 0.999593047982555],
      [3, 0.9999779095030014],
      [-1, -0.8427007929497149],
      [9, 1],
    ] as [number, number][];
    for (const [x, y] of table) assert.ok(Math.abs(erf(x) - y) < 1e-14, `erf(${x}) = ${erf(x)}`);
  }),
  initCase('orthogonal rows and columns', (device) => {
    for (const [rows, columns] of [
      [9, 9],
      [5, 12],
      [13, 6],
    ] as const) {
      const values = orthonormalRows(rows, columns, { seed: 1, offset: 2 });
      const isTall = rows > columns;
      const at = (i: number): number => (i % rows) * columns + Math.floor(i / rows);
      const turned = values.map((_, i) => values[at(i)] as number);
      const products = isTall ? gram(turned, columns, rows) : gram(values, rows, columns);
      products.forEach((row, i) => {
        for (const [j, value] of row.entries()) {
          assert.ok(Math.abs(value - (i === j ? 1 : 0)) < 1e-13);
        }
      });
    }
    const kernel = writtenValues(nn.init.orthogonal(2), [4, 3, 5], device);
    gram(kernel, 4, 15).forEach((row, i) => {
      for (const [j, value] of row.entries()) {
        assert.ok(Math.abs(value - (i === j ? 4 : 0)) < 1e-5);
      }
    });
    assert.deepEqual(writtenValues(nn.init.orthogonal(), [0, 3], device), []);
  }),
  initCase('constants, shifted normals, uniform ranges', (device) => {
    assert.deepEqual(writtenValues(nn.init.constant(2.5), [2], device), [2.5, 2.5]);
    const shifted = moments(writtenValues(nn.init.normal(0.1, 3), [10000], device));
    assert.ok(Math.abs(shifted.mean - 3) < 0.01 && Math.abs(shifted.stddev - 0.1) < 0.005);
    const range = writtenValues(nn.init.uniform(2, 3), [1000], device);
    assert.ok(range.every((value) => value >= 2 && value < 3));
  }),
  initCase('a parameter starts anew, with memory or without, with the same numbers', (device) => {
    const make = (): nn.Linear => {
      seed(8);
      return new nn.Linear(6, 5);
    };
    const [lazy, eager, half] = [make(), make().to(device), make().to(device, 'bf16')];
    const starts = [lazy, eager, half].map(({ weight }) => {
      seed(9);
      return weight.initialize(nn.init.xavierUniform());
    });
    assert.equal(lazy.weight.isMaterialized, false);
    const [first, second, third] = starts.map((weight) => weight.to('cpu').toArray());
    assert.deepEqual(second, first);
    assert.deepEqual(
      third,
      noGrad(() => lazy.weight.to('bf16').toArray()),
    );
    assert.ok(eager.weight.requiresGrad && half.weight.dtype === 'bf16');
    const model = new nn.Sequential(make(), make()).to(device);
    model.apply((module) => {
      if (module instanceof nn.Linear) module.bias?.initialize(nn.init.constant(0.5));
    });
    assert.deepEqual(model.stateDict()['1.bias']?.toArray(), ones([5]).mul(0.5).toArray());
  }),
  initCase('bad arguments are refused by name', (device) => {
    refuses('DS_SHAPE', () => writtenValues(nn.init.xavierUniform(), [3], device));
    refuses('DS_SHAPE', () => writtenValues(nn.init.orthogonal(), [3], device));
    refuses('DS_ARGUMENT', () => nn.init.kaimingNormal({ mode: 'fan_in' as never }));
    refuses('DS_ARGUMENT', () => nn.init.calculateGain('gelu' as never));
    refuses('DS_ARGUMENT', () => nn.init.truncNormal({ low: 1, high: 0 }));
    refuses('DS_ARGUMENT', () => nn.init.truncNormal({ std: 1 } as never));
    refuses('DS_ARGUMENT', () => nn.init.normal(-1));
    refuses('DS_ARGUMENT', () => new nn.Linear(2, 2).weight.initialize(0 as never));
    refuses('DS_ARGUMENT', () => {
      const { weight } = new nn.Linear(2, 2);
      claim(weight, {});
      weight.initialize(nn.init.zeros);
    });
  }),
  initCase('an initializer writes into what it is given', (device) => {
    const fill: nn.Initializer = (out) => out.fill_(3);
    const first: nn.Initializer = (out) => out.zero_().select(0, 0).fill_(1);
    const apart: nn.Initializer = () => ones([2, 2], { device });
    const half = [{ offset: [0, 0], shape: [1, 2] }];
    for (const [init, values] of [[fill, [3, 3, 3, 3]] as const, [first, [1, 1, 0, 0]] as const]) {
      const parameter = new nn.Parameter([2, 2], init);
      assert.deepEqual([...parameter.toArray()], values);
      parameter.dispose();
      assert.deepEqual(new nn.Parameter([2, 2], init).cutTo(half).toArray(), values.slice(0, 2));
    }
    const parameter = new nn.Parameter([2, 2], apart);
    for (let i = 0; i < 2; ++i) refuses('DS_ARGUMENT', () => parameter.toArray());
    refuses('DS_ARGUMENT', () => new nn.Parameter([2, 2], apart).cutTo(half).toArray());
    refuses('DS_ARGUMENT', () => new nn.Parameter([2, 2], fill).initialize(apart).toArray());
    const embedding = new nn.Embedding(2, 2, { init: apart, paddingIdx: 0 });
    refuses('DS_ARGUMENT', () => embedding.weight.toArray());
  }),
  initCase('a parameter is whose that has claimed it, whoever listens to its gradient', () => {
    const { weight } = new nn.Linear(2, 2);
    const [trainer, other] = [{}, {}];
    weight.onGradReady = () => {};
    weight.initialize(nn.init.zeros);
    claim(weight, trainer);
    claim(weight, trainer);
    assert.equal(trainerOf(weight), trainer);
    refuses('DS_ARGUMENT', () => claim(weight, other));
    disclaim(weight, other);
    refuses('DS_ARGUMENT', () => weight.initialize(nn.init.zeros));
    disclaim(weight, trainer);
    weight.initialize(nn.init.zeros);
    assert.equal(trainerOf(weight), null);
  }),
];
