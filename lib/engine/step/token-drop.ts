// Random layerwise token dropping: how many tokens of each sample some layers of a step see.
// Source: Yao et al. 2022 (arXiv 2211.11586).
import type { ResolvedConfig } from '../../../types/config.js';
import { type CurriculumSchedule, fixedRoot } from '../../data/curriculum-schedule.js';
import { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import { type InputCast, requireInputs } from './input-cast.js';
import type { Progress } from './progress.js';

/** Which tokens a step leaves out of which layers. */
export interface TokenDrop {
  /** Layers that see some tokens only, from 0. */
  readonly layers: readonly number[];
  /** Tokens of each sample that they see, drawn for each layer and sample. */
  readonly reserved: number;
}

/** A model that knows how to give a layer some of the tokens. */
export interface DropsTokens {
  /** What forward() is given, with what it needs to know of `drop`. */
  dropTokens(inputs: readonly unknown[], drop: TokenDrop): unknown[];
}

/** The inputs of forward() under `cast`, which say in training what is left out. */
export type TokenDropping = (cast: InputCast) => InputCast;

/** All layers see all tokens. */
export const everyToken: TokenDropping = (cast) => cast;

const SECTION = 'data_efficiency.data_routing.random_ltd';

/** What the configuration asks for. */
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
    if (drops(module)) {
      return cast(requireInputs('dropTokens', module.dropTokens(inputs, { layers, reserved })));
    }
    throw new DsError({
      code: 'DS_CONFIG',
      op: `engine.forward, ${SECTION}`,
      expected: 'a model that gives layers some of the tokens',
      got: `a ${module.constructor.name} without dropTokens()`,
      hint: 'Give the model dropTokens(inputs, drop), or switch the section off.',
    });
  };
}

/** The layers that see some tokens only; null where the section is off. */
export function routedLayers({ data_efficiency: section }: ResolvedConfig): number[] | null {
  const routing = section?.enabled ? section.data_routing : null;
  const ltd = routing?.enabled ? routing.random_ltd : null;
  return ltd?.enabled ? [...(ltd.random_ltd_layer_id as readonly number[])] : null;
}

/** By the steps before this one. Source: DeepSpeed's RandomLTDScheduler. */
function scheduleOf({ data_efficiency: section }: ResolvedConfig): CurriculumSchedule {
  const given = section?.data_routing?.random_ltd?.random_ltd_schedule;
  return fixedRoot({
    min: given?.min_value as number,
    max: given?.max_value as number,
    totalSteps: given?.schedule_config?.require_steps as number,
    difficultyStep: given?.schedule_config?.seq_per_step as number,
    rootDegree: 1,
  });
}

const drops = (module: object): module is DropsTokens =>
  'dropTokens' in module && typeof module.dropTokens === 'function';
