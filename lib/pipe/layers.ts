// Declares and builds the layers of a pipeline, which are divided into stages.
import { DsError } from '../errors.js';
import { Module } from '../nn/module.js';
import { formatValue } from '../runtime/format-value.js';
import { valueError } from '../runtime/input-errors.js';
import { Tensor } from '../tensor/index.js';

/** Values between layers: one tensor, or several. */
export type Values = Tensor | readonly Tensor[];

/** Returns the values as a list. */
export const toList = (values: Values): readonly Tensor[] =>
  values instanceof Tensor ? [values] : values;

/** Returns `values` if they are valid between layers. Throws DS_ARGUMENT with `op`. */
export function requireValues(op: string, values: unknown, hint: string): Values {
  const list = Array.isArray(values) ? values : [values];
  if (list.length > 0 && list.every((item) => item instanceof Tensor)) return values as Values;
  const expected = 'a tensor, or a list of tensors';
  throw new DsError({ code: 'DS_ARGUMENT', op, expected, got: formatValue(values), hint });
}

/** One layer of a pipeline: it maps the outputs of the previous layer to its own. */
export interface PipelineLayer {
  /**
   * The modules that own the parameters it reads. A module of several layers is tied: its gradients
   * are summed.
   */
  readonly modules: readonly Module[];
  /**
   * Multiply-accumulates with its weights for one token or sample. Default: the elements of its
   * parameters of two dims or more, except embeddings.
   */
  readonly macs?: number;
  /** Computes its output from the output of the previous layer. */
  forward(values: Values): Values;
}

/** A model with a list of pipeline layers: see PipelineModule. */
export interface Pipelined {
  /** Returns the layers in order, without the loss. */
  pipelineLayers(): PipelineLayer[];
  /** Computes the loss, one f32 element, from the output of the last layer and labels. */
  pipelineLoss(outputs: Values, labels: unknown): Tensor;
}

/** The constructor of a layer. */
// biome-ignore lint/suspicious/noExplicitAny: a layer's constructor has its own parameters.
export type LayerClass<Args extends any[] = any[]> = new (...args: Args) => Module;

/**
 * A layer that PipelineModule builds: `new LayerSpec(Linear, 4, 8)`. Every rank builds all layers,
 * so that initial values do not depend on the number of ranks. Unused parameters take no memory.
 * Source: DeepSpeed's LayerSpec.
 */
// biome-ignore lint/suspicious/noExplicitAny: as above.
export class LayerSpec<Args extends any[] = any[]> {
  /** The arguments of its constructor. */
  readonly args: Args;

  /** Throws DS_ARGUMENT unless `layerClass` is a class of modules. */
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

  /** Returns the layer. */
  build(): Module {
    return new this.type(...this.args);
  }
}

/**
 * The forward of a tied layer if it differs from its module's, such as an embedding as the head.
 */
export type TiedForward = (module: Module, values: Values) => Values;

/**
 * A layer that shares its module with all layers of the same key:
 * `new TiedLayerSpec('embed', Embedding, { forward: (table, x) => ... }, 67, 32)`. The first layer
 * of a key builds the module. If they are on several stages, each has a copy, and their gradients
 * are summed before every update. Source: DeepSpeed's TiedLayerSpec; `tied_weight_attr` is not
 * needed, all parameters are tied.
 */
// biome-ignore lint/suspicious/noExplicitAny: as above.
export class TiedLayerSpec<Args extends any[] = any[]> extends LayerSpec<Args> {
  /** The forward of this use of the module; null calls the module. */
  readonly forward: TiedForward | null;

  /** Throws DS_ARGUMENT unless `key` is a text. */
  constructor(
    /** Layers of one key share a module. */
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

/** A layer of PipelineModule. */
export type LayerLike = Module | LayerSpec | ((values: Tensor) => Values);

/**
 * Builds the layers of `layers` and stores their modules in `modules`, each under the number of its
 * first layer.
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

/** Returns a layer that calls the module; each of several values is an argument. */
function callModule(module: Module): PipelineLayer {
  const call = (...inputs: unknown[]): Values => module.call(...(inputs as [])) as Values;
  return {
    modules: [module],
    forward: (values) => (values instanceof Tensor ? call(values) : call(...values)),
  };
}
