// Tests composed functions against plain JavaScript in doubles, at odd sizes, in every supported
// dtype.
import assert from 'node:assert/strict';
import { DsError } from '../../lib/errors.js';
import type { Device } from '../../lib/runtime/device.js';
import type { DType } from '../../lib/runtime/dtype.js';
import * as ops from '../../lib/tensor/index.js';
import { assertClose, generator } from '../autograd/check.js';
import type { Case } from '../support/case.js';

const { Tensor } = ops;
const { POSITIVE_INFINITY: inf, NaN: nan } = Number;

export function composedCase(name: string, body: (device: Device) => void): Case {
  return {
    name: `composed: ${name}`,
    run(device) {
      const before = ops.liveTensors();
      const random = ops.getRandomState();
      ops.scope(() => body(device));
      ops.setRandomState(random);
      assert.equal(ops.liveTensors(), before, 'live tensors');
    },
  };
}

/** dtype, shape and values of a tensor. */
export function expectTensor(x: ops.Tensor, dtype: DType, list: unknown): void {
  assert.equal(x.dtype, dtype);
  assert.deepEqual(x.toList(), list);
}

export function refuses(code: string, text: RegExp, body: () => unknown): void {
  assert.throws(body, (error: unknown) => {
    assert.ok(error instanceof DsError, String(error));
    assert.equal(error.code, code, error.message);
    assert.match(error.message, text);
    return true;
  });
}

export const countingTensor = (
  device: Device,
  shape: number[],
  dtype: DType = 'f32',
): ops.Tensor => {
  const count = shape.reduce((n, size) => n * size, 1);
  return ops.arange(count, { device, dtype }).reshape(shape);
};

/** f64 exists on the CPU only. */
const exists = (dtype: DType, device: Device): boolean => dtype !== 'f64' || device.kind === 'cpu';

const tolerances: readonly [DType, number][] = [
  ['f64', 1e-12],
  ['f32', 1e-5],
  ['bf16', 1e-2],
  ['f16', 2e-3],
];

/**
 * Compares `run` over the last dim of random [3, 37] with `reference` of each row in doubles, in
 * every floating dtype.
 */
function expectRows(
  device: Device,
  run: (x: ops.Tensor) => ops.Tensor,
  reference: (row: number[]) => number,
): void {
  const random = generator(run.toString());
  const drawn = Array.from({ length: 3 * 37 }, () => random() * 4 - 1.5);
  for (const [dtype, tolerance] of tolerances) {
    if (!exists(dtype, device)) continue;
    ops.scope(() => {
      const x = Tensor.from(Float64Array.from(drawn), { shape: [3, 37] })
        .to(dtype)
        .to(device);
      const exact = x.toArray();
      const rows = [0, 1, 2].map((i) => exact.slice(37 * i, 37 * (i + 1)));
      for (const input of [x, x.transpose().contiguous().transpose()]) {
        const out = run(input);
        assert.equal(out.dtype, dtype);
        assertClose(out.toArray(), rows.map(reference), tolerance, `${run} of ${dtype}`);
      }
    });
  }
}

const total = (row: number[]): number => row.reduce((sum, value) => sum + value, 0);
const power = (p: number) => (row: number[]) =>
  total(row.map((value) => Math.abs(value) ** p)) ** (1 / p);
function variance(row: number[], correction: number): number {
  const mean = total(row) / row.length;
  return total(row.map((value) => (value - mean) ** 2)) / (row.length - correction);
}

const reductions: Case[] = [
  composedCase('var, std, norm and logsumexp in every floating dtype', (device) => {
    expectRows(
      device,
      (x) => x.var(-1),
      (row) => variance(row, 1),
    );
    expectRows(
      device,
      (x) => ops.variance(x, { dims: 1, correction: 0 }),
      (row) => variance(row, 0),
    );
    expectRows(
      device,
      (x) => x.std({ dim: 1, keepDim: true }),
      (row) => Math.sqrt(variance(row, 1)),
    );
    for (const p of [1, 2, 3, 0.5]) expectRows(device, (x) => x.norm(p, 1), power(p));
    expectRows(device, (x) => x.norm('fro', { dims: 1 }), power(2));
    const sizes = (row: number[]): number[] => row.map(Math.abs);
    expectRows(
      device,
      (x) => x.norm(inf, 1),
      (row) => Math.max(...sizes(row)),
    );
    expectRows(
      device,
      (x) => x.norm(-inf, 1),
      (row) => Math.min(...sizes(row)),
    );
    expectRows(
      device,
      (x) => x.norm(0, 1),
      (row) => row.filter(Boolean).length,
    );
    expectRows(
      device,
      (x) => x.logsumexp(1),
      (row) => Math.log(total(row.map(Math.exp))),
    );
  }),
  composedCase('their edges', (device) => {
    const from = (values: number[]) => Tensor.from(values, { device });
    expectTensor(from([5]).var(), 'f32', nan);
    expectTensor(from([5]).std({ correction: 0 }), 'f32', 0);
    assertClose(
      from([1e4, 1e4, 1e4 + 1])
        .var()
        .toArray(),
      [1 / 3],
      1e-5,
      'var far from 0',
    );
    assertClose(from([1e3, 1e3]).logsumexp().toArray(), [1e3 + Math.log(2)], 1e-6, 'logsumexp');
    expectTensor(from([-inf, -inf]).logsumexp(), 'f32', -inf);
    expectTensor(from([inf, 1]).logsumexp(), 'f32', inf);
    const zero = ops.zeros([3], { device }).requireGrad();
    ops.add(zero.norm(), ops.add(zero.std(), zero.norm(3))).backward();
    assert.deepEqual(zero.grad?.toList(), [0, 0, 0]);
    const fullTensor = countingTensor(device, [3], 'i32');
    refuses('DS_DTYPE', /var: expected a floating dtype.*\.to\('f32'\)\.var/, () =>
      fullTensor.var(),
    );
    for (const p of [{}, nan, '2', null, true]) {
      refuses('DS_ARGUMENT', /norm.*Options come after p/, () => from([1]).norm(p as never));
    }
    refuses('DS_ARGUMENT', /"unbiased"/, () => from([1]).std({ unbiased: true } as never));
    expectTensor(from([3, 1, nan]).argmin(), 'i64', 2);
    expectTensor(
      Tensor.from(
        [
          [3, 1],
          [0, 2],
        ],
        { device, dtype: 'u8' },
      ).argmin(0),
      'i64',
      [1, 0],
    );
  }),
  composedCase('any, all and counts', (device) => {
    const x = Tensor.from(
      [
        [0, 1, nan],
        [0, 0, 0],
      ],
      { device },
    );
    expectTensor(x.any(1), 'bool', [1, 0]);
    expectTensor(x.all(0), 'bool', [0, 0, 0]);
    expectTensor(x.any({ dims: 0, keepDim: true }), 'bool', [[0, 1, 1]]);
    expectTensor(x.gt(-1).all(), 'bool', 0);
    expectTensor(x.countNonzero(), 'i64', 2);
    expectTensor(x.countNonzero(0), 'i64', [0, 1, 1]);
    const nothing = ops.zeros([0, 2], { device });
    expectTensor(nothing.any(), 'bool', 0);
    expectTensor(nothing.all(0), 'bool', [1, 1]);
    expectTensor(nothing.any(1), 'bool', []);
    expectTensor(nothing.countNonzero(0), 'i64', [0, 0]);
    expectTensor(countingTensor(device, [2000]).to('i64').eq(1999).any(), 'bool', 1);
  }),
];

const elementwise: Case[] = [
  composedCase('logic, what is finite, sign', (device) => {
    const a = Tensor.from([0, 1, 2, nan], { device });
    const b = Tensor.from([0, 0, -1, 1], { device, dtype: 'i32' });
    expectTensor(a.logicalAnd(b), 'bool', [0, 0, 1, 1]);
    expectTensor(a.logicalOr(b), 'bool', [0, 1, 1, 1]);
    expectTensor(a.logicalXor(b), 'bool', [0, 1, 0, 0]);
    expectTensor(a.logicalNot(), 'bool', [1, 0, 0, 0]);
    expectTensor(a.reshape(4, 1).logicalAnd(b.gt(-1).slice(0, 1, 3)), 'bool', [
      [0, 0],
      [1, 0],
      [1, 0],
      [1, 0],
    ]);
    for (const dtype of ['f32', 'f16', 'bf16', 'f64'] as const) {
      if (!exists(dtype, device)) continue;
      const x = Tensor.from([inf, -inf, nan, 0, -7], { device }).to(dtype);
      expectTensor(x.isinf(), 'bool', [1, 1, 0, 0, 0]);
      expectTensor(x.isnan(), 'bool', [0, 0, 1, 0, 0]);
      expectTensor(x.isfinite(), 'bool', [0, 0, 0, 1, 1]);
      expectTensor(x.sign(), dtype, [1, -1, 0, 0, -1]);
    }
    expectTensor(b.sign(), 'i32', [0, 0, -1, 1]);
    expectTensor(b.isfinite(), 'bool', [1, 1, 1, 1]);
    expectTensor(b.isnan(), 'bool', [0, 0, 0, 0]);
  }),
  composedCase('clamp and maskedFill', (device) => {
    const x = Tensor.from([-2, -1, 0, 1, nan], { device });
    expectTensor(x.clamp(-1, 0.5), 'f32', [-1, -1, 0, 0.5, nan]);
    expectTensor(x.clamp({ min: 0 }), 'f32', [0, 0, 0, 1, nan]);
    expectTensor(x.clamp(null, 0), 'f32', [-2, -1, 0, 0, nan]);
    expectTensor(x.clamp(2, 1), 'f32', [1, 1, 1, 1, nan]);
    expectTensor(countingTensor(device, [3], 'i64').clamp(1, 1), 'i64', [1, 1, 1]);
    const edge = Tensor.from([-1, 0.5], { device }).requireGrad();
    edge.clamp(-1, 0.5).sum().backward();
    assert.deepEqual(edge.grad?.toList(), [1, 1]);
    refuses('DS_ARGUMENT', /clamp.*got none/, () => x.clamp(null));
    refuses('DS_ARGUMENT', /"lower"/, () => x.clamp({ lower: 1 } as never));
    expectTensor(
      x.isnan().logicalNot().logicalAnd(x.maskedFill(x.isnan(), 9).gt(0)),
      'bool',
      [0, 0, 0, 1, 0],
    );
    expectTensor(x.maskedFill(x.isnan(), -inf), 'f32', [-2, -1, 0, 1, -inf]);
    refuses('DS_DTYPE', /maskedFill.*bool.*\.ne\(0\)/, () => x.maskedFill(x, 0));
  }),
];

const arrangement: Case[] = [
  composedCase('copies in another order', (device) => {
    const x = countingTensor(device, [2, 3], 'i32');
    expectTensor(x.flip(), 'i32', [
      [5, 4, 3],
      [2, 1, 0],
    ]);
    expectTensor(x.transpose().flip(0), 'i32', [
      [2, 5],
      [1, 4],
      [0, 3],
    ]);
    expectTensor(x.flip([]), 'i32', x.toList());
    expectTensor(x.roll(1), 'i32', [
      [5, 0, 1],
      [2, 3, 4],
    ]);
    expectTensor(x.roll([1, -4], [0, 1]), 'i32', [
      [4, 5, 3],
      [1, 2, 0],
    ]);
    expectTensor(x.roll(3, 1), 'i32', x.toList());
    expectTensor(x.repeat(1, 2), 'i32', [
      [0, 1, 2, 0, 1, 2],
      [3, 4, 5, 3, 4, 5],
    ]);
    expectTensor(x.repeat([2, 1, 1]), 'i32', [x.toList(), x.toList()]);
    expectTensor(x.repeat(0, 1), 'i32', []);
    expectTensor(x.repeatInterleave(2), 'i32', [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]);
    expectTensor(
      x.repeatInterleave(2, 0),
      'i32',
      [0, 0, 1, 1].map((i) => (x.toList() as unknown[])[i]),
    );
    expectTensor(x.diagonal(), 'i32', [0, 4]);
    expectTensor(x.diagonal(-1), 'i32', [3]);
    expectTensor(x.diagonal(5), 'i32', []);
    const copy = x.clone();
    assert.ok(copy.buffer !== x.buffer);
    expectTensor(x.movedim(0, 1), 'i32', [
      [0, 3],
      [1, 4],
      [2, 5],
    ]);
    assert.deepEqual(
      [...countingTensor(device, [2, 3, 5]).movedim([0, 1], [2, 0]).shape],
      [3, 5, 2],
    );
    assert.deepEqual([...countingTensor(device, [2, 6]).unflatten(-1, [-1, 2]).shape], [2, 3, 2]);
    refuses('DS_SHAPE', /repeat/, () => x.repeat(2));
    refuses('DS_SHAPE', /roll.*one for each shift/, () => x.roll([1, 2], 0));
    refuses('DS_SHAPE', /flip/, () => x.flip(2));
    refuses('DS_SHAPE', /unflatten.*product 3/, () => x.unflatten(1, [2, -1]));
    refuses('DS_SHAPE', /movedim/, () => x.movedim([0, 0], [0, 1]));
  }),
  composedCase('parts', (device) => {
    const x = countingTensor(device, [7]);
    assert.deepEqual(
      x.chunk(3).map((part) => part.toList()),
      [[0, 1, 2], [3, 4, 5], [6]],
    );
    assert.equal(x.chunk(5).length, 4);
    assert.equal(ops.zeros([0, 2], { device }).chunk(3).length, 3);
    assert.deepEqual(
      countingTensor(device, [2, 3])
        .unbind(1)
        .map((part) => part.toList()),
      [
        [0, 3],
        [1, 4],
        [2, 5],
      ],
    );
    const index = Tensor.from([2, 0, 2], { device, dtype: 'i64' });
    for (const dtype of ['f32', 'bf16', 'i64', 'bool'] as const) {
      const y = countingTensor(device, [2, 3]).to(dtype);
      const list = y.toList() as number[][];
      expectTensor(
        y.indexSelect(1, index),
        dtype,
        list.map((row) => [row[2], row[0], row[2]]),
      );
    }
    refuses('DS_SHAPE', /indexSelect.*an index \[n\]/, () => x.indexSelect(0, index.reshape(1, 3)));
    refuses('DS_DTYPE', /indexSelect.*i32 or i64/, () => x.indexSelect(0, x));
    if (device.kind === 'cpu') refuses('DS_INDEX', /7/, () => x.indexSelect(0, index.mul(4)));
  }),
  composedCase('triangles and paddings', (device) => {
    const x = countingTensor(device, [3, 4]).add(1);
    expectTensor(x.tril(), 'f32', [
      [1, 0, 0, 0],
      [5, 6, 0, 0],
      [9, 10, 11, 0],
    ]);
    expectTensor(x.triu(2), 'f32', [
      [0, 0, 3, 4],
      [0, 0, 0, 8],
      [0, 0, 0, 0],
    ]);
    expectTensor(ops.ones([2, 2], { device, dtype: 'bool' }).tril().to('u8'), 'u8', [
      [1, 0],
      [1, 1],
    ]);
    assert.deepEqual([...ops.ones([2, 5, 3], { device }).triu(-1).shape], [2, 5, 3]);
    expectTensor(x.slice(0, 0, 1).pad([1, 2], -1), 'f32', [[-1, 1, 2, 3, 4, -1, -1]]);
    expectTensor(x.pad([-1, -2, 1, -2]), 'f32', [[0], [2]]);
    assert.equal(x.pad([]).numel, 12);
    refuses('DS_ARGUMENT', /pad.*\[1\]/, () => x.pad([1]));
    refuses('DS_SHAPE', /pad/, () => x.pad([-3, -3]));
    refuses('DS_SHAPE', /tril.*\[\.\., R, C\]/, () => countingTensor(device, [3]).tril());
  }),
];

/** Functions of [5, 5] with gradient; each creates and frees temporary tensors. */
function chain(x: ops.Tensor): ops.Tensor {
  const spread = x.std(1).add(x.norm(2, 0)).add(x.logsumexp(1));
  const parts = x.clamp(-0.5, 0.7).tril(1).flip(0).roll(2, 1).pad([1, -1]).repeat(2, 1);
  const masked = x.maskedFill(x.gt(0.9), 2).indexSelect(0, ops.randperm(5, { device: x.device }));
  const product = ops.einsum('ij,kj,k->i', masked, parts, x.diagonal().repeat(2));
  return spread.mul(product).sum();
}

const segments: Case[] = [
  composedCase('a checkpointed segment replays them', (device) => {
    const gradient = (run: (x: ops.Tensor) => ops.Tensor): number[] => {
      ops.seed(3);
      const x = ops.uniform([5, 5], { device, low: -1 }).requireGrad();
      run(x).backward();
      return x.grad?.toArray() as number[];
    };
    const plain = gradient(chain);
    assert.ok(plain.every((value) => Number.isFinite(value) && value !== 0));
    assert.deepEqual(
      gradient((x) => ops.checkpoint(chain, x)),
      plain,
    );
  }),
];

const creation: Case[] = [
  composedCase('linspace, eye, fullLike, oneHot', (device) => {
    expectTensor(ops.linspace(0, 1, 5, { device }), 'f32', [0, 0.25, 0.5, 0.75, 1]);
    const third = ops.linspace(3, -7, 31, { dtype: 'f64' }).toArray();
    assertClose(
      third,
      third.map((_, i) => 3 - i / 3),
      1e-15,
      'linspace',
    );
    assert.equal(third.at(-1), -7);
    expectTensor(ops.linspace(2, 9, 1, { device }), 'f32', [2]);
    expectTensor(ops.linspace(2, 9, 0, { device }), 'f32', []);
    expectTensor(ops.eye(2, 3, { device, dtype: 'i32' }), 'i32', [
      [1, 0, 0],
      [0, 1, 0],
    ]);
    expectTensor(ops.eye(3, 1, { device }), 'f32', [[1], [0], [0]]);
    expectTensor(ops.eye(2, undefined, { device }), 'f32', [
      [1, 0],
      [0, 1],
    ]);
    expectTensor(ops.fullLike(ops.eye(1, 2, { device }), 7), 'f32', [[7, 7]]);
    const index = Tensor.from([2, 0], { device, dtype: 'i32' });
    expectTensor(ops.oneHot(index, 3), 'i64', [
      [0, 0, 1],
      [1, 0, 0],
    ]);
    refuses('DS_ARGUMENT', /linspace end.*undefined/, () => ops.linspace(0, undefined as never, 1));
    refuses('DS_ARGUMENT', /eye.*"kind"/, () => ops.eye(2, 2, { kind: 1 } as never));
  }),
  composedCase('randint and randperm follow the seed, alike on every device', (device) => {
    const draw = (where: Device | 'cpu') => {
      ops.seed(11);
      const integers = ops.randint(-3, 4, [5, 201], { device: where });
      const wide = ops.randint(0, 2 ** 40, [99], { device: where });
      const small = ops.randint(0, 256, [99], { device: where, dtype: 'u8' });
      const order = ops.randperm(101, { device: where });
      assert.deepEqual([integers.dtype, small.dtype, order.dtype], ['i64', 'u8', 'i64']);
      return [integers, wide, small, order].map((each) => each.toArray()) as number[][];
    };
    const [integers, wide, , order] = draw(device) as [number[], number[], number[], number[]];
    assert.deepEqual(draw(device), draw('cpu'));
    assert.deepEqual(
      [...new Set(integers)].sort((a, b) => a - b),
      [-3, -2, -1, 0, 1, 2, 3],
    );
    assert.ok(Math.abs(total(integers) / integers.length) < 0.3);
    assert.ok(Math.max(...wide) > 2 ** 38 && Math.max(...wide) < 2 ** 40);
    assert.ok(wide.some((value) => value % 2 === 1));
    assert.deepEqual(
      [...order].sort((a, b) => a - b),
      order.map((_, i) => i),
    );
    assert.notDeepEqual(order, ops.randperm(101).toArray());
    refuses('DS_ARGUMENT', /randint high/, () => ops.randint(3, 3, [1]));
    refuses('DS_ARGUMENT', /randint high for u8/, () => ops.randint(0, 257, [1], { dtype: 'u8' }));
    refuses('DS_SHAPE', /randint/, () => ops.randint(0, 2, 3 as never));
  }),
];

export const cases: Case[] = [
  ...reductions,
  ...elementwise,
  ...arrangement,
  ...segments,
  ...creation,
];
