// Tests attention masks: every form against an explicit mask, values of hidden keys, memory, and
// errors.
import assert from 'node:assert/strict';
import * as nn from '../../lib/nn/index.js';
import type { Device } from '../../lib/runtime/device.js';
import {
  type AttentionOptions,
  attention,
  checkpoint,
  full,
  noGrad,
  scope,
  seed,
  Tensor,
  zeros,
} from '../../lib/tensor/index.js';
import { assertClose } from '../autograd/check.js';
import type { Case } from '../support/case.js';
import { peakOf } from '../support/peak.js';
import { draw, refuses } from './attention-checks.js';

function attentionCase(name: string, body: (device: Device) => void): Case {
  return { name: `attention: ${name}`, run: (device) => scope(() => body(device)) };
}

const [B, H, T, S, D] = [2, 4, 9, 13, 8];

/** Output and gradients of queries, keys and values. */
function results(device: Device, options: AttentionOptions): number[][] {
  const inputs = [
    draw('q', [B, H, T, D], device),
    draw('k', [B, 2, S, D], device),
    draw('v', [B, 2, S, D], device),
  ].map((x) => x.requireGrad());
  const [q, k, v] = inputs as [Tensor, Tensor, Tensor];
  const out = attention(q, k, v, options);
  out
    .mul(draw('seed', [B, H, T, D], device))
    .sum()
    .backward();
  return [out, ...inputs.map((x) => x.grad as Tensor)].map((x) => x.toArray());
}

/** `mask`, expanded in memory. */
function repeatMask(mask: Tensor): Tensor {
  return mask.expand([B, H, T, S]).clone();
}

const shapes = [[S], [T, S], [T, 1], [H, 1, S], [B, 1, 1, S], [B, 1, T, S], [B, H, T, S], [1, 1]];

const forms = attentionCase('a repeated mask is the one that is written out', (device) => {
  for (const shape of shapes) {
    const numbers = draw(`mask ${shape}`, shape, device);
    for (const mask of [numbers, numbers.gt(-0.4), numbers.to('f16')]) {
      for (const causal of [false, true]) {
        const fullRows = results(device, { mask: repeatMask(mask), causal });
        assert.deepEqual(results(device, { mask, causal }), fullRows, `[${shape}] ${mask.dtype}`);
      }
    }
  }
});

const minusInfinity = attentionCase('false is minus infinity, and true is 0', (device) => {
  const bools = draw('bools', [B, 1, T, S], device).gt(-0.2);
  const numbers = zeros([B, 1, T, S], { device }).maskedFill(bools.logicalNot(), -Infinity);
  const lowest = numbers.clamp({ min: -3.4e38 });
  const expected = results(device, { mask: bools });
  for (const mask of [numbers, lowest]) assert.deepEqual(results(device, { mask }), expected);
});

const keys = attentionCase('a mask of keys and lengths are masks', (device) => {
  const lengths = [5, S];
  const positions = Tensor.from(
    Array.from({ length: B * S }, (_, i) => i % S),
    { shape: [B, S], device },
  );
  const within = positions.lt(Tensor.from(lengths, { shape: [B, 1], device }));
  const mask = draw('also', [T, S], device);
  for (const others of [{}, { mask }, { causal: true }]) {
    const expected = results(device, { ...others, keyMask: within });
    const asTensor = (dtype: 'i32' | 'i64') => Tensor.from(lengths, { shape: [B], dtype, device });
    for (const keyLengths of [lengths, asTensor('i32'), asTensor('i64')]) {
      const got = results(device, { ...others, keyLengths });
      got.forEach((values, i) => void assertClose(values, expected[i] as number[], 1e-5, `${i}`));
    }
    if ('mask' in others) continue;
    const spread = results(device, { ...others, mask: within.reshape([B, 1, 1, S]) });
    assert.deepEqual(spread, expected);
  }
});

const hiddenRows = attentionCase(
  'a query that sees no key gives 0 and has no gradient',
  (device) => {
    const rows = Tensor.from(
      Array.from({ length: T }, (_, t) => t !== 3),
      { shape: [T, 1], device },
    );
    const [out, dq] = results(device, { mask: rows }) as [number[], number[]];
    for (const values of [out, dq]) {
      assert.ok(values.every(Number.isFinite));
      for (let head = 0; head < B * H; ++head) {
        const row = (t: number) => values.slice((head * T + t) * D, (head * T + t + 1) * D);
        assert.ok(row(3).every((x) => x === 0) && row(4).some((x) => x !== 0));
      }
    }
    for (const options of [
      { mask: full([S], 0, { device, dtype: 'bool' }) },
      { keyLengths: [0, 0] },
    ]) {
      for (const values of results(device, options)) assert.ok(values.every((x) => x === 0));
    }
  },
);

const padding = attentionCase('what lies beyond the lengths is not read', (device) => {
  const lengths = [4, 7];
  const options: AttentionOptions = { keyLengths: lengths };
  const past = Tensor.from(
    Array.from({ length: B * S }, (_, i) => i % S >= (lengths[Math.floor(i / S)] as number)),
    { shape: [B, 1, S, 1], device },
  );
  const [q, k, v] = [
    draw('q', [B, H, T, D], device),
    draw('k', [B, 2, S, D], device),
    draw('v', [B, 2, S, D], device),
  ] as const;
  const spoilt = (x: Tensor): Tensor => x.maskedFill(past, Number.NaN);
  const expected = attention(q, k, v, options).toArray();
  assert.deepEqual(attention(q, spoilt(k), spoilt(v), options).toArray(), expected);
});

const mistakes = attentionCase('masks that fit nothing are refused by name', (device) => {
  const [q, k] = [zeros([B, H, T, D], { device }), zeros([B, H, S, D], { device })];
  const call = (options: AttentionOptions) => () => attention(q, k, k, options);
  const numbers = (shape: number[]): Tensor => zeros(shape, { device });
  refuses('DS_SHAPE', /attention mask.*\[2, 4, 9, 13\].*keyMask/s, call({ mask: numbers([B, S]) }));
  refuses('DS_SHAPE', /attention mask/, call({ mask: numbers([3, B, H, T, S]) }));
  refuses('DS_SHAPE', /attention keyMask.*\[2, 13\]/s, call({ keyMask: numbers([T, S]) }));
  const ints = zeros([T, S], { device, dtype: 'i64' });
  refuses('DS_DTYPE', /mask\.ne\(0\)/, call({ mask: ints }));
  refuses('DS_SHAPE', /keyLengths/, call({ keyLengths: [1, 2, 3] }));
  refuses('DS_ARGUMENT', /between 0 and the 13 keys/, call({ keyLengths: [1, 14] }));
  refuses('DS_ARGUMENT', /between 0 and the 13 keys/, call({ keyLengths: [0.5, 1] }));
  refuses('DS_ARGUMENT', /list of 2 integers/, call({ keyLengths: 3 as never }));
  refuses('DS_DTYPE', /i32 or i64/, call({ keyLengths: numbers([B]) }));
  refuses('DS_ARGUMENT', /a tensor/, call({ mask: [[true]] as never }));
  const trained = numbers([T, S]).requireGrad();
  refuses('DS_AUTOGRAD', /detach\(\)/, call({ mask: trained }));
  assert.deepEqual(noGrad(call({ mask: trained })).shape, [B, H, T, D]);
});

const changed = attentionCase(
  'a mask that was changed before the backward is refused',
  (device) => {
    const q = draw('q', [1, 1, T, D], device).requireGrad();
    const mask = zeros([T, T], { device });
    const out = attention(q, q, q, { mask }).sum();
    mask.add_(1);
    refuses('DS_AUTOGRAD', /changed|overwritten/, () => out.backward());
  },
);

const dropped = attentionCase('dropout draws anew, replays, and keeps the mean', (device) => {
  const [q, k] = [draw('q', [1, 2, 40, 4], device), draw('k', [1, 2, 50, 4], device)];
  const ones = full([1, 2, 50, 4], 1, { device });
  const call = (dropout: number): number[] => attention(q, k, ones, { dropout }).toArray();
  seed(9);
  const [first, second] = [call(0.25), call(0.25)];
  seed(9);
  assert.deepEqual(call(0.25), first);
  assert.notDeepEqual(second, first);
  // The sum of a row's weights has mean 1 and a deviation of about sqrt(p / (1 - p) / 50) = 0.08.
  const mean = first.reduce((sum, x) => sum + x, 0) / first.length;
  assert.ok(Math.abs(mean - 1) < 0.05, `${mean}`);
  assert.ok(new Set(first.map((x) => x.toFixed(4))).size > 50, 'rows differ');
  const drop = (x: Tensor): Tensor => attention(x.sin(), k, ones, { dropout: 0.25 });
  const gradientOf = (body: (x: Tensor) => Tensor): number[] => {
    const x = draw('q', [1, 2, 40, 4], device).requireGrad();
    seed(9);
    body(x).square().sum().backward();
    return (x.grad as Tensor).toArray();
  };
  const plain = gradientOf(drop);
  assert.deepEqual(
    gradientOf((x) => checkpoint(drop, x)),
    plain,
    'in a replay',
  );
  refuses('DS_ARGUMENT', /dropout/, () => call(1));
});

const memory = attentionCase(
  'no scores are stored, whatever the masks, nor with dropout',
  (device) => {
    const [width, length, heads] = [8, 768, 4];
    seed(3);
    const layer = new nn.MultiheadAttention(width, heads, { batchFirst: true, dropout: 0.1 }).to(
      device,
    );
    const x = draw('x', [1, length, width], device);
    const keyPaddingMask = full([1, length], 0, { device, dtype: 'bool' });
    const attnMask = zeros([length, length], { device });
    const step = (call: nn.AttentionCall) => (): void => {
      layer.call(x, x, x, call)[0].sum().backward();
      layer.zeroGrad();
    };
    const scores = heads * length * length * 4;
    step({})();
    layer.train();
    for (const call of [{}, { keyPaddingMask }, { attnMask }, { attnMask, keyPaddingMask }]) {
      const peak = peakOf(device, step({ ...call, isCausal: true }));
      assert.ok(peak < scores / 4, `${Object.keys(call)}: ${peak} bytes, the scores are ${scores}`);
    }
    assert.ok(peakOf(device, step({ attnMask, needWeights: true })) > scores, 'with weights');
  },
);

export const cases: Case[] = [
  forms,
  minusInfinity,
  keys,
  hiddenRows,
  padding,
  mistakes,
  changed,
  dropped,
  memory,
];
