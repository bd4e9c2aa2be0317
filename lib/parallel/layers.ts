// Linear layers, token tables and dropout that are split over the ranks of a group. They have the
// parameter names and the initial values of the whole layers. Source: Shoeybi et al. 2019
// (Megatron-LM).

import type { ProcessGroup } from '../comm/index.js';
import { DsError } from '../errors.js';
import type { Embedding } from '../nn/embedding.js';
import { type JoinableLinear, type JointProduct, joiningOf } from '../nn/joined-linears.js';
import { type Linear, LinearGelu } from '../nn/linear.js';
import { Module } from '../nn/module.js';
import type { Parameter } from '../nn/parameter.js';
import { requireModule } from '../nn/require-module.js';
import { leading, required } from '../runtime/required.js';
import { describe } from '../runtime/view.js';
import {
  dropoutOfChannels,
  embedding,
  gelu,
  linear,
  linearGelu,
  scope,
  type Tensor,
  where,
} from '../tensor/index.js';
import { type Fp8Recipe, fp8Linear } from '../tensor/ops/fp8-linear.js';
import { copyWithReplicas, gatherShared, scatterShared } from './collectives.js';
import { startOf } from './exchanges.js';
import {
  bordersOf,
  cutAlong,
  type DimCut,
  type PartCut,
  type Range,
  rangesFor,
  widthsOf,
} from './rank-ranges.js';
import { requireGroup } from './require-group.js';
import { type Stream, wholeStream } from './stream.js';

/** How a layer is split over ranks. */
export interface LayerCutOptions {
  /**
   * Number of pieces that no border cuts, such as heads. ColumnLinear splits its outputs at their
   * borders, RowLinear its inputs. Default: single channels.
   */
  pieces?: number;
  /**
   * Number of equal parts along the split dim that are split separately: 3 for concatenated q, k
   * and v. Default: 1.
   */
  parts?: number;
  /**
   * @internal The pieces of each rank; replaces the options above. Default: as even as possible.
   */
  cut?: DimCut;
  /**
   * @internal The layout of activations outside of the split layers. Default: whole on every rank.
   */
  stream?: Stream;
}

function cutOf(
  what: string,
  size: number,
  group: ProcessGroup,
  { parts = 1, pieces = size / parts, cut }: LayerCutOptions,
): DimCut {
  const count = cut ? cut.reduce((sum, part) => sum + part.pieces, 0) : parts * pieces;
  if (Number.isInteger(size / count) && Number.isInteger(count / parts)) {
    return cut ?? Array(parts).fill({ pieces, ranges: rangesFor(what, pieces, group) });
  }
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'parallelize',
    expected: cut
      ? `${what} a multiple of ${count} heads`
      : `${what} a multiple of ${parts} parts of ${pieces} pieces`,
    got: String(size),
  });
}

/** Options of ColumnLinear. */
export interface ColumnLinearOptions extends LayerCutOptions {
  /** Whether every rank gets all outputs. Default: false; each rank gets its part. */
  gatherOutput?: boolean;
}

/** The exchanges before and after a product that is split along its outputs. */
export class ColumnShard {
  /** The split of the outputs. */
  readonly cut: DimCut;
  private readonly widths: readonly number[] | null;
  private readonly stream: Stream;
  /**
   * Set if other ranks have this rank's piece too; else null. `index`: the piece. `count`: number
   * of pieces. `isFirst`: whether this rank is the first with the piece.
   */
  private readonly copy: { index: number; count: number; isFirst: boolean } | null;

  /** Throws DS_ARGUMENT if the outputs cannot be split over the ranks. */
  constructor(
    outputs: number,
    private readonly group: ProcessGroup,
    options: ColumnLinearOptions,
  ) {
    this.cut = cutOf('outputs', outputs, group, options);
    this.stream = options.stream ?? wholeStream(group);
    this.widths = options.gatherOutput ? widthsOf(this.cut, outputs) : null;
    this.copy = copyOf(this.cut, group.rank);
  }

  /** Whether a forward without gradients is only the product, without exchanges. */
  get isProduct(): boolean {
    return this.widths === null && !this.stream.isShared;
  }

  /**
   * Reduces a parameter with one row per output to this rank's rows. Throws DS_ARGUMENT if an
   * engine already owns the parameter.
   */
  take(parameter: Parameter): void {
    const { group, copy, cut } = this;
    cutAlong(parameter, 0, cut, group.rank);
    parameter.isReplica = copy !== null && !copy.isFirst;
  }

  /** Maps x [.., in], equal on all ranks, to [.., out here], or with gatherOutput to [.., out]. */
  around(x: Tensor, product: (own: Tensor) => Tensor): Tensor {
    const { stream, copy, widths, group } = this;
    if (copy) {
      const ownTensor = stream.enterCopies(x, copy.isFirst);
      return copyWithReplicas(product(ownTensor), { group, ...copy });
    }
    const out = product(stream.enter(x));
    return widths ? gatherShared(out, { group, dim: -1, sizes: widths }) : out;
  }
}

/**
 * A linear layer that is split along its outputs: weight [out here, in], bias [out here]. All ranks
 * pass the same x [.., in]; each gets its own [.., out here]. The ranks sum the gradient of x while
 * they compute the gradient of the weight.
 */
export class ColumnLinear extends Module implements JoinableLinear {
  /** The weight [outputs here, inputs]. */
  readonly weight: Parameter;
  /** The bias [outputs here]; null without a bias. */
  readonly bias: Parameter | null;
  /** @internal Whether gelu_tanh is applied to the outputs. */
  readonly hasGelu: boolean;
  /** @internal As Linear.fp8. */
  fp8: Fp8Recipe | null = null;
  /** @internal */
  readonly shard: ColumnShard;

  /** Takes over the parameters of `original`. Throws DS_ARGUMENT for invalid sizes or options. */
  constructor(
    original: Linear,
    /** The ranks that split the layer. */
    readonly group: ProcessGroup,
    options: ColumnLinearOptions = {},
  ) {
    super();
    requireModule('ColumnLinear', original);
    requireGroup('ColumnLinear', group);
    const [outputs] = leading(original.weight.shape, 1);
    const { weight, bias } = original;
    this.weight = weight;
    this.bias = bias;
    this.hasGelu = original instanceof LinearGelu;
    this.shard = new ColumnShard(outputs, group, options);
    for (const item of [weight, bias]) if (item) this.shard.take(item);
  }

  /**
   * Maps x [.., in], equal on all ranks, to [.., out here], or with gatherOutput to [.., out].
   * Throws DS_SHAPE if the sizes do not fit, DS_COMM if the ranks disagree or one fails.
   */
  override forward(x: Tensor): Tensor {
    const { weight, bias, hasGelu, fp8 } = this;
    requireInputs('ColumnLinear', x, weight);
    return this.shard.around(x, (ownTensor) => {
      if (!fp8)
        return hasGelu ? linearGelu(ownTensor, weight, bias) : linear(ownTensor, weight, bias);
      const z = fp8Linear(ownTensor, weight, bias, fp8);
      return hasGelu ? gelu(z, 'tanh') : z;
    });
  }

  /**
   * @internal See JoinableLinear. Only this rank's outputs are joined with outputs of other layers.
   */
  joining(): JointProduct | null {
    const { weight, bias } = this;
    if (!this.shard.isProduct || this.hasGelu) return null;
    return joiningOf(weight, bias);
  }
}

/** Returns whether several ranks have the same pieces. */
const isCopied = ({ ranges, pieces }: PartCut): boolean =>
  ranges.reduce((sum, { count }) => sum + count, 0) !== pieces;

/**
 * Returns the index of this rank's piece if other ranks have the same piece, or null. Throws
 * DS_ARGUMENT for concatenated parts: other ranks could have some of the pieces, but not all.
 */
function copyOf(
  cut: DimCut,
  rank: number,
): { index: number; count: number; isFirst: boolean } | null {
  const copied = cut.find(isCopied);
  if (!copied) return null;
  const { ranges, pieces } = copied;
  if (cut.length > 1) throw packedCopies(pieces, ranges.length);
  const { first } = required(ranges[rank]);
  const isFirst = ranges.findIndex((range) => range.first === first) === rank;
  return { index: first, count: pieces, isFirst };
}

function packedCopies(heads: number, ranks: number): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: 'parallelize',
    expected: `at most ${heads} ranks for packed projections of ${heads} heads of keys and values`,
    got: String(ranks),
    hint: 'Use fewer tensor-parallel ranks, and the remaining ranks for data parallelism.',
  });
}

/** Options of RowLinear. */
export interface RowLinearOptions extends LayerCutOptions {
  /**
   * Whether x is the whole [.., in], equal on all ranks. Each rank then selects its part. Default:
   * false.
   */
  scatterInput?: boolean;
}

/** The exchanges before and after a product that is split along its inputs. */
export class RowShard {
  /** The split of the inputs. */
  readonly cut: DimCut;
  /** The borders of the ranks' parts along the inputs, ascending. */
  readonly borders: readonly number[];
  private readonly stream: Stream;
  private readonly widths: readonly number[];
  private readonly scatters: boolean;

  /** Throws DS_ARGUMENT if the inputs cannot be split over the ranks. */
  constructor(
    inputs: number,
    private readonly group: ProcessGroup,
    { scatterInput = false, ...options }: RowLinearOptions,
  ) {
    this.cut = cutOf('inputs', inputs, group, options);
    this.borders = bordersOf(this.cut, inputs);
    this.stream = options.stream ?? wholeStream(group);
    this.widths = widthsOf(this.cut, inputs);
    this.scatters = scatterInput;
  }

  /**
   * Marks the bias as a replica except on rank 0, because all ranks have the same bias. If tokens
   * are split, each rank has a partial gradient of it.
   */
  take(bias: Parameter): void {
    bias.isReplica = this.group.rank > 0;
    bias.hasPartialGradient = this.stream.isShared;
  }

  /**
   * Returns product(x [.., in here]) summed over the ranks, plus the bias: [.., out]. With
   * scatterInput, x is [.., in].
   */
  around(x: Tensor, product: (own: Tensor) => Tensor, bias: Tensor | null): Tensor {
    const { group, widths: sizes } = this;
    return scope(() => {
      const ownTensor = this.scatters ? scatterShared(x, { group, dim: -1, sizes }) : x;
      return this.sumOf(product(ownTensor), bias);
    });
  }

  /**
   * around() for a product that itself selects its inputs. Gathers x first, unless it has all
   * inputs.
   */
  aroundAll(x: Tensor, product: (all: Tensor) => Tensor, bias: Tensor | null): Tensor {
    const { group, widths: sizes } = this;
    return scope(() => {
      const all = this.scatters ? x : gatherShared(x, { group, dim: -1, sizes });
      return this.sumOf(product(all), bias);
    });
  }

  /** around() for linear() with `weight`. Throws DS_SHAPE, DS_COMM. */
  aroundLinear(x: Tensor, weight: Parameter, bias: Tensor | null): Tensor {
    const { group, widths: sizes } = this;
    return scope(() => {
      const ownTensor = this.scatters ? scatterShared(x, { group, dim: -1, sizes }) : x;
      requireInputs('RowLinear', ownTensor, weight);
      return this.stream.leaveLinear(ownTensor, weight, bias);
    });
  }

  private sumOf(part: Tensor, bias: Tensor | null): Tensor {
    const sum = this.stream.leave(part);
    return bias ? sum.add(bias) : sum;
  }
}

/**
 * A linear layer that is split along its inputs: weight [out, in here], bias [out]. Each rank
 * passes its part x [.., in here], for example the output of a ColumnLinear. The ranks sum their
 * results and add the bias, which is equal on all ranks, once: [.., out].
 */
export class RowLinear extends Module {
  /** The weight [outputs, inputs here]. */
  readonly weight: Parameter;
  /** The bias [outputs]; null without a bias. */
  readonly bias: Parameter | null;
  /** @internal As Linear.fp8. */
  fp8: Fp8Recipe | null = null;
  /** @internal */
  readonly shard: RowShard;

  /** Takes over the parameters of `original`. Throws DS_ARGUMENT for invalid sizes or options. */
  constructor(
    original: Linear,
    /** The ranks that split the layer. */
    readonly group: ProcessGroup,
    options: RowLinearOptions = {},
  ) {
    super();
    requireModule('RowLinear', original);
    requireGroup('RowLinear', group);
    if (original instanceof LinearGelu) throw noRowError();
    const [, inputs] = leading(original.weight.shape, 2);
    this.weight = original.weight;
    this.bias = original.bias;
    this.shard = new RowShard(inputs, group, options);
    cutAlong(original.weight, 1, this.shard.cut, group.rank);
    if (this.bias) this.shard.take(this.bias);
  }

  /**
   * Maps x [.., in here], or with scatterInput [.., in], to [.., out]. Throws DS_SHAPE if the sizes
   * do not fit, DS_COMM if the ranks disagree or one fails.
   */
  override forward(x: Tensor): Tensor {
    const { weight, bias, fp8 } = this;
    if (!fp8) return this.shard.aroundLinear(x, weight, bias);
    const product = (ownTensor: Tensor): Tensor => {
      requireInputs('RowLinear', ownTensor, weight);
      return fp8Linear(ownTensor, weight, null, fp8);
    };
    return this.shard.around(x, product, bias);
  }
}

function noRowError(): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: 'parallelize',
    expected: 'a linear layer without an activation, because ranks have partial sums',
    got: 'nn.LinearGelu',
    hint: 'Use "column" for it, and "row" for the next layer.',
  });
}

/**
 * Throws DS_SHAPE unless the last dim of x fits `weight`. The error reports the shape of this
 * rank's part and of the whole weight.
 */
function requireInputs(op: string, x: Tensor, weight: Parameter): void {
  const inputs = required(weight.shape[1]);
  if (x.ndim > 0 && x.shape[x.ndim - 1] === inputs) return;
  const { whole } = weight.region;
  throw new DsError({
    code: 'DS_SHAPE',
    op,
    expected: `[.., ${inputs}], for a weight [${weight.shape.join(', ')}] of [${whole.join(', ')}]`,
    got: describe(x),
  });
}

/** A token table that is split along its rows. All ranks pass the same tokens. */
export class VocabularyEmbedding extends Module {
  /** The weight [rows here, channels]. */
  readonly weight: Parameter;
  /** The index of the padding token, or null. */
  readonly paddingIdx: number | null;
  private readonly range: Range;
  private readonly count: number;
  private readonly stream: Stream;

  /** Takes over the weight of `original`. Throws DS_ARGUMENT if there are more ranks than rows. */
  constructor(
    original: Embedding,
    /** The ranks that split the table. */
    readonly group: ProcessGroup,
    { stream = wholeStream(group) }: Pick<LayerCutOptions, 'stream'> = {},
  ) {
    super();
    const { weight, paddingIdx } = original;
    [this.count] = leading(weight.shape, 1);
    const ranges = rangesFor('rows', this.count, group);
    this.range = required(ranges[group.rank]);
    this.weight = weight;
    this.paddingIdx = paddingIdx;
    this.stream = stream;
    cutAlong(weight, 0, [{ ranges, pieces: this.count }], group.rank);
  }

  /**
   * Returns the rows [.., channels] of the tokens `index` [..]. Throws DS_COMM. On the CPU, throws
   * DS_INDEX for an index outside of the whole table.
   */
  override forward(index: Tensor): Tensor {
    const { weight, paddingIdx, stream } = this;
    const { first, count } = this.range;
    return scope(() => {
      const isHere = index.ge(first).logicalAnd(index.lt(first + count));
      const isRow = index.ge(0).logicalAnd(index.lt(this.count));
      // An index outside of the whole table stays invalid, so that the lookup reports it.
      const row = where(isHere, index.sub(first), where(isRow, 0, index));
      const rows = embedding(weight, row);
      const known = where(isHere.unsqueeze(-1), rows, 0);
      const out =
        paddingIdx === null
          ? known
          : where(index.eq(paddingIdx).unsqueeze(-1), known.detach(), known);
      return stream.leave(out);
    });
  }
}

/**
 * Dropout for this rank's channels. It zeroes the elements that nn.Dropout on one rank would zero.
 */
export class ChannelDropout extends Module {
  /** See nn.Dropout. `widths`: the number of channels of each rank. */
  constructor(
    /** Probability that an element becomes 0, below 1. */
    readonly p: number,
    private readonly widths: readonly number[],
    private readonly rank: number,
  ) {
    super();
  }

  /** Maps [.., channels here] to the same shape. */
  override forward(x: Tensor): Tensor {
    if (!this.training) return x;
    const { widths, rank } = this;
    const whole = startOf(widths, widths.length);
    const columns = { first: startOf(widths, rank), count: required(widths[rank]), whole };
    return dropoutOfChannels(x, this.p, columns);
  }
}
