// Tests arguments of op functions: numbers with integer tensors, PyTorch's spellings, and errors
// for ambiguous values.
import assert from 'node:assert/strict';
import { DsError } from '../../lib/errors.js';
import type { Device } from '../../lib/runtime/device.js';
import * as ops from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';

const { Tensor } = ops;

function argumentCase(name: string, body: (device: Device) => void): Case {
  return {
    name: `arguments: ${name}`,
    run(device) {
      const before = ops.liveTensors();
      ops.scope(() => body(device));
      assert.equal(ops.liveTensors(), before, 'live tensors');
    },
  };
}

function expectTensor(x: ops.Tensor, dtype: string, values: number[], shape?: number[]): void {
  assert.equal(x.dtype, dtype);
  assert.deepEqual(x.toArray(), values);
  if (shape) assert.deepEqual([...x.shape], shape);
}

/** Runs `body` without the types that would reject it. */
function refuses(
  text: RegExp,
  body: (untyped: Record<string, (...a: unknown[]) => unknown>) => unknown,
): void {
  assert.throws(
    () => body({ ...ops, from: Tensor.from.bind(Tensor) } as never),
    (error: unknown) => {
      assert.ok(error instanceof DsError, String(error));
      assert.match(error.message, text);
      return true;
    },
  );
}

const whole = (values: number[], device: Device, dtype: 'i32' | 'i64' | 'u8' = 'i32') =>
  Tensor.from(values, { device, dtype });

export const cases: Case[] = [
  argumentCase('tensors with too few dims are refused by the op that reads them', (device) => {
    const row = ops.zeros([2], { device });
    refuses(/^attention: expected q \[B/, ({ attention }) => attention?.(row, row, row));
    const tensor = ops.zeros([], { device });
    const target = ops.zeros([], { device, dtype: 'i64' });
    refuses(/^gather: expected a dim/, ({ nllLoss }) => nllLoss?.(tensor, target));
  }),
  argumentCase('a fraction beside an integer tensor is not truncated', (device) => {
    const x = whole([1, 2, -3], device);
    expectTensor(x.eq(1.5), 'bool', [0, 0, 0]);
    expectTensor(x.lt(1.5), 'bool', [1, 0, 1]);
    expectTensor(x.ne(Number.NaN), 'bool', [1, 1, 1]);
    expectTensor(x.lt(3e9), 'bool', [1, 1, 1]);
    expectTensor(x.mul(0.5), 'f32', [0.5, 1, -1.5]);
    expectTensor(x.add(0.25), 'f32', [1.25, 2.25, -2.75]);
    expectTensor(ops.sub(0.5, x), 'f32', [-0.5, -1.5, 3.5]);
    expectTensor(x.maximum(1.5), 'f32', [1.5, 2, 1.5]);
    expectTensor(ops.where(x.gt(1), x, 0.5), 'f32', [0.5, 2, 0.5]);
    expectTensor(x.add(1), 'i32', [2, 3, -2]);
    expectTensor(ops.sub(1, x), 'i32', [0, -1, 4]);
    expectTensor(x.div(2), 'f32', [0.5, 1, -1.5]);
    expectTensor(x.div(whole([2, 2, 2], device)), 'f32', [0.5, 1, -1.5]);
    refuses(/mul: expected a number in \[0, 255\] with \[1\] u8, got 300/, ({ mul }) =>
      mul?.(whole([1], device, 'u8'), 300),
    );
  }),
  argumentCase('integers take the dtype beside them; two floating dtypes do not mix', (device) => {
    const x = Tensor.from([0.5, 4], { device });
    const mask = x.gt(1);
    expectTensor(x.mul(mask), 'f32', [0, 4]);
    expectTensor(mask.mul(x.to('bf16')), 'bf16', [0, 4]);
    expectTensor(mask.add(1), 'i64', [1, 2]);
    expectTensor(whole([1, 2], device).add(whole([3, 4], device, 'i64')), 'i64', [4, 6]);
    expectTensor(mask.sum(), 'i64', [1]);
    expectTensor(whole([2 ** 31 - 1, 1], device).sum(), 'i64', [2 ** 31]);
    const leaf = Tensor.from([1, 2], { device }).requireGrad();
    leaf
      .mul(whole([3, 4], device))
      .sum()
      .backward();
    expectTensor(leaf.grad as ops.Tensor, 'f32', [3, 4]);
    refuses(/add.*one dtype.*\.to\('f32'\)/, ({ add }) => add?.(x, x.to('bf16')));
    refuses(/mean.*floating.*\.to\('f32'\)/, ({ mean }) => mean?.(mask));
  }),
  argumentCase('argmax and labels of any integer dtype compare', (device) => {
    const logits = Tensor.from(
      [
        [0, 2, 1],
        [5, 0, 1],
      ],
      { device },
    );
    const best = logits.argmax();
    expectTensor(best.eq(whole([1, 1], device)), 'bool', [1, 0]);
    expectTensor(best.eq(Tensor.from([1, 0], { device })), 'bool', [1, 1]);
    const loss = ops.crossEntropy(logits, best).item();
    const same = ops.crossEntropy(logits, whole([1, 0], device)).item();
    assert.equal(loss, same);
    refuses(/an index of i32 or i64, got \[2\] f32.*\.to\('i64'\)/, ({ crossEntropy }) =>
      crossEntropy?.(logits, Tensor.from([1, 0], { device })),
    );
    refuses(/index tensor of i32 or i64, got 1\. .*Labels/, ({ crossEntropy }) =>
      crossEntropy?.(logits, 1),
    );
  }),
  argumentCase(
    'numbers on either side, and numbers alone where a condition says where',
    (device) => {
      const x = Tensor.from([1, 4], { device }).requireGrad();
      expectTensor(ops.sub(1, x), 'f32', [0, -3]);
      expectTensor(ops.div(2, x), 'f32', [2, 0.5]);
      expectTensor(ops.pow(2, x), 'f32', [2, 16]);
      expectTensor(ops.gt(2, x), 'bool', [1, 0]);
      expectTensor(ops.where(x.gt(2), 1, 0), 'f32', [0, 1]);
      ops.add(ops.mul(3, x), ops.sub(1, x)).sum().backward();
      expectTensor(x.grad as ops.Tensor, 'f32', [2, 2]);
      refuses(/sub: expected tensors, or a tensor and a number, got 2/, ({ sub }) => sub?.(1, 2));
      refuses(/add.*got an array \[1, 2\].*Tensor\.from/, ({ add }) => add?.(x, [1, 2]));
      const sample =
        /add.*got an array \[tensor, tensor\]\. An array of numbers in a sample.*Float32Array/;
      refuses(sample, ({ add }) => add?.(x, [x, x]));
      refuses(/where.*dtype bool, got \[2\] f32.*\.ne\(0\)/, ({ where }) => where?.(x, 1, 0));
    },
  ),
  argumentCase("PyTorch's spellings of shapes and dims", (device) => {
    const x = ops.arange(6, { device });
    expectTensor(x.reshape(2, 3).permute(1, 0).reshape(-1), 'f32', [0, 3, 1, 4, 2, 5], [6]);
    assert.deepEqual([...x.view(1, 6).expand(2, -1).shape], [2, 6]);
    const y = x.reshape([2, 3]);
    expectTensor(y.sum(1), 'f32', [3, 12], [2]);
    expectTensor(y.mean({ dim: 0 }), 'f32', [1.5, 2.5, 3.5], [3]);
    expectTensor(y.max([0, 1]), 'f32', [5], []);
    const untyped = { keep_dim: true, dims: 1 } as unknown as ops.ReduceOptions;
    expectTensor(y.sum(untyped), 'f32', [3, 12], [2, 1]);
    refuses(/"axis".*Did you mean "dims"/, ({ sum }) => sum?.(y, { axis: 1 }));
    refuses(/"dims" once/, ({ sum }) => sum?.(y, { dims: 1, dim: 1 }));
    const surplus = y as unknown as { sum(...items: unknown[]): unknown };
    refuses(/sum: expected at most 1 argument, got 2: 1, true.*keepDim/, () =>
      surplus.sum(1, true),
    );
  }),
  argumentCase('positions between elements and sizes that are none are refused', (device) => {
    const x = ops.arange(7, { device });
    refuses(/narrow.*integers.*got 3\.5.*Math\.floor/, ({ narrow }) => narrow?.(x, 0, 3.5, 3));
    refuses(/narrow.*got 1\.5/, ({ narrow }) => narrow?.(x, 0, 3, 1.5));
    refuses(/select.*got 1\.5/, ({ select }) => select?.(x, 0, 1.5));
    refuses(/slice.*got NaN/, ({ slice }) => slice?.(x, 0, Number.NaN));
    refuses(/slice.*got "2"/, ({ slice }) => slice?.(x, 0, 0, '2'));
    refuses(/reshape.*\[-2, -2\]/, ({ reshape }) =>
      reshape?.(ops.zeros([4], { device }), [-2, -2]),
    );
    refuses(/reshape.*\[2, 3\.5\]/, ({ reshape }) => reshape?.(x, [2, 3.5]));
    refuses(/split.*\[3, -1, 5\]/, ({ split }) => split?.(x, [3, -1, 5]));
    refuses(/split size.*at least 1, got 0/, ({ split }) => split?.(x, 0));
    refuses(/expand.*\[2\.5, 7\]/, ({ expand }) => expand?.(x.reshape([1, 7]), [2.5, 7]));
    refuses(/sum.*a dim in \[-1, 1\), got 0\.5/, ({ sum }) => sum?.(x, 0.5));
    for (const name of ['zeros', 'ones', 'randn', 'uniform']) {
      refuses(new RegExp(`${name}.*\\[2, -3\\]`), (result) => result[name]?.([2, -3]));
      refuses(new RegExp(`${name}.*\\[1\\.5\\].*Math\\.floor`), (result) => result[name]?.([1.5]));
      refuses(new RegExp(`${name}.*\\[NaN\\]`), (result) => result[name]?.([Number.NaN]));
      refuses(new RegExp(`${name}: .*got 2\\..*\\[2\\]`), (result) => result[name]?.(2));
    }
    refuses(/arange count.*got -2/, ({ arange }) => arange?.(-2));
    refuses(/arange.*object of options.*got 10/, ({ arange }) => arange?.(0, 10));
    refuses(/arange step.*got NaN/, ({ arange }) => arange?.(2, { step: Number.NaN }));
    refuses(/uniform high.*at least 3.*got 1/, ({ uniform }) => uniform?.([2], { low: 3 }));
    refuses(/randn stddev.*got -1/, ({ randn }) => randn?.([2], { stddev: -1 }));
    refuses(/full value.*got undefined/, ({ full }) => full?.([2]));
    refuses(/seed.*got 1\.5/, ({ seed }) => seed?.(1.5));
    refuses(/zeros.*'?"float32" is 'f32' here/, ({ zeros }) => zeros?.([1], { dtype: 'float32' }));
    refuses(/to.*"half" is 'f16' here/, ({ to }) => to?.(x, 'half'));
    refuses(/stack.*one shape/, ({ stack }) => stack?.([x, ops.zeros([2], { device })]));
    refuses(/concat.*list of tensors.*concat\(\[a, b\]\)/, ({ concat }) => concat?.(x, x));
    refuses(/mse.*a target like \[7\] f32, got \[7, 1\] f32/, ({ mse }) =>
      mse?.(x, x.reshape([7, 1])),
    );
  }),
  argumentCase('data that is no block of numbers is refused', (device) => {
    const from = (data: unknown, options: object = {}) =>
      Tensor.from(data as number[], { device, ...options });
    refuses(/2 elements at \[1\].*, got 1\./, () => from([[1, 2], [3]]));
    refuses(/an array at \[1\].*, got 3/, () => from([[1, 2], 3]));
    refuses(/a number at \[1\].*, got an array \[2\]/, () => from([1, [2]]));
    refuses(/a number at \[0\], got "1"/, () => from(['1']));
    refuses(/a number at \[1\]\[0\], got null/, () => from([[1], [null]]));
    refuses(/a number, got "abc"/, () => from('abc'));
    refuses(/a number, got a tensor \[1\] f32.*already/, () => from(from([1])));
    refuses(/\[-2147483648, 2147483647\] for i32, got 3000000000.*i64/, () =>
      from([3e9], { dtype: 'i32' }),
    );
    refuses(/for u8, got -1 as value 1/, () => from([1, -1], { dtype: 'u8' }));
    refuses(/for i64, got 1\.5.*Math\.trunc/, () => from([1.5], { dtype: 'i64' }));
    refuses(/for i32, got NaN/, () => from(new Float32Array([Number.NaN]), { dtype: 'i32' }));
    refuses(/"requires_grad"/, () => from([1], { requires_grad: true }));
    expectTensor(from([true, false]), 'bool', [1, 0]);
    expectTensor(from([3, 0], { dtype: 'bool' }), 'bool', [1, 0]);
    expectTensor(from([2n ** 40n]), 'i64', [2 ** 40]);
    expectTensor(
      from([new Float32Array([1, 2]), new Float32Array([3, 4])]),
      'f32',
      [1, 2, 3, 4],
      [2, 2],
    );
    expectTensor(from(5), 'f32', [5], []);
    expectTensor(from([[], []]), 'f32', [], [2, 0]);
  }),
];
