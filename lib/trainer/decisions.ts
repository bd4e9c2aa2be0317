// Decides when a Trainer logs, evaluates, saves and ends. All ranks decide the same, because the
// decisions depend only on values that are equal on all ranks.
import { DsError } from '../errors.js';
import type { RunLength } from './configuration.js';
import type { EndReason, Metrics, TrainerPlace } from './events.js';
import type { Interval } from './interval.js';
import { resolveSteps } from './own-schedule.js';
import type { RunSettings } from './read-options.js';
import type { TrainerState } from './trainer-state.js';

/**
 * When a decision is made: after an update, and a second time after the last update of an epoch.
 */
export interface Moment extends TrainerPlace {
  isEpochEnd: boolean;
}

type Settings = Pick<RunSettings, 'log' | 'eval' | 'save' | 'earlyStop'>;

export class Decisions {
  /** `isExperiment`: the run is an autotuning experiment, which neither evaluates nor saves. */
  constructor(
    private readonly settings: Settings,
    private readonly length: Pick<RunLength, 'maxSteps'>,
    private readonly isExperiment: boolean,
  ) {}

  /** Returns whether the run is complete. */
  isLast({ step }: Moment): boolean {
    return step >= this.length.maxSteps;
  }

  isLogDue(moment: Moment): boolean {
    const { every, first } = this.settings.log;
    return this.isLast(moment) || (first && moment.step === 1) || this.isIntervalDue(every, moment);
  }

  isStartEvaluationDue({ step }: TrainerPlace): boolean {
    const { eval: evaluation } = this.settings;
    return !this.isExperiment && step === 0 && evaluation?.atStart === true;
  }

  isEvaluationDue(moment: Moment): boolean {
    const { eval: evaluation } = this.settings;
    if (!evaluation || this.isExperiment) return false;
    const { every, delay } = evaluation;
    if ((every === 'epoch' ? moment.epoch : moment.step) < delay) return false;
    return this.isLast(moment) || this.isIntervalDue(every, moment);
  }

  /**
   * Returns whether a checkpoint is due. It is also due if the run stops early by a signal, and
   * after the best evaluation.
   */
  isSaveDue(moment: Moment, { isBest, end }: { isBest: boolean; end: EndReason | null }): boolean {
    const { save } = this.settings;
    if (!save || this.isExperiment) return false;
    if (isBest || end === 'stopped') return true;
    return save.every !== 'best' && (end !== null || this.isIntervalDue(save.every, moment));
  }

  /**
   * Returns whether an interval ends now. "epoch" ends only at the end of an epoch; other intervals
   * end only after an update.
   */
  private isIntervalDue(every: Interval, { step, isEpochEnd }: Moment): boolean {
    if (every === 'epoch' || isEpochEnd) return every === 'epoch' && isEpochEnd;
    return step % resolveSteps(every, this.length.maxSteps) === 0;
  }
}

/**
 * Compares an evaluation with the best one, and records it if it is better. Returns whether it is
 * better; null without `save.best`. Throws DS_ARGUMENT if the evaluation lacks the metric. The
 * comparison is that of transformers' EarlyStoppingCallback.
 */
export function compareWithBest(
  { save, earlyStop }: Settings,
  state: TrainerState,
  metrics: Metrics,
): boolean | null {
  const best = save?.best;
  if (!best) return null;
  const value = metrics[best.metric];
  if (value === undefined) throw absentMetricError(best.metric, metrics);
  const gain = computeGain(state.best?.metric ?? null, value, best.greaterIsBetter);
  state.unimproved = gain > (earlyStop?.threshold ?? 0) ? 0 : state.unimproved + 1;
  if (gain > 0) state.best = { metric: value, step: state.step, checkpoint: null };
  return gain > 0;
}

/** Returns whether early stopping ends the run now. */
export function shouldStopEarly({ earlyStop }: Settings, { unimproved }: TrainerState): boolean {
  return earlyStop !== null && unimproved >= earlyStop.patience;
}

/**
 * Returns by how much `value` is better than the best one. A value that is not finite is never
 * better.
 */
function computeGain(best: number | null, value: number, greaterIsBetter: boolean): number {
  if (!Number.isFinite(value)) return Number.NEGATIVE_INFINITY;
  if (best === null) return Number.POSITIVE_INFINITY;
  return greaterIsBetter ? value - best : best - value;
}

function absentMetricError(metric: string, metrics: Metrics): DsError {
  const expected = `"${metric}" among the metrics of the evaluation`;
  const got = Object.keys(metrics).join(', ');
  return new DsError({ code: 'DS_ARGUMENT', op: 'Trainer save.best', expected, got });
}
