// The curriculum of a run: how many tokens of each sample a step trains on.
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
import { Tensor } from '../../tensor/index.js';
import { type InputCast, requireInputs } from './input-cast.js';
import type { Progress } from './progress.js';

/** A model that knows which of its inputs have a place for each token. */
export interface ShortensInputs {
  /**
   * What forward() is given, of each sample its first `seqlen` tokens; what has no more stays as it
   * is.
   */
  shortenInputs(inputs: readonly unknown[], seqlen: number): unknown[];
}

/** What a training step is given of its batches. */
export interface Curriculum {
  /** Tokens of each sample in the coming step; null: all. */
  readonly seqlen: number | null;
  /** The inputs of forward() under `cast`, cut in training. */
  cutting(cast: InputCast): InputCast;
  /** The same of the batches of a pipeline; the tensors belong to the scope of the call. */
  batches(given: readonly PipelineBatch[]): readonly PipelineBatch[];
  /** Takes the place of the configuration's schedule. */
  setSchedule(schedule: CurriculumSchedule): void;
  /** For a checkpoint; null where there is nothing to keep. */
  state(): JsonObject | null;
  /** Goes on from there; null: from the beginning. Throws DS_CHECKPOINT. */
  load(state: JsonObject | null, place: string): void;
}

type Section = NonNullable<ResolvedConfig['curriculum_learning']>;

const SECTION = 'curriculum_learning';
const SETTER = 'engine.setCustomCurriculumLearningSchedule';

/** The curriculum that the configuration asks for. */
export function curriculumOf(
  { curriculum_learning: section }: ResolvedConfig,
  run: { module: Module; progress: Progress },
): Curriculum {
  return section?.enabled ? new SequenceCurriculum(section, run) : wholeSamples;
}

/** No curriculum. */
export const wholeSamples: Curriculum = {
  seqlen: null,
  cutting: (cast) => cast,
  batches: (given) => given,
  setSchedule: () => {
    throw notCustom('no curriculum');
  },
  state: () => null,
  load: () => {},
};

/**
 * Sequences that get longer. Difficulty is a function of the global step, until it has reached the
 * largest one: from then on it stays, whatever the schedule says. Source: DeepSpeed's
 * CurriculumScheduler.update_difficulty().
 */
class SequenceCurriculum implements Curriculum {
  private schedule: CurriculumSchedule;
  private difficulty: number;
  /** The step that `difficulty` is of; null before any. */
  private step: number | null = null;
  /** The step for which somebody has asked. */
  private askedFor: number | null = null;

  constructor(
    private readonly section: Section,
    private readonly run: { module: Module; progress: Progress },
  ) {
    this.schedule = scheduleOf(section, unset);
    this.difficulty = section.min_difficulty as number;
  }

  get seqlen(): number {
    const step = this.run.progress.globalSteps + 1;
    this.askedFor = step;
    return this.at(step);
  }

  cutting(cast: InputCast): InputCast {
    return (inputs) => cast(this.run.module.training ? this.cut('engine.forward', inputs) : inputs);
  }

  batches(given: readonly PipelineBatch[]): readonly PipelineBatch[] {
    this.at(this.run.progress.globalSteps + 1); // Also where a stage reads nothing.
    return given.map(([inputs, labels]) => {
      // Stages but the first may have been given anything in place of inputs.
      const isList = Array.isArray(inputs) && inputs.every((one) => one instanceof Tensor);
      const values: readonly unknown[] = isList ? (inputs as readonly Tensor[]) : [inputs];
      const cut = this.cut('engine.trainBatch', [...values, labels]);
      const some = cut.slice(0, -1) as Tensor[];
      return [isList ? some : (some[0] as Tensor), cut.at(-1)];
    });
  }

  setSchedule(schedule: CurriculumSchedule): void {
    const { schedule_type: type } = this.section;
    if (type !== 'custom') throw notCustom(`"${type}"`);
    requireType(`${SETTER} schedule`, schedule, 'function');
    this.schedule = (step) => requireInteger(`${SETTER} schedule(${step})`, schedule(step), 1);
    this.step = null;
  }

  state(): JsonObject {
    return { section: settingsOf(this.section), difficulty: this.difficulty };
  }

  /** Under other settings than those that it was saved with, the step alone decides. */
  load(state: JsonObject | null, place: string): void {
    const reader = new Fields(place);
    const saved = state && reader.object(state.section, 'state.curriculum.section');
    const difficulty = state && reader.integer(state.difficulty, 'state.curriculum.difficulty', 1);
    const isSame = isDeepStrictEqual(saved, settingsOf(this.section));
    this.difficulty = (isSame && difficulty) || (this.section.min_difficulty as number);
    this.step = null;
    this.askedFor = null;
  }

  private at(step: number): number {
    if (this.step === step) return this.difficulty;
    const isEasier = this.difficulty < (this.section.max_difficulty as number);
    if (isEasier) this.difficulty = this.schedule(step);
    this.step = step;
    return this.difficulty;
  }

  private cut(op: string, inputs: readonly unknown[]): unknown[] {
    const { module, progress } = this.run;
    const step = progress.globalSteps + 1;
    if (shortens(module)) {
      return requireInputs('shortenInputs', module.shortenInputs(inputs, this.at(step)));
    }
    if (this.askedFor === step) return [...inputs];
    throw new DsError({
      code: 'DS_CONFIG',
      op: `${op}, ${SECTION}`,
      expected: `a model that shortens its inputs, or a loop that asks for engine.curriculumSeqlen in every step`,
      got: `a ${module.constructor.name} without shortenInputs(), and nobody has asked in step ${step}`,
      hint: 'Cut batches to engine.curriculumSeqlen tokens, give the model shortenInputs(inputs, seqlen), or switch the section off.',
    });
  }
}

const shortens = (module: object): module is ShortensInputs =>
  'shortenInputs' in module && typeof module.shortenInputs === 'function';

const settingsOf = (section: Section): JsonObject =>
  JSON.parse(JSON.stringify(section)) as JsonObject;

/** What the rules of the configuration have found complete; `custom` where it names none. */
export function scheduleOf(
  section: Pick<Section, 'schedule_type' | 'schedule_config' | 'min_difficulty' | 'max_difficulty'>,
  custom: CurriculumSchedule,
): CurriculumSchedule {
  const { schedule_type: type, schedule_config: given } = section;
  const { difficulty, max_step: maxSteps, ...root } = given ?? {};
  if (type === 'custom') return custom;
  if (type === 'fixed_discrete') {
    return fixedDiscrete(difficulty as readonly number[], maxSteps as readonly number[]);
  }
  return fixedRoot({
    min: section.min_difficulty as number,
    max: section.max_difficulty as number,
    totalSteps: root.total_curriculum_step as number,
    difficultyStep: root.difficulty_step as number,
    rootDegree: type === 'fixed_linear' ? 1 : (root.root_degree as number),
  });
}

function unset(): never {
  throw new DsError({
    code: 'DS_CONFIG',
    op: `${SECTION}.schedule_type`,
    expected: `${SETTER}() before the first training step, as the type is "custom"`,
    got: 'no schedule',
    hint: `Give ${SETTER}((step) => tokens).`,
  });
}

function notCustom(got: string): DsError {
  return new DsError({
    code: 'DS_CONFIG',
    op: SETTER,
    expected: `${SECTION} with the schedule_type "custom"`,
    got,
  });
}
