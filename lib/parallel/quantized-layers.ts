// Split layers with 8- or 4-bit weights. Their codes equal the codes of the whole layer.

import type { ProcessGroup } from '../comm/index.js';
import { DsError } from '../errors.js';
import type { JoinableLinear, JointProduct } from '../nn/joined-linears.js';
import type { Linear } from '../nn/linear.js';
import { Module } from '../nn/module.js';
import { HEADS, isLinear, matchesPath, packLinears } from '../nn/pack-linears.js';
import { StoredParameter } from '../nn/packed-linear.js';
import type { Parameter } from '../nn/parameter.js';
import {
  QuantizedLinear,
  type QuantizedOptions,
  readQuantizedOptions,
} from '../nn/quantized-linear.js';
import { leading, required } from '../runtime/required.js';
import { cast, held, noGrad, scope, type Tensor, to, where } from '../tensor/index.js';
import {
  ColumnLinear,
  type ColumnLinearOptions,
  ColumnShard,
  RowLinear,
  type RowLinearOptions,
  RowShard,
} from './layers.js';
import { type Range, rangesFor, rangesIn } from './rank-ranges.js';

type CutLayer = ColumnLinear | RowLinear;

const isCut = (module: Module): module is CutLayer =>
  module instanceof ColumnLinear || module instanceof RowLinear;

/**
 * Returns whether ranks split linear layers of the model. If only experts are split, returns false.
 */
export const hasParts = (model: Module): boolean => [...model.modules()].some(isCut);

/** Returns whether ranks split quantized layers of the model. */
export const hasPackedParts = (model: Module): boolean =>
  [...model.modules()].some((module) => module instanceof CutQuantizedLinear);

/**
 * Replaces a ColumnLinear or RowLinear if the weights are quantized. The parameters have the names
 * of QuantizedLinear. It is only for inference, because a checkpoint cannot describe the whole
 * tensors.
 */
class CutQuantizedLinear extends Module implements JoinableLinear {
  /** See QuantizedLinear. */
  readonly weight_packed: Parameter;
  /** See QuantizedLinear. */
  readonly weight_scale: Parameter;
  /** See QuantizedLinear. */
  readonly weight_zero_point: Parameter | null;
  /**
   * Which of all inputs belongs to each position, [inputs of this part]. Null: the positions' own
   * order.
   */
  readonly weight_order: Parameter | null;
  /** Bias of the layer that was split; null without a bias. */
  readonly bias: Parameter | null;
  readonly #part: QuantizedLinear;
  readonly #shard: ColumnShard | RowShard;
  /**
   * The index of this part's first input if forward() receives all inputs; null if it receives only
   * the inputs of this part.
   */
  readonly #first: number | null;

  /** `part` computes the product, and `shard` does the exchanges before and after it. */
  constructor(
    part: QuantizedLinear,
    shard: ColumnShard | RowShard,
    bias: Parameter | null,
    inputs: { order: Parameter | null; first: number | null } = { order: null, first: null },
  ) {
    super();
    this.weight_packed = part.weight_packed;
    this.weight_scale = part.weight_scale;
    this.weight_zero_point = part.weight_zero_point;
    this.weight_order = inputs.order;
    this.bias = bias;
    this.#part = part;
    this.#shard = shard;
    this.#first = inputs.first;
  }

  /** Computes the result of the whole layer. Throws DS_SHAPE, DS_COMM. */
  override forward(x: Tensor): Tensor {
    const shard = this.#shard;
    if (shard instanceof ColumnShard) {
      return shard.around(x, (ownTensor) => this.#part.call(this.reorderInputs(ownTensor)));
    }
    if (this.#first === null)
      return shard.around(x, (ownTensor) => this.#part.call(ownTensor), this.bias);
    return shard.aroundAll(x, (all) => this.#part.call(this.reorderInputs(all)), this.bias);
  }

  /** Selects this rank's inputs from all inputs, in the order of its codes. */
  private reorderInputs(all: Tensor): Tensor {
    const { weight_order: order } = this;
    if (order) return all.indexSelect(-1, order);
    return this.#first === null ? all : all.narrow(-1, this.#first, required(this.#part.shape[1]));
  }

  /** @internal See JoinableLinear. */
  joining(): JointProduct | null {
    const shard = this.#shard;
    if (!(shard instanceof ColumnShard) || !shard.isProduct || this.weight_order) return null;
    return this.#part.joining();
  }
}

/**
 * Returns this rank's outputs of a quantized layer as a layer that replaces a ColumnLinear. Copies
 * the codes and frees the memory of `original`. Throws DS_ARGUMENT if the outputs cannot be split
 * over the ranks.
 */
export function quantizedColumn(
  original: QuantizedLinear,
  group: ProcessGroup,
  options: ColumnLinearOptions,
): CutQuantizedLinear {
  const [outputs] = leading(original.shape, 1);
  const shard = new ColumnShard(outputs, group, options);
  const { bias, weight_order: order } = original;
  if (bias) shard.take(bias);
  const rows = rangesIn(shard.cut, outputs, group.rank);
  const part = original.part({ rows, units: null }, bias, original.hasGelu);
  release(original, order);
  return new CutQuantizedLinear(part, shard, bias, { order, first: null });
}

/**
 * Returns this rank's inputs of a quantized layer as a layer that replaces a RowLinear. Frees the
 * memory of `original`.
 *
 * Codes stay in their groups, which share a scale. If a border lies inside a group, or the codes
 * have an order, each rank takes whole groups among all inputs; forward() then gathers all inputs.
 * Throws DS_ARGUMENT if the inputs cannot be split, or if there are fewer groups than ranks.
 */
export function quantizedRow(
  original: QuantizedLinear,
  group: ProcessGroup,
  options: RowLinearOptions,
): CutQuantizedLinear {
  const [outputs, inputs] = leading(original.shape, 2);
  const shard = new RowShard(inputs, group, options);
  const { bias, weight_order: order, unit } = original;
  if (bias) shard.take(bias);
  const isApart = order === null && shard.cut.length === 1;
  const isEven = isApart && shard.borders.every((at) => at % unit === 0 || at === inputs);
  const units = isEven
    ? unitsOf(required(rangesIn(shard.cut, inputs, group.rank)[0]), unit)
    : required(rangesFor('groups of inputs', Math.ceil(inputs / unit), group)[group.rank]);
  const part = original.part({ rows: [{ first: 0, count: outputs }], units }, null, false);
  const [first, count] = [units.first * unit, required(part.shape[1])];
  const ownOrder = order && partOf(order, first, count);
  release(original, null);
  return new CutQuantizedLinear(part, shard, bias, {
    order: ownOrder,
    first: isEven ? null : first,
  });
}

/**
 * Returns the groups of a range of inputs. The range starts and ends at a group, or at the last
 * input.
 */
const unitsOf = ({ first, count }: Range, unit: number): Range => ({
  first: first / unit,
  count: Math.ceil(count / unit),
});

function partOf(order: Parameter, first: number, count: number): Parameter {
  const part = new StoredParameter([count], order.dtype);
  const values = held(() => noGrad(() => scope(() => order.narrow(0, first, count).clone())));
  part.place(values);
  values.release();
  return part;
}

/** Frees the whole tensors after their parts have been copied, except `kept` and the bias. */
function release(original: QuantizedLinear, kept: Parameter | null): void {
  for (const parameter of original.parameters())
    if (parameter !== kept && parameter !== original.bias) parameter.dispose();
}

/**
 * Quantizes this rank's parts of a split model's linear layers, except the head, to 8 or 4 bits.
 * nn.quantizeModel() on the whole model gives the same scales and codes, for any split. All ranks
 * must call it. Throws DS_ARGUMENT if a border lies inside a group, DS_NONFINITE, DS_COMM.
 */
export function quantizeParts(model: Module, given: QuantizedOptions): void {
  const op = 'quantize a model over ranks';
  const options = readQuantizedOptions(op, given);
  const isLayer = (module: Module): module is CutLayer | Linear =>
    isCut(module) || isLinear(module);
  // Every rank checks all layers before any exchange, so all ranks throw together.
  for (const [path, layer] of model.namedModules()) {
    if (!(layer instanceof RowLinear) || matchesPath(path, HEADS)) continue;
    requireWholeGroups(op, path, layer, options.groupSize);
  }
  const pack = (layer: CutLayer | Linear): Module => {
    if (!isCut(layer)) return QuantizedLinear.from(layer, options);
    const part = layer instanceof RowLinear ? rowPart(layer, options) : columnPart(layer, options);
    return new CutQuantizedLinear(part, layer.shard, layer.bias);
  };
  packLinears(model, { op, isLayer, skipModules: HEADS, pack });
}

function requireWholeGroups(
  op: string,
  path: string,
  { shard: { borders } }: RowLinear,
  groupSize: number | null,
): void {
  const inside = borders.slice(0, -1).find((at) => groupSize !== null && at % groupSize !== 0);
  if (inside === undefined) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: `${op}: ${path}`,
    expected: `inputs cut between groups of ${groupSize}`,
    got: `a cut at input ${inside} of ${borders.at(-1)}`,
    hint: 'Use a group_size that divides the inputs of each rank, 8 bits with a step for each row, or fewer ranks.',
  });
}

/** Quantizes this rank's outputs. Outputs are whole rows, and each row has its own scales. */
function columnPart(
  { weight, bias, hasGelu }: ColumnLinear,
  options: Required<QuantizedOptions>,
): QuantizedLinear {
  return QuantizedLinear.of(weight, { ...options, bias, hasGelu });
}

/**
 * Quantizes this rank's inputs. Groups of inputs have their own scales. Without groups, the scale
 * of a row depends on the inputs of all ranks.
 */
function rowPart(layer: RowLinear, options: Required<QuantizedOptions>): QuantizedLinear {
  const { weight } = layer;
  const parts = { ...options, bias: null, hasGelu: false };
  return options.groupSize === null
    ? QuantizedLinear.of(weight, { ...parts, largest: findLargest(layer) })
    : QuantizedLinear.of(weight, parts);
}

/**
 * Returns the largest magnitude of each row over all ranks, [outputs, 1]. NaN counts as infinity.
 */
function findLargest({ weight, group }: RowLinear): Tensor {
  return noGrad(() =>
    scope(() => {
      const ownTensor = cast(weight, 'f32')
        .abs()
        .max({ dims: [1], keepDim: true });
      const all = to(
        where(ownTensor.eq(ownTensor), ownTensor, Number.POSITIVE_INFINITY),
        group.device,
      ).contiguous();
      group.allReduce(all, { op: 'max', purpose: 'steps of a quantized layer' }).wait();
      return to(all, weight.device);
    }),
  );
}
