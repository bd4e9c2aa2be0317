// Random layerwise token dropping: how many tokens of each sample some layers of a step see.
// Source: Yao et al. 2022 (arXiv 2211.11586).
import type { ResolvedConfig } from '../../../types/config.js';
import { type CurriculumSchedule, fixedRoot } from '../../data/curriculum-schedule.js';
import { DsError } from '../../errors.js';
import { CausalLM } from '../../models/causal-lm.js';
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
export function routedLayers(config: ResolvedConfig): number[] | null {
  const ltd = sectionOf(config);
  return ltd ? [...(ltd.random_ltd_layer_id as readonly number[])] : null;
}

/**
 * A notice where the section was written for a model with more or fewer layers than `module`, which
 * changes nothing: DeepSpeed counts tokens with that number alone, and nothing is counted by it
 * here. Throws DS_CONFIG where it names layers that `module` has not got. Null where all fits, and
 * for a model of somebody else's, whose layers are not known.
 */
export function requireOwnLayers(config: ResolvedConfig, module: Module): string | null {
  const ltd = sectionOf(config);
  if (!ltd || !(module instanceof CausalLM)) return null;
  const { layers } = module.config;
  const ids = ltd.random_ltd_layer_id as readonly number[];
  if (ids.some((id) => id >= layers)) {
    throw new DsError({
      code: 'DS_CONFIG',
      op: `${SECTION}.random_ltd_layer_id`,
      expected: `numbers from 0 to ${layers - 1}, as the model has ${layers} layers`,
      got: `[${ids.join(', ')}]`,
      hint: 'Was the section written for another model?',
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

/** By the steps before this one. Source: DeepSpeed's RandomLTDScheduler. */
function scheduleOf(config: ResolvedConfig): CurriculumSchedule {
  const given = sectionOf(config)?.random_ltd_schedule;
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
