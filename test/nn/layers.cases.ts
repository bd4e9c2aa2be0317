// Tests layers against f64 formulas, with masks, fully masked rows, odd sizes and gradients.
import assert from 'node:assert/strict';
import { DsError } from '../../lib/errors.js';
import * as nn from '../../lib/nn/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { numel } from '../../lib/runtime/view.js';
import {
  addLayerNorm,
  addRmsNorm,
  noGrad,
  ones,
  rmsNorm,
  scope,
  seed,
  Tensor,
  zeros,
} from '../../lib/tensor/index.js';
import { assertClose, generator, indices } from '../autograd/check.js';
import type { Case } from '../support/case.js';

function layerCase(name: string, body: (device: Device) => void): Case {
  return { name: `layer: ${name}`, run: (device) => scope(() => body(device)) };
}

const refuses = (code: string, body: () => unknown): void =>
  assert.throws(body, (error: unknown) => error instanceof DsError && error.code === code);

function draw(name: string, shape: readonly number[], device: Device): Tensor {
  const random = generator(name);
  const values = Array.from({ length: numel(shape) }, () => random() * 2 - 1);
  return Tensor.from(values, { shape, device });
}

/** Reads an element by position. */
const reader = (x: Tensor) => {
  const values = x.toArray();
  return (...at: number[]): number =>
    values[at.reduce((sum, index, d) => sum * (x.shape[d] as number) + index, 0)] as number;
};

/** Direct convolution in f64. */
function convolve(x: Tensor, layer: nn.Conv2d, how: { s: number[]; p: number[]; d: number[] }) {
  const [N, C, H, W] = x.shape as [number, number, number, number];
  const [O, , kh, kw] = layer.weight.shape as [number, number, number, number];
  const { s, p, d } = how as { s: [number, number]; p: [number, number]; d: [number, number] };
  const size = (n: number, k: number, i: 0 | 1): number =>
    Math.floor((n + 2 * p[i] - d[i] * (k - 1) - 1) / s[i]) + 1;
  const [rows, columns] = [size(H, kh, 0), size(W, kw, 1)];
  const [image, weight, bias] = [reader(x), reader(layer.weight), reader(layer.bias as Tensor)];
  const out: number[] = [];
  for (let n = 0; n < N; ++n) {
    for (let o = 0; o < O; ++o) {
      for (let at = 0; at < rows * columns; ++at) {
        const [r, c] = [Math.floor(at / columns), at % columns];
        let sum = bias(o);
        for (let k = 0; k < C * kh * kw; ++k) {
          const [ch, i, j] = [Math.floor(k / kh / kw), Math.floor(k / kw) % kh, k % kw];
          const [y, z] = [r * s[0] - p[0] + i * d[0], c * s[1] - p[1] + j * d[1]];
          if (y >= 0 && y < H && z >= 0 && z < W) sum += image(n, ch, y, z) * weight(o, ch, i, j);
        }
        out.push(sum);
      }
    }
  }
  return { out, shape: [N, O, rows, columns] };
}

const convolutions = [
  { size: [9, 7], kernel: [3, 2], s: [1, 1], p: [0, 0], d: [1, 1] },
  { size: [9, 7], kernel: [3, 3], s: [2, 3], p: [1, 2], d: [1, 1] },
  { size: [11, 10], kernel: [3, 2], s: [2, 1], p: [2, 0], d: [3, 2] },
  { size: [8, 12], kernel: [4, 4], s: [4, 4], p: [0, 0], d: [1, 1] },
].map(({ size, kernel, ...how }) =>
  layerCase(`Conv2d ${JSON.stringify({ size, kernel, ...how })}`, (device) => {
    const { s, p, d } = how as unknown as Record<string, [number, number]>;
    const pair = kernel as [number, number];
    const layer = new nn.Conv2d(3, 5, pair, { stride: s, padding: p, dilation: d }).to(device);
    const x = draw('image', [2, 3, ...size], device);
    const { out, shape } = convolve(x, layer, how);
    const got = layer.call(x);
    assert.deepEqual(got.shape, shape);
    assertClose(got.toArray(), out, 1e-5, 'values');
    assert.deepEqual(layer.call(x.select(0, 1)).shape, shape.slice(1));
  }),
);

/** Attention weights and output of one head in f64; null if all keys are masked. */
function attend(
  q: number[][],
  k: number[][],
  v: number[][],
  bias: (t: number, s: number) => number,
) {
  return q.map((query, t) => {
    const scores = k.map((key, s) => {
      const dot = query.reduce((sum, value, i) => sum + value * (key[i] as number), 0);
      return dot / Math.sqrt(query.length) + bias(t, s);
    });
    const largest = Math.max(...scores);
    if (largest === Number.NEGATIVE_INFINITY) return query.map(() => 0);
    const weights = scores.map((score) => Math.exp(score - largest));
    const total = weights.reduce((sum, value) => sum + value, 0);
    return query.map((_, i) => weights.reduce((sum, w, s) => sum + w * v[s]![i]!, 0) / total);
  });
}

interface Masked {
  title: string;
  masks(device: Device): nn.AttentionCall;
  bias(b: number, h: number, t: number, s: number): number;
}

const [B, T, S, E, H] = [2, 5, 7, 6, 3];
const D = E / H;
const never = Number.NEGATIVE_INFINITY;
const bools = (shape: number[], device: Device, at: (i: number) => boolean): Tensor =>
  Tensor.from(
    Array.from({ length: numel(shape) }, (_, i) => at(i)),
    { shape, device },
  );
const isPadded = (b: number, s: number): boolean => (b === 1 ? true : s > 4);
const biasAt = (h: number, t: number, s: number): number => Math.sin(h + 2 * t + 3 * s);

const masked: Masked[] = [
  { title: 'no mask', masks: () => ({}), bias: () => 0 },
  {
    title: 'causal',
    masks: () => ({ isCausal: true }),
    bias: (_b, _h, t, s) => (s > t + S - T ? never : 0),
  },
  {
    title: 'boolean mask with hidden rows',
    masks: (device) => ({ attnMask: bools([T, S], device, (i) => i % S > 3 || i < S) }),
    bias: (_b, _h, t, s) => (s > 3 || t === 0 ? never : 0),
  },
  {
    title: 'key padding, one sample all padding',
    masks: (device) => ({
      keyPaddingMask: bools([B, S], device, (i) => isPadded(Math.floor(i / S), i % S)),
    }),
    bias: (b, _h, _t, s) => (isPadded(b, s) ? never : 0),
  },
  {
    title: 'numbers by head and minus infinity, padding and causality together',
    masks: (device) => ({
      attnMask: Tensor.from(
        Array.from({ length: B * H * T * S }, (_, i) => {
          const [h, t, s] = [Math.floor(i / S / T) % H, Math.floor(i / S) % T, i % S];
          return t === 3 ? never : biasAt(h, t, s);
        }),
        { shape: [B * H, T, S], device },
      ),
      keyPaddingMask: bools([B, S], device, (i) => i % S === 2),
      isCausal: true,
    }),
    bias: (_b, h, t, s) => (t === 3 || s === 2 || s > t + S - T ? never : biasAt(h, t, s)),
  },
];

/** Rows [batch][time] of heads' parts of a projection. */
function project(x: Tensor, layer: nn.MultiheadAttention, part: number): number[][][] {
  const [weight, bias, value] = [
    reader(layer.in_proj_weight),
    reader(layer.in_proj_bias as Tensor),
    reader(x),
  ];
  return Array.from({ length: B }, (_, b) =>
    Array.from({ length: x.size(1) }, (_, t) =>
      Array.from({ length: E }, (_, e) => {
        let sum = bias(part * E + e);
        for (let i = 0; i < E; ++i) sum += value(b, t, i) * weight(part * E + e, i);
        return sum;
      }),
    ),
  );
}

const attentions = masked.flatMap(({ title, masks, bias }) =>
  [false, true].map((needWeights) =>
    layerCase(`MultiheadAttention, ${title}, weights ${needWeights}`, (device) => {
      seed(5);
      const layer = new nn.MultiheadAttention(E, H, { batchFirst: true }).to(device);
      const [x, y] = [draw('query', [B, T, E], device), draw('keys', [B, S, E], device)];
      const [q, k, v] = [project(x, layer, 0), project(y, layer, 1), project(y, layer, 2)];
      const joined: number[] = [];
      for (let b = 0; b < B; ++b) {
        const heads = Array.from({ length: H }, (_, h) => {
          const own = (rows: number[][]): number[][] =>
            rows.map((row) => row.slice(h * D, (h + 1) * D));
          return attend(own(q[b]!), own(k[b]!), own(v[b]!), (t, s) => bias(b, h, t, s));
        });
        for (let t = 0; t < T; ++t) joined.push(...heads.flatMap((head) => head[t]!));
      }
      const [weight, offset] = [
        reader(layer.out_proj.weight),
        reader(layer.out_proj.bias as Tensor),
      ];
      const expected = joined.map((_, at) => {
        const [row, e] = [Math.floor(at / E), at % E];
        let sum = offset(e);
        for (let i = 0; i < E; ++i) sum += joined[row * E + i]! * weight(e, i);
        return sum;
      });
      const [out, weights] = layer.call(x, y, y, { ...masks(device), needWeights });
      assertClose(out.toArray(), expected, 1e-5, 'output');
      assert.deepEqual(weights?.shape ?? null, needWeights ? [B, T, S] : null);
      out.sum().backward();
      for (const parameter of layer.parameters()) {
        assert.ok(parameter.grad?.toArray().every(Number.isFinite), 'finite gradients');
      }
      layer.zeroGrad();
      const plain = new nn.MultiheadAttention(E, H).to(device);
      plain.loadStateDict(layer.stateDict());
      const [a, c] = [x.transpose(0, 1), y.transpose(0, 1)];
      const [turned] = plain.call(a, c, c, masks(device));
      assertClose(turned.transpose(0, 1).toArray(), expected, 1e-5, 'time first');
    }),
  ),
);

const selfAttention = layerCase(
  'MultiheadAttention of one input, alone and in a batch',
  (device) => {
    const layer = new nn.MultiheadAttention(E, H, { batchFirst: true }).to(device);
    const x = draw('self', [B, T, E], device);
    const copy = x.add(0);
    const causal = { isCausal: true };
    const [packed] = layer.call(x, x, x, causal);
    const [apart] = layer.call(x, copy, copy, causal);
    assertClose(packed.toArray(), apart.toArray(), 1e-6, 'packed projection');
    const one = x.select(0, 1);
    const [alone, weights] = layer.call(one, one, one, { ...causal, needWeights: true });
    assertClose(alone.toArray(), packed.select(0, 1).toArray(), 1e-5, 'without a batch');
    assert.deepEqual(weights?.shape, [T, T]);
    const byHead = { needWeights: true, averageAttnWeights: false };
    assert.deepEqual(layer.call(x, x, x, byHead)[1]?.shape, [B, H, T, T]);
    const gradientOf = (input: Tensor, other: Tensor): number[] => {
      layer.call(input, other, other)[0].square().sum().backward();
      const values = layer.in_proj_weight.grad?.toArray() as number[];
      layer.zeroGrad();
      return values;
    };
    assertClose(gradientOf(x, x), gradientOf(x, copy), 1e-5, 'gradient of the packed weight');
  },
);

/** The output of a layer equals that of its explicit parts. */
const transformers = (['relu', 'gelu'] as const).flatMap((activation) =>
  [false, true].map((normFirst) =>
    layerCase(`transformer layers, ${activation}, normFirst ${normFirst}`, (device) => {
      const options = { dimFeedforward: 10, dropout: 0.3, activation, normFirst, batchFirst: true };
      const encoder = new nn.TransformerEncoderLayer(E, H, options).to(device).eval();
      const decoder = new nn.TransformerDecoderLayer(E, H, options).to(device).eval();
      const [src, tgt] = [draw('src', [B, S, E], device), draw('tgt', [B, T, E], device)];
      const act = (x: Tensor): Tensor => (activation === 'relu' ? x.relu() : x.gelu());
      type Layer = nn.TransformerEncoderLayer | nn.TransformerDecoderLayer;
      const feed = (layer: Layer, x: Tensor): Tensor =>
        layer.linear2.call(act(layer.linear1.call(x)));
      const sub = (x: Tensor, norm: nn.LayerNorm, f: (x: Tensor) => Tensor): Tensor =>
        normFirst ? x.add(f(norm.call(x))) : norm.call(x.add(f(x)));
      const padding = bools([B, S], device, (i) => i % S > 4);
      const see = { keyPaddingMask: padding };
      const mixed = sub(src, encoder.norm1, (x) => encoder.self_attn.call(x, x, x, see)[0]);
      const memory = sub(mixed, encoder.norm2, (x) => feed(encoder, x));
      const out = encoder.call(src, { srcKeyPaddingMask: padding });
      assertClose(out.toArray(), memory.toArray(), 1e-6, 'encoder');
      const causal = { isCausal: true };
      const own = sub(tgt, decoder.norm1, (x) => decoder.self_attn.call(x, x, x, causal)[0]);
      const read = (x: Tensor): Tensor => decoder.multihead_attn.call(x, memory, memory, see)[0];
      const final = sub(sub(own, decoder.norm2, read), decoder.norm3, (x) => feed(decoder, x));
      const masks = { tgtIsCausal: true, memoryKeyPaddingMask: padding };
      assertClose(decoder.call(tgt, memory, masks).toArray(), final.toArray(), 1e-6, 'decoder');
      assert.notDeepEqual(encoder.train().call(src).toArray(), encoder.call(src).toArray());
    }),
  ),
);

const stacks = layerCase('stacks: names, units, norm and masks in every layer', (device) => {
  const make = () => new nn.TransformerEncoderLayer(E, H, { dropout: 0, dimFeedforward: 8 });
  const stack = new nn.TransformerEncoder(make, 2, { norm: new nn.LayerNorm(E) }).to(device);
  assert.deepEqual(
    stack.units().map(({ name }) => name),
    ['layers.0', 'layers.1'],
  );
  const names = Object.keys(stack.stateDict());
  assert.ok(names.includes('layers.1.self_attn.in_proj_weight') && names.includes('norm.bias'));
  assert.notDeepEqual(
    stack.layers[0]?.linear1.weight.toArray(),
    stack.layers[1]?.linear1.weight.toArray(),
  );
  const x = draw('stack', [T, B, E], device);
  const step = (i: number, y: Tensor) =>
    (stack.layers[i] as nn.TransformerEncoderLayer).call(y, { isCausal: true });
  const expected = (stack.norm as nn.LayerNorm).call(step(1, step(0, x)));
  const out = stack.call(x, { isCausal: true });
  assertClose(out.toArray(), expected.toArray(), 1e-6, 'encoder');
  const first = out.select(0, 0).toArray();
  const changed = stack.call(x.add(bools([T, 1, 1], device, (i) => i > 0).to('f32')), {
    isCausal: true,
  });
  assertClose(changed.select(0, 0).toArray(), first, 1e-6, 'the first query sees no later key');
  const decoder = new nn.TransformerDecoder(
    () => new nn.TransformerDecoderLayer(E, H, { dropout: 0 }),
    2,
  ).to(device);
  assert.deepEqual(decoder.call(x, out).shape, [T, B, E]);
});

const others: Case[] = [
  layerCase('Conv1d is Conv2d of one row', (device) => {
    const layer = new nn.Conv1d(3, 4, 3, { stride: 2, padding: 1, dilation: 2 }).to(device);
    const flat = new nn.Conv2d(3, 4, [1, 3], {
      stride: [1, 2],
      padding: [0, 1],
      dilation: [1, 2],
    }).to(device);
    flat.loadStateDict({ weight: layer.weight.unsqueeze(2), bias: layer.bias as Tensor });
    const x = draw('sequence', [2, 3, 11], device);
    assert.deepEqual(layer.weight.shape, [4, 3, 3]);
    const out = layer.call(x);
    assertClose(out.toArray(), flat.call(x.unsqueeze(2)).toArray(), 1e-6, 'values');
    assertClose(layer.call(x.select(0, 1)).toArray(), out.select(0, 1).toArray(), 1e-6, 'alone');
  }),
  layerCase('GroupNorm', (device) => {
    const layer = new nn.GroupNorm(2, 6).to(device);
    layer.loadStateDict({ weight: draw('gamma', [6], device), bias: draw('beta', [6], device) });
    const x = draw('features', [3, 6, 5], device);
    const [value, weight, bias] = [
      reader(x),
      reader(layer.weight as Tensor),
      reader(layer.bias as Tensor),
    ];
    const expected = x.toArray().map((own, at) => {
      const [n, c] = [Math.floor(at / 30), Math.floor(at / 5) % 6];
      const group = Array.from({ length: 15 }, (_, i) =>
        value(n, (c < 3 ? 0 : 3) + Math.floor(i / 5), i % 5),
      );
      const mean = group.reduce((a, b) => a + b) / 15;
      const variance = group.reduce((a, b) => a + (b - mean) ** 2, 0) / 15;
      return ((own - mean) / Math.sqrt(variance + 1e-5)) * weight(c) + bias(c);
    });
    assertClose(layer.call(x).toArray(), expected, 1e-5, 'values');
    assert.deepEqual(new nn.GroupNorm(3, 6, { affine: false }).parameters(), []);
    refuses('DS_ARGUMENT', () => new nn.GroupNorm(4, 6));
    refuses('DS_SHAPE', () => layer.call(zeros([3, 5], { device })));
  }),
  layerCase('Embedding paddingIdx: zeros that get no gradient', (device) => {
    for (const paddingIdx of [2, -3]) {
      const layer = new nn.Embedding(5, 3, { paddingIdx }).to(device);
      const index = indices([2, 0, 2, 4], [2, 2], layer.weight);
      const out = layer.call(index);
      assert.deepEqual(out.toArray().slice(0, 3), [0, 0, 0]);
      assert.ok(
        out
          .toArray()
          .slice(3, 6)
          .every((value) => value !== 0),
      );
      out.sum().backward();
      assert.deepEqual(layer.weight.grad?.sum(1).toArray(), [3, 0, 0, 0, 3]);
      layer.zeroGrad();
    }
    refuses('DS_ARGUMENT', () => new nn.Embedding(5, 3, { paddingIdx: 5 }));
    refuses('DS_ARGUMENT', () => new nn.Embedding(5, 3, { paddingIdx: -6 }));
    refuses('DS_ARGUMENT', () => new nn.Embedding(5, 3, { maxNorm: 1 } as never));
  }),
  layerCase('SwiGLU', (device) => {
    const layer = new nn.SwiGLU(4, 7).to(device);
    const x = draw('x', [3, 4], device);
    const gate = layer.gate_proj.call(x);
    const expected = layer.down_proj.call(gate.mul(gate.sigmoid()).mul(layer.up_proj.call(x)));
    assertClose(layer.call(x).toArray(), expected.toArray(), 1e-6, 'values');
    assert.deepEqual(Object.keys(layer.stateDict()), [
      'gate_proj.weight',
      'up_proj.weight',
      'down_proj.weight',
    ]);
  }),
  layerCase('feature dropout drops whole channels, and nothing in eval', (device) => {
    seed(3);
    for (const [layer, shape] of [
      [new nn.Dropout1d(0.4), [50, 8, 3]],
      [new nn.Dropout1d(0.4), [400, 3]],
      [new nn.Dropout2d(0.4), [50, 8, 3, 2]],
      [new nn.Dropout2d(0.4), [50, 8, 6]],
    ] as const) {
      const x = ones(shape, { device });
      const out = layer.call(x);
      const size = numel(shape) / 400;
      const rows = out.reshape([400, size]).toList() as number[][];
      for (const row of rows) assert.equal(new Set(row).size, 1, 'one value per channel');
      const kept = rows.filter(([value]) => value !== 0).length / 400;
      assert.ok(Math.abs(kept - 0.6) < 0.1, `${kept} kept`);
      assert.ok(Math.abs(out.max().item() - 1 / 0.6) < 1e-6);
      assert.equal(layer.eval().call(x), x);
    }
    refuses('DS_SHAPE', () => new nn.Dropout2d().call(ones([3], { device })));
  }),
  layerCase('Identity, Flatten and ModuleDict', (device) => {
    const x = draw('x', [2, 3, 4, 5], device);
    assert.equal(new nn.Identity().call(x), x);
    assert.deepEqual(new nn.Flatten().call(x).shape, [2, 60]);
    assert.deepEqual(new nn.Flatten(1, 2).call(x).shape, [2, 12, 5]);
    const dict = new nn.ModuleDict({ a: new nn.Linear(2, 3), b: new nn.ReLU() });
    assert.deepEqual(Object.keys(dict.stateDict()), ['a.weight', 'a.bias']);
    assert.ok(dict.has('b') && !dict.has('c') && dict.size === 2);
    assert.ok(dict.get('a') instanceof nn.Linear);
    refuses('DS_ARGUMENT', () => dict.get('c'));
    refuses('DS_ARGUMENT', () => dict.set('x.y', new nn.ReLU()));
    refuses('DS_ARGUMENT', () => new nn.ModuleDict({ f: (() => 1) as never }));
    refuses('DS_ARGUMENT', () => dict.call());
  }),
  layerCase('activations with a parameter', (device) => {
    const x = Tensor.from([-30, -2, 0, 1.5, 30], { device });
    const curves = [
      [new nn.LeakyReLU(0.3), (v: number) => Math.max(v, 0.3 * v)],
      [new nn.ELU(2), (v: number) => (v > 0 ? v : 2 * Math.expm1(v))],
      [new nn.Softplus(), (v: number) => Math.log1p(Math.exp(v))],
      [new nn.Softplus({ beta: 2 }), (v: number) => Math.log1p(Math.exp(2 * v)) / 2],
    ] as const;
    for (const [layer, curve] of curves) {
      assertClose(layer.call(x).toArray(), x.toArray().map(curve), 1e-6, layer.constructor.name);
    }
    refuses('DS_ARGUMENT', () => new nn.LeakyReLU('0.1' as never).call(x));
    refuses('DS_ARGUMENT', () => new nn.Softplus({ beta: 0 }).call(x));
    refuses('DS_DTYPE', () => new nn.ELU().call(x.to('i32')));
  }),
  layerCase('bad arguments are refused by name', (device) => {
    refuses('DS_ARGUMENT', () => new nn.Conv2d(2, 2, 3, { groups: 2 }));
    refuses('DS_ARGUMENT', () => new nn.Conv2d(2, 2, 0));
    refuses('DS_ARGUMENT', () => new nn.Conv1d(2, 2, 3, { stride: [1, 2] }));
    refuses('DS_SHAPE', () =>
      new nn.Conv2d(2, 2, 3).to(device).call(zeros([1, 3, 5, 5], { device })),
    );
    refuses('DS_SHAPE', () =>
      new nn.Conv2d(2, 2, 3).to(device).call(zeros([1, 2, 5, 2], { device })),
    );
    refuses('DS_ARGUMENT', () => new nn.MultiheadAttention(5, 2));
    refuses('DS_ARGUMENT', () => new nn.MultiheadAttention(4, 2, { kdim: 3 } as never));
    refuses(
      'DS_ARGUMENT',
      () => new nn.TransformerEncoderLayer(4, 2, { activation: 'swish' as never }),
    );
    refuses(
      'DS_ARGUMENT',
      () => new nn.TransformerEncoder(new nn.TransformerEncoderLayer(4, 2) as never, 2),
    );
    const layer = new nn.MultiheadAttention(4, 2).to(device);
    const x = zeros([3, 2, 4], { device });
    const call = (options: nn.AttentionCall) => () => layer.call(x, x, x, options);
    refuses('DS_SHAPE', call({ attnMask: zeros([3, 4], { device }) }));
    refuses('DS_SHAPE', call({ keyPaddingMask: zeros([3, 2], { device }) }));
    refuses('DS_DTYPE', call({ attnMask: zeros([3, 3], { device, dtype: 'i32' }) }));
    refuses('DS_ARGUMENT', call({ mask: x } as never));
    refuses('DS_SHAPE', () => layer.call(x, zeros([3, 3, 4], { device }), x));
  }),
];

/** Widths for the kernels of small and large row counts, which have the same sum order. */
const norms = (['f32', 'f16', 'bf16'] as const).map((dtype) =>
  layerCase(`norms of a row in ${dtype} have the same bits among few rows and many`, (device) => {
    noGrad(() => {
      for (const width of [64, 1000, 1536, 2048, 4096, 5120]) {
        const [x, y] = ['x', 'y'].map((name) => draw(name + width, [200, width], device).to(dtype));
        const [weight, bias] = ['w', 'b'].map((name) => draw(name, [width], device).to(dtype));
        const of = (first: number, count: number): Tensor[] => {
          const [a, b] = [x, y].map((all) => (all as Tensor).narrow(0, first, count));
          const [w, z] = [weight, bias] as [Tensor, Tensor];
          return [
            ...addRmsNorm(a as Tensor, b as Tensor, w),
            ...addLayerNorm(a as Tensor, b as Tensor, w, z),
            rmsNorm(a as Tensor, w),
          ];
        };
        const all = of(0, 200);
        for (const [first, count] of [
          [0, 1],
          [7, 5],
          [100, 100],
        ] as const) {
          of(first, count).forEach((few, i) => {
            const same = (all[i] as Tensor).narrow(0, first, count);
            const differs = few.ne(same).to('f32').sum().item();
            assert.equal(differs, 0, `${width} wide, rows ${first} to ${first + count}, ${i}`);
          });
        }
      }
    });
  }),
);

export const cases: Case[] = [
  ...norms,
  ...convolutions,
  ...attentions,
  selfAttention,
  ...transformers,
  stacks,
  ...others,
];
