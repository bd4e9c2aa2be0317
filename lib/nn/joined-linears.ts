// Linear layers of one input whose weights lie one after the other in memory, so that one product
// computes them all; each keeps its own parameters under its own name.
import * as kernels from '../runtime/kernels.generated.js';
import { contiguousStrides } from '../runtime/view.js';
import { held, isGradEnabled, linear, noGrad, scope, Tensor } from '../tensor/index.js';
import type { Module } from './module.js';
import type { Parameter } from './parameter.js';

/** What a plain linear layer has. */
interface Projection {
  /** [outputs, inputs]. */
  readonly weight: Parameter;
  /** [outputs]; null without one. */
  readonly bias: Parameter | null;
}

/** A module that has linear layers of one input. */
export interface Joinable extends Module {
  /** Brings their weights together, where they are plain, and computes them as one from then on. */
  joinLinears(): void;
}

/** Joins what modules of `model` can join. Throws DS_OUT_OF_MEMORY. */
export function joinAll(model: Module): void {
  for (const module of model.modules()) {
    if ('joinLinears' in module) (module as Joinable).joinLinears();
  }
}

/** As many inputs, one dtype, all with a bias or none. */
function areAlike(layers: readonly Projection[]): boolean {
  const [{ weight, bias }] = layers as readonly [Projection];
  return layers.every(
    (one) =>
      one.weight.size(1) === weight.size(1) &&
      one.weight.dtype === weight.dtype &&
      (one.bias === null) === (bias === null),
  );
}

/**
 * Moves the weights of plain linear layers of one input next to each other, and their biases; the
 * old memory goes. Layers that are not alike stay as they are. Throws DS_OUT_OF_MEMORY.
 */
export function bringTogether(layers: readonly Projection[]): void {
  if (!areAlike(layers)) return;
  putInTurn(layers.map(({ weight }) => weight));
  if (layers[0]?.bias) putInTurn(layers.map(({ bias }) => bias as Parameter));
}

function putInTurn(parameters: readonly Parameter[]): void {
  const [{ dtype, device }] = parameters as readonly [Parameter];
  const count = parameters.reduce((sum, { numel }) => sum + numel, 0);
  const all = held(() => Tensor.empty([count], dtype, device));
  let offset = 0;
  for (const parameter of parameters) {
    const { numel, shape } = parameter;
    const at = offset;
    noGrad(() =>
      scope(() => kernels.copy({ in: parameter, out: all.alias(shape, undefined, at) })),
    );
    parameter.place({ buffer: all.buffer, dtype, offset });
    offset += numel;
  }
  all.release();
}

const lieTogether = (parameters: readonly Parameter[]): boolean =>
  parameters.every((one, i) => {
    const before = parameters[i - 1];
    return !before || (one.buffer === before.buffer && one.offset === before.offset + before.numel);
  });

/**
 * What the layers give for x [.., inputs], as views [.., outputs] of one product, or [.., outputs /
 * width, width]. Null, with nothing computed, while gradients are recorded and where
 * bringTogether() has not been called or somebody has moved them since.
 */
export function joinedLinear(
  x: Tensor,
  layers: readonly Projection[],
  width: number | null = null,
): Tensor[] | null {
  if (isGradEnabled() || !areAlike(layers)) return null;
  const weights = layers.map(({ weight }) => weight);
  const biases = layers.flatMap(({ bias }) => (bias ? [bias] : []));
  if (!lieTogether(weights) || !lieTogether(biases)) return null;
  const [weight] = weights as [Parameter];
  const rows = weights.reduce((sum, one) => sum + one.size(0), 0);
  const bias = biases[0]?.alias([rows], [1]) ?? null;
  const all = linear(x, weight.alias([rows, weight.size(1)]), bias);
  const strides = contiguousStrides(all.shape).slice(0, -1);
  let offset = all.offset;
  return weights.map((one) => {
    const outputs = one.size(0);
    const shape = width === null ? [outputs] : [outputs / width, width];
    const own = width === null ? [1] : [width, 1];
    const part = all.alias([...x.shape.slice(0, -1), ...shape], [...strides, ...own], offset);
    offset += outputs;
    return part;
  });
}
