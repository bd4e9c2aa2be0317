// Sizes of the cases of PagedAttention: the batches that its kernels share among themselves.

/** Sequences by their queries and tokens. */
export interface Sizes {
  title: string;
  h: number;
  hk: number;
  d: number;
  block: number;
  sequences: readonly (readonly [queries: number, tokens: number])[];
  window?: number;
  padded?: boolean;
  /**
   * Enough rows for the kernel on wgmma, which serves 16-bit elements only and does not compute
   * invariant bits.
   */
  large?: boolean;
  sinks?: boolean;
  /** Bound of the scaled scores. */
  cap?: number;
}

/** 40 texts, most of them empty: one of `tokens` after each six others. */
function manyTexts(tokens: readonly number[]): Sizes['sequences'] {
  return Array.from(
    { length: 40 },
    (_, i) => [i % 7 === 3 ? 0 : 1, i % 7 === 6 ? (tokens[(i - 6) / 7] ?? 0) : 0] as const,
  );
}

export const sizes: readonly Sizes[] = [
  {
    title: 'tokens',
    h: 4,
    hk: 2,
    d: 8,
    block: 4,
    sequences: [
      [1, 1],
      [1, 9],
      [1, 4],
    ],
  },
  {
    title: 'one head',
    h: 1,
    hk: 1,
    d: 5,
    block: 3,
    sequences: [
      [1, 7],
      [1, 300],
    ],
  },
  {
    title: 'a group',
    h: 8,
    hk: 1,
    d: 64,
    block: 16,
    sequences: [
      [1, 33],
      [1, 0],
      [1, 257],
    ],
  },
  {
    title: 'long',
    h: 4,
    hk: 4,
    d: 16,
    block: 64,
    sequences: [
      [1, 1100],
      [1, 65],
    ],
  },
  {
    title: 'longer than what a cluster of blocks adds up',
    h: 2,
    hk: 2,
    d: 8,
    block: 64,
    sequences: [
      [1, 2300],
      [1, 70],
    ],
  },
  {
    title: 'prompts',
    h: 4,
    hk: 2,
    d: 8,
    block: 4,
    sequences: [
      [5, 5],
      [3, 3],
      [17, 17],
    ],
  },
  {
    title: 'pieces',
    h: 6,
    hk: 2,
    d: 34,
    block: 16,
    sequences: [
      [3, 20],
      [1, 50],
      [0, 5],
      [9, 9],
    ],
  },
  {
    title: 'padding',
    h: 2,
    hk: 2,
    d: 8,
    block: 4,
    sequences: [
      [1, 6],
      [1, 0],
      [2, 0],
    ],
  },
  {
    title: 'window',
    h: 4,
    hk: 2,
    d: 8,
    block: 4,
    window: 5,
    sequences: [
      [1, 3],
      [7, 30],
      [1, 90],
    ],
  },
  {
    title: 'window of 1',
    h: 2,
    hk: 1,
    d: 3,
    block: 4,
    window: 1,
    sequences: [
      [4, 9],
      [1, 2],
    ],
  },
  {
    title: 'wide',
    h: 3,
    hk: 3,
    d: 130,
    block: 16,
    sequences: [
      [2, 19],
      [1, 40],
    ],
    padded: true,
  },
  {
    title: 'widest',
    h: 2,
    hk: 1,
    d: 256,
    block: 8,
    sequences: [
      [1, 70],
      [6, 11],
    ],
    padded: true,
  },
  {
    title: 'gaps',
    h: 4,
    hk: 2,
    d: 64,
    block: 64,
    sequences: [
      [1, 64],
      [9, 70],
    ],
    padded: true,
  },
  {
    title: 'a prompt beside a piece',
    h: 4,
    hk: 1,
    d: 64,
    block: 64,
    sequences: [
      [70, 70],
      [3, 130],
      [0, 0],
    ],
  },
  {
    title: 'pieces in a window',
    h: 2,
    hk: 1,
    d: 128,
    block: 16,
    window: 50,
    sequences: [
      [40, 100],
      [1, 77],
      [33, 33],
    ],
    padded: true,
  },
  {
    title: 'keys of one token in parts',
    h: 8,
    hk: 2,
    d: 128,
    block: 64,
    sequences: [
      [1, 300],
      [1, 64],
      [1, 0],
      [1, 1],
    ],
  },
  // 136 blocks without splits: more than an H200 has SMs, fewer than four for each.
  {
    title: 'keys of several texts in parts',
    h: 68,
    hk: 34,
    d: 16,
    block: 32,
    sequences: [
      [1, 300],
      [1, 64],
      [1, 0],
      [1, 130],
    ],
  },
  // 800 pairs of a text and a key head: more than two for each thread block that an H200 runs.
  {
    title: 'single tokens of many texts',
    h: 80,
    hk: 20,
    d: 128,
    block: 64,
    sequences: manyTexts([64, 1, 300, 65, 17, 128]),
  },
  {
    title: 'single tokens of many texts in a window',
    h: 160,
    hk: 20,
    d: 64,
    block: 128,
    window: 70,
    sequences: manyTexts([3, 70, 200, 71, 128, 135]),
    padded: true,
  },
  {
    title: 'many heads of many texts',
    h: 153,
    hk: 17,
    d: 72,
    block: 32,
    sequences: Array.from({ length: 16 }, (_, i) => [2, 2 + (i % 2)] as const),
  },
  {
    title: 'prompts of many heads',
    h: 132,
    hk: 132,
    d: 64,
    block: 16,
    sequences: [
      [65, 65],
      [63, 70],
    ],
    large: true,
  },
  {
    title: 'long prompts in a window',
    h: 68,
    hk: 17,
    d: 72,
    block: 64,
    window: 20,
    sequences: [
      [1, 30],
      [260, 300],
      [0, 7],
      [65, 65],
    ],
    large: true,
  },
  {
    title: 'wide prompts of groups of 3',
    h: 102,
    hk: 34,
    d: 136,
    block: 32,
    sequences: [
      [65, 65],
      [70, 80],
    ],
    large: true,
  },
  { title: 'none', h: 2, hk: 2, d: 4, block: 4, sequences: [] },
  { title: 'no channels', h: 2, hk: 1, d: 0, block: 4, sequences: [[1, 3]] },
];
