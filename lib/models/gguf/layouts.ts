// Describes tensors that GGUF files store with another shape or another order of values than
// models. The reader and the writer use the same description.

import type { ValueOrder } from '../../checkpoint/index.js';
import { numel } from '../../runtime/view.js';

type Shape = readonly number[];

/** Numbers of a model that decide the order of values. */
export interface LayoutSizes {
  readonly heads: number;
  readonly kvHeads: number;
  /** Channels of latent attention's keys that are not rotated. */
  readonly plainDim?: number;
  /** Heads of gated delta nets. */
  readonly delta?: DeltaHeads;
}

/** Heads of gated delta nets, and their widths. */
export interface DeltaHeads {
  readonly keyHeads: number;
  readonly heads: number;
  readonly keyDim: number;
  readonly valueDim: number;
}

/** Shapes and order of the values of a tensor. */
export interface GgufLayout {
  /** Returns the shape in the model. */
  readonly modelShape: (stored: readonly Shape[], sizes: LayoutSizes) => Shape;
  /** Returns the shapes in the file. */
  readonly fileShapes: (own: Shape, sizes: LayoutSizes) => readonly Shape[];
  /** Default: the order of the model, one tensor after another. */
  readonly order?: (own: Shape, sizes: LayoutSizes) => ValueOrder;
  /** Tensors of a model that keeps MXFP4 codes: their shape without the blocks, and the order. */
  readonly codes?: {
    readonly rows: (own: Shape) => Shape;
    readonly order?: (own: Shape, groups: number) => ValueOrder;
  };
}

/** A tensor of the model, and the tensors of the file with its values. */
export interface GgufRule {
  /** The complete name in a block of the model. */
  readonly modelName: string;
  /** The complete names in a block of the file. */
  readonly fileNames: readonly string[];
  /** Default: the same shape and order. */
  readonly layout?: GgufLayout;
  /** Default: the same values. */
  readonly change?: ValueChange;
}

/** Computes a value of the model from a value of the file, and back. */
export interface ValueChange {
  readonly read: (value: number) => number;
  readonly write: (value: number) => number;
}

/** Norms multiply by 1 + weight, and files have the sum. */
export const OFFSET: ValueChange = { read: (value) => value - 1, write: (value) => value + 1 };

/** Files have -exp(x). */
export const NEGATIVE_EXP: ValueChange = {
  read: (value) => Math.log(-value),
  write: (value) => -Math.exp(value),
};

const firstShape = ([shape = []]: readonly Shape[]): Shape => shape;

/** The same shape and order under another name. */
export const SAME: GgufLayout = { modelShape: firstShape, fileShapes: (own) => [own] };

/** A vector in the file, a matrix of one row in the model. */
export const ROW: GgufLayout = {
  modelShape: ([shape = []]) => (shape.length === 1 ? [1, ...shape] : shape),
  fileShapes: (own) => [own.slice(-1)],
};

/** Channels j and j + dim / 2 of a head are rows 2j and 2j + 1 of the file. */
function listPairedAxes(heads: number, dim: number, width: number): (readonly [number, number])[] {
  return [
    [heads, dim * width],
    [2, width],
    [dim / 2, 2 * width],
    [width, 1],
  ];
}

/** Queries or keys whose channels are in pairs. */
export const createPairedLayout = (kind: 'q' | 'k'): GgufLayout => ({
  ...SAME,
  order([rows = 0, width = 1], { heads, kvHeads }) {
    const count = kind === 'q' ? heads : kvHeads;
    return { boxes: [{ axes: listPairedAxes(count, rows / count, width) }] };
  },
});

/**
 * A matrix with, for each key head, its queries, the key and the value. The file has all queries,
 * then all keys, then all values.
 */
export const JOINED: GgufLayout = {
  ...SAME,
  order([rows = 0, width = 1], { heads, kvHeads }) {
    const head = (rows / (heads + 2 * kvHeads)) * width;
    const queries = (heads / kvHeads) * head;
    const of = (start: number, count: number) => ({
      first: start,
      step: count,
      axes: [[count, 1] as const],
    });
    const keys = heads * head;
    return {
      repeats: kvHeads,
      boxes: [of(0, queries), of(keys, head), of(keys + kvHeads * head, head)],
    };
  },
};

/** The shapes of queries, keys and values of a matrix with all of them. */
function splitShape([rows = 0, width = 1]: Shape, { heads, kvHeads }: LayoutSizes): Shape[] {
  const dim = rows / (heads + 2 * kvHeads);
  return [heads, kvHeads, kvHeads].map((count) => [count * dim, width]);
}

const stackRows = (shapes: readonly Shape[]): Shape => [
  shapes.reduce((sum, [rows = 0]) => sum + rows, 0),
  ...firstShape(shapes).slice(1),
];

/** The matrix of JOINED; the file has three tensors, and pairs the channels of each head. */
export const JOINED_PAIRS: GgufLayout = {
  modelShape: stackRows,
  fileShapes: splitShape,
  order([rows = 0, width = 1], { heads, kvHeads }) {
    const dim = rows / (heads + 2 * kvHeads);
    const head = dim * width;
    const queries = heads / kvHeads;
    const keys = heads * head;
    return {
      repeats: kvHeads,
      boxes: [
        { step: queries * head, axes: listPairedAxes(queries, dim, width) },
        { first: keys, step: head, axes: listPairedAxes(1, dim, width) },
        { first: keys + kvHeads * head, step: head, axes: [[head, 1]] },
      ],
    };
  },
};

/** A matrix with all queries, all keys and all values; the file is as for JOINED_PAIRS. */
export const PACKED_PAIRS: GgufLayout = {
  modelShape: stackRows,
  fileShapes: splitShape,
  order([rows = 0, width = 1], { heads, kvHeads }) {
    const dim = rows / (heads + 2 * kvHeads);
    const keys = heads * dim * width;
    const values = keys + kvHeads * dim * width;
    return {
      boxes: [
        { axes: listPairedAxes(heads, dim, width) },
        { first: keys, axes: listPairedAxes(kvHeads, dim, width) },
        { first: values, axes: [[kvHeads * dim * width, 1]] },
      ],
    };
  },
};

/**
 * One matrix for each expert, [experts, 2 width, channels]. The rows of the gate come before the
 * rows of `up`.
 */
export const GATE_UP: GgufLayout = {
  modelShape: ([[experts = 0, width = 0, channels = 0] = []]) => [experts, 2 * width, channels],
  fileShapes: ([experts = 0, both = 0, channels = 0]) =>
    [0, 1].map(() => [experts, both / 2, channels]),
  order([experts = 0, both = 0, channels = 0]) {
    const one = (both / 2) * channels;
    const axes = [[experts, one] as const, [2, experts * one] as const, [one, 1] as const];
    return { boxes: [{ axes }] };
  },
};

/** Matrices [experts, inputs, outputs] that a file has as [experts, outputs, inputs]. */
export const TRANSPOSED: GgufLayout = {
  modelShape: ([[experts = 0, outputs = 0, inputs = 0] = []]) => [experts, inputs, outputs],
  fileShapes: ([experts = 0, inputs = 0, outputs = 0]) => [[experts, outputs, inputs]],
  order: ([experts = 0, inputs = 0, outputs = 0]) => ({
    boxes: [{ axes: [[experts, inputs * outputs] as const, [inputs, 1], [outputs, inputs]] }],
    plane: inputs * outputs,
  }),
  codes: { rows: ([experts = 0, inputs = 0, outputs = 0]) => [experts, outputs, inputs] },
};

/** Columns of the gate and of the `up` matrix by turns, [experts, inputs, 2 width]. */
export const GATE_UP_COLUMNS: GgufLayout = {
  modelShape: ([[experts = 0, width = 0, inputs = 0] = []]) => [experts, inputs, 2 * width],
  fileShapes: ([experts = 0, inputs = 0, both = 0]) =>
    [0, 1].map(() => [experts, both / 2, inputs]),
  order([experts = 0, inputs = 0, both = 0]) {
    const one = (both / 2) * inputs;
    const outer = [[experts, one] as const, [inputs, 1] as const, [both / 2, inputs] as const];
    return { boxes: [{ axes: [...outer, [2, experts * one]] }], plane: one };
  },
  codes: {
    rows: ([experts = 0, inputs = 0, both = 0]) => [experts, both, inputs],
    order([experts = 0, , both = 0], groups) {
      const one = (both / 2) * groups;
      const outer = [[experts, one] as const, [both / 2, groups] as const];
      return { boxes: [{ axes: [...outer, [2, experts * one], [groups, 1]] }] };
    },
  },
};

/** Numbers of the gate and of the `up` matrix by turns, [experts, 2 width]. */
export const GATE_UP_BIAS: GgufLayout = {
  modelShape: ([[experts = 0, width = 0] = []]) => [experts, 2 * width],
  fileShapes: ([experts = 0, both = 0]) => [0, 1].map(() => [experts, both / 2]),
  order: ([experts = 0, both = 0]) => ({
    boxes: [{ axes: [[(experts * both) / 2, 1] as const, [2, (experts * both) / 2]] }],
  }),
};

/**
 * The rows of latent attention: each head has its keys, then its values. The file has two tensors:
 * transposed keys [heads, rank, plainDim], and values [heads, valueDim, rank].
 */
export const LATENT_ROWS: GgufLayout = {
  modelShape([keys = [], values = []]) {
    const [heads = 0, rank = 0, plain = 0] = keys;
    return [heads * (plain + (values[1] ?? 0)), rank];
  },
  fileShapes([rows = 0, rank = 0], { heads, plainDim = 0 }) {
    const value = rows / heads - plainDim;
    return [
      [heads, rank, plainDim],
      [heads, value, rank],
    ];
  },
  order([rows = 0, rank = 0], { heads, plainDim = 0 }) {
    const [keys, values] = [plainDim * rank, (rows / heads - plainDim) * rank];
    const ofKeys = { step: keys, axes: [[plainDim, 1] as const, [rank, plainDim] as const] };
    const ofValues = { first: heads * keys, step: values, axes: [[values, 1] as const] };
    return { repeats: heads, boxes: [ofKeys, ofValues], plane: heads * keys };
  },
};

/** Two matrices, the rows of one behind those of the other. */
export const STACKED_HALVES: GgufLayout = {
  modelShape: stackRows,
  fileShapes: ([rows = 0, ...rest]) => [0, 1].map(() => [rows / 2, ...rest]),
};

const NO_DELTA: DeltaHeads = { keyHeads: 1, heads: 1, keyDim: 1, valueDim: 1 };

/**
 * Rows that have, for each key head of a delta net, its query, its key, its values and their gates.
 * The file has all queries, keys and values in one tensor, the gates in another.
 */
export const DELTA_ROWS: GgufLayout = {
  modelShape: stackRows,
  fileShapes([rows = 0, width = 1], { delta = NO_DELTA }) {
    const gates = delta.heads * delta.valueDim;
    return [
      [rows - gates, width],
      [gates, width],
    ];
  },
  order([, width = 1], { delta = NO_DELTA }) {
    const { keyHeads, heads, keyDim, valueDim } = delta;
    const [key, value] = [keyDim * width, (heads / keyHeads) * valueDim * width];
    const of = (first: number, count: number) => ({
      first,
      step: count,
      axes: [[count, 1] as const],
    });
    const [keys, values] = [keyHeads * key, keyHeads * value];
    const boxes = [of(0, key), of(keys, key), of(2 * keys, value), of(2 * keys + values, value)];
    return { repeats: keyHeads, boxes };
  },
};

/**
 * Axes of the value heads of a delta net. The model groups value heads by key head. The file lists
 * the first value head of each key head, then the second, and so on.
 */
function listTiledHeads(
  { keyHeads, heads }: DeltaHeads,
  size: number,
): (readonly [count: number, distance: number])[] {
  return [
    [keyHeads, size],
    [heads / keyHeads, keyHeads * size],
    [size, 1],
  ];
}

/** Rows of value heads. */
export const DELTA_HEADS: GgufLayout = {
  ...SAME,
  order(own, { delta = NO_DELTA }) {
    return { boxes: [{ axes: listTiledHeads(delta, numel(own) / delta.heads) }] };
  },
};

/** Rows of all queries, all keys, and value heads. */
export const DELTA_VALUES: GgufLayout = {
  ...SAME,
  order(own, { delta = NO_DELTA }) {
    const { keyHeads, keyDim, valueDim } = delta;
    const width = numel(own.slice(1));
    const before = 2 * keyHeads * keyDim * width;
    const boxes = [
      { axes: [[before, 1] as const] },
      { first: before, axes: listTiledHeads(delta, valueDim * width) },
    ];
    return { boxes };
  },
};

/** Weights of a convolution, [channels, 1, taps] in the model. */
const unsqueezeChannels = (layout: GgufLayout): GgufLayout => ({
  ...layout,
  modelShape: ([[channels = 0, taps = 0] = []]) => [channels, 1, taps],
  fileShapes: ([channels = 0, , taps = 0]) => [[channels, taps]],
});

export const CONVOLUTION = unsqueezeChannels(SAME);
export const DELTA_CONVOLUTION = unsqueezeChannels(DELTA_VALUES);

/** Columns of value heads. */
export const DELTA_COLUMNS: GgufLayout = {
  ...SAME,
  order([rows = 0, width = 1], { delta = NO_DELTA }) {
    const heads = listTiledHeads(delta, delta.valueDim);
    return { boxes: [{ axes: [[rows, width] as const, ...heads] }] };
  },
};

/** Returns whether tensors of a file fit the model. Dimensions of 1 are ignored. */
export function fitsShapes(
  { modelShape, fileShapes }: GgufLayout,
  shapes: readonly Shape[],
  sizes: LayoutSizes,
): boolean {
  const shape = modelShape(shapes, sizes);
  const wide = (all: Shape): string => all.filter((size) => size !== 1).join();
  const expected = fileShapes(shape, sizes);
  return (
    shape.every((size) => Number.isSafeInteger(size) && size > 0) &&
    expected.length === shapes.length &&
    expected.every((one, i) => wide(one) === wide(shapes[i] ?? [])) &&
    numel(shape) === expected.reduce((sum, one) => sum + numel(one), 0)
  );
}
