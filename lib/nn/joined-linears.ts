// Linear layers of one input with contiguous weights, so that one product computes them all. Each
// layer keeps its parameters and names.

import * as kernels from '../runtime/kernels.generated.js';
import { leading, required } from '../runtime/required.js';
import { numel } from '../runtime/view.js';
import { held, isGradEnabled, linear, noGrad, scope, swiglu, Tensor } from '../tensor/index.js';
import type { Module } from './module.js';
import type { Parameter } from './parameter.js';

/** Describes a layer for a joint product with other layers of the same input. */
export interface JointProduct {
  /** Parameters with a row or an element per output, of any dtype: weight first. */
  readonly parts: readonly Parameter[];
  /**
   * Properties that layers of one product must share, in addition to shapes and dtypes of their
   * parts.
   */
  readonly kind: string;
  /** Inputs of each layer. */
  readonly inputs: number;
  /**
   * Maps x [.., inputs] to [.., outputs] of all layers; `parts` are the joined parameters in the
   * order of the field `parts`.
   */
  product(x: Tensor, parts: readonly Tensor[]): Tensor;
  /** Returns silu(gate) * up [.., outputs / 2]; the first half of the outputs are the gates. */
  gated(x: Tensor, parts: readonly Tensor[]): Tensor;
}

/** Rows of another matrix for the same input, in the memory directly after joined weights. */
export interface ExtraRows {
  /** The last dim is the layer's inputs. */
  readonly shape: readonly number[];
  /**
   * Receives the rows, filled with zeros, and zeros after the bias, one for each row. Null: the
   * layer must allocate the rows itself.
   */
  place(rows: Tensor | null, bias: Tensor | null): void;
}

/** A linear layer that can be computed together with others. */
export interface JoinableLinear extends Module {
  /** @internal Null if this layer cannot be joined. */
  joining(): JointProduct | null;
  /** @internal Rows that joinMemory() places after the weights. Null or absent: none. */
  readonly extraRows?: ExtraRows | null;
  /**
   * @internal Terms that the layer adds to its product now, such as adapters. Null or absent: none.
   */
  readonly addition?: ProductAddition | null;
}

/** Adds terms to the products of layers, such as the updates of adapters. */
export interface ProductAddition {
  /**
   * Adds to `outs` [rows, outputs] of layers with the input x [.., inputs]. Rows of an output are
   * contiguous. Ignores layers without an addition.
   */
  add(x: Tensor, layers: readonly Module[], outs: readonly Tensor[]): void;
  /**
   * Returns the outputs [.., outputs of all] of layers with adjacent weights, including their
   * additions. `isGated`: returns silu(gate) * up of two layers. Rows are contiguous. Returns null
   * if it does not support the product; the caller then calls add().
   */
  product(x: Tensor, layers: readonly Module[], isGated: boolean): Tensor | null;
}

/** Returns the addition of the first layer that has one; null without one. */
const additionOf = (layers: readonly Module[]): ProductAddition | null => {
  for (const layer of layers) {
    const addition = (layer as { addition?: ProductAddition | null }).addition ?? null;
    if (addition) return addition;
  }
  return null;
};

/** A module that has linear layers of one input. */
export interface Joinable extends Module {
  /** Joins its layers' weights if possible; later forwards compute them in one product. */
  joinLinears(): void;
}

/**
 * Joins the linear layers that modules of `model` can join. Throws DS_OUT_OF_MEMORY if old and new
 * memory of one group do not fit together.
 */
export function joinAll(model: Module): void {
  for (const module of model.modules()) {
    if ('joinLinears' in module) (module as Joinable).joinLinears();
  }
}

/** Returns dtype and row shape of a part as text. All layers of a product must have the same. */
const formOf = ({ shape, dtype }: Parameter): string => `${dtype} ${shape.slice(1).join('x')}`;

/** Returns how the layers are joined; null if a layer cannot be joined or they differ. */
function joiningsOf(layers: readonly Module[]): readonly JointProduct[] | null {
  const joinings: JointProduct[] = [];
  for (const layer of layers) {
    const joining = 'joining' in layer ? (layer as JoinableLinear).joining() : null;
    if (!joining) return null;
    joinings.push(joining);
  }
  const forms = joinings.map(({ kind, parts }) => [kind, ...parts.map(formOf)].join());
  return forms.every((form) => form === forms[0]) ? joinings : null;
}

/** Transposes the parts: returns the weights of all layers, then their biases, and so on. */
const columnsOf = (joinings: readonly JointProduct[]): Parameter[][] =>
  required(joinings[0]).parts.map((_, i) => joinings.map(({ parts }) => required(parts[i])));

/**
 * Moves the weights of linear layers of one input into contiguous memory, and their biases, scales
 * and zero points. If every layer has ExtraRows, these follow the weights. Frees the old memory.
 * Returns false, and changes nothing, if a layer cannot be joined or the layers differ. Throws
 * DS_OUT_OF_MEMORY if old and new memory do not fit together.
 */
export function joinMemory(layers: readonly Module[]): boolean {
  const joinings = joiningsOf(layers);
  if (!joinings) return false;
  const extraRows = layers.map((layer) => (layer as JoinableLinear).extraRows ?? null);
  const all = extraRows.flatMap((rows) => (rows ? [rows] : []));
  const isWhole = all.length === layers.length;
  const shapes = isWhole ? all.map(({ shape }) => shape) : [];
  const [weights, biases = []] = columnsOf(joinings).map((column, i) =>
    moveTogether(column, i === 0 ? shapes : shapes.map((shape) => [numel(shape.slice(0, -1))])),
  );
  for (const [i, rows] of all.entries()) rows.place(weights?.[i] ?? null, biases[i] ?? null);
  return true;
}

/**
 * Moves the parameters into one allocation. Returns tensors of the shapes `extraShapes`, filled
 * with zeros, in the memory after the parameters.
 */
function moveTogether(
  parameters: readonly Parameter[],
  extraShapes: readonly (readonly number[])[],
): Tensor[] {
  const [{ dtype, device }] = leading(parameters, 1);
  const own = parameters.reduce((sum, { numel }) => sum + numel, 0);
  const count = extraShapes.reduce((sum, shape) => sum + numel(shape), own);
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
  const rest = extraShapes.map((shape) => {
    const at = offset;
    const out = held(() => all.alias(shape, undefined, at));
    noGrad(() => scope(() => kernels.fill({ out, value: 0 })));
    offset += out.numel;
    return out;
  });
  all.release();
  return rest;
}

const areAdjacent = (parameters: readonly Parameter[]): boolean =>
  parameters.every((parameter, i) => {
    const before = parameters[i - 1];
    return (
      !before ||
      (parameter.buffer === before.buffer && parameter.offset === before.offset + before.numel)
    );
  });

/** Returns contiguous parameters as one tensor, concatenated along the first dim. */
function concatenate(parameters: readonly Parameter[]): Tensor {
  const [first] = leading(parameters, 1);
  const rows = parameters.reduce((sum, parameter) => sum + parameter.size(0), 0);
  return first.alias([rows, ...first.shape.slice(1)]);
}

/** Returns the layers' parts, each as one tensor; null under the conditions of joinedLinear(). */
function findJoinedParts(
  x: Tensor,
  layers: readonly Module[],
): [readonly JointProduct[], Tensor[]] | null {
  if (isGradEnabled() || layers.some(({ isHooked }) => isHooked)) return null;
  const joinings = joiningsOf(layers);
  if (!joinings || x.shape.at(-1) !== joinings[0]?.inputs) return null;
  const columns = columnsOf(joinings);
  return columns.every(areAdjacent) ? [joinings, columns.map(concatenate)] : null;
}

/**
 * Returns silu(gate x) * up x by one product, for two layers of equal size (gate and up) or one
 * layer with both. Returns null without computing under the conditions of joinedLinear().
 */
export function joinedGate(x: Tensor, layers: readonly Module[]): Tensor | null {
  const joined = findJoinedParts(x, layers);
  if (!joined) return null;
  const [joinings, parts] = joined;
  const [first, ...others] = joinings.map((joining) => required(joining.parts[0]).size(0));
  if (others.some((rows) => rows !== first)) return null;
  const addition = additionOf(layers);
  if (addition) return addition.product(x, layers, true) ?? swiglu(...gateAndUp(x, layers));
  return required(joinings[0]).gated(x, parts);
}

/** Returns the outputs of two layers, or the halves of one. */
function gateAndUp(x: Tensor, layers: readonly Module[]): [gate: Tensor, up: Tensor | null] {
  const [gate, up = null] = required(joinedLinear(x, layers));
  return [required(gate), up];
}

/**
 * Returns the outputs of the layers for x [.., inputs], as views [.., outputs] of one product, or
 * [.., outputs / width, width]. Returns null without computing while gradients are recorded, for
 * layers with hooks or different inputs, and if joinMemory() was not called or the weights have
 * moved since.
 */
export function joinedLinear(
  x: Tensor,
  layers: readonly Module[],
  width: number | null = null,
): Tensor[] | null {
  const joined = findJoinedParts(x, layers);
  if (!joined) return null;
  const [joinings, parts] = joined;
  const addition = additionOf(layers);
  let all = addition?.product(x, layers, false) ?? null;
  if (!all) {
    all = required(joinings[0]).product(x, parts);
    if (addition) addToOutputs(addition, { x, layers, joinings, all });
  }
  const [own, strides] = [all, all.strides.slice(0, -1)];
  let offset = all.offset;
  return joinings.map(({ parts }) => {
    const outputs = required(parts[0]).size(0);
    const shape = width === null ? [outputs] : [outputs / width, width];
    const inner = width === null ? [1] : [width, 1];
    const part = own.alias([...x.shape.slice(0, -1), ...shape], [...strides, ...inner], offset);
    offset += outputs;
    return part;
  });
}

/** Layers, and their joint product `all` [.., outputs of all]. */
interface JoinedResult {
  readonly x: Tensor;
  readonly layers: readonly Module[];
  readonly joinings: readonly JointProduct[];
  readonly all: Tensor;
}

/** Adds the additions of the layers to their outputs in the joint product. */
function addToOutputs(addition: ProductAddition, { x, layers, joinings, all }: JoinedResult): void {
  const total = all.size(-1);
  const rows = all.numel / total;
  let { offset } = all;
  const outs = joinings.map(({ parts }) => {
    const outputs = required(parts[0]).size(0);
    const out = all.alias([rows, outputs], [total, 1], offset);
    offset += outputs;
    return out;
  });
  addition.add(x, layers, outs);
}

/** Returns how a layer x W^T + b is joined. */
export const joiningOf = (weight: Parameter, bias: Parameter | null): JointProduct => ({
  kind: 'linear',
  inputs: weight.size(1),
  parts: bias ? [weight, bias] : [weight],
  product: (x, [weight, bias]) => linear(x, required(weight), bias ?? null),
  gated: (x, [weight, bias]) =>
    computeRows(x, required(weight).size(0) / 2, (rows, out) =>
      kernels.gatedLinear({ x: rows, weight: required(weight), bias: bias ?? null, out }),
    ),
});

/** Maps x [.., inputs] to [.., outputs]; `run` reads and writes rows. */
export function computeRows(
  x: Tensor,
  outputs: number,
  run: (rows: Tensor, out: Tensor) => void,
): Tensor {
  const [outer, inputs] = [x.shape.slice(0, -1), x.size(-1)];
  const rows = x.reshape([numel(outer), inputs]).contiguous();
  const out = Tensor.empty([rows.size(0), outputs], x.dtype, x.device);
  run(rows, out);
  return out.reshape([...outer, outputs]);
}
