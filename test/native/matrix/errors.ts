// Wrong shapes, dtypes and indices are DsErrors that name the op and what was given.
import assert from 'node:assert/strict';
import { DsError, type DsErrorCode } from '../../../lib/errors.js';
import { Buffer } from '../../../lib/runtime/buffer.js';
import type { Device } from '../../../lib/runtime/device.js';
import { type DType, dtypeSize } from '../../../lib/runtime/dtype.js';
import * as kernels from '../../../lib/runtime/kernels.generated.js';
import { contiguousStrides, numel, type View } from '../../../lib/runtime/view.js';
import type { Case } from '../../support/case.js';

type Make = (shape: readonly number[], dtype?: DType, strides?: readonly number[]) => View;

interface Mistake {
  op: string;
  what: string;
  code: DsErrorCode;
  /** A part of the message: the offending shape or dtype. */
  says: string;
  run(make: Make): void;
  cpuOnly?: string;
}

const eps = 1e-5;
const plain = { bias: null, aux: null, transA: false, transB: false, epilogue: 'none', accumulate: false } as const;

const mistakes: readonly Mistake[] = [
  { op: 'binary', what: 'shapes', code: 'DS_SHAPE', says: '[2, 4] f32', run: (m) => kernels.binary({ a: m([2, 3]), b: m([2, 4]), out: m([2, 3]), op: 'add', accumulate: false }) },
  { op: 'binary', what: 'dtypes', code: 'DS_DTYPE', says: 'i32', run: (m) => kernels.binary({ a: m([3]), b: m([3], 'i32'), out: m([3]), op: 'add', accumulate: false }) },
  { op: 'binary', what: 'bool', code: 'DS_DTYPE', says: 'bool', run: (m) => kernels.binary({ a: m([3], 'bool'), b: m([3], 'bool'), out: m([3], 'bool'), op: 'add', accumulate: false }) },
  { op: 'unary', what: 'an integer', code: 'DS_DTYPE', says: 'i64', run: (m) => kernels.unary({ in: m([3], 'i64'), out: m([3], 'i64'), op: 'exp' }) },
  { op: 'unary_backward', what: 'shapes', code: 'DS_SHAPE', says: '[4] f32', run: (m) => kernels.unaryBackward({ in: m([3]), dout: m([4]), dx: m([3]), op: 'exp', accumulate: false }) },
  { op: 'compare', what: 'out dtype', code: 'DS_DTYPE', says: 'f32', run: (m) => kernels.compare({ a: m([3]), b: m([3]), out: m([3]), op: 'lt' }) },
  { op: 'where', what: 'condition dtype', code: 'DS_DTYPE', says: 'u8', run: (m) => kernels.where({ condition: m([3], 'u8'), a: m([3]), b: m([3]), out: m([3]) }) },
  { op: 'scale', what: 'an integer', code: 'DS_DTYPE', says: 'i32', run: (m) => kernels.scale({ in: m([3], 'i32'), out: m([3], 'i32'), scale: 2, shift: 0, accumulate: false }) },
  { op: 'copy', what: 'shapes', code: 'DS_SHAPE', says: '[3, 2] f32', run: (m) => kernels.copy({ in: m([2, 3]), out: m([3, 2]) }) },
  { op: 'arange', what: 'bool', code: 'DS_DTYPE', says: 'bool', run: (m) => kernels.arange({ out: m([3], 'bool'), start: 0, step: 1 }) },
  { op: 'random_uniform', what: 'an integer', code: 'DS_DTYPE', says: 'i32', run: (m) => kernels.randomUniform({ out: m([3], 'i32'), low: 0, high: 1, seed: 1, offset: 0 }) },
  { op: 'random_normal', what: 'strides', code: 'DS_SHAPE', says: 'contiguous', run: (m) => kernels.randomNormal({ out: m([3], 'f32', [2]), mean: 0, stddev: 1, seed: 1, offset: 0 }) },
  { op: 'dropout', what: 'p', code: 'DS_ARGUMENT', says: '1.5', run: (m) => kernels.dropout({ in: m([3]), out: m([3]), p: 1.5, seed: 1, offset: 0, accumulate: false }) },
  { op: 'reduce', what: 'sizes', code: 'DS_SHAPE', says: '[2, 2] f32', run: (m) => kernels.reduce({ in: m([2, 3]), out: m([2, 2]), op: 'sum', accumulate: false }) },
  { op: 'reduce', what: 'the mean of integers', code: 'DS_DTYPE', says: 'i32', run: (m) => kernels.reduce({ in: m([3], 'i32'), out: m([1], 'i32'), op: 'mean', accumulate: false }) },
  { op: 'reduce', what: 'an empty max', code: 'DS_SHAPE', says: '[0] f32', run: (m) => kernels.reduce({ in: m([0]), out: m([1]), op: 'max', accumulate: false }) },
  { op: 'arg_max', what: 'out dtype', code: 'DS_DTYPE', says: 'i32', run: (m) => kernels.argMax({ in: m([2, 3]), out: m([2], 'i32') }) },
  { op: 'softmax', what: 'shapes', code: 'DS_SHAPE', says: '[2, 4] f32', run: (m) => kernels.softmax({ in: m([2, 3]), out: m([2, 4]), log: false }) },
  { op: 'softmax_backward', what: 'dtypes', code: 'DS_DTYPE', says: 'bf16', run: (m) => kernels.softmaxBackward({ out: m([2, 3]), dout: m([2, 3], 'bf16'), dx: m([2, 3]), log: false, accumulate: false }) },
  { op: 'matmul', what: 'inner sizes', code: 'DS_SHAPE', says: '[5, 4] f32', run: (m) => kernels.matmul({ ...plain, a: m([2, 3]), b: m([5, 4]), out: m([2, 4]) }) },
  { op: 'matmul', what: 'dtypes', code: 'DS_DTYPE', says: 'bf16', run: (m) => kernels.matmul({ ...plain, a: m([2, 3]), b: m([3, 4], 'bf16'), out: m([2, 4]) }) },
  { op: 'matmul', what: 'bias', code: 'DS_SHAPE', says: '[3] f32', run: (m) => kernels.matmul({ ...plain, a: m([2, 3]), b: m([3, 4]), bias: m([3]), out: m([2, 4]) }) },
  { op: 'matmul', what: 'gelu_grad without aux', code: 'DS_SHAPE', says: 'aux', run: (m) => kernels.matmul({ ...plain, a: m([2, 3]), b: m([3, 4]), out: m([2, 4]), epilogue: 'gelu_grad' }) },
  { op: 'embedding', what: 'rows', code: 'DS_SHAPE', says: '[3, 4] f32', run: (m) => kernels.embedding({ weight: m([5, 2]), index: m([3], 'i32'), out: m([3, 4]) }) },
  { op: 'embedding', what: 'index dtype', code: 'DS_DTYPE', says: 'f32', run: (m) => kernels.embedding({ weight: m([5, 2]), index: m([3]), out: m([3, 2]) }) },
  { op: 'embedding', what: 'an index', code: 'DS_INDEX', says: '-1', cpuOnly: 'indices are checked on the CPU only', run: (m) => kernels.embedding({ weight: m([5, 2]), index: m([3], 'i64'), out: m([3, 2]) }) },
  { op: 'embedding_backward', what: 'dtypes', code: 'DS_DTYPE', says: 'f16', run: (m) => kernels.embeddingBackward({ dout: m([3, 2], 'f16'), index: m([3], 'i32'), dweight: m([5, 2]), accumulate: false }) },
  { op: 'gather', what: 'sizes', code: 'DS_SHAPE', says: '[3, 3] f32', run: (m) => kernels.gather({ in: m([2, 3]), index: m([3, 3], 'i32'), out: m([3, 3]), dim: 1 }) },
  { op: 'gather_backward', what: 'dim', code: 'DS_SHAPE', says: 'dim 2', run: (m) => kernels.gatherBackward({ dout: m([2, 3]), index: m([2, 3], 'i32'), dx: m([2, 3]), dim: 2, accumulate: false }) },
  { op: 'layer_norm', what: 'weight', code: 'DS_SHAPE', says: '[4] f32', run: (m) => kernels.layerNorm({ x: m([2, 3]), residual: null, weight: m([4]), bias: null, sum: null, out: m([2, 3]), mean: m([2]), rstd: m([2]), eps }) },
  { op: 'layer_norm', what: 'residual without sum', code: 'DS_SHAPE', says: 'sum', run: (m) => kernels.layerNorm({ x: m([2, 3]), residual: m([2, 3]), weight: m([3]), bias: null, sum: null, out: m([2, 3]), mean: m([2]), rstd: m([2]), eps }) },
  { op: 'layer_norm_backward', what: 'dout', code: 'DS_SHAPE', says: '[2, 4] f32', run: (m) => kernels.layerNormBackward({ s: m([2, 3]), weight: m([3]), mean: m([2]), rstd: m([2]), dout: m([2, 4]), dsum: null, dx: m([2, 3]), dweight: null, dbias: null, accumulate: false }) },
  { op: 'rms_norm', what: 'rstd dtype', code: 'DS_DTYPE', says: 'bf16', run: (m) => kernels.rmsNorm({ x: m([2, 3], 'bf16'), residual: null, weight: m([3], 'bf16'), sum: null, out: m([2, 3], 'bf16'), rstd: m([2], 'bf16'), eps }) },
  { op: 'rms_norm_backward', what: 'dx', code: 'DS_SHAPE', says: '[3, 2] f32', run: (m) => kernels.rmsNormBackward({ s: m([2, 3]), weight: m([3]), rstd: m([2]), dout: m([2, 3]), dsum: null, dx: m([3, 2]), dweight: null, accumulate: false }) },
  { op: 'rope', what: 'an odd head', code: 'DS_SHAPE', says: '[1, 2, 3, 5] f32', run: (m) => kernels.rope({ in: m([1, 2, 3, 5]), cos: m([2, 2]), sin: m([2, 2]), out: m([1, 2, 3, 5]), inverse: false }) },
  { op: 'attention', what: 'head sizes', code: 'DS_SHAPE', says: '[1, 2, 3, 5] f32', run: (m) => kernels.attention({ q: m([1, 2, 3, 4]), k: m([1, 2, 3, 5]), v: m([1, 2, 3, 5]), out: m([1, 2, 3, 4]), lse: m([1, 2, 3]), scale: 1, causal: true }) },
  { op: 'attention_backward', what: 'more queries than keys', code: 'DS_SHAPE', says: '5 queries', run: (m) => kernels.attentionBackward({ q: m([1, 1, 5, 4]), k: m([1, 1, 3, 4]), v: m([1, 1, 3, 4]), out: m([1, 1, 5, 4]), dout: m([1, 1, 5, 4]), lse: m([1, 1, 5]), dq: m([1, 1, 5, 4]), dk: m([1, 1, 3, 4]), dv: m([1, 1, 3, 4]), scale: 1, causal: true }) },
  { op: 'cross_entropy', what: 'targets', code: 'DS_SHAPE', says: '[3] i64', run: (m) => kernels.crossEntropy({ logits: m([2, 5]), target: m([3], 'i64'), losses: m([2]), lse: m([2]), ignoreIndex: -100 }) },
  { op: 'cross_entropy', what: 'a target', code: 'DS_INDEX', says: '-1', cpuOnly: 'targets are checked on the CPU only', run: (m) => kernels.crossEntropy({ logits: m([2, 5]), target: m([2], 'i64'), losses: m([2]), lse: m([2]), ignoreIndex: -100 }) },
  { op: 'cross_entropy_backward', what: 'lse dtype', code: 'DS_DTYPE', says: 'bf16', run: (m) => kernels.crossEntropyBackward({ logits: m([2, 5], 'bf16'), target: m([2], 'i64'), lse: m([2], 'bf16'), scale: m([1]), dlogits: m([2, 5], 'bf16'), ignoreIndex: -1 }) },
  { op: 'sum_of_squares', what: 'an integer', code: 'DS_DTYPE', says: 'i32', run: (m) => kernels.sumOfSquares({ x: m([3], 'i32'), out: m([1]) }) },
  { op: 'gradient_control', what: 'control', code: 'DS_SHAPE', says: '[3] f32', run: (m) => kernels.gradientControl({ partials: m([2]), control: m([3]), lossScale: 1, maxNorm: 1, skipNonfinite: true }) },
  { op: 'adamw', what: 'sizes', code: 'DS_SHAPE', says: '[4] f32', run: (m) => kernels.adamW({ master: m([3]), m: m([4]), v: m([3]), grad: m([3]), weight: null, control: m([4]), lr: 1, beta1: 0.9, beta2: 0.99, eps, weightDecay: 0, correction1: 1, correction2: 1, decoupled: true }) },
  { op: 'adamw', what: 'a bf16 master', code: 'DS_DTYPE', says: 'bf16', run: (m) => kernels.adamW({ master: m([3], 'bf16'), m: m([3], 'bf16'), v: m([3], 'bf16'), grad: m([3]), weight: null, control: m([4]), lr: 1, beta1: 0.9, beta2: 0.99, eps, weightDecay: 0, correction1: 1, correction2: 1, decoupled: true }) },
  { op: 'Fill', what: 'a view beyond its buffer', code: 'DS_BOUNDS', says: '[99] f32', run: (m) => kernels.fill({ out: { ...m([3]), shape: [99], strides: [1] }, value: 0 }) },
];

/** Runs the op over memory of 0xFF bytes: every index is -1. */
function check(mistake: Mistake, device: Device): void {
  const buffers: Buffer[] = [];
  const make: Make = (shape, dtype = 'f32', strides = contiguousStrides(shape)) => {
    const bytes = Math.max(1, numel(shape)) * dtypeSize(dtype) * 2;
    const buffer = Buffer.allocate(device, bytes);
    buffer.write(0, new Uint8Array(bytes).fill(0xff));
    buffers.push(buffer);
    return { buffer, dtype, shape, offset: 0, strides };
  };
  try {
    assert.throws(
      () => mistake.run(make),
      (error: unknown) => {
        assert.ok(error instanceof DsError, String(error));
        assert.equal(error.code, mistake.code, error.message);
        assert.equal(error.op, mistake.op, error.message);
        assert.ok(error.message.includes(mistake.says), error.message);
        return true;
      },
    );
  } finally {
    for (const buffer of buffers) buffer.release();
  }
}

export const cases: Case[] = mistakes.map((mistake) => ({
  name: `${mistake.op} refuses wrong ${mistake.what}`,
  run: (device) => check(mistake, device),
  skip: (device) => (device.kind === 'cpu' ? null : (mistake.cpuOnly ?? null)),
}));
