// Applies the section "fp8": selects the linear layers that multiply in FP8.
import { Linear, LinearGelu } from '../../nn/linear.js';
import type { Module } from '../../nn/module.js';
import { HEADS, matchesPath } from '../../nn/pack-linears.js';
import type { Parameter } from '../../nn/parameter.js';
import { ColumnLinear, RowLinear } from '../../parallel/layers.js';
import { LoraLayer } from '../../peft/lora-layer.js';
import type { Device } from '../../runtime/device.js';
import { capabilityOf } from '../../runtime/gpu-code.js';
import { configError } from '../../runtime/input-errors.js';
import { FP8_MULTIPLE, type Fp8Recipe } from '../../tensor/ops/fp8-linear.js';
import type { Decisions } from '../engine-parts.js';
import type { BuildResources } from '../release-stack.js';

type Fp8Layer = Linear | ColumnLinear | RowLinear;

/**
 * Classes of layers that can multiply in FP8. Subclasses are not included, because they may
 * multiply in other ways.
 */
const LAYERS: readonly unknown[] = [Linear, LinearGelu, ColumnLinear, RowLinear];

/** Names of adapter layers. Their products are too small to become faster. */
const ADAPTERS: readonly string[] = ['lora_A', 'lora_B'];

/** Compute capabilities with an algorithm in cuBLASLt, by recipe. */
const CAPABILITIES: Readonly<Record<Fp8Recipe, { from: number; below: number; name: string }>> = {
  tensorwise: { from: 8.9, below: Infinity, name: '8.9 or higher' },
  rowwise: { from: 9, below: 12, name: '9.0 to 10.x' },
  blockwise: { from: 9, below: 10, name: '9.0' },
};

const isFp8Layer = (module: Module): module is Fp8Layer => LAYERS.includes(module.constructor);

/** Returns whether both dims are multiples of 16, because tensor cores read 16 codes at a time. */
const isDivisible = ({ weight }: Fp8Layer): boolean =>
  weight.shape.every((size) => size > 0 && size % FP8_MULTIPLE === 0);

/** Returns the linear layers in a module, including the base layers of adapters. */
function layersOf(module: Module): { path: string; layer: Fp8Layer }[] {
  return [...module.namedModules()].flatMap(([path, child]) => {
    const layer = child instanceof LoraLayer ? child.base : child;
    return isFp8Layer(layer) ? [{ path, layer }] : [];
  });
}

/**
 * Returns a function that tests whether a parameter is the weight of a layer in `modules` that
 * multiplies in FP8.
 */
export function createFp8Test(modules: readonly Module[]): (parameter: Parameter) => boolean {
  const layers = modules.flatMap((module) => layersOf(module)).map(({ layer }) => layer);
  const weights = new Set<Parameter>(layers.filter(({ fp8 }) => fp8).map(({ weight }) => weight));
  return (parameter) => weights.has(parameter);
}

/**
 * Throws DS_CONFIG for a GPU without FP8 tensor cores. The CPU computes the same codes in software.
 */
export function requireFp8Gpu(
  recipe: Fp8Recipe,
  { kind, info }: Pick<Device, 'kind' | 'info'>,
): void {
  const capability = kind === 'cuda' ? capabilityOf(info.detail) : undefined;
  if (capability === undefined) return;
  const { from, below, name } = CAPABILITIES[recipe];
  const version = Number(capability);
  if (version >= from && version < below) return;
  throw configError(
    recipe === 'tensorwise' ? 'fp8.enabled' : 'fp8.recipe',
    `a GPU of compute capability ${name} for "${recipe}"`,
    `${info.name} (compute capability ${capability})`,
    version < 8.9 ? 'Set fp8.enabled to false.' : 'Set fp8.recipe to "tensorwise".',
  );
}

/**
 * Sets the recipe of the section in the linear layers of the model, until the engine is destroyed.
 * Heads, adapters, excluded layers and layers with dims that are no multiples of 16 are not
 * changed. Throws DS_CONFIG if no layer remains, for excluded names without a layer, and for GPUs
 * without FP8.
 */
export function useFp8(
  { module, device, config: { fp8: section } }: Decisions,
  { owned }: BuildResources,
): void {
  if (!section.enabled) return;
  const { recipe, exclude } = section;
  requireFp8Gpu(recipe, device);
  // The base layers of adapters are included.
  const layers = [...module.namedModules()].flatMap(([path, module]) => {
    const layer = module instanceof LoraLayer ? module.base : module;
    return isFp8Layer(layer) ? [{ path, layer }] : [];
  });
  for (const name of exclude) {
    if (layers.some(({ path }) => matchesPath(path, [name]))) continue;
    throw configError('fp8.exclude', 'names, or ends of names, of linear layers', `"${name}"`);
  }
  const skipped = [...HEADS, ...ADAPTERS, ...exclude];
  const selected = layers.filter(
    ({ path, layer }) => !matchesPath(path, skipped) && isDivisible(layer),
  );
  if (selected.length === 0) {
    const expected = `a model with linear layers of dims that are multiples of ${FP8_MULTIPLE}`;
    throw configError('fp8.enabled', expected, `${layers.length} linear layers, none of them`);
  }
  for (const { layer } of selected) layer.fp8 = recipe;
  owned.defer(() => {
    for (const { layer } of selected) layer.fp8 = null;
  });
}
