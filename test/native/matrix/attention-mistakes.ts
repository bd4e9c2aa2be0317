// Wrong calls of attention and the rotary embedding, and the error that each must give.
import * as kernels from '../../../lib/runtime/kernels.generated.js';
import { allSeen, keepAll } from './attention-reference.js';
import type { Mistake } from './mistake.js';

/** Valid operands of attention. */
const attentionOperands = (m: Parameters<Mistake['run']>[0]) => ({
  q: m([1, 2, 3, 4]),
  k: m([1, 2, 5, 4]),
  v: m([1, 2, 5, 4]),
  out: m([1, 2, 3, 4]),
  lse: m([1, 2, 3]),
  ...allSeen,
  scale: 1,
  causal: true,
});

/** Valid operands for 17 tokens, with a layout of `heads` heads by 2 blocks. */
const laidOperands = (m: Parameters<Mistake['run']>[0], heads: number) => ({
  ...attentionOperands(m),
  q: m([1, 2, 17, 4]),
  k: m([1, 2, 17, 4]),
  v: m([1, 2, 17, 4]),
  out: m([1, 2, 17, 4]),
  lse: m([1, 2, 17]),
  layout: m([heads, 2, 1], 'i32'),
});

/** Valid operands of rope. */
const ropeOperands = (m: Parameters<Mistake['run']>[0]) => ({
  in: m([1, 3, 2, 4]),
  cos: m([5, 2]),
  sin: m([5, 2]),
  out: m([1, 3, 2, 4]),
  positions: null,
  inverse: false,
});

/** Operands of paged attention: only the indices are invalid, all -1. */
const pagedOperands = (m: Parameters<Mistake['run']>[0]) => ({
  q: m([3, 4, 8]),
  pool: m([5, 2, 2, 16, 8]),
  tables: m([2, 2], 'i32'),
  starts: m([3], 'i32'),
  lengths: m([2], 'i32'),
  out: m([3, 4, 8]),
  scale: 1,
  cap: 0,
  window: 0,
  longest: 2,
  lse: null,
  sinks: null,
  invariant: false,
});

/** Operands of the store: only the indices are invalid. */
const storeOperands = (m: Parameters<Mistake['run']>[0]) => ({
  k: m([3, 2, 8]),
  v: m([3, 2, 8]),
  slots: m([3], 'i32'),
  pool: m([5, 2, 2, 16, 8]),
});

/** Operands of the rotary store: only the indices are invalid. */
const rotaryOperands = (m: Parameters<Mistake['run']>[0]) => ({
  ...storeOperands(m),
  q: m([3, 4, 8]),
  out: m([3, 4, 8]),
  cos: m([9, 4]),
  sin: m([9, 4]),
  positions: m([3], 'i32'),
  qNorm: m([8]),
  kNorm: m([8]),
  eps: 1e-5,
});

const rotaryMistakes: readonly Mistake[] = [
  {
    op: 'rotary_store',
    what: 'queries',
    code: 'DS_SHAPE',
    message: '[2, 4, 8] f32',
    run: (m) => kernels.rotaryStore({ ...rotaryOperands(m), out: m([2, 4, 8]) }),
  },
  {
    op: 'rotary_store',
    what: 'angles',
    code: 'DS_SHAPE',
    message: '[9, 3] f32',
    run: (m) => kernels.rotaryStore({ ...rotaryOperands(m), sin: m([9, 3]) }),
  },
  {
    op: 'rotary_store',
    what: 'positions',
    code: 'DS_SHAPE',
    message: '[2] i32',
    run: (m) => kernels.rotaryStore({ ...rotaryOperands(m), positions: m([2], 'i32') }),
  },
  {
    op: 'rotary_store',
    what: 'one norm',
    code: 'DS_SHAPE',
    message: 'q_norm only',
    run: (m) => kernels.rotaryStore({ ...rotaryOperands(m), kNorm: null }),
  },
  {
    op: 'rotary_store',
    what: "a pool's heads",
    code: 'DS_SHAPE',
    message: '[5, 2, 1, 16, 8] f32',
    run: (m) => kernels.rotaryStore({ ...rotaryOperands(m), pool: m([5, 2, 1, 16, 8]) }),
  },
  {
    op: 'rotary_store',
    what: 'a position outside the table',
    code: 'DS_INDEX',
    message: '-1',
    cpuOnly: 'the GPU gives NaN',
    run: (m) => kernels.rotaryStore(rotaryOperands(m)),
  },
  {
    op: 'feed_tokens',
    what: 'lengths',
    code: 'DS_SHAPE',
    message: '[4] i32',
    run: (m) =>
      kernels.feedTokens({
        tokens: m([3], 'i32'),
        previous: m([2], 'i32'),
        out: m([4], 'i32'),
      }),
  },
  {
    op: 'feed_tokens',
    what: 'a place that is none',
    code: 'DS_INDEX',
    message: '0',
    cpuOnly: 'the GPU gives 0',
    run: (m) =>
      kernels.feedTokens({
        tokens: m([3], 'i32'),
        previous: m([0], 'i32'),
        out: m([3], 'i32'),
      }),
  },
];

const pagedMistakes: readonly Mistake[] = [
  {
    op: 'paged_attention',
    what: 'tokens',
    code: 'DS_INDEX',
    message: 'in sequence 0, got -1',
    cpuOnly: 'numbers are checked on the CPU only',
    run: (m) => kernels.pagedAttention(pagedOperands(m)),
  },
  {
    op: 'paged_attention',
    what: 'heads',
    code: 'DS_SHAPE',
    message: '4 query heads, 3 key heads',
    run: (m) => kernels.pagedAttention({ ...pagedOperands(m), pool: m([5, 2, 3, 16, 8]) }),
  },
  {
    op: 'paged_attention',
    what: "a pool's width",
    code: 'DS_SHAPE',
    message: '[5, 2, 2, 16, 4] f32',
    run: (m) => kernels.pagedAttention({ ...pagedOperands(m), pool: m([5, 2, 2, 16, 4]) }),
  },
  {
    op: 'paged_attention',
    what: "a pool's dtype",
    code: 'DS_DTYPE',
    message: 'bf16',
    run: (m) => kernels.pagedAttention({ ...pagedOperands(m), pool: m([5, 2, 2, 16, 8], 'bf16') }),
  },
  {
    op: 'paged_attention',
    what: 'starts',
    code: 'DS_SHAPE',
    message: '[2] i32',
    run: (m) => kernels.pagedAttention({ ...pagedOperands(m), starts: m([2], 'i32') }),
  },
  {
    op: 'paged_attention',
    what: 'lengths',
    code: 'DS_SHAPE',
    message: '[2] i64',
    run: (m) => kernels.pagedAttention({ ...pagedOperands(m), lengths: m([2], 'i64') }),
  },
  {
    op: 'paged_attention',
    what: 'tables',
    code: 'DS_DTYPE',
    message: 'i64',
    run: (m) => kernels.pagedAttention({ ...pagedOperands(m), tables: m([2, 2], 'i64') }),
  },
  {
    op: 'paged_attention',
    what: 'window',
    code: 'DS_ARGUMENT',
    message: '-1',
    run: (m) => kernels.pagedAttention({ ...pagedOperands(m), window: -1 }),
  },
  {
    op: 'paged_store',
    what: 'values',
    code: 'DS_SHAPE',
    message: '[3, 2, 4] f32',
    run: (m) => kernels.pagedStore({ ...storeOperands(m), v: m([3, 2, 4]) }),
  },
  {
    op: 'paged_store',
    what: 'slots',
    code: 'DS_SHAPE',
    message: '[4] i32',
    run: (m) => kernels.pagedStore({ ...storeOperands(m), slots: m([4], 'i32') }),
  },
  {
    op: 'paged_store',
    what: "a pool's heads",
    code: 'DS_SHAPE',
    message: '[5, 2, 1, 16, 8] f32',
    run: (m) => kernels.pagedStore({ ...storeOperands(m), pool: m([5, 2, 1, 16, 8]) }),
  },
];

export const mistakes: readonly Mistake[] = [
  ...pagedMistakes,
  ...rotaryMistakes,
  {
    op: 'rope',
    what: 'an odd head',
    code: 'DS_SHAPE',
    message: '[1, 2, 3, 5] f32',
    run: (m) =>
      kernels.rope({
        in: m([1, 2, 3, 5]),
        cos: m([2, 2]),
        sin: m([2, 2]),
        out: m([1, 2, 3, 5]),
        positions: null,
        inverse: false,
      }),
  },
  {
    op: 'rope',
    what: 'positions',
    code: 'DS_SHAPE',
    message: '[1, 4] i32',
    run: (m) => kernels.rope({ ...ropeOperands(m), positions: m([1, 4], 'i32') }),
  },
  {
    op: 'rope',
    what: 'a position',
    code: 'DS_INDEX',
    message: '-1',
    cpuOnly: 'positions are checked on the CPU only',
    run: (m) => kernels.rope({ ...ropeOperands(m), positions: m([1, 3], 'i32') }),
  },
  {
    op: 'attention',
    what: 'head sizes',
    code: 'DS_SHAPE',
    message: '[1, 2, 3, 5] f32',
    run: (m) =>
      kernels.attention({
        ...attentionOperands(m),
        k: m([1, 2, 3, 5]),
        v: m([1, 2, 3, 5]),
      }),
  },
  {
    op: 'attention',
    what: "a mask's shape",
    code: 'DS_SHAPE',
    message: '[1, 2, 3, 4] f32',
    run: (m) => kernels.attention({ ...attentionOperands(m), mask: m([1, 2, 3, 4]) }),
  },
  {
    op: 'attention',
    what: "a mask's dtype",
    code: 'DS_DTYPE',
    message: 'i32',
    run: (m) => kernels.attention({ ...attentionOperands(m), keyMask: m([1, 5], 'i32') }),
  },
  {
    op: 'attention',
    what: "documents' shape",
    code: 'DS_SHAPE',
    message: '[1, 5] i32',
    run: (m) =>
      kernels.attention({
        ...attentionOperands(m),
        queryDocuments: m([1, 5], 'i32'),
        keyDocuments: m([1, 5], 'i32'),
      }),
  },
  {
    op: 'attention',
    what: "documents' dtype",
    code: 'DS_DTYPE',
    message: 'i64',
    run: (m) =>
      kernels.attention({
        ...attentionOperands(m),
        queryDocuments: m([1, 3], 'i32'),
        keyDocuments: m([1, 5], 'i64'),
      }),
  },
  {
    op: 'attention',
    what: 'documents of keys alone',
    code: 'DS_SHAPE',
    message: 'key_documents only',
    run: (m) => kernels.attention({ ...attentionOperands(m), keyDocuments: m([1, 5], 'i32') }),
  },
  {
    op: 'attention',
    what: 'a layout of blocks that no fragment lies in',
    code: 'DS_ARGUMENT',
    message: '24',
    run: (m) => kernels.attention({ ...laidOperands(m, 2), block: 24 }),
  },
  {
    op: 'attention',
    what: 'a layout of other heads',
    code: 'DS_SHAPE',
    message: '[3, 2, 1]',
    run: (m) => kernels.attention({ ...laidOperands(m, 3), block: 16 }),
  },
  {
    op: 'attention',
    what: 'a layout where keys are more than queries',
    code: 'DS_SHAPE',
    message: '17 queries, 20 keys',
    run: (m) =>
      kernels.attention({
        ...laidOperands(m, 1),
        block: 16,
        k: m([1, 2, 20, 4]),
        v: m([1, 2, 20, 4]),
      }),
  },
  {
    op: 'attention',
    what: 'a negative window',
    code: 'DS_ARGUMENT',
    message: '-1',
    run: (m) => kernels.attention({ ...attentionOperands(m), window: -1 }),
  },
  {
    op: 'attention',
    what: 'a negative cap',
    code: 'DS_ARGUMENT',
    message: 'cap -2',
    run: (m) => kernels.attention({ ...attentionOperands(m), cap: -2 }),
  },
  {
    op: 'attention',
    what: 'a cap beside a scale of 0',
    code: 'DS_ARGUMENT',
    message: 'scale 0',
    run: (m) => kernels.attention({ ...attentionOperands(m), cap: 2, scale: 0 }),
  },
  {
    op: 'attention',
    what: 'a cap beside a mask of numbers',
    code: 'DS_DTYPE',
    message: 'f32',
    run: (m) => kernels.attention({ ...attentionOperands(m), cap: 2, mask: m([1, 2, 3, 5]) }),
  },
  {
    op: 'attention',
    what: 'a cap beside dropout',
    code: 'DS_ARGUMENT',
    message: 'p = 0.5',
    run: (m) =>
      kernels.attention({ ...attentionOperands(m), cap: 2, dropout: { ...keepAll, p: 0.5 } }),
  },
  {
    op: 'paged_attention',
    what: 'an infinite cap',
    code: 'DS_ARGUMENT',
    message: 'inf',
    run: (m) => kernels.pagedAttention({ ...pagedOperands(m), cap: Infinity }),
  },
  {
    op: 'attention_backward',
    what: "lengths' dtype",
    code: 'DS_SHAPE',
    message: '[1] i64',
    run: (m) =>
      kernels.attentionBackward({
        ...attentionOperands(m),
        dout: m([1, 2, 3, 4]),
        dq: m([1, 2, 3, 4]),
        dk: m([1, 2, 5, 4]),
        dv: m([1, 2, 5, 4]),
        keyLengths: m([1], 'i64'),
      }),
  },
];
