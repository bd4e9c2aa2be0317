// Times attention forward and backward without JavaScript: whole rows, documents, padding, windows
// and block layouts.

import { readSparsity, type SparsityOptions, sparseLayout } from '../lib/nn/index.js';
import { type Device, device as findDevice } from '../lib/runtime/device.js';
import * as kernels from '../lib/runtime/kernels.generated.js';
import { Event } from '../lib/runtime/stream.js';
import { type BlockLayout, inOrder, scope, Tensor } from '../lib/tensor/index.js';
import type { Options } from './main.js';
import { median } from './report.js';

/** Batch, query heads, key heads, tokens, width of a head. */
type Shape = readonly [b: number, h: number, hk: number, t: number, d: number];

/** GPT-2 124M, and Llama 8B at a short and a long row. */
const shapes: Readonly<Record<string, Shape>> = {
  'GPT-2 124M': [16, 12, 12, 1024, 64],
  'Llama 8B': [2, 32, 8, 2048, 128],
  'Llama 8B, long': [1, 32, 8, 8192, 128],
  'T 4096': [1, 16, 16, 4096, 64],
  'T 16384': [1, 16, 16, 16384, 64],
  'one tiny row': [1, 2, 1, 256, 8],
};

/** Masks of rows of t tokens, in addition to the causal mask. */
interface Hidden {
  documents: ((b: number, t: number) => Int32Array) | null;
  window: (t: number) => number;
  sparsity?: SparsityOptions;
}

/** Documents of t / `parts` tokens on average, from a quarter to seven quarters of that. */
function documentsOf(parts: number): (b: number, t: number) => Int32Array {
  return (b, t) => {
    let state = parts + t;
    const random = (): number => {
      state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
      return state / 2 ** 32;
    };
    const ids = new Int32Array(b * t);
    let [left, document] = [0, -1];
    for (let i = 0; i < ids.length; ++i, --left) {
      if (i % t === 0) document = -1;
      if (i % t === 0 || left === 0) {
        left = Math.ceil((t / parts) * (0.25 + 1.5 * random()));
        ++document;
      }
      ids[i] = document;
    }
    return ids;
  };
}

const padding = (b: number, t: number): Int32Array =>
  Int32Array.from({ length: b * t }, (_, i) => (i % t < t / 4 ? -1 : 0));

const none = (): number => 0;
const sparse = (sparsity: SparsityOptions): Hidden => ({ documents: null, window: none, sparsity });
const kinds: Readonly<Record<string, Hidden>> = {
  whole: { documents: null, window: none },
  'one document': { documents: (b, t) => new Int32Array(b * t), window: none },
  '4 documents': { documents: documentsOf(4), window: none },
  '16 documents': { documents: documentsOf(16), window: none },
  'a quarter of padding, left': { documents: padding, window: none },
  'a window of an eighth': { documents: null, window: (t) => t / 8 },
  'fixed, blocks of 16': sparse({ mode: 'fixed' }),
  'fixed, blocks of 128': sparse({ mode: 'fixed', block: 128 }),
  'fixed, blocks of 64, by head': sparse({
    mode: 'fixed',
    block: 64,
    differentLayoutPerHead: true,
    numDifferentGlobalPatterns: 4,
  }),
  'bigbird, blocks of 64': sparse({ mode: 'bigbird', block: 64, numRandomBlocks: 2 }),
  'bslongformer, blocks of 64': sparse({ mode: 'bslongformer', block: 64 }),
};

/** The share of a causal row's pairs of query and key that are seen. */
function seenShare(
  ids: Int32Array | null,
  window: number,
  t: number,
  layout: BlockLayout | null,
): number {
  let seen = 0;
  if (layout) return seenOf(layout, t);
  for (let query = 0; query < t; ++query) {
    for (let key = query; key >= 0 && (window === 0 || query - key < window); --key)
      if (!ids || (ids[query] === ids[key] && (ids[key] as number) >= 0)) ++seen;
  }
  return seen / ((t * (t + 1)) / 2);
}

/** The same of a layout, the average of its heads. */
function seenOf(layout: BlockLayout, t: number): number {
  const { heads, blocks, block } = layout;
  let seen = 0;
  for (let head = 0; head < heads; ++head)
    for (let query = 0; query < blocks; ++query)
      for (let key = 0; key <= query; ++key)
        if (layout.sees(head, query, key))
          seen += key < query ? block * block : (block * (block + 1)) / 2;
  return seen / heads / ((t * (t + 1)) / 2);
}

/** Median milliseconds of one launch, of `count` back to back. */
function time(device: Device, count: number, run: () => void): number {
  const [start, end] = [new Event(device, true), new Event(device, true)];
  const samples = Array.from({ length: 12 }, () => {
    start.record(device.compute);
    for (let i = 0; i < count; ++i) run();
    end.record(device.compute).synchronize();
    return end.since(start) / count;
  });
  start.dispose();
  end.dispose();
  return median(samples.slice(2));
}

function measure(device: Device, shape: Shape, hidden: Hidden, count: number): object {
  const [b, h, hk, t, d] = shape;
  let offset = 0;
  const drawHeads = (heads: number): Tensor => {
    const memory = Tensor.empty([b, t, heads, d], 'bf16', device);
    kernels.randomUniform({ out: memory, low: -1, high: 1, seed: 1, offset: ++offset, ...inOrder });
    return memory.transpose(1, 2);
  };
  const ids = hidden.documents?.(b, t) ?? null;
  const documents = ids && Tensor.from(ids, { shape: [b, t], device });
  const window = hidden.window(t);
  const layout = hidden.sparsity
    ? sparseLayout(readSparsity({ maxTokens: t, ...hidden.sparsity }), h, t)
    : null;
  const [q, k, v, out, dout] = [
    drawHeads(h),
    drawHeads(hk),
    drawHeads(hk),
    drawHeads(h),
    drawHeads(h),
  ];
  const [dq, dk, dv] = [drawHeads(h), drawHeads(hk), drawHeads(hk)];
  const shared = {
    q,
    k,
    v,
    out,
    lse: Tensor.empty([b, h, t], 'f32', device),
    mask: null,
    keyMask: null,
    keyLengths: null,
    queryDocuments: documents,
    keyDocuments: documents,
    window,
    layout: layout?.on(device) ?? null,
    block: layout?.block ?? 0,
    dropout: { p: 0, seed: 0, offset: 0, sample: 1, rank: 0, ranks: 1, head: 0, heads: 0 },
    scale: d ** -0.5,
    cap: 0,
    causal: true,
  };
  const forward = time(device, count, () => kernels.attention(shared));
  const backward = time(device, count, () =>
    kernels.attentionBackward({ ...shared, dout, dq, dk, dv }),
  );
  return { forward_ms: forward, backward_ms: backward, seen: seenShare(ids, window, t, layout) };
}

/**
 * --count 20 launches back to back; --device cuda; --only REGEXP of shapes. `seen` is the
 * share of visible keys: an ideal kernel takes this share of the time of whole rows.
 */
export function attentionBench(options: Options): object {
  const device = findDevice(options.device ?? 'cuda');
  const count = Number(options.count ?? 20);
  const only = new RegExp(options.only ?? '');
  const chosen = Object.entries(shapes).filter(([name]) => only.test(name));
  const rows = chosen.flatMap(([name, shape]) =>
    Object.entries(kinds).map(([kind, hidden]) => {
      const result = scope(() => measure(device, shape, hidden, count));
      return { shape: `${name} [${shape}]`, kind, ...result };
    }),
  );
  return { device: device.info.name, rows };
}
