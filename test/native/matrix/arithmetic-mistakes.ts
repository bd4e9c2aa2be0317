// Wrong calls of element-wise ops, reductions and products, and the error that each must give.
import * as kernels from '../../../lib/runtime/kernels.generated.js';
import { inOrder } from '../../../lib/tensor/index.js';
import type { Mistake } from './mistake.js';

const plain = {
  bias: null,
  aux: null,
  transA: false,
  transB: false,
  epilogue: 'none',
  accumulate: false,
} as const;

const dropout = {
  p: 0.5,
  seed: 1,
  offset: 0,
  sample: 3,
  rank: 0,
  ranks: 1,
  ...inOrder,
  accumulate: false,
} as const;

export const mistakes: readonly Mistake[] = [
  {
    op: 'binary',
    what: 'shapes',
    code: 'DS_SHAPE',
    message: '[2, 4] f32',
    run: (m) =>
      kernels.binary({ a: m([2, 3]), b: m([2, 4]), out: m([2, 3]), op: 'add', accumulate: false }),
  },
  {
    op: 'binary',
    what: 'dtypes',
    code: 'DS_DTYPE',
    message: 'i32',
    run: (m) =>
      kernels.binary({ a: m([3]), b: m([3], 'i32'), out: m([3]), op: 'add', accumulate: false }),
  },
  {
    op: 'binary',
    what: 'bool',
    code: 'DS_DTYPE',
    message: 'bool',
    run: (m) =>
      kernels.binary({
        a: m([3], 'bool'),
        b: m([3], 'bool'),
        out: m([3], 'bool'),
        op: 'add',
        accumulate: false,
      }),
  },
  {
    op: 'unary',
    what: 'an integer',
    code: 'DS_DTYPE',
    message: 'i64',
    run: (m) => kernels.unary({ in: m([3], 'i64'), out: m([3], 'i64'), op: 'exp' }),
  },
  {
    op: 'unary_backward',
    what: 'shapes',
    code: 'DS_SHAPE',
    message: '[4] f32',
    run: (m) =>
      kernels.unaryBackward({ in: m([3]), dout: m([4]), dx: m([3]), op: 'exp', accumulate: false }),
  },
  {
    op: 'compare',
    what: 'out dtype',
    code: 'DS_DTYPE',
    message: 'f32',
    run: (m) => kernels.compare({ a: m([3]), b: m([3]), out: m([3]), op: 'lt' }),
  },
  {
    op: 'where',
    what: 'condition dtype',
    code: 'DS_DTYPE',
    message: 'u8',
    run: (m) => kernels.where({ condition: m([3], 'u8'), a: m([3]), b: m([3]), out: m([3]) }),
  },
  {
    op: 'scale',
    what: 'an integer',
    code: 'DS_DTYPE',
    message: 'i32',
    run: (m) =>
      kernels.scale({
        in: m([3], 'i32'),
        out: m([3], 'i32'),
        scale: 2,
        shift: 0,
        accumulate: false,
      }),
  },
  {
    op: 'copy',
    what: 'shapes',
    code: 'DS_SHAPE',
    message: '[3, 2] f32',
    run: (m) => kernels.copy({ in: m([2, 3]), out: m([3, 2]) }),
  },
  {
    op: 'arange',
    what: 'bool',
    code: 'DS_DTYPE',
    message: 'bool',
    run: (m) => kernels.arange({ out: m([3], 'bool'), start: 0, step: 1 }),
  },
  {
    op: 'random_uniform',
    what: 'an integer',
    code: 'DS_DTYPE',
    message: 'i32',
    run: (m) =>
      kernels.randomUniform({
        out: m([3], 'i32'),
        low: 0,
        high: 1,
        seed: 1,
        offset: 0,
        ...inOrder,
      }),
  },
  {
    op: 'random_normal',
    what: 'strides',
    code: 'DS_SHAPE',
    message: 'contiguous',
    run: (m) =>
      kernels.randomNormal({
        out: m([3], 'f32', [2]),
        mean: 0,
        stddev: 1,
        seed: 1,
        offset: 0,
        ...inOrder,
      }),
  },
  {
    op: 'dropout',
    what: 'p',
    code: 'DS_ARGUMENT',
    message: '1.5',
    run: (m) => kernels.dropout({ in: m([3]), out: m([3]), ...dropout, p: 1.5 }),
  },
  {
    op: 'dropout',
    what: 'sample',
    code: 'DS_ARGUMENT',
    message: 'at least 1 element',
    run: (m) => kernels.dropout({ in: m([3]), out: m([3]), ...dropout, sample: 0 }),
  },
  {
    op: 'dropout',
    what: 'rank',
    code: 'DS_ARGUMENT',
    message: '[0, 2)',
    run: (m) => kernels.dropout({ in: m([3]), out: m([3]), ...dropout, rank: 2, ranks: 2 }),
  },
  {
    op: 'reduce',
    what: 'sizes',
    code: 'DS_SHAPE',
    message: '[2, 2] f32',
    run: (m) => kernels.reduce({ in: m([2, 3]), out: m([2, 2]), op: 'sum', accumulate: false }),
  },
  {
    op: 'reduce',
    what: 'the mean of integers',
    code: 'DS_DTYPE',
    message: 'i32',
    run: (m) =>
      kernels.reduce({ in: m([3], 'i32'), out: m([1], 'i32'), op: 'mean', accumulate: false }),
  },
  {
    op: 'reduce',
    what: 'an empty max',
    code: 'DS_SHAPE',
    message: '[0] f32',
    run: (m) => kernels.reduce({ in: m([0]), out: m([1]), op: 'max', accumulate: false }),
  },
  {
    op: 'arg_max',
    what: 'out dtype',
    code: 'DS_DTYPE',
    message: 'i32',
    run: (m) => kernels.argMax({ in: m([2, 3]), out: m([2], 'i32') }),
  },
  {
    op: 'softmax',
    what: 'shapes',
    code: 'DS_SHAPE',
    message: '[2, 4] f32',
    run: (m) => kernels.softmax({ in: m([2, 3]), out: m([2, 4]), log: false }),
  },
  {
    op: 'softmax_backward',
    what: 'dtypes',
    code: 'DS_DTYPE',
    message: 'bf16',
    run: (m) =>
      kernels.softmaxBackward({
        out: m([2, 3]),
        dout: m([2, 3], 'bf16'),
        dx: m([2, 3]),
        log: false,
        accumulate: false,
      }),
  },
  {
    op: 'matmul',
    what: 'inner sizes',
    code: 'DS_SHAPE',
    message: '[5, 4] f32',
    run: (m) => kernels.matmul({ ...plain, a: m([2, 3]), b: m([5, 4]), out: m([2, 4]) }),
  },
  {
    op: 'matmul',
    what: 'dtypes',
    code: 'DS_DTYPE',
    message: 'bf16',
    run: (m) => kernels.matmul({ ...plain, a: m([2, 3]), b: m([3, 4], 'bf16'), out: m([2, 4]) }),
  },
  {
    op: 'matmul',
    what: 'bias',
    code: 'DS_SHAPE',
    message: '[3] f32',
    run: (m) =>
      kernels.matmul({ ...plain, a: m([2, 3]), b: m([3, 4]), bias: m([3]), out: m([2, 4]) }),
  },
  {
    op: 'matmul',
    what: 'gelu_grad without aux',
    code: 'DS_SHAPE',
    message: 'aux',
    run: (m) =>
      kernels.matmul({
        ...plain,
        a: m([2, 3]),
        b: m([3, 4]),
        out: m([2, 4]),
        epilogue: 'gelu_grad',
      }),
  },
];
