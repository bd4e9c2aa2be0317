// Cut layers whose weights are stored in 8 or 4 bits, with the codes that the whole layer would
// have, or has.
import type { ProcessGroup } from '../comm/index.js';
import { DsError } from '../errors.js';
import type { Joining, JoinsOthers } from '../nn/joined-linears.js';
import type { Linear } from '../nn/linear.js';
import { Module } from '../nn/module.js';
import { HEADS, isAmong, isLinear, packLinears } from '../nn/pack-linears.js';
import { StoredParameter } from '../nn/packed-linear.js';
import type { Parameter } from '../nn/parameter.js';
import {
  QuantizedLinear,
  type QuantizedOptions,
  readQuantizedOptions,
} from '../nn/quantized-linear.js';
import { cast, held, noGrad, scope, type Tensor, to, where } from '../tensor/index.js';
import {
  ColumnLinear,
  type ColumnLinearOptions,
  ColumnShare,
  RowLinear,
  type RowLinearOptions,
  RowShare,
} from './layers.js';
import { type Range, rangesFor, rangesIn } from './share.js';

type CutLayer = ColumnLinear | RowLinear;

const isCut = (module: Module): module is CutLayer =>
  module instanceof ColumnLinear || module instanceof RowLinear;

/** Whether ranks share out linear layers of the model, and not its experts alone. */
export const hasParts = (model: Module): boolean => [...model.modules()].some(isCut);

/** Whether ranks share out layers that are stored in few bits. */
export const hasPackedParts = (model: Module): boolean =>
  [...model.modules()].some((module) => module instanceof CutQuantizedLinear);

/**
 * A ColumnLinear or a RowLinear whose part of the weight is a QuantizedLinear's, under its names.
 * For inference: checkpoints would not know of which whole these are parts.
 */
class CutQuantizedLinear extends Module implements JoinsOthers {
  /** See QuantizedLinear. */
  readonly weight_packed: Parameter;
  /** See QuantizedLinear. */
  readonly weight_scale: Parameter;
  /** See QuantizedLinear. */
  readonly weight_zero_point: Parameter | null;
  /** [inputs]: of all inputs that of each place, of which this rank has some; null for none. */
  readonly weight_order: Parameter | null;
  /** Of the layer that was cut. */
  readonly bias: Parameter | null;
  readonly #part: QuantizedLinear;
  readonly #share: ColumnShare | RowShare;
  /** Where its inputs begin among all, of which it takes them; null where it is given its own. */
  readonly #first: number | null;

  /** `part` computes what the layer does between the exchanges of `share`. */
  constructor(
    part: QuantizedLinear,
    share: ColumnShare | RowShare,
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
    this.#share = share;
    this.#first = inputs.first;
  }

  /** As the layer that was cut. Throws DS_SHAPE, DS_COMM. */
  override forward(x: Tensor): Tensor {
    const share = this.#share;
    if (share instanceof ColumnShare) {
      return share.around(x, (own) => this.#part.call(this.inOrder(own)));
    }
    if (this.#first === null) return share.around(x, (own) => this.#part.call(own), this.bias);
    return share.aroundAll(x, (all) => this.#part.call(this.inOrder(all)), this.bias);
  }

  /** This rank's inputs of all, in the order of its codes. */
  private inOrder(all: Tensor): Tensor {
    const { weight_order: order } = this;
    if (order) return all.indexSelect(-1, order);
    return this.#first === null ? all : all.narrow(-1, this.#first, this.#part.shape[1] as number);
  }

  /** @internal See JoinsOthers. */
  joining(): Joining | null {
    const share = this.#share;
    if (!(share instanceof ColumnShare) || !share.isProduct || this.weight_order) return null;
    return this.#part.joining();
  }
}

/**
 * What a rank has of the outputs of a layer that is stored in few bits, in the place of a
 * ColumnLinear. Its memory is its own; that of `whole` goes. Throws DS_ARGUMENT.
 */
export function quantizedColumn(
  whole: QuantizedLinear,
  group: ProcessGroup,
  options: ColumnLinearOptions,
): CutQuantizedLinear {
  const [outputs] = whole.shape as [number];
  const share = new ColumnShare(outputs, group, options);
  const { bias, weight_order: order } = whole;
  if (bias) share.take(bias);
  const rows = rangesIn(share.cut, outputs, group.rank);
  const part = whole.part({ rows, units: null }, bias, whole.hasGelu);
  release(whole, order);
  return new CutQuantizedLinear(part, share, bias, { order, first: null });
}

/**
 * The same of the inputs, in the place of a RowLinear. Codes stay in their groups: where a cut lies
 * inside of one, or codes have an order of their own, each rank has whole groups of all inputs,
 * which it gets from the others. Throws DS_ARGUMENT, also for fewer groups than ranks.
 */
export function quantizedRow(
  whole: QuantizedLinear,
  group: ProcessGroup,
  options: RowLinearOptions,
): CutQuantizedLinear {
  const [outputs, inputs] = whole.shape as [number, number];
  const share = new RowShare(inputs, group, options);
  const { bias, weight_order: order, unit } = whole;
  if (bias) share.take(bias);
  const isApart = order === null && share.cut.length === 1;
  const isEven = isApart && share.borders.every((at) => at % unit === 0 || at === inputs);
  const units = isEven
    ? unitsOf(rangesIn(share.cut, inputs, group.rank)[0] as Range, unit)
    : (rangesFor('groups of inputs', Math.ceil(inputs / unit), group)[group.rank] as Range);
  const part = whole.part({ rows: [{ first: 0, count: outputs }], units }, null, false);
  const [first, count] = [units.first * unit, part.shape[1] as number];
  const ownOrder = order && partOf(order, first, count);
  release(whole, null);
  return new CutQuantizedLinear(part, share, bias, {
    order: ownOrder,
    first: isEven ? null : first,
  });
}

/** Of a range that begins with one, and ends with one or with the last inputs. */
const unitsOf = ({ first, count }: Range, unit: number): Range => ({
  first: first / unit,
  count: Math.ceil(count / unit),
});

function partOf(order: Parameter, first: number, count: number): Parameter {
  const made = new StoredParameter([count], order.dtype);
  const values = held(() => noGrad(() => scope(() => order.narrow(0, first, count).clone())));
  made.place(values);
  values.release();
  return made;
}

/** Frees what parts have been taken of. */
function release(whole: QuantizedLinear, kept: Parameter | null): void {
  for (const one of whole.parameters()) if (one !== kept && one !== whole.bias) one.dispose();
}

/**
 * Stores what this rank has of a cut model's linear layers but the head in 8 or 4 bits, as
 * nn.quantizeModel() does with whole ones: the same steps and codes, wherever the cuts are. All
 * ranks call it. Throws DS_ARGUMENT where a cut lies inside of a group, DS_NONFINITE, DS_COMM.
 */
export function quantizeParts(model: Module, given: QuantizedOptions): void {
  const op = 'quantize a model over ranks';
  const options = readQuantizedOptions(op, given);
  const isLayer = (module: Module): module is CutLayer | Linear =>
    isCut(module) || isLinear(module);
  // Every rank knows all cuts, so that all refuse, and nobody waits for one that has.
  for (const [path, layer] of model.namedModules()) {
    if (!(layer instanceof RowLinear) || isAmong(path, HEADS)) continue;
    requireWholeGroups(op, path, layer, options.groupSize);
  }
  const pack = (layer: CutLayer | Linear): Module => {
    if (!isCut(layer)) return QuantizedLinear.from(layer, options);
    const part = layer instanceof RowLinear ? rowPart(layer, options) : columnPart(layer, options);
    return new CutQuantizedLinear(part, layer.share, layer.bias);
  };
  packLinears(model, { op, isLayer, skipModules: HEADS, pack });
}

function requireWholeGroups(
  op: string,
  path: string,
  { share: { borders } }: RowLinear,
  groupSize: number | null,
): void {
  const inside = borders.slice(0, -1).find((at) => groupSize !== null && at % groupSize !== 0);
  if (inside === undefined) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: `${op}: ${path}`,
    expected: `inputs cut between groups of ${groupSize}`,
    got: `a cut at input ${inside} of ${borders.at(-1)}`,
    hint: 'Take a group_size that divides the inputs of each rank, 8 bits with a step for each row, or fewer ranks.',
  });
}

/** Outputs are whole rows, and a row has its own steps. */
function columnPart(
  { weight, bias, hasGelu }: ColumnLinear,
  options: Required<QuantizedOptions>,
): QuantizedLinear {
  return QuantizedLinear.of(weight, { ...options, bias, hasGelu });
}

/** Inputs in groups have their own steps; a step for a row follows from all ranks' inputs. */
function rowPart(layer: RowLinear, options: Required<QuantizedOptions>): QuantizedLinear {
  const { weight } = layer;
  const parts = { ...options, bias: null, hasGelu: false };
  return options.groupSize === null
    ? QuantizedLinear.of(weight, { ...parts, largest: largestOf(layer) })
    : QuantizedLinear.of(weight, parts);
}

/** The largest magnitude of each row on any rank, [outputs, 1]; Infinity for what is no number. */
function largestOf({ weight, group }: RowLinear): Tensor {
  return noGrad(() =>
    scope(() => {
      const own = cast(weight, 'f32')
        .abs()
        .max({ dims: [1], keepDim: true });
      const all = to(where(own.eq(own), own, Number.POSITIVE_INFINITY), group.device).contiguous();
      group.allReduce(all, { op: 'max', purpose: 'steps of a quantized layer' }).wait();
      return to(all, weight.device);
    }),
  );
}
