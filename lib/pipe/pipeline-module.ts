// PipelineModule: a model as a list of layers that initialize() can divide into pipeline stages.

import { DsError } from '../errors.js';
import { Module } from '../nn/module.js';
import { formatValue } from '../runtime/format-value.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { required } from '../runtime/required.js';
import { Tensor } from '../tensor/index.js';
import {
  buildLayers,
  type LayerLike,
  type Pipelined,
  type PipelineLayer,
  type Values,
} from './layers.js';
import { expectedMethod } from './partition-method.js';

/** How layers are divided into stages; see PipelineOptions. */
export type PartitionMethod = 'parameters' | 'uniform' | 'flops' | `type:${string}`;

/** How a model is divided and run as a pipeline. */
export interface PipelineOptions {
  /**
   * How layers are divided into stages. Each stage gets about the same number of:
   * - "parameters" (default): elements of parameters;
   * - "uniform": layers;
   * - "flops": multiply-accumulates;
   * - "type:REGEX": layers with a class name that matches the pattern, ignoring case.
   */
  partitionMethod?: PartitionMethod;
  /**
   * Number of consecutive layers of a stage that form one checkpointed segment, which the backward
   * recomputes. Default: 0, no recomputation.
   */
  activationCheckpointInterval?: number;
  /**
   * Whether every forward of a layer starts from its own random seed, based on `baseSeed`. Default:
   * false.
   */
  seedLayers?: boolean;
  /** Seed of layer 0. Default: 1234. */
  baseSeed?: number;
  /**
   * Whether shapes may differ between micro-batches. Default: false; shapes are then sent only
   * once.
   */
  dynamicShape?: boolean;
}

/** Returns the loss for the last layer's outputs and the labels. */
// biome-ignore lint/suspicious/noExplicitAny: the last layer decides the type of its outputs.
export type LossFunction = (outputs: any, labels: any) => Tensor;

/** Options of a PipelineModule. */
export interface PipelineModuleOptions extends PipelineOptions {
  /** Modules, LayerSpecs and functions. Each receives the output of the previous layer. */
  layers: Iterable<LayerLike>;
  /**
   * Returns the loss, one f32 element, for the last layer's outputs and the labels: a function, or
   * a module without parameters such as nn.MSELoss. Default: the output of the last layer is the
   * loss.
   */
  lossFn?: LossFunction | Module | null;
  /** Number of stages if neither the mesh nor the configuration sets it. */
  numStages?: number;
}

/**
 * A model of consecutive layers and a loss. initialize() creates a PipelineEngine from it: each
 * rank of the mesh's axis pp runs some of the layers and keeps only their parameters. In a single
 * process it is an ordinary model. Parameters have the names "layers.N....", where N is the index
 * of their layer. Source: DeepSpeed's PipelineModule.
 */
export class PipelineModule extends Module implements Pipelined {
  /** The modules of the layers. The key is the index of the module's first layer. */
  readonly layers: Readonly<Record<string, Module>>;
  /** @internal */
  readonly pipelineOptions: PipelineOptions;
  /** See PipelineModuleOptions. */
  readonly numStages: number | null;
  private readonly steps: readonly PipelineLayer[];
  private readonly lossFn: LossFunction | null;

  /** Throws DS_ARGUMENT for unknown options and for invalid layers. */
  constructor(given: PipelineModuleOptions) {
    super();
    const op = 'PipelineModule';
    const options = readOptions(op, given, namesOf.PipelineModuleOptions);
    const { layers, lossFn = null, numStages, ...rest } = options;
    const isList = typeof layers === 'object' && Symbol.iterator in layers;
    if (!isList) throw optionError('layers', 'a list of layers', formatValue(layers));
    const modules: Record<string, Module> = {};
    this.steps = buildLayers([...layers], modules);
    if (this.steps.length === 0) throw optionError('layers', 'at least one layer', 'none');
    this.layers = modules;
    this.lossFn = toLossFunction(lossFn);
    this.pipelineOptions = requireOptions(op, rest);
    this.numStages =
      numStages === undefined ? null : requireInteger(`${op} numStages`, numStages, 1);
  }

  /** Runs all layers. This rank must have all of them. */
  override forward(...inputs: Tensor[]): Values {
    const [only] = inputs;
    const values: Values = inputs.length === 1 ? required(only) : inputs;
    return this.steps.reduce((x, layer) => layer.forward(x), values);
  }

  /** @internal */
  pipelineLayers(): PipelineLayer[] {
    return [...this.steps];
  }

  /** @internal */
  pipelineLoss(outputs: Values, labels: unknown): Tensor {
    const loss = this.lossFn ? this.lossFn(outputs, labels) : outputs;
    if (loss instanceof Tensor) return loss;
    throw optionError('lossFn', 'a tensor, the loss', formatValue(loss));
  }
}

/** Returns whether initialize() can divide the model into stages. */
export function isPipelined(model: object): model is Module & Pipelined {
  return 'pipelineLayers' in model && typeof model.pipelineLayers === 'function';
}

/**
 * Returns the loss function. Throws DS_ARGUMENT for other values, and for a module with parameters,
 * because it belongs to no stage that would train them.
 */
function toLossFunction(lossFn: unknown): LossFunction | null {
  const isClass = typeof lossFn === 'function' && lossFn.prototype instanceof Module;
  if (lossFn === null || (typeof lossFn === 'function' && !isClass)) {
    return lossFn as LossFunction | null;
  }
  if (!(lossFn instanceof Module)) {
    const got = isClass ? `the class ${(lossFn as { name: string }).name}` : formatValue(lossFn);
    throw optionError('lossFn', 'a function or a module, such as new nn.MSELoss()', got);
  }
  const [first] = lossFn.namedParameters();
  if (!first) return (outputs, labels) => lossFn.call(outputs, labels) as Tensor;
  const expected = 'a loss without parameters; a module with parameters can be the last layer';
  throw optionError('lossFn', expected, `${formatValue(lossFn)} with ${first[0]}`);
}

/** Throws DS_ARGUMENT for invalid values of options. */
function requireOptions(op: string, options: PipelineOptions): PipelineOptions {
  const { partitionMethod: method, activationCheckpointInterval, baseSeed } = options;
  const expected = method === undefined ? null : expectedMethod(method);
  if (expected) throw optionError('partitionMethod', expected, formatValue(method));
  if (activationCheckpointInterval !== undefined) {
    requireInteger(`${op} activationCheckpointInterval`, activationCheckpointInterval, 0);
  }
  if (baseSeed !== undefined) requireInteger(`${op} baseSeed`, baseSeed, 0);
  return options;
}

function optionError(name: string, expected: string, got: string): DsError {
  return new DsError({ code: 'DS_ARGUMENT', op: `PipelineModule ${name}`, expected, got });
}
