// Tests sparse attention: equality with dense attention and a mask, skipped blocks, and layers with
// a pattern.
import assert from 'node:assert/strict';
import { GPT2, Llama } from '../../lib/models/index.js';
import {
  Linear,
  MultiheadAttention,
  readSparsity,
  SparseSelfAttention,
  type SparsityOptions,
  sparseLayout,
  sparsify,
} from '../../lib/nn/index.js';
import { requireDense } from '../../lib/nn/sparse-attention.js';
import type { Device } from '../../lib/runtime/device.js';
import * as kernels from '../../lib/runtime/kernels.generated.js';
import {
  type AttentionOptions,
  attention,
  BlockLayout,
  noGrad,
  scope,
  seed,
  Tensor,
} from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';
import { draw, refuses } from '../tensor/attention-checks.js';

function sparseCase(name: string, body: (device: Device) => void): Case {
  return { name: `sparse attention: ${name}`, run: (device) => scope(() => body(device)) };
}

const patterns: readonly SparsityOptions[] = [
  { mode: 'dense' },
  { mode: 'fixed' },
  { mode: 'fixed', block: 32, attention: 'unidirectional', numGlobalBlocks: 2 },
  { mode: 'fixed', differentLayoutPerHead: true, numDifferentGlobalPatterns: 4 },
  {
    mode: 'variable',
    localWindowBlocks: [1, 3, 2],
    globalBlockIndices: [2, 9],
    numRandomBlocks: 1,
  },
  { mode: 'bigbird', numRandomBlocks: 2, differentLayoutPerHead: true },
  { mode: 'bslongformer', globalBlockIndices: [0, 5], globalBlockEndIndices: [1, 7] },
  { mode: 'local_sliding_window', numSlidingWindowBlocks: 5 },
];

/** The output, and the gradients of queries, keys and values. */
function results(tensors: readonly Tensor[], call: (...parts: Tensor[]) => Tensor): Tensor[] {
  const [q, k, v, dout] = tensors.map((x) => x.detach()) as [Tensor, Tensor, Tensor, Tensor];
  const leaves = [q, k, v].map((x) => x.requireGrad());
  const out = call(...leaves);
  out.mul(dout).sum().backward();
  return [out, ...leaves.map((x) => x.grad as Tensor)];
}

function near(got: Tensor, expected: Tensor, tolerance: number, label: string): void {
  const values = expected.contiguous().toArray();
  got
    .contiguous()
    .toArray()
    .forEach((x, i) => {
      const away = Math.abs(x - (values[i] as number));
      assert.ok(away <= tolerance, `${label}[${i}]: ${x}, expected ${values[i]}`);
    });
}

const asDense = sparseCase(
  'all patterns are dense attention under their masks, T 203',
  (device) => {
    const [T, H] = [203, 4];
    const tensors = ['q', 'k', 'v', 'dout'].map((name) => draw(name, [2, H, T, 16], device));
    for (const options of patterns) {
      const layer = new SparseSelfAttention({ ...options, maxTokens: 256 });
      const mask = layer.sparsity.layout(H, T)?.mask(T, T, device) ?? null;
      for (const causal of [false, true]) {
        const parts = results(tensors, (q, k, v) =>
          layer.call(q as Tensor, k as Tensor, v as Tensor, { causal }),
        );
        const fullTensors = results(tensors, (q, k, v) =>
          attention(q as Tensor, k as Tensor, v as Tensor, { causal, mask }),
        );
        fullTensors.forEach((expected, i) => {
          near(parts[i] as Tensor, expected, 2e-5, `${options.mode} ${i}`);
        });
      }
    }
  },
);

const masked = sparseCase('masks of both modes, and positions, add up', (device) => {
  const [T, H] = [50, 2];
  const [q, k, v] = ['q', 'k', 'v'].map((name) => draw(name, [2, H, T, 8], device)) as [
    Tensor,
    Tensor,
    Tensor,
  ];
  const rpe = draw('rpe', [1, H, T, T], device);
  const ones = Tensor.from(
    Float32Array.from({ length: T * T }, (_, i) => Number(i % 3 !== 0)),
    {
      shape: [T, T],
      device,
    },
  );
  const keys = draw('keys', [2, T], device);
  const layer = new SparseSelfAttention({ mode: 'bslongformer', attnMaskMode: 'mul' });
  const layout = layer.sparsity.layout(H, T) as BlockLayout;
  const bias = rpe.add(ones.sub(1).mul(1e38));
  const expected = attention(q, k, v, { layout, mask: bias, keyMask: keys });
  near(layer.call(q, k, v, { rpe, attnMask: ones, keyPaddingMask: keys }), expected, 1e-6, 'out');
  const alone = layer.call(q, k, v, { attnMask: ones });
  near(alone, attention(q, k, v, { layout, mask: ones.ne(0) }), 1e-6, 'without positions');
});

/**
 * Finds the key blocks that the kernels visit for each query block. A NaN value reaches the output
 * of all rows with a tile that includes its row, for any weight.
 */
function visitBlocks(
  device: Device,
  layout: BlockLayout,
  T: number,
  options: AttentionOptions,
): boolean[][] {
  const D = 64;
  const dtype = device.name === 'cpu' ? 'f32' : 'bf16';
  const [q, k, v] = ['q', 'k', 'v'].map((name) => draw(name, [1, 1, T, D], device).to(dtype)) as [
    Tensor,
    Tensor,
    Tensor,
  ];
  const rows = Array.from({ length: T / layout.block }, () => [] as boolean[]);
  for (let key = 0; key < rows.length; ++key) {
    const poisoned = v.clone();
    const part = poisoned.narrow(2, key * layout.block, layout.block);
    kernels.fill({ out: part, value: Number.NaN });
    const out = attention(q, k, poisoned, options).to('f32').contiguous().toArray();
    rows.forEach((row, query) => {
      row[key] = Number.isNaN(out[query * layout.block * D]);
    });
  }
  return rows;
}

const skipping = sparseCase('blocks that no query of a tile sees are not worked on', (device) => {
  // Tiles have at most 128 queries and 128 keys: blocks of 128 are whole ones.
  const [T, block] = [1024, 128];
  const sees = (query: number, key: number): boolean =>
    (query * 5 + key * 3) % 4 === 0 || key === query;
  const layout = new BlockLayout({ heads: 1, blocks: T / block, block }, (see, _, query) => {
    for (let key = 0; key < T / block; ++key) if (sees(query, key)) see(key, key + 1);
  });
  const rows = visitBlocks(device, layout, T, { layout });
  rows.forEach((row, query) => {
    row.forEach((was, key) => {
      assert.equal(was, sees(query, key), `queries ${query}, keys ${key}`);
    });
  });
  const count = rows.flat().filter(Boolean).length;
  assert.equal(count, layout.count);
  assert.ok(count < 0.4 * rows.length ** 2, `${count} of ${rows.length ** 2} blocks`);
  // The same result with a mask visits all blocks.
  const all = visitBlocks(device, layout, T, { mask: layout.mask(T, T, device) });
  assert.equal(all.flat().filter(Boolean).length, rows.length ** 2);
});

const backwardSkips = sparseCase('the backward skips the same blocks', (device) => {
  const [T, block, D] = [512, 128, 32];
  const dtype = device.name === 'cpu' ? 'f32' : 'bf16';
  const n = T / block;
  const sees = (query: number, key: number): boolean =>
    query === key || (query + 2 * key) % 5 === 1;
  const layout = new BlockLayout({ heads: 1, blocks: n, block }, (see, _, query) => {
    for (let key = 0; key < n; ++key) if (sees(query, key)) see(key, key + 1);
  });
  const drawOperand = (name: string): Tensor => draw(name, [1, 1, T, D], device).to(dtype);
  const [q, k, v] = [drawOperand('q'), drawOperand('k'), drawOperand('v')];
  const lse = Tensor.empty([1, 1, T], 'f32', device);
  const out = Tensor.emptyLike(q);
  const shared = {
    q,
    k,
    v,
    out,
    lse,
    mask: null,
    keyMask: null,
    keyLengths: null,
    queryDocuments: null,
    keyDocuments: null,
    layout: layout.on(device),
    block,
    window: 0,
    dropout: { p: 0, seed: 0, offset: 0, sample: 1, rank: 0, ranks: 1, head: 0, heads: 0 },
    scale: 0.2,
    cap: 0,
    causal: false,
  };
  kernels.attention(shared);
  const isNaNAt = (x: Tensor, of: number): boolean =>
    Number.isNaN(
      x
        .narrow(2, of * block, 1)
        .to('f32')
        .contiguous()
        .toArray()[0],
    );
  const poison = (x: Tensor, at: number): Tensor => {
    const copy = x.clone();
    kernels.fill({ out: copy.narrow(2, at * block, block), value: Number.NaN });
    return copy;
  };
  for (let at = 0; at < n; ++at) {
    const grads = () => [q, k, v].map((x) => Tensor.emptyLike(x)) as [Tensor, Tensor, Tensor];
    const byKey = grads();
    const dout = drawOperand('dout');
    const gradientsOf = (dq: Tensor, dk: Tensor, dv: Tensor) => ({ dq, dk, dv });
    kernels.attentionBackward({ ...shared, k: poison(k, at), dout, ...gradientsOf(...byKey) });
    const byQuery = grads();
    kernels.attentionBackward({ ...shared, dout: poison(dout, at), ...gradientsOf(...byQuery) });
    for (let other = 0; other < n; ++other) {
      assert.equal(isNaNAt(byKey[0], other), sees(other, at), `dq ${other} of keys ${at}`);
      assert.equal(isNaNAt(byQuery[2], other), sees(at, other), `dv ${other} of queries ${at}`);
    }
  }
});

const tiny = { vocabSize: 61, maxSeq: 128, layers: 1, heads: 4, channels: 32 };
const window: SparsityOptions = { mode: 'local_sliding_window', numSlidingWindowBlocks: 3 };

const models = () => [new GPT2(tiny), new Llama({ ...tiny, hidden: 48, kvHeads: 2 })];

const ofModels = sparseCase('models see the blocks of their pattern, cached too', (device) => {
  seed(3);
  for (const model of models()) {
    model.to(device).eval();
    noGrad(() => {
      const ids = Int32Array.from({ length: 70 }, (_, i) => (i * 7) % 61);
      const tokens = (from: number, to: number, first = 0): Tensor => {
        const some = ids.slice(from, to);
        if (from === 0) some[0] = first;
        return Tensor.from(some, { shape: [1, to - from], device });
      };
      const last = (first: number): Tensor => model.call(tokens(0, 70, first)).narrow(1, 69, 1);
      const dense = last(0);
      assert.ok(
        dense.sub(last(5)).abs().max().item() > 1e-6,
        'dense attention sees the first token',
      );
      const restore = sparsify(model, { ...window, differentLayoutPerHead: true });
      const sparse = last(0);
      assert.ok(sparse.sub(dense).abs().max().item() > 1e-6);
      near(last(5), sparse, 0, 'the first token is hidden from the last');
      const caches = model.caches(1, 70);
      model.next(tokens(0, 64), caches);
      near(model.next(tokens(64, 70), caches).reshape([61]), sparse.reshape([61]), 1e-5, 'cached');
      restore();
      near(last(0), dense, 0, 'dense again');
    });
  }
});

const ofLayers = sparseCase('MultiheadAttention is sparse to itself alone', (device) => {
  seed(4);
  const layer = new MultiheadAttention(16, 2, { batchFirst: true }).to(
    device,
  ) as MultiheadAttention;
  const [x, y] = [draw('x', [1, 64, 16], device), draw('y', [1, 64, 16], device)];
  const [dense] = layer.call(x, x, x);
  const [across] = layer.call(x, y, y);
  sparsify(layer, { mode: 'bslongformer', globalBlockIndices: [3] });
  const layout = layer.sparsity?.layout(2, 64) as BlockLayout;
  const mask = layout.mask(64, 64, device).reshape([64, 64]).logicalNot();
  const [sparse] = layer.call(x, x, x);
  const [still] = layer.call(x, y, y);
  assert.ok(sparse.sub(dense).abs().max().item() > 1e-4);
  near(still, across, 0, 'another text');
  refuses('DS_ARGUMENT', /needWeights/, () => layer.call(x, x, x, { needWeights: true }));
  sparsify(layer, null);
  near(layer.call(x, x, x, { attnMask: mask })[0], sparse, 1e-5, 'as its mask');
});

const inNarrow = sparseCase('a mask beside positions of 16 bits', (device) => {
  const [T, H] = [40, 2];
  const parts = ['q', 'k', 'v', 'rpe'].map((name) =>
    draw(name, [1, H, T, name === 'rpe' ? T : 8], device),
  );
  const bools = Tensor.from(
    Float32Array.from({ length: T * T }, (_, i) => Number(i % 3 !== 0)),
    {
      shape: [T, T],
      device,
    },
  );
  const layer = new SparseSelfAttention({ mode: 'bslongformer' });
  const out = (dtype: 'f32' | 'f16' | 'bf16', attnMask: Tensor): Tensor => {
    const [q, k, v, rpe] = parts.map((x) => x.to('f16').to('bf16').to(dtype)) as [
      ...[Tensor, Tensor, Tensor, Tensor],
    ];
    return layer.call(q, k, v, { rpe, attnMask }).to('f32');
  };
  for (const dtype of ['f16', 'bf16'] as const) {
    for (const attnMask of [bools, bools.ne(0), bools.to(dtype)])
      near(out(dtype, attnMask), out('f32', bools), 0.02, dtype);
  }
});

const denseAgain = sparseCase(
  'the pattern "dense" hides nothing, and nothing is refused',
  (device) => {
    const layer = new MultiheadAttention(16, 2, { batchFirst: true }).to(
      device,
    ) as MultiheadAttention;
    const x = draw('x', [1, 20, 16], device);
    const [wanted] = layer.call(x, x, x, { needWeights: true });
    sparsify(layer, { mode: 'dense' });
    const [got, weights] = layer.call(x, x, x, { needWeights: true });
    near(got, wanted, 0, 'out');
    assert.deepEqual(weights?.shape, [1, 20, 20]);
    requireDense('initInference', layer);
    sparsify(layer, window);
    refuses('DS_ARGUMENT', /"local_sliding_window"/, () => requireDense('initInference', layer));
  },
);

const mistakes = sparseCase('what cannot be is refused by name', (device) => {
  const read = (options: object) => () => readSparsity(options as SparsityOptions);
  refuses('DS_ARGUMENT', /block[\s\S]*at least 16[\s\S]*24/, read({ block: 24 }));
  refuses('DS_ARGUMENT', /numGlobalBlocks[\s\S]*divisor/, read({ num_global_blocks: 3 }));
  refuses('DS_ARGUMENT', /numDifferentGlobalPatterns/, read({ numDifferentGlobalPatterns: 2 }));
  const twoWays = { attention: 'unidirectional', horizontalGlobalAttention: true };
  refuses('DS_ARGUMENT', /horizontalGlobalAttention/, read(twoWays));
  const ends = { mode: 'variable', globalBlockIndices: [3], globalBlockEndIndices: [3] };
  refuses('DS_ARGUMENT', /globalBlockEndIndices[\s\S]*above 3/, read(ends));
  refuses('DS_ARGUMENT', /mode[\s\S]*"bigbird"/, read({ mode: 'strided' }));
  refuses('DS_ARGUMENT', /sparsity|numLocal/, read({ numlocal: 2 }));
  const short = readSparsity({ mode: 'bigbird', maxTokens: 16 });
  refuses('DS_ARGUMENT', /at least 3 blocks/, () => sparseLayout(short, 1, 16));
  refuses('DS_ARGUMENT', /support sparsity/, () => sparsify(new Linear(2, 2), {}));
  const model = new MultiheadAttention(4, 2);
  refuses('DS_ARGUMENT', /a model, got an object/, () => sparsify({} as never, {}));
  for (const [given, message] of [
    [undefined, /options of a pattern, or null, got undefined/],
    [false, /an object of options[\s\S]*got false/],
    [0, /an object of options[\s\S]*got 0/],
  ] as const) {
    refuses('DS_ARGUMENT', message, () => sparsify(model, given as never));
    assert.equal(model.sparsity, null);
  }
  refuses('DS_ARGUMENT', /mode/, () => sparseLayout({ mode: 'strided' } as never, 1, 16));
  refuses('DS_ARGUMENT', /tokens/, () => sparseLayout({}, 1, -1));
  refuses('DS_ARGUMENT', /heads/, () => sparseLayout({}, undefined as never, 16));
  assert.equal(
    sparseLayout({ block: 16 }, 1, 100).count,
    sparseLayout(readSparsity({}), 1, 100).count,
  );
  const sizes = { heads: 1, blocks: 3, block: 16 };
  refuses('DS_ARGUMENT', /fill.*a function/, () => new BlockLayout(sizes, undefined as never));
  refuses('DS_ARGUMENT', /first block[\s\S]*NaN and 2/, () => {
    return new BlockLayout(sizes, (see) => see(Number.NaN, 2));
  });
  const q = draw('q', [1, 2, 40, 8], device);
  for (const layout of [{}, 'fixed', false] as never[])
    refuses('DS_ARGUMENT', /layout: expected a BlockLayout/, () => attention(q, q, q, { layout }));
  const layer = new SparseSelfAttention();
  for (const name of ['rpe', 'attnMask', 'keyPaddingMask']) {
    const call = { attnMask: q.narrow(3, 0, 1), [name]: [1] } as never;
    refuses('DS_ARGUMENT', new RegExp(`${name}: expected a tensor`), () =>
      layer.call(q, q, q, call),
    );
  }
  const layout = sparseLayout(readSparsity({}), 1, 20);
  refuses('DS_SHAPE', /3 blocks for 40 tokens/, () => attention(q, q, q, { layout }));
  const long = draw('k', [1, 2, 60, 8], device);
  refuses('DS_SHAPE', /as many keys/, () => attention(q, long, long, { layout }));
});

export const cases: Case[] = [
  asDense,
  masked,
  inNarrow,
  skipping,
  backwardSkips,
  ofModels,
  ofLayers,
  denseAgain,
  mistakes,
];
