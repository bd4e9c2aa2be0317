// QuantizedLinear layers in the format of compressed-tensors: names, extra tensors, and their
// section of config.json.

import type { JsonObject } from '../../../types/json.js';
import type { TensorSource } from '../../checkpoint/index.js';
import { Experts } from '../../nn/experts.js';
import { Linear } from '../../nn/linear.js';
import type { Module } from '../../nn/module.js';
import { QuantizedLinear } from '../../nn/quantized-linear.js';
import { LoraLayer } from '../../peft/index.js';
import { cpu } from '../../runtime/device.js';
import type { DType } from '../../runtime/dtype.js';
import { leading } from '../../runtime/required.js';
import { held, noGrad, scope, Tensor } from '../../tensor/index.js';
import { convertCodes, groupIndices, packZeros } from './codes.js';
import { findGroup, type LayerScheme } from './scheme.js';

/** The layers of a model with packed weights, by path. */
export function findPackedLayers(model: Module): Map<string, QuantizedLinear> {
  const layers = new Map<string, QuantizedLinear>();
  for (const [path, module] of model.namedModules()) {
    const layer = module instanceof LoraLayer ? module.base : module;
    if (layer instanceof QuantizedLinear) layers.set(path, layer);
  }
  return layers;
}

/**
 * Names (of this library) of tensors with another layout in files. packedSources() writes them.
 */
export function repackedNames(model: Module): Set<string> {
  const names = new Set<string>();
  for (const [path, layer] of findPackedLayers(model)) {
    for (const end of ['weight_zero_point', 'weight_order']) names.add(`${path}.${end}`);
    if (layer.weight_order) names.add(`${path}.weight_packed`);
  }
  return names;
}

/** Tensors of each layer in the files, in addition to unchanged parameters. */
export function packedSources(model: Module): TensorSource[] {
  return [...findPackedLayers(model)].flatMap(([path, layer]) => {
    const { shape, weight_packed, weight_zero_point, weight_order: order, bits, groupSize } = layer;
    const [outputs, inputs] = leading(shape, 2);
    const sources = [
      createSource(`${path}.weight_shape`, 'i64', [2], () =>
        Tensor.from(BigInt64Array.of(BigInt(outputs), BigInt(inputs))),
      ),
    ];
    if (weight_zero_point) {
      const size = [Math.ceil((outputs * bits) / 32), weight_zero_point.size(1)];
      sources.push(
        createSource(`${path}.weight_zero_point`, 'i32', size, () =>
          Tensor.from(packZeros(weight_zero_point, bits), { shape: size }),
        ),
      );
    }
    if (order) {
      sources.push(
        createSource(`${path}.weight_g_idx`, 'i32', [inputs], () =>
          Tensor.from(groupIndices(order, groupSize)),
        ),
        createSource(`${path}.weight_packed`, 'i32', weight_packed.shape, () => {
          const back = order.argsort().to('i32').toRaw() as Int32Array;
          const words = weight_packed.to(cpu());
          const sizes = { shape: [outputs, inputs] as const, bits, order: back };
          return convertCodes(words, 'compressed-tensors', sizes);
        }),
      );
    }
    return sources;
  });
}

function createSource(
  name: string,
  dtype: DType,
  shape: readonly number[],
  make: () => Tensor,
): TensorSource {
  return { name, dtype, shape, values: async () => held(() => noGrad(() => scope(make))) };
}

/**
 * The section of config.json that describes the format to compressed-tensors; null for a model
 * without such layers.
 */
export function packedConfig(model: Module): JsonObject | null {
  const layers = findPackedLayers(model);
  if (layers.size === 0) return null;
  const kinds = new Map<string, { scheme: LayerScheme; isOrdered: boolean; paths: string[] }>();
  for (const [path, { bits, groupSize, weight_zero_point, weight_order }] of layers) {
    const scheme = { bits, groupSize, hasZeros: weight_zero_point !== null };
    const isOrdered = weight_order === null;
    const key = JSON.stringify([scheme, isOrdered]);
    const kind = kinds.get(key) ?? { scheme, isOrdered, paths: [] };
    kinds.set(key, kind);
    kind.paths.push(path);
  }
  const sorted = [...kinds.values()].sort((a, b) => b.paths.length - a.paths.length);
  const groups = sorted.map(({ scheme, isOrdered, paths }, i) => {
    const group = findGroup(i === 0 ? ['Linear'] : paths, scheme);
    if (!isOrdered) (group.weights as JsonObject).actorder = 'group';
    return [`group_${i}`, group];
  });
  const plain = [...model.namedModules()].filter(
    ([, module]) => module instanceof Linear || module instanceof Experts,
  );
  return {
    quant_method: 'compressed-tensors',
    format: 'pack-quantized',
    quantization_status: 'compressed',
    config_groups: Object.fromEntries(groups),
    ignore: plain.map(([path]) => path),
    kv_cache_scheme: null,
    global_compression_ratio: null,
  };
}
