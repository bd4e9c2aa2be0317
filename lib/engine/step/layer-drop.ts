// Progressive layer dropping: skips layers in training steps. Source: Zhang and He 2020 (arXiv
// 2010.13369).
import type { ResolvedConfig } from '../../../types/config.js';
import { philox } from '../../data/philox.js';
import { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import { requireInteger } from '../../runtime/require-number.js';
import { type InputCast, requireInputs } from './inputs.js';
import type { Progress } from './step-decisions.js';

/** Decides which layers a step skips. */
export interface LayerDrop {
  /** Fraction of layers that run in this step. It decreases from 1. */
  readonly pldTheta: number;
  /**
   * Returns a factor for each of `layers` layers: 0 if the layer is skipped, else 1 / p, the scale
   * of its branches. Layer l of L, counted from 1, runs with probability p = 1 - l / L (1 -
   * pldTheta). The factors are equal in all micro-batches of a step and on all ranks. Throws
   * DS_ARGUMENT unless `layers` is an integer from 1.
   */
  factors(layers: number): number[];
}

/** A model that can skip layers. */
export interface DropsLayers {
  /** Returns the inputs of forward() with the values of `drop` that the model needs. */
  dropLayers(inputs: readonly unknown[], drop: LayerDrop): unknown[];
}

/** The layer dropping of an engine. */
export interface LayerDropping {
  /** pldTheta of the next step. Null without layer dropping. */
  readonly theta: number | null;
  /**
   * Returns `cast` with a step before it that adds the drop to the inputs of forward() in training.
   */
  dropInputs(cast: InputCast): InputCast;
}

export const everyLayer: LayerDropping = { theta: null, dropInputs: (cast) => cast };

const SECTION = 'progressive_layer_drop';

/**
 * Seed of a separate random stream. The step number is its offset, so it needs no state. All ranks
 * draw the same numbers, because they gather and reduce layer by layer.
 */
const SEED = 1234;

export function layerDroppingOf(
  { [SECTION]: section }: ResolvedConfig,
  run: { module: Module; progress: Progress },
): LayerDropping {
  return section?.enabled ? new ProgressiveLayerDrop(section, run) : everyLayer;
}

class ProgressiveLayerDrop implements LayerDropping {
  /** The last step when the caller read `theta`. */
  private readAt: number | null = null;

  constructor(
    private readonly section: { theta: number; gamma: number },
    private readonly run: { module: Module; progress: Progress },
  ) {}

  get theta(): number {
    this.readAt = this.run.progress.globalSteps;
    return this.drop().pldTheta;
  }

  dropInputs(cast: InputCast): InputCast {
    return (inputs) => cast(this.run.module.training ? this.addDrop(inputs) : inputs);
  }

  private drop(): LayerDrop {
    const { theta, gamma } = this.section;
    return layerDropAt(this.run.progress.globalSteps, { theta, gamma });
  }

  private addDrop(inputs: readonly unknown[]): unknown[] {
    const { module, progress } = this.run;
    if (canDropLayers(module))
      return requireInputs('dropLayers', module.dropLayers(inputs, this.drop()));
    if (this.readAt === progress.globalSteps) return [...inputs];
    throw new DsError({
      code: 'DS_CONFIG',
      op: `engine.forward, ${SECTION}`,
      expected: 'a model with dropLayers(), or a loop that reads engine.pldTheta in every step',
      got: `a ${module.constructor.name} without dropLayers(), and no read in step ${progress.globalSteps + 1}`,
      hint: 'Implement dropLayers(inputs, drop) in the model, pass engine.pldTheta to forward(), or turn the section off.',
    });
  }
}

/**
 * Returns the drop of the step after `globalSteps` steps: pldTheta = (1 - theta) exp(-gamma t) +
 * theta with t = globalSteps - 1. In the first step it is 1. Source: DeepSpeed's
 * ProgressiveLayerDrop, which DeepSpeedEngine.step() updates.
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

const canDropLayers = (module: object): module is DropsLayers =>
  'dropLayers' in module && typeof module.dropLayers === 'function';
