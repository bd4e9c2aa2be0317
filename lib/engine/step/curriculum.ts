// Curriculum learning: limits the number of tokens per sample in each step.

import { isDeepStrictEqual } from 'node:util';
import type { ResolvedConfig } from '../../../types/config.js';
import type { JsonObject } from '../../../types/json.js';
import { Fields } from '../../checkpoint/index.js';
import {
  type CurriculumSchedule,
  fixedDiscrete,
  fixedRoot,
} from '../../data/curriculum-schedule.js';
import { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import type { PipelineBatch } from '../../pipe/index.js';
import { requireInteger } from '../../runtime/require-number.js';
import { requireType } from '../../runtime/require-type.js';
import { required } from '../../runtime/required.js';
import { Tensor } from '../../tensor/index.js';
import { type InputCast, requireInputs } from './inputs.js';
import type { Progress } from './step-decisions.js';

/** A model that can cut its inputs to a number of tokens. */
export interface ShortensInputs {
  /**
   * Returns the inputs of forward() with the first `seqlen` tokens of each sample. Shorter inputs
   * stay unchanged.
   */
  shortenInputs(inputs: readonly unknown[], seqlen: number): unknown[];
}

/** The curriculum of an engine. */
export interface Curriculum {
  /** Tokens per sample in the next step. Null: all tokens. */
  readonly seqlen: number | null;
  /** Returns `cast` with a step before it that cuts the inputs of forward() in training. */
  cutInputs(cast: InputCast): InputCast;
  /** Cuts the batches of a pipeline. The caller's scope owns the tensors. */
  cutBatches(given: readonly PipelineBatch[]): readonly PipelineBatch[];
  /** Replaces the schedule of the configuration. */
  setSchedule(schedule: CurriculumSchedule): void;
  /** Returns the state to save, or null. */
  state(): JsonObject | null;
  /** Restores a state; null restarts the curriculum. Throws DS_CHECKPOINT for an invalid state. */
  load(state: JsonObject | null, location: string): void;
}

type Section = NonNullable<ResolvedConfig['curriculum_learning']>;

const SECTION = 'curriculum_learning';
const SETTER = 'engine.setCustomCurriculumLearningSchedule';

/** Returns the curriculum that the configuration describes. */
export function curriculumOf(
  { curriculum_learning: section }: ResolvedConfig,
  run: { module: Module; progress: Progress },
): Curriculum {
  return section?.enabled ? new SequenceCurriculum(section, run) : wholeSamples;
}

export const wholeSamples: Curriculum = {
  seqlen: null,
  cutInputs: (cast) => cast,
  cutBatches: (given) => given,
  setSchedule: () => {
    throw notCustomError('no curriculum');
  },
  state: () => null,
  load: () => {},
};

/**
 * Increases the number of tokens with the global step. When it has reached the maximum, it stays
 * there. Source: DeepSpeed's CurriculumScheduler.update_difficulty().
 */
class SequenceCurriculum implements Curriculum {
  private schedule: CurriculumSchedule;
  private difficulty: number;
  /** The step of `difficulty`. Null before the first step. */
  private step: number | null = null;
  /** The last step with a read of `seqlen` by the caller. */
  private readAt: number | null = null;

  constructor(
    private readonly section: Section,
    private readonly run: { module: Module; progress: Progress },
  ) {
    this.schedule = scheduleOf(section, missingSchedule);
    this.difficulty = required(section.min_difficulty);
  }

  get seqlen(): number {
    const step = this.run.progress.globalSteps + 1;
    this.readAt = step;
    return this.difficultyAt(step);
  }

  cutInputs(cast: InputCast): InputCast {
    return (inputs) => cast(this.run.module.training ? this.cut('engine.forward', inputs) : inputs);
  }

  cutBatches(given: readonly PipelineBatch[]): readonly PipelineBatch[] {
    // Computes the length of this step even if this stage reads no batch.
    this.difficultyAt(this.run.progress.globalSteps + 1);
    return given.map(([inputs, labels]) => {
      // Stages after the first one may get any value as inputs.
      const isList = Array.isArray(inputs) && inputs.every((input) => input instanceof Tensor);
      const values: readonly unknown[] = isList ? inputs : [inputs];
      const cut = this.cut('engine.trainBatch', [...values, labels]);
      const some = cut.slice(0, -1) as Tensor[];
      return [isList ? some : (some[0] as Tensor), cut.at(-1)];
    });
  }

  setSchedule(schedule: CurriculumSchedule): void {
    const { schedule_type: type } = this.section;
    if (type !== 'custom') throw notCustomError(`"${type}"`);
    requireType(`${SETTER} schedule`, schedule, 'function');
    this.schedule = (step) => requireInteger(`${SETTER} schedule(${step})`, schedule(step), 1);
    this.step = null;
  }

  state(): JsonObject {
    return { section: settingsOf(this.section), difficulty: this.difficulty };
  }

  /** If the section differs from the saved one, the saved difficulty is ignored. */
  load(state: JsonObject | null, location: string): void {
    const reader = new Fields(location);
    const saved = state && reader.object(state.section, 'state.curriculum.section');
    const difficulty = state && reader.integer(state.difficulty, 'state.curriculum.difficulty', 1);
    const isSame = isDeepStrictEqual(saved, settingsOf(this.section));
    this.difficulty = (isSame && difficulty) || required(this.section.min_difficulty);
    this.step = null;
    this.readAt = null;
  }

  private difficultyAt(step: number): number {
    if (this.step === step) return this.difficulty;
    const isEasier = this.difficulty < required(this.section.max_difficulty);
    if (isEasier) this.difficulty = this.schedule(step);
    this.step = step;
    return this.difficulty;
  }

  private cut(op: string, inputs: readonly unknown[]): unknown[] {
    const { module, progress } = this.run;
    const step = progress.globalSteps + 1;
    if (canShorten(module)) {
      return requireInputs('shortenInputs', module.shortenInputs(inputs, this.difficultyAt(step)));
    }
    if (this.readAt === step) return [...inputs];
    throw new DsError({
      code: 'DS_CONFIG',
      op: `${op}, ${SECTION}`,
      expected: `a model with shortenInputs(), or a loop that reads engine.curriculumSeqlen in every step`,
      got: `a ${module.constructor.name} without shortenInputs(), and no read in step ${step}`,
      hint: 'Cut batches to engine.curriculumSeqlen tokens, implement shortenInputs(inputs, seqlen) in the model, or turn the section off.',
    });
  }
}

const canShorten = (module: object): module is ShortensInputs =>
  'shortenInputs' in module && typeof module.shortenInputs === 'function';

const settingsOf = (section: Section): JsonObject =>
  JSON.parse(JSON.stringify(section)) as JsonObject;

/** Returns the schedule of a validated section. For the type "custom", returns `custom`. */
export function scheduleOf(
  section: Pick<Section, 'schedule_type' | 'schedule_config' | 'min_difficulty' | 'max_difficulty'>,
  custom: CurriculumSchedule,
): CurriculumSchedule {
  const { schedule_type: type, schedule_config: given } = section;
  const { difficulty, max_step: maxSteps, ...root } = given ?? {};
  if (type === 'custom') return custom;
  if (type === 'fixed_discrete') {
    return fixedDiscrete(required(difficulty), required(maxSteps));
  }
  return fixedRoot({
    min: required(section.min_difficulty),
    max: required(section.max_difficulty),
    totalSteps: required(root.total_curriculum_step),
    difficultyStep: required(root.difficulty_step),
    rootDegree: type === 'fixed_linear' ? 1 : required(root.root_degree),
  });
}

function missingSchedule(): never {
  throw new DsError({
    code: 'DS_CONFIG',
    op: `${SECTION}.schedule_type`,
    expected: `${SETTER}() before the first training step, because the type is "custom"`,
    got: 'no schedule',
    hint: `Call ${SETTER}((step) => tokens).`,
  });
}

function notCustomError(got: string): DsError {
  return new DsError({
    code: 'DS_CONFIG',
    op: SETTER,
    expected: `${SECTION} with the schedule_type "custom"`,
    got,
  });
}
