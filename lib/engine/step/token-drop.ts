// Random layerwise token dropping: some layers process only a sample of the tokens. Source: Yao et
// al. 2022 (arXiv 2211.11586).

import type { ResolvedConfig } from '../../../types/config.js';
import { type CurriculumSchedule, fixedRoot } from '../../data/curriculum-schedule.js';
import { DsError } from '../../errors.js';
import { CausalLM } from '../../models/causal-lm.js';
import type { Module } from '../../nn/module.js';
import { required } from '../../runtime/required.js';
import { type InputCast, requireInputs } from './inputs.js';
import type { Progress } from './step-decisions.js';

/** Which layers drop tokens in a step, and how many tokens remain. */
export interface TokenDrop {
  /** Indices of the layers that process only some tokens, from 0. */
  readonly layers: readonly number[];
  /** Tokens per sample that these layers process. They are drawn for each layer and sample. */
  readonly reserved: number;
}

/** A model that can drop tokens in some layers. */
export interface DropsTokens {
  /** Returns the inputs of forward() with the values of `drop` that the model needs. */
  dropTokens(inputs: readonly unknown[], drop: TokenDrop): unknown[];
}

/**
 * Returns `cast` with a step before it that adds the drop to the inputs of forward() in training.
 */
type TokenDropping = (cast: InputCast) => InputCast;

export const everyToken: TokenDropping = (cast) => cast;

const SECTION = 'data_efficiency.data_routing.random_ltd';

export function tokenDroppingOf(
  config: ResolvedConfig,
  { module, progress }: { module: Module; progress: Progress },
): TokenDropping {
  const layers = routedLayers(config);
  if (!layers) return everyToken;
  const reservedAt = scheduleOf(config);
  return (cast) => (inputs) => {
    if (!module.training) return cast(inputs);
    const reserved = reservedAt(progress.globalSteps);
    if (canDropTokens(module)) {
      return cast(requireInputs('dropTokens', module.dropTokens(inputs, { layers, reserved })));
    }
    throw new DsError({
      code: 'DS_CONFIG',
      op: `engine.forward, ${SECTION}`,
      expected: 'a model with dropTokens()',
      got: `a ${module.constructor.name} without it`,
      hint: 'Implement dropTokens(inputs, drop) in the model, or turn the section off.',
    });
  };
}

/** Returns the layers that process only some tokens. Null if the section is off. */
export function routedLayers(config: ResolvedConfig): number[] | null {
  const ltd = sectionOf(config);
  return ltd ? [...required(ltd.random_ltd_layer_id)] : null;
}

/**
 * Throws DS_CONFIG if the section names layers that `module` does not have. Returns a notice if
 * total_layer_num differs from the number of layers. That key has no effect here; DeepSpeed only
 * counts tokens with it. Returns null if they are equal, or if the layers of the model are unknown.
 */
export function requireOwnLayers(config: ResolvedConfig, module: Module): string | null {
  const ltd = sectionOf(config);
  if (!ltd || !(module instanceof CausalLM)) return null;
  const { layers } = module.config;
  const ids = required(ltd.random_ltd_layer_id);
  if (ids.some((id) => id >= layers)) {
    throw new DsError({
      code: 'DS_CONFIG',
      op: `${SECTION}.random_ltd_layer_id`,
      expected: `numbers from 0 to ${layers - 1}, because the model has ${layers} layers`,
      got: `[${ids.join(', ')}]`,
      hint: 'List layers of this model.',
    });
  }
  const { total_layer_num: total } = ltd;
  if (total === null || total === layers) return null;
  return `${SECTION}.total_layer_num is ${total}, and the model has ${layers} layers: layers ${ids.join(', ')} of these see some tokens only`;
}

function sectionOf({ data_efficiency: section }: ResolvedConfig) {
  const routing = section?.enabled ? section.data_routing : null;
  const ltd = routing?.enabled ? routing.random_ltd : null;
  return ltd?.enabled ? ltd : null;
}

/** Returns the schedule over completed steps. Source: DeepSpeed's RandomLTDScheduler. */
function scheduleOf(config: ResolvedConfig): CurriculumSchedule {
  const given = sectionOf(config)?.random_ltd_schedule;
  return fixedRoot({
    min: required(given?.min_value),
    max: required(given?.max_value),
    totalSteps: required(given?.schedule_config?.require_steps),
    difficultyStep: required(given?.schedule_config?.seq_per_step),
    rootDegree: 1,
  });
}

const canDropTokens = (module: object): module is DropsTokens =>
  'dropTokens' in module && typeof module.dropTokens === 'function';
