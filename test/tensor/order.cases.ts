// Tests sort, cumulative, scatter, random and padding ops, and their errors.
import assert from 'node:assert/strict';
import type { Device } from '../../lib/runtime/device.js';
import type { DType } from '../../lib/runtime/dtype.js';
import * as ops from '../../lib/tensor/index.js';
import { assertClose } from '../autograd/check.js';
import type { Case } from '../support/case.js';
import { composedCase, countingTensor, expectTensor, refuses } from './composed.cases.js';

const { Tensor } = ops;
const { NaN: nan, POSITIVE_INFINITY: inf } = Number;

const i64 = (values: number[] | number[][], device: Device): ops.Tensor =>
  Tensor.from(values as number[], { dtype: 'i64', device });

const functions: Case[] = [
  composedCase('stairs, small differences and angles', (device) => {
    const x = Tensor.from([-1.5, -0.5, 0.5, 1.5, 2.5, nan, -inf], { device });
    expectTensor(x.floor(), 'f32', [-2, -1, 0, 1, 2, nan, -inf]);
    expectTensor(x.ceil().add(0), 'f32', [-1, 0, 1, 2, 3, nan, -inf]);
    expectTensor(x.round().add(0), 'f32', [-2, 0, 0, 2, 2, nan, -inf]);
    expectTensor(x.trunc().add(0), 'f32', [-1, 0, 0, 1, 2, nan, -inf]);
    expectTensor(countingTensor(device, [3], 'i32').round(), 'i32', [0, 1, 2]);
    const small = Tensor.from([1e-7, -1e-7], { device });
    assertClose(small.log1p().toArray(), [1e-7, -1e-7], 1e-6, 'log1p');
    assertClose(small.expm1().toArray(), [1e-7, -1e-7], 1e-6, 'expm1');
    const [y, z] = [i64([0, 1, 0, -1], device), i64([1, 0, -1, 0], device)];
    const quarter = Math.PI / 2;
    assertClose(y.atan2(z).toArray(), [0, quarter, 2 * quarter, -quarter], 1e-6, 'atan2');
    const large = Tensor.from([300, -400], { device, dtype: 'f16' }).requireGrad();
    large
      .atan2(Tensor.from([400, 300], { device, dtype: 'f16' }))
      .sum()
      .backward();
    assertClose(large.grad?.toArray() ?? [], [400 / 25e4, 300 / 25e4], 2e-3, 'slope beyond f16');
    refuses('DS_DTYPE', /unary.*i64/, () => y.erf());
  }),
];

const running: Case[] = [
  composedCase('running sums and products, and the product over dims', (device) => {
    const x = countingTensor(device, [2, 3], 'i32').add(1);
    expectTensor(x.cumsum(1), 'i64', [
      [1, 3, 6],
      [4, 9, 15],
    ]);
    expectTensor(x.cumprod(0), 'i64', [
      [1, 2, 3],
      [4, 10, 18],
    ]);
    expectTensor(x.gt(2).cumsum(-1), 'i64', [
      [0, 0, 1],
      [1, 2, 3],
    ]);
    expectTensor(x.prod(), 'i64', 720);
    expectTensor(x.to('f32').prod({ dim: 0, keepDim: true }), 'f32', [[4, 10, 18]]);
    expectTensor(ops.zeros([0, 2], { device }).prod(0), 'f32', [1, 1]);
    const wide = ops.full([4099], 1 / 64, { device, dtype: 'bf16' }).cumsum(0);
    assertClose([wide.toArray().at(-1) as number], [4099 / 64], 4e-3, 'bf16 sums in f32');
    refuses('DS_SHAPE', /cumsum.*a dim in \[-2, 2\)/, () => x.cumsum(2));
  }),
  composedCase('their gradients at zeros', (device) => {
    const slopes = (values: number[], run: (x: ops.Tensor) => ops.Tensor): unknown => {
      const x = Tensor.from(values, { device }).requireGrad();
      run(x).sum().backward();
      return x.grad?.toList();
    };
    const [product, running] = [(x: ops.Tensor) => x.prod(), (x: ops.Tensor) => x.cumprod(0)];
    assert.deepEqual(slopes([2, 0, 3], product), [0, 6, 0]);
    assert.deepEqual(slopes([2, 0, 0], product), [0, 0, 0]);
    assert.deepEqual(slopes([2, 3, 5], product), [15, 10, 6]);
    assert.deepEqual(slopes([2, 0, 3, 4], running), [1, 2 + 6 + 24, 0, 0]);
    assert.deepEqual(slopes([0, 2, 0, 3], running), [1 + 2, 0, 0, 0]);
  }),
];

const order: Case[] = [
  composedCase('sort, argsort and topk', (device) => {
    const x = Tensor.from([3, nan, -inf, 3, -0, 0], { device });
    const up = x.sort();
    assert.deepEqual(up.values.toList(), [-inf, -0, 0, 3, 3, nan]);
    expectTensor(up.indices, 'i64', [2, 4, 5, 0, 3, 1]);
    expectTensor(x.argsort({ descending: true }), 'i64', [1, 0, 3, 4, 5, 2]);
    const top = x.topk(2);
    expectTensor(top.values, 'f32', [nan, 3]);
    expectTensor(top.indices, 'i64', [1, 0]);
    expectTensor(x.topk(3, { largest: false, sorted: false }).indices, 'i64', [2, 4, 5]);
    const grid = Tensor.from(
      [
        [5, 1],
        [2, 9],
        [7, 4],
      ],
      { device, dtype: 'u8' },
    );
    expectTensor(grid.sort(0).values, 'u8', [
      [2, 1],
      [5, 4],
      [7, 9],
    ]);
    expectTensor(grid.argsort(0), 'i64', [
      [1, 0],
      [0, 2],
      [2, 1],
    ]);
    expectTensor(grid.topk(1, 0).indices, 'i64', [[2, 1]]);
    assert.deepEqual([...grid.topk(0).values.shape], [3, 0]);
    refuses('DS_SHAPE', /topk: expected k of at most the size of dim 1.*got 3/, () => grid.topk(3));
    refuses('DS_ARGUMENT', /topk k.*got -1/, () => grid.topk(-1));
    refuses('DS_ARGUMENT', /sort.*"decending".*"descending"/, () =>
      grid.sort({ decending: true } as never),
    );
  }),
];

const places: Case[] = [
  composedCase('scatter and scatterAdd', (device) => {
    const zeros = ops.zeros([2, 4], { device });
    const index = i64(
      [
        [1, 1, 0],
        [3, 2, 3],
      ],
      device,
    );
    const source = countingTensor(device, [2, 3]).add(1);
    expectTensor(zeros.scatter(1, index, source), 'f32', [
      [3, 2, 0, 0],
      [0, 0, 5, 6],
    ]);
    expectTensor(zeros.scatterAdd(1, index, source), 'f32', [
      [3, 3, 0, 0],
      [0, 0, 5, 10],
    ]);
    expectTensor(zeros.to('bool').scatter(1, index.slice(1, 0, 1), 1), 'bool', [
      [0, 1, 0, 0],
      [0, 0, 0, 1],
    ]);
    const counts = ops.zeros([3], { device, dtype: 'i64' });
    const many = ops.arange(3000, { device, dtype: 'i64' });
    const thirds = many.sub(many.div(3).floor().to('i64').mul(3));
    expectTensor(counts.scatterAdd(0, thirds, ops.onesLike(many)), 'i64', [1000, 1000, 1000]);
    refuses('DS_SHAPE', /scatter: .*the source, \[2, 2\]/, () =>
      zeros.scatter(1, index, source.slice(1, 0, 2)),
    );
    refuses('DS_SHAPE', /scatter: .*except in dim 1/, () =>
      zeros.slice(0, 0, 1).scatter(1, index, source),
    );
    refuses('DS_DTYPE', /scatterAdd.*f32.*i64/, () => zeros.scatterAdd(1, index, index));
    refuses('DS_DTYPE', /scatter.*i32 or i64/, () => zeros.scatter(1, source, source));
    if (device.kind === 'cpu') {
      refuses('DS_INDEX', /\[0, 4\).*got 5/, () => zeros.scatter(1, index.add(2), source));
    } else {
      expectTensor(zeros.scatter(1, index.add(2), 7), 'f32', [
        [0, 0, 7, 7],
        [0, 0, 0, 0],
      ]);
      expectTensor(zeros.scatterAdd(1, index.sub(3), source).sum(), 'f32', 4 + 6);
    }
  }),
  composedCase('gather takes an index smaller than the tensor', (device) => {
    const x = countingTensor(device, [3, 4]);
    expectTensor(x.gather(1, i64([[3, 0]], device)), 'f32', [[3, 0]]);
    refuses('DS_SHAPE', /gather.*except in dim 1/, () =>
      x.gather(1, i64([[0], [0], [0], [0]], device)),
    );
  }),
  composedCase('borders that go on', (device) => {
    const x = countingTensor(device, [2, 3], 'i32');
    expectTensor(x.pad([2, 1], 'reflect'), 'i32', [
      [2, 1, 0, 1, 2, 1],
      [5, 4, 3, 4, 5, 4],
    ]);
    expectTensor(x.pad([1, 2, 1, 0], 'replicate'), 'i32', [
      [0, 0, 1, 2, 2, 2],
      [0, 0, 1, 2, 2, 2],
      [3, 3, 4, 5, 5, 5],
    ]);
    expectTensor(x.pad([3, -1], 'circular'), 'i32', [
      [0, 1, 2, 0, 1],
      [3, 4, 5, 3, 4],
    ]);
    assert.ok(x.pad([0, 0], 'reflect').buffer !== x.buffer);
    refuses('DS_SHAPE', /pad: expected padding of at most 2 on dim 1.*"reflect".*\[3, 0\]/, () =>
      x.pad([3, 0], 'reflect'),
    );
    refuses('DS_SHAPE', /pad/, () => ops.zeros([0], { device }).pad([1, 1], 'replicate'));
    refuses('DS_ARGUMENT', /pad.*"reflect".*got "constant".*the number/, () =>
      x.pad([1, 1], 'constant' as never),
    );
  }),
];

/** The fraction of each of `size` categories in `drawn`. */
function shares(drawn: readonly number[], size: number): number[] {
  const counts = new Array<number>(size).fill(0);
  for (const each of drawn) counts[each]!++;
  return counts.map((count) => count / drawn.length);
}

const draws: Case[] = [
  composedCase('multinomial draws by probability, alike on every device', (device) => {
    const p = [0.1, 0, 0.4, 0.2, 0.3];
    const dtypes: readonly DType[] = ['f32', 'bf16', 'f16'];
    for (const dtype of dtypes) {
      const on = (where: Device | 'cpu', replacement: boolean) => {
        ops.seed(5);
        const x = Tensor.from(p).to(dtype).to(where);
        const rows = x.expand(4000, 5);
        return rows.multinomial(replacement ? 3 : 1, { replacement }).toArray();
      };
      for (const replacement of [true, false]) {
        const drawn = on(device, replacement);
        assert.deepEqual(drawn, on('cpu', replacement));
        const error = shares(drawn, 5).map((share, i) => Math.abs(share - (p[i] as number)));
        assert.ok(Math.max(...error) < 0.03, `${error}`);
        assert.equal(error[1], 0, 'what has probability 0 is never drawn');
      }
    }
    const all = ops.uniform([7, 33], { device, low: 0.1 }).multinomial(33).toList() as number[][];
    const every = Array.from({ length: 33 }, (_, i) => i);
    for (const row of all)
      assert.deepEqual(
        [...row].sort((a, b) => a - b),
        every,
      );
    assert.deepEqual([...ops.ones([3], { device }).multinomial(2).shape], [2]);
    const tensor = ops.ones([1], { device });
    expectTensor(tensor.multinomial(4, { replacement: true }), 'i64', [0, 0, 0, 0]);
    const x = ops.ones([2, 3], { device });
    refuses('DS_ARGUMENT', /at most 3 draws without replacement, got 4/, () => x.multinomial(4));
    refuses('DS_ARGUMENT', /"with"/, () => x.multinomial(1, { with: true } as never));
    refuses('DS_SHAPE', /multinomial.*i64/, () => i64([1], device).multinomial(1));
  }),
  composedCase('multinomial of what is no distribution', (device) => {
    const rows = Tensor.from(
      [
        [1, 1, 1],
        [0, 0, 0],
        [1, -1, 3],
        [nan, 1, 1],
        [1, inf, 1],
        [0, 2, 0],
      ],
      { device },
    );
    if (device.kind !== 'cpu') {
      for (const replacement of [true, false]) {
        const drawn = rows.multinomial(2, { replacement }).toList() as number[][];
        assert.ok(drawn[0]?.every((each) => each >= 0));
        for (const bad of drawn.slice(1, 5)) assert.deepEqual(bad, [-1, -1]);
        assert.deepEqual(drawn[5], [1, replacement ? 1 : -1]);
      }
      return;
    }
    const draw = (row: number, count = 1, replacement = false) =>
      rows.select(0, row).multinomial(count, { replacement });
    refuses('DS_ARGUMENT', /at least 1 positive.*got 0 in row 0/, () => draw(1));
    refuses('DS_ARGUMENT', /not negative, got -1 in row 0.*softmax/, () => draw(2, 1, true));
    refuses('DS_ARGUMENT', /finite.*nan/, () => draw(3));
    refuses('DS_ARGUMENT', /finite.*inf/, () => draw(4));
    refuses('DS_ARGUMENT', /at least 2.*got 1.*with replacement/, () => draw(5, 2));
    expectTensor(draw(5, 2, true), 'i64', [1, 1]);
  }),
];

export const cases: Case[] = [...functions, ...running, ...order, ...places, ...draws];
