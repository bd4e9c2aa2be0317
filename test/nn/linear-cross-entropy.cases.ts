// Tests the fused head and loss: every way to keep logits, divisors, counts, and memory.
import assert from 'node:assert/strict';
import { DsError } from '../../lib/errors.js';
import { observeKernels } from '../../lib/runtime/call.js';
import type { Device } from '../../lib/runtime/device.js';
import type { DType } from '../../lib/runtime/dtype.js';
import { opNames } from '../../lib/runtime/kernels.generated.js';
import * as ops from '../../lib/tensor/index.js';
import { checkpoint, scope, Tensor } from '../../lib/tensor/index.js';
import { chunkRowsFor } from '../../lib/tensor/ops/linear-cross-entropy.js';
import { assertClose, generator, indices } from '../autograd/check.js';
import type { Case } from '../support/case.js';
import { peakOf } from '../support/peak.js';

type Options = ops.LinearCrossEntropyOptions;

const ROWS = 23;
const CHANNELS = 12;
const CLASSES = 61;

const headCase = (name: string, body: (device: Device) => void): Case => ({
  name: `linear cross-entropy: ${name}`,
  run: (device) => scope(() => body(device)),
});

const refuses = (code: string, message: RegExp, body: () => unknown): void =>
  assert.throws(body, (error: unknown) => {
    assert.ok(error instanceof DsError && error.code === code, `${error}`);
    assert.match(error.message, message);
    return true;
  });

const draw = (name: string, count: number, scale: number): number[] => {
  const random = generator(name);
  return Array.from({ length: count }, () => Math.fround((2 * random() - 1) * scale));
};

const xs = draw('x', ROWS * CHANNELS, 2);
const weights = draw('w', CLASSES * CHANNELS, 1);
const targetsOf = draw('t', ROWS, 1).map((value, row) =>
  row % 4 === 2 ? -100 : Math.floor(((value + 1) / 2) * CLASSES),
);

interface Leaves {
  x: Tensor;
  weight: Tensor;
  target: Tensor;
}

function leaves(device: Device, dtype: DType, isTrained: boolean): Leaves {
  const make = (values: number[], shape: number[]): Tensor =>
    Tensor.from(values, { shape, device }).to(dtype);
  const x = make(xs, [ROWS, CHANNELS]).requireGrad();
  const weight = make(weights, [CLASSES, CHANNELS]).requireGrad(isTrained);
  return { x, weight, target: indices(targetsOf, [ROWS], x) };
}

/** Losses, counts and gradients of the present values, in f64. */
function expectedOf({ x, weight }: Leaves, { labelSmoothing: s = 0 }: Options) {
  const [inputs, table] = [x.detach().toArray(), weight.detach().toArray()];
  const dx = new Array<number>(inputs.length).fill(0);
  let [sum, counted, correct] = [0, 0, 0];
  targetsOf.forEach((target, row) => {
    if (target === -100) return;
    const localValues = inputs.slice(row * CHANNELS, (row + 1) * CHANNELS);
    const logits = Array.from({ length: CLASSES }, (_, v) =>
      localValues.reduce((dot, value, c) => dot + value * (table[v * CHANNELS + c] as number), 0),
    );
    const largest = Math.max(...logits);
    const lse = largest + Math.log(logits.reduce((total, l) => total + Math.exp(l - largest), 0));
    const mean = logits.reduce((total, l) => total + l, 0) / CLASSES;
    sum += lse - (1 - s) * (logits[target] as number) - s * mean;
    counted += 1;
    correct += Number(logits.indexOf(largest) === target);
    logits.forEach((logit, v) => {
      const slope = Math.exp(logit - lse) - (v === target ? 1 - s : 0) - s / CLASSES;
      for (let c = 0; c < CHANNELS; ++c) {
        dx[row * CHANNELS + c] =
          (dx[row * CHANNELS + c] as number) + slope * (table[v * CHANNELS + c] as number);
      }
    });
  });
  return { sum, counted, correct, dx };
}

const ways: Options[] = [
  {},
  { chunkRows: 5 },
  { recompute: true },
  { recompute: true, chunkRows: 5 },
  { recompute: true, chunkRows: 5, skipIgnored: true },
  { recompute: true, chunkRows: 5, earlyWeight: true },
  { skipIgnored: true },
];

const tolerances = { f32: 2e-6, f16: 4e-3, bf16: 3e-2 } as const;

const values = (Object.keys(tolerances) as (keyof typeof tolerances)[]).flatMap((dtype) =>
  [true, false].map((isTrained) =>
    headCase(`${dtype}, ${isTrained ? 'trained' : 'frozen'} weight: all ways agree`, (device) => {
      for (const [i, way] of ways.entries()) {
        const localLeaves = leaves(device, dtype, isTrained);
        const labelSmoothing = i % 2 === 0 ? 0 : 0.15;
        const { sum, counted, dx } = expectedOf(localLeaves, { labelSmoothing });
        const divisors = [
          [{}, counted],
          [{ divisor: 7 }, 7],
          [{ divisor: Tensor.from([40], { device }) }, 40],
          [{ reduction: 'sum' }, 1],
        ] as const;
        for (const [options, divisor] of divisors) {
          const all = { ...way, labelSmoothing, ...options };
          const loss = ops.linearCrossEntropy(
            localLeaves.x,
            localLeaves.weight,
            localLeaves.target,
            all,
          );
          assert.equal(loss.dtype, 'f32');
          const tolerance = tolerances[dtype];
          assertClose([loss.item()], [sum / divisor], tolerance, JSON.stringify(all));
          loss.backward();
          const gradient = localLeaves.x.grad?.toArray() ?? [];
          const scaled = dx.map((value) => value / divisor);
          assertClose(gradient, scaled, tolerance, `gradient, ${JSON.stringify(all)}`);
          assert.equal(localLeaves.weight.grad !== null, isTrained);
          for (const leaf of [localLeaves.x, localLeaves.weight]) {
            leaf.grad?.release();
            leaf.grad = null;
          }
        }
      }
    }),
  ),
);

/** Rows of a head with more rows than classes. */
const MANY = 150;

/** Gradients of x and of the weight after `times` backward passes. */
function gradientsOf(
  device: Device,
  dtype: DType,
  options: Options,
  { learnsX = true, times = 1 } = {},
): number[][] {
  const make = (name: string, shape: number[]): Tensor => {
    const count = shape.reduce((product, size) => product * size, 1);
    return Tensor.from(draw(name, count, 1), { shape, device }).to(dtype);
  };
  const x = make('many', [2, MANY / 2, CHANNELS]).requireGrad(learnsX);
  const weight = make('table', [CLASSES, CHANNELS]).requireGrad();
  const chosen = Array.from({ length: MANY }, (_, row) => (row % 9 === 4 ? -100 : row % CLASSES));
  const target = indices(chosen, [2, MANY / 2], weight);
  for (let i = 0; i < times; ++i) {
    ops.linearCrossEntropy(x, weight, target, options).backward();
  }
  return [x, weight].map(({ grad }) => grad?.to('f32').toArray() ?? []);
}

/** The number of matrix products with a weight of more classes than rows, in chunks of 8 rows. */
function productsOf(device: Device, dtype: DType, earlyWeight: boolean): number {
  const own = leaves(device, dtype, true);
  const options: Options = { recompute: true, chunkRows: 8, earlyWeight };
  return matmulsOf(() => ops.linearCrossEntropy(own.x, own.weight, own.target, options).backward());
}

/** How many matrix products `body` computes. */
function matmulsOf(body: () => void): number {
  let count = 0;
  observeKernels((op) => () => {
    if (opNames[op] === 'Matmul') count += 1;
  });
  try {
    body();
  } finally {
    observeKernels(null);
  }
  return count;
}

const early: Case[] = (['f32', 'bf16', 'f16'] as const).map((dtype) =>
  headCase(`${dtype}, more rows than classes: gradients are those of kept logits`, (device) => {
    for (const chunkRows of [undefined, 40]) {
      for (const times of [1, 2]) {
        const again = { recompute: true, ...(chunkRows && { chunkRows }) };
        const expected = gradientsOf(device, dtype, { recompute: false }, { times });
        const result = gradientsOf(device, dtype, again, { times });
        expected.forEach((list, i) => {
          const name = `${['x', 'weight'][i]}, chunks of ${chunkRows}, ${times} passes`;
          assertClose(result[i] as number[], list, 2 * tolerances[dtype], name);
        });
      }
    }
    // Chunks of 40 rows: the forward's product, and two for the gradients.
    const products = matmulsOf(() =>
      gradientsOf(device, dtype, { recompute: true, chunkRows: 40 }),
    );
    assert.equal(products, 4 * (dtype === 'f16' ? 4 : 3));
    assert.equal(productsOf(device, dtype, true), 3 * (dtype === 'f16' ? 4 : 3));
    assert.equal(productsOf(device, dtype, false), 3 * 4);
    // An x without a gradient has its logits computed again, with the same bits.
    for (const reduction of ['mean', 'sum'] as const) {
      const options: Options = { recompute: true, chunkRows: 40, reduction };
      const [, both] = gradientsOf(device, dtype, options);
      const [none, alone] = gradientsOf(device, dtype, options, { learnsX: false });
      assert.deepEqual(none, []);
      assert.deepEqual(both, alone);
    }
  }),
);

const counting: Case[] = [
  headCase('a report counts without a change of one bit', (device) => {
    const report = new ops.LossReport(device);
    const localLeaves = leaves(device, 'f32', true);
    const { counted, correct } = expectedOf(localLeaves, {});
    let calls = 0;
    for (const way of ways) {
      const plain = ops.linearCrossEntropy(
        localLeaves.x,
        localLeaves.weight,
        localLeaves.target,
        way,
      );
      const reported = ops.linearCrossEntropy(
        localLeaves.x,
        localLeaves.weight,
        localLeaves.target,
        { ...way, report },
      );
      assert.equal(reported.item(), plain.item());
      calls += 1;
      const numbers = report.read();
      assert.deepEqual([numbers.counted, numbers.correct], [calls * counted, calls * correct]);
      assert.equal(numbers.accuracy, correct / counted);
    }
    const logits = ops.linear(localLeaves.x, localLeaves.weight);
    ops.crossEntropy(logits, localLeaves.target, { report, divisor: 5, labelSmoothing: 0.1 });
    assert.equal(report.read().counted, (calls + 1) * counted);
    report.reset();
    assert.deepEqual(
      [report.counted, report.correct].flatMap((tensor) => tensor.toArray()),
      [0, 0],
    );
    assert.ok(Number.isNaN(report.read().accuracy));
    report.dispose();
  }),
  headCase('what a checkpoint computes again is not counted again', (device) => {
    const report = new ops.LossReport(device);
    const localLeaves = leaves(device, 'f32', true);
    const loss = checkpoint(
      (x: Tensor) => ops.linearCrossEntropy(x, localLeaves.weight, localLeaves.target, { report }),
      localLeaves.x,
    );
    loss.backward();
    assert.equal(report.read().counted, expectedOf(localLeaves, {}).counted);
    report.dispose();
  }),
  headCase('of equal logits the first is the choice', (device) => {
    const report = new ops.LossReport(device);
    const logits = Tensor.from([1, 3, 3, 0, 3, 1, 3, 3, 0, 3], { shape: [2, 5], device });
    ops.crossEntropy(logits, indices([1, 4], [2], logits), { report });
    assert.deepEqual([report.counted.item(), report.correct.item()], [2, 1]);
    report.dispose();
  }),
  headCase('no row that counts: a loss of 0, gradients of 0, and it is told', (device) => {
    const empty = ops.zeros([1], { device });
    for (const way of ways) {
      const localLeaves = leaves(device, 'f32', true);
      const target = indices(new Array(ROWS).fill(-100), [ROWS], localLeaves.x);
      for (const options of [{}, { divisor: ops.zeros([], { device }) }]) {
        empty.zero_();
        const before = ops.countEmptyMeans(empty);
        const loss = ops.linearCrossEntropy(localLeaves.x, localLeaves.weight, target, {
          ...way,
          ...options,
        });
        ops.countEmptyMeans(before);
        assert.deepEqual([loss.item(), empty.item()], [0, 1], JSON.stringify(way));
        loss.backward();
        assert.deepEqual(new Set(localLeaves.x.grad?.toArray()), new Set([0]));
        assert.deepEqual(new Set(localLeaves.weight.grad?.toArray()), new Set([0]));
      }
    }
  }),
];

const gradients: Case[] = [
  headCase('as a part of a joint loss under loss scaling', (device) => {
    for (const isTrained of [true, false]) {
      const localLeaves = leaves(device, 'f32', isTrained);
      const recompute = true;
      const loss = ops.linearCrossEntropy(localLeaves.x, localLeaves.weight, localLeaves.target, {
        recompute,
        divisor: 4,
      });
      loss.mul(0.5).add(localLeaves.x.square().sum()).mul(1024).backward();
      const { dx } = expectedOf(localLeaves, {});
      const expected = dx.map((value, i) => 1024 * (value / 8 + 2 * (xs[i] as number)));
      assertClose(localLeaves.x.grad?.toArray() ?? [], expected, 1e-5, `trained ${isTrained}`);
    }
  }),
  headCase('a vocabulary that needs no padding, and x of three dims', (device) => {
    const draws = { x: draw('wide x', 24, 1), weight: draw('wide w', 512, 1) };
    const gradientsOf = (options: Options, isTrained: boolean): number[][] => {
      const x = Tensor.from(draws.x, { shape: [2, 3, 4], device }).requireGrad();
      const weight = Tensor.from(draws.weight, { shape: [128, 4], device }).requireGrad(isTrained);
      const target = indices([5, 127, -100, 0, 64, 5], [2, 3], x);
      const loss = ops.linearCrossEntropy(x, weight, target, options);
      loss.backward();
      return [loss, x.grad, weight.grad].map((tensor) => tensor?.toArray() ?? []);
    };
    const kept = gradientsOf({}, true);
    for (const way of ways) {
      for (const isTrained of [true, false]) {
        gradientsOf(way, isTrained).forEach((values, i) => {
          if (values.length > 0)
            assertClose(values, kept[i] as number[], 2e-6, JSON.stringify(way));
        });
      }
    }
  }),
  headCase('small gradients of f16 survive until they are scaled', (device) => {
    const x = Tensor.from([17], { shape: [1, 1], device, dtype: 'f16' }).requireGrad();
    const rows = Array.from({ length: 600 }, (_, v) => (v === 0 ? 1.2 : 0.1 - (v % 2) * 0.2));
    const weight = Tensor.from(rows, { shape: [600, 1], device }).to('f16');
    const target = indices([0], [1], x);
    const gradient = (options: Options): number => {
      ops.linearCrossEntropy(x, weight, target, options).mul(4096).backward();
      const value = x.grad?.item() ?? 0;
      x.grad?.release();
      x.grad = null;
      return value;
    };
    const kept = gradient({});
    assert.ok(Math.abs(gradient({ recompute: true }) / kept - 1) < 5e-3, `${kept}`);
  }),
];

const memory = headCase('peak memory is that of a chunk where no logits are kept', (device) => {
  const [rows, classes, chunkRows] = [512, 4096, 32];
  const make = (shape: number[]): Tensor => ops.uniform(shape, { device });
  const target = indices(
    Array.from({ length: rows }, (_, i) => (i * 37) % classes),
    [rows],
    make([1]),
  );
  const peak = (options: Options, isTrained: boolean): number => {
    const x = make([rows, 8]).requireGrad();
    const weight = make([classes, 8]).requireGrad(isTrained);
    x.grad = ops.zerosLike(x);
    if (isTrained) weight.grad = ops.zerosLike(weight);
    return peakOf(device, () => ops.linearCrossEntropy(x, weight, target, options).backward());
  };
  const all = 4 * rows * classes;
  const chunk = 4 * chunkRows * classes;
  const small = 300_000;
  assert.ok(peak({}, true) >= all);
  for (const isTrained of [true, false]) {
    const bytes = peak({ recompute: true, chunkRows }, isTrained);
    assert.ok(bytes >= chunk && bytes < chunk + small, `${bytes} beside a chunk of ${chunk}`);
  }
});

const rules: Case[] = [
  headCase('chunks hold 2^27 logits and 2048 rows at most', () => {
    const rows = [64, 50304, 128256, 151936, 250112, 2 ** 28].map((columns) =>
      chunkRowsFor(columns),
    );
    assert.deepEqual(rows, [2048, 2048, 1024, 512, 512, 1]);
  }),
  headCase('bad options are refused by name', (device) => {
    const { x, weight, target } = leaves(device, 'f32', true);
    const loss = (options: object) => () => ops.linearCrossEntropy(x, weight, target, options);
    refuses('DS_ARGUMENT', /divisor.*above 0.*got 0/, loss({ divisor: 0 }));
    refuses('DS_ARGUMENT', /divisor.*got NaN/, loss({ divisor: Number.NaN }));
    refuses('DS_ARGUMENT', /divisor.*"3"/, loss({ divisor: '3' }));
    refuses('DS_SHAPE', /divisor.*one element/, loss({ divisor: x }));
    refuses(
      'DS_ARGUMENT',
      /no gradient/,
      loss({ divisor: ops.ones([1], { device }).requireGrad() }),
    );
    refuses('DS_ARGUMENT', /a divisor or a reduction/, loss({ divisor: 2, reduction: 'sum' }));
    refuses('DS_ARGUMENT', /"mean" or "sum"/, loss({ reduction: 'none' }));
    refuses('DS_ARGUMENT', /labelSmoothing/, loss({ labelSmoothing: -0.1 }));
    refuses('DS_ARGUMENT', /skipIgnored/, loss({ skipIgnored: 1 }));
    refuses('DS_ARGUMENT', /report.*LossReport/, loss({ report: { counted: x } }));
    refuses('DS_ARGUMENT', /accuracy/, loss({ accuracy: true }));
    const logits = ops.linear(x, weight);
    const report = new ops.LossReport(device);
    const tensor = ops.ones([CLASSES], { device });
    for (const options of [{ reduction: 'none' as const }, { weight: tensor }]) {
      refuses('DS_ARGUMENT', /no class weights/, () =>
        ops.crossEntropy(logits, target, { ...options, report }),
      );
    }
    report.dispose();
    refuses('DS_SHAPE', /swiglu.*up like the gate/, () => ops.swiglu(x, weight));
    refuses('DS_SHAPE', /swiglu.*2H/, () => ops.swiglu(ops.ones([2, 3], { device })));
  }),
];

export const cases: Case[] = [...values, ...early, ...counting, ...gradients, memory, ...rules];
