// Progressive layer dropping: which layers of a model a training step leaves out. Source: Zhang and
// He 2020 (arXiv 2010.13369).
import type { ResolvedConfig } from '../../../types/config.js';
import { philox } from '../../data/philox.js';
import { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import { requireInteger } from '../../runtime/require-number.js';
import { type InputCast, requireInputs } from './input-cast.js';
import type { Progress } from './progress.js';

/** What a step leaves out. */
export interface LayerDrop {
  /** The share of layers that run, as far as the schedule has come: from 1 down. */
  readonly pldTheta: number;
  /**
   * Of each of `layers` layers, first to last: 0 where it is left out, else what its branches are
   * multiplied by, 1 / p. Layer l of L, from 1, runs with p = 1 - l / L (1 - pldTheta). The same in
   * all micro-batches of a step and on all ranks. Throws DS_ARGUMENT.
   */
  factors(layers: number): number[];
}

/** A model that knows how to leave out layers. */
export interface DropsLayers {
  /** What forward() is given, with what it needs to know of `drop`. */
  dropLayers(inputs: readonly unknown[], drop: LayerDrop): unknown[];
}

/** What the engine does of it. */
export interface LayerDropping {
  /** Of the coming step; null where no layer is left out. */
  readonly theta: number | null;
  /** The inputs of forward() under `cast`, which say in training what is left out. */
  dropping(cast: InputCast): InputCast;
}

/** All layers run. */
export const everyLayer: LayerDropping = { theta: null, dropping: (cast) => cast };

const SECTION = 'progressive_layer_drop';

/**
 * Layers are drawn from a stream of their own, of which the number of the step is the offset: it
 * needs no state, and cannot differ between ranks, which gather and reduce layer by layer.
 */
const SEED = 1234;

/** What the configuration asks for. */
export function layerDroppingOf(
  { [SECTION]: section }: ResolvedConfig,
  run: { module: Module; progress: Progress },
): LayerDropping {
  return section?.enabled ? new ProgressiveLayerDrop(section, run) : everyLayer;
}

class ProgressiveLayerDrop implements LayerDropping {
  /** The step for which somebody has asked. */
  private askedFor: number | null = null;

  constructor(
    private readonly section: { theta: number; gamma: number },
    private readonly run: { module: Module; progress: Progress },
  ) {}

  get theta(): number {
    this.askedFor = this.run.progress.globalSteps;
    return this.drop().pldTheta;
  }

  dropping(cast: InputCast): InputCast {
    return (inputs) => cast(this.run.module.training ? this.reported(inputs) : inputs);
  }

  private drop(): LayerDrop {
    const { theta, gamma } = this.section;
    return layerDropAt(this.run.progress.globalSteps, { theta, gamma });
  }

  private reported(inputs: readonly unknown[]): unknown[] {
    const { module, progress } = this.run;
    if (drops(module)) return requireInputs('dropLayers', module.dropLayers(inputs, this.drop()));
    if (this.askedFor === progress.globalSteps) return [...inputs];
    throw new DsError({
      code: 'DS_CONFIG',
      op: `engine.forward, ${SECTION}`,
      expected:
        'a model that leaves out layers, or a loop that asks for engine.pldTheta in every step',
      got: `a ${module.constructor.name} without dropLayers(), and nobody has asked in step ${progress.globalSteps + 1}`,
      hint: 'Give the model dropLayers(inputs, drop), pass engine.pldTheta to forward(), or switch the section off.',
    });
  }
}

/**
 * The drop of the step after `globalSteps` ones. pldTheta = (1 - theta) exp(-gamma t) + theta with
 * t = globalSteps - 1, and 1 in the first step. Source: DeepSpeed's ProgressiveLayerDrop, which
 * DeepSpeedEngine.step() tells of the steps before it.
 */
export function layerDropAt(
  globalSteps: number,
  { theta, gamma }: { theta: number; gamma: number },
): LayerDrop {
  const t = Math.max(globalSteps - 1, 0);
  const pldTheta = (1 - theta) * Math.exp(-gamma * t) + theta;
  return {
    pldTheta,
    factors: (layers) => {
      requireInteger('drop.factors layers', layers, 1);
      return Array.from({ length: layers }, (_, layer) => {
        const p = 1 - ((layer + 1) / layers) * (1 - pldTheta);
        const [word] = philox(SEED, globalSteps, layer);
        return word / 2 ** 32 < p ? 1 / p : 0;
      });
    },
  };
}

const drops = (module: object): module is DropsLayers =>
  'dropLayers' in module && typeof module.dropLayers === 'function';
