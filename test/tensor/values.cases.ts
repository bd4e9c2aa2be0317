// Tests op functions: shapes, broadcasting and views against plain JavaScript.
import assert from 'node:assert/strict';
import { DsError } from '../../lib/errors.js';
import type { Device } from '../../lib/runtime/device.js';
import { isFloating } from '../../lib/runtime/dtype.js';
import { dtypes } from '../../lib/runtime/dtypes.generated.js';
import * as ops from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';

const { Tensor } = ops;

function valueCase(name: string, body: (device: Device) => void): Case {
  return {
    name: `values: ${name}`,
    run(device) {
      const before = ops.liveTensors();
      ops.scope(() => body(device));
      assert.equal(ops.liveTensors(), before, 'live tensors');
    },
  };
}

/** [shape, values] of a tensor. */
function expectTensor(x: ops.Tensor, shape: number[], values: number[]): void {
  assert.deepEqual([...x.shape], shape);
  for (const [i, value] of x.toArray().entries()) {
    assert.ok(Math.abs(value - (values[i] as number)) < 1e-5, `${x.toArray()} is not ${values}`);
  }
}

function expectError(code: string, text: RegExp, body: () => unknown): void {
  assert.throws(body, (error: unknown) => {
    assert.ok(error instanceof DsError, String(error));
    assert.equal(error.code, code);
    assert.match(error.message, text);
    return true;
  });
}

const countingTensor = (device: Device, ...shape: number[]): ops.Tensor =>
  ops
    .arange(
      shape.reduce((n, s) => n * s, 1),
      { device },
    )
    .reshape(shape);

export const cases: Case[] = [
  valueCase('creation', (device) => {
    expectTensor(ops.zeros([2], { device }), [2], [0, 0]);
    expectTensor(ops.ones([1, 2], { device, dtype: 'bf16' }), [1, 2], [1, 1]);
    expectTensor(ops.arange(3, { device, start: 5, step: -2 }), [3], [5, 3, 1]);
    assert.equal(ops.arange(3, { device, dtype: 'i64' }).dtype, 'i64');
    const large = Tensor.from(BigUint64Array.of(2n ** 53n - 1n), { device });
    assert.deepEqual([large.dtype, large.item()], ['i64', 2 ** 53 - 1]);
    const ids = Tensor.from([Uint32Array.of(1), Uint32Array.of(2)], { device, dtype: 'i32' });
    assert.deepEqual(ids.toList(), [[1], [2]]);
    const odd = [Number.NaN, 0.1, 0, -0];
    const bools = Tensor.from(odd, { device, dtype: 'bool' });
    assert.deepEqual(bools.toArray(), Tensor.from(odd, { device }).to('bool').toArray());
    expectTensor(
      Tensor.from(
        [
          [1, 2],
          [3, 4],
        ],
        { device },
      ).transpose(),
      [2, 2],
      [1, 3, 2, 4],
    );
  }),
  valueCase('random tensors follow the seed and advance', (device) => {
    const state = ops.getRandomState();
    ops.seed(3);
    const [a, b] = [ops.randn([100], { device }).toArray(), ops.randn([100], { device }).toArray()];
    ops.seed(3);
    assert.deepEqual(ops.randn([100], { device }).toArray(), a);
    assert.notDeepEqual(a, b);
    const u = ops.uniform([1000], { device, low: 2, high: 4 }).toArray();
    assert.ok(u.every((x) => x >= 2 && x < 4));
    ops.setRandomState(state);
  }),
  valueCase('uniform numbers are below the end of their range in 16 bits, too', (device) => {
    const state = ops.getRandomState();
    ops.seed(3);
    for (const [dtype, ranges] of [
      [
        'bf16',
        [
          [0, 1, 1 - 2 ** -8],
          [5, 6, 6 - 2 ** -5],
          [-2, -1, -1 - 2 ** -7],
          [-1, 0, -0],
        ],
      ],
      [
        'f16',
        [
          [0, 1, 1 - 2 ** -11],
          [5, 6, 6 - 2 ** -8],
          [-2, -1, -1 - 2 ** -10],
          [-1, 0, -0],
        ],
      ],
    ] as const) {
      for (const [low, high, maximum] of ranges) {
        const x = ops.uniform([20_000], { device, dtype, low, high });
        const largest = x.max().item();
        assert.ok(high === 0 ? largest < 0 : largest === maximum, `${dtype} ${high}: ${largest}`);
        assert.ok(x.min().item() >= low);
      }
    }
    ops.setRandomState(state);
  }),
  valueCase('broadcasting', (device) => {
    const row = Tensor.from([10, 20, 30], { device });
    expectTensor(countingTensor(device, 2, 3).add(row), [2, 3], [10, 21, 32, 13, 24, 35]);
    expectTensor(countingTensor(device, 2, 1).mul(row), [2, 3], [0, 0, 0, 10, 20, 30]);
    expectTensor(ops.gt(row, 15), [3], [0, 1, 1]);
    expectTensor(ops.where(ops.eq(row, 20), row, -1), [3], [-1, 20, -1]);
    const fullTensor = Tensor.from(Int32Array.from([7, -7]), { device });
    expectTensor(fullTensor.div(2), [2], [3.5, -3.5]);
    expectTensor(fullTensor.add(1), [2], [8, -6]);
  }),
  valueCase('matmul over a broadcast batch', (device) => {
    const a = countingTensor(device, 2, 1, 1, 2);
    const b = countingTensor(device, 2, 2, 1);
    expectTensor(a.matmul(b), [2, 2, 1, 1], [1, 3, 3, 13]);
    expectTensor(
      countingTensor(device, 2, 2).transpose().matmul(countingTensor(device, 2)),
      [2],
      [2, 3],
    );
  }),
  valueCase('reductions', (device) => {
    const x = countingTensor(device, 2, 3);
    expectTensor(x.sum(), [], [15]);
    expectTensor(x.mean({ dims: 0 }), [3], [1.5, 2.5, 3.5]);
    expectTensor(x.max({ dims: -1, keepDim: true }), [2, 1], [2, 5]);
    expectTensor(x.argmax(0), [3], [1, 1, 1]);
    expectTensor(x.neg().argmax(), [2], [0, 0]);
  }),
  valueCase('views', (device) => {
    const x = countingTensor(device, 2, 3);
    expectTensor(x.slice(1, 0, 3, 2), [2, 2], [0, 2, 3, 5]);
    expectTensor(x.select(0, -1), [3], [3, 4, 5]);
    expectTensor(ops.concat([x, x.narrow(0, 1, 1)]), [3, 3], [0, 1, 2, 3, 4, 5, 3, 4, 5]);
    expectTensor(ops.stack([x.select(0, 0), x.select(0, 1)], 1), [3, 2], [0, 3, 1, 4, 2, 5]);
    expectTensor(x.permute([1, 0]).reshape([-1]), [6], [0, 3, 1, 4, 2, 5]);
    expectTensor(
      x
        .unsqueeze(1)
        .expand([2, 2, 3])
        .sum({ dims: [0, 1] }),
      [3],
      [6, 10, 14],
    );
    assert.deepEqual(
      x.split(2, 1).map((part) => part.shape[1]),
      [2, 1],
    );
  }),
  valueCase('casts and moves keep gradients', (device) => {
    const x = Tensor.from([1, 2.5], { device: 'cpu' }).requireGrad();
    const y = x.to(device, 'bf16').to('f32', 'cpu').mul(3).sum();
    y.backward();
    expectTensor(x.grad as ops.Tensor, [2], [3, 3]);
    x.grad?.release();
    x.grad = null;
  }),
  {
    name: 'values: read() gives those of toArray(), in every dtype',
    async run(device) {
      for (const dtype of dtypes) {
        if (dtype === 'f64' && device.kind !== 'cpu') continue; // It exists on the CPU only.
        const input = dtype === 'bool' ? 1 : isFloating(dtype) ? 0.1 : 7;
        const x = Tensor.from([input, 0], { dtype, device });
        assert.deepEqual(await x.read(), x.toArray(), dtype);
        x.dispose();
      }
    },
  },
  valueCase('dropout keeps the mean and draws a new mask each time', (device) => {
    const x = ops.ones([10_000], { device });
    const [a, b] = [ops.dropout(x, 0.25), ops.dropout(x, 0.25)];
    const mean = a.mean().item();
    assert.ok(Math.abs(mean - 1) < 0.03, `mean ${mean}`);
    assert.notDeepEqual(a.toArray(), b.toArray());
    assert.equal(ops.dropout(x, 0), x);
  }),
  valueCase('errors name the op, both operands and the cure', (device) => {
    const x = countingTensor(device, 2, 3);
    const half = x.to('bf16');
    expectError('DS_SHAPE', /add.*\[2, 3\] and \[2\]/, () => x.add(countingTensor(device, 2)));
    expectError('DS_SHAPE', /matmul.*\[2, 3\] f32 and \[2, 3\] f32/, () => x.matmul(x));
    expectError('DS_DTYPE', /mul.*f32.*bf16.*\.to\('f32'\)/, () => x.mul(half));
    expectError('DS_SHAPE', /reshape.*\[4, 2\]/, () => x.reshape([4, 2]));
    expectError('DS_SHAPE', /linear/, () => ops.linear(x, countingTensor(device, 4, 2)));
    expectError('DS_SHAPE', /concat/, () => ops.concat([x, countingTensor(device, 2, 2)]));
    expectError('DS_SHAPE', /sum.*\[-2, 2\).*2/, () => x.sum({ dims: 2 }));
    expectError('DS_DTYPE', /embedding.*i32/, () => ops.embedding(x, x));
    expectError('DS_ARGUMENT', /dropout/, () => ops.dropout(x, 1));
    if (device.kind !== 'cpu') {
      expectError('DS_DEVICE', /add.*cpu/, () => x.add(ops.ones([3])));
    }
  }),
  valueCase(
    'numbers that an integer dtype cannot hold are refused where they are given',
    (device) => {
      const bytes = ops.zeros([2], { dtype: 'u8', device });
      const index = Tensor.from([0n], { device });
      const all = Tensor.from([true, true], { device });
      for (const value of [-100, 256, 0.5, Number.NEGATIVE_INFINITY, Number.NaN]) {
        const hold = (op: string) => new RegExp(`^${op}: .*\\[0, 255\\] for u8, got`);
        expectError('DS_ARGUMENT', hold('pad'), () => bytes.pad([1, 1], value));
        expectError('DS_ARGUMENT', hold('scatter'), () => bytes.scatter(0, index, value));
        expectError('DS_ARGUMENT', hold('fill_'), () => bytes.fill_(value));
        expectError('DS_ARGUMENT', hold('maskedFill_'), () => bytes.maskedFill_(all, value));
        expectError('DS_ARGUMENT', hold('full'), () => ops.full([2], value, { dtype: 'u8' }));
      }
      expectTensor(bytes.pad([1, 0], 255), [3], [255, 0, 0]);
      expectTensor(bytes.scatter(0, index, 255), [2], [255, 0]);
      expectTensor(ops.ones([1], { device }).pad([1, 0], -0.5), [2], [-0.5, 1]);
    },
  ),
  valueCase('autograd errors', (device) => {
    const x = countingTensor(device, 3).requireGrad();
    expectError('DS_AUTOGRAD', /backward.*scalar/, () => x.mul(2).backward());
    expectError('DS_AUTOGRAD', /backward/, () => ops.noGrad(() => x.sum()).backward());
    const y = x.square().sum();
    y.backward();
    expectError('DS_AUTOGRAD', /second/, () => y.backward());
    expectError('DS_DTYPE', /requireGrad/, () =>
      ops.zeros([1], { dtype: 'i32', device }).requireGrad(),
    );
    x.grad?.release();
    x.grad = null;
  }),
];
