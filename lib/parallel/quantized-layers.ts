// Cut layers whose weights are stored in 8 or 4 bits, with the codes that the whole layer would
// have.
import { DsError } from '../errors.js';
import type { Linear } from '../nn/layers.js';
import { Module } from '../nn/module.js';
import { HEADS, isAmong, isLinear, packLinears } from '../nn/pack-linears.js';
import type { Parameter } from '../nn/parameter.js';
import {
  QuantizedLinear,
  type QuantizedOptions,
  readQuantizedOptions,
} from '../nn/quantized-linear.js';
import { cast, noGrad, scope, type Tensor, to, where } from '../tensor/index.js';
import { ColumnLinear, RowLinear } from './layers.js';

type CutLayer = ColumnLinear | RowLinear;

const isCut = (module: Module): module is CutLayer =>
  module instanceof ColumnLinear || module instanceof RowLinear;

/** Whether ranks share out linear layers of the model, and not its experts alone. */
export const hasParts = (model: Module): boolean => [...model.modules()].some(isCut);

/**
 * A ColumnLinear or a RowLinear whose part of the weight is a QuantizedLinear's, under its names.
 * For inference: checkpoints would not know of which whole these are parts.
 */
export class CutQuantizedLinear extends Module {
  /** See QuantizedLinear. */
  readonly weight_packed: Parameter;
  /** See QuantizedLinear. */
  readonly weight_scale: Parameter;
  /** Of the layer that was cut. */
  readonly bias: Parameter | null;
  readonly #layer: CutLayer;
  readonly #part: QuantizedLinear;

  /** `part` computes what `layer` does between the exchanges. */
  constructor(layer: CutLayer, part: QuantizedLinear) {
    super();
    this.weight_packed = part.weight_packed;
    this.weight_scale = part.weight_scale;
    this.bias = layer.bias;
    this.#layer = layer;
    this.#part = part;
  }

  /** As the layer that was cut. Throws DS_SHAPE, DS_COMM. */
  override forward(x: Tensor): Tensor {
    return this.#layer.amongRanks(x, (own) => this.#part.call(own));
  }
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
    return new CutQuantizedLinear(layer, part);
  };
  packLinears(model, { op, isLayer, skipModules: HEADS, pack });
}

function requireWholeGroups(
  op: string,
  path: string,
  { borders }: RowLinear,
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
