// Declares and builds the layers of a pipeline. pipeline.ts divides them into stages.
import { DsError } from '../errors.js';
import { Module } from '../nn/module.js';
import { formatValue } from '../runtime/format-value.js';
import { valueError } from '../runtime/input-errors.js';
import { Tensor } from '../tensor/index.js';

/** Values that a layer passes to the next one: a tensor, or several tensors. */
export type Values = Tensor | readonly Tensor[];

/** Returns the values as a list. */
export const toList = (values: Values): readonly Tensor[] =>
  values instanceof Tensor ? [values] : values;

/**
 * Returns `values` if they are a tensor or a list of tensors. Throws DS_ARGUMENT for the operation
 * `op` otherwise.
 */
export function requireValues(op: string, values: unknown, hint: string): Values {
  const list = Array.isArray(values) ? values : [values];
  if (list.length > 0 && list.every((item) => item instanceof Tensor)) return values as Values;
  const expected = 'a tensor, or a list of tensors';
  throw new DsError({ code: 'DS_ARGUMENT', op, expected, got: formatValue(values), hint });
}

/** A layer of a pipeline. It maps the outputs of the previous layer to its own outputs. */
export interface PipelineLayer {
  /**
   * The modules that own the parameters that the layer reads. A module of several layers is tied:
   * its gradients are summed over the layers.
   */
  readonly modules: readonly Module[];
  /**
   * Multiply-accumulates with its weights for one token or sample; used by the partition method
   * "flops". Default: the number of elements of its parameters with two or more dims, except
   * embeddings.
   */
  readonly macs?: number;
  /** Returns the layer's output for the output of the previous layer. */
  forward(values: Values): Values;
}

/** A model that consists of pipeline layers, such as a PipelineModule. */
export interface Pipelined {
  /** Returns the layers in order, without the loss. */
  pipelineLayers(): PipelineLayer[];
  /** Returns the loss, one f32 element, for the output of the last layer and the labels. */
  pipelineLoss(outputs: Values, labels: unknown): Tensor;
}

/** The class of a layer. */
// biome-ignore lint/suspicious/noExplicitAny: a layer's constructor has its own parameters.
export type LayerClass<Args extends any[] = any[]> = new (...args: Args) => Module;

/**
 * A layer that PipelineModule builds: `new LayerSpec(Linear, 4, 8)`. Every rank builds all layers,
 * so that initial values do not depend on the number of ranks. Parameters of other ranks' layers
 * take no memory. Source: DeepSpeed's LayerSpec.
 */
// biome-ignore lint/suspicious/noExplicitAny: as above.
export class LayerSpec<Args extends any[] = any[]> {
  /** The arguments of the constructor. */
  readonly args: Args;

  /** Throws DS_ARGUMENT unless `type` is a class of modules. */
  constructor(
    /** The class of the layer. */
    readonly type: LayerClass<Args>,
    ...args: Args
  ) {
    if (typeof type !== 'function' || !(type.prototype instanceof Module)) {
      throw valueError('LayerSpec', 'a class that extends nn.Module', type);
    }
    this.args = args;
  }

  /** Builds the layer. */
  build(): Module {
    return new this.type(...this.args);
  }
}

/**
 * The forward of a tied layer if it is not its module's forward: for example, an embedding as the
 * head.
 */
export type TiedForward = (module: Module, values: Values) => Values;

/**
 * A layer that shares its module with all layers of the same key. For example:
 * `new TiedLayerSpec('embed', Embedding, { forward: (table, x) => ... }, 67, 32)`.
 *
 * The first layer of a key builds the module. If the layers are on several stages, each stage has a
 * copy, and the gradients of the copies are summed before every update. All parameters are tied, so
 * DeepSpeed's `tied_weight_attr` does not exist. Source: DeepSpeed's TiedLayerSpec.
 */
// biome-ignore lint/suspicious/noExplicitAny: as above.
export class TiedLayerSpec<Args extends any[] = any[]> extends LayerSpec<Args> {
  /** The forward of this layer. Null: the forward of the module. */
  readonly forward: TiedForward | null;

  /** Throws DS_ARGUMENT unless `key` is a non-empty string. */
  constructor(
    /** Layers with the same key share a module. */
    readonly key: string,
    type: LayerClass<Args>,
    given: { forward?: TiedForward } = {},
    ...args: Args
  ) {
    super(type, ...args);
    if (typeof key !== 'string' || key === '') {
      throw valueError('TiedLayerSpec', 'a key: a string', key);
    }
    this.forward = given.forward ?? null;
  }
}

/** A layer as PipelineModule accepts it. */
export type LayerLike = Module | LayerSpec | ((values: Tensor) => Values);

/**
 * Builds `layers` and returns them as pipeline layers. Adds their modules to `modules`, each under
 * the index of its first layer.
 */
export function buildLayers(
  layers: readonly LayerLike[],
  modules: Record<string, Module>,
): PipelineLayer[] {
  const tied = new Map<string, Module>();
  const addModule = (index: number, module: Module): Module => {
    const known = Object.values(modules).includes(module);
    if (!known) modules[index] = module;
    return module;
  };
  return layers.map((layer, index) => {
    if (layer instanceof TiedLayerSpec) {
      const module = tied.get(layer.key) ?? layer.build();
      tied.set(layer.key, module);
      addModule(index, module);
      const { forward } = layer;
      return forward
        ? { modules: [module], forward: (x) => forward(module, x) }
        : callModule(module);
    }
    if (layer instanceof LayerSpec) return callModule(addModule(index, layer.build()));
    if (layer instanceof Module) return callModule(addModule(index, layer));
    if (typeof layer === 'function') {
      return { modules: [], forward: (x) => (layer as (x: Values) => Values)(x) };
    }
    const expected = 'a module, a LayerSpec, or a function';
    throw valueError(`PipelineModule layers[${index}]`, expected, layer);
  });
}

/** Returns a layer that calls the module. If the values are a list, each value is an argument. */
function callModule(module: Module): PipelineLayer {
  const call = (...inputs: unknown[]): Values => module.call(...(inputs as [])) as Values;
  return {
    modules: [module],
    forward: (values) => (values instanceof Tensor ? call(values) : call(...values)),
  };
}
