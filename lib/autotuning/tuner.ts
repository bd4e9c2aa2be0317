// Chooses the next candidate of a search, and decides when the search stops.

import type { ResolvedConfig } from '../../types/config.js';
import type { ExperimentMetrics } from '../plan/index.js';
import { required } from '../runtime/required.js';
import { MICRO, STEPS } from './batch-choice.js';
import type { Candidate } from './search-space.js';

type Settings = ResolvedConfig['autotuning'];

export interface ExperimentResult {
  candidate: Candidate;
  metrics: ExperimentMetrics | null;
  /** The reason why there are no metrics, or null. */
  failure: string | null;
  /** Whether the experiment ran out of memory. */
  isShort: boolean;
}

/** Returns the metric of a row, or null if it was not measured. */
export function readMetric(
  { metrics }: ExperimentResult,
  metric: Settings['metric'],
): number | null {
  if (!metrics) return null;
  return metric === 'flops' ? (metrics.FLOPS_per_gpu ?? null) : metrics[metric];
}

/** Returns whether `a` is better than `b`. Any value is better than null. */
function isBetter(a: number | null, b: number | null, metric: Settings['metric']): boolean {
  if (a === null || b === null) return a !== null;
  return metric === 'latency' ? a < b : a > b;
}

/** Returns the best of `rows`, or null if no row was measured. */
export function findBest(
  rows: readonly ExperimentResult[],
  metric: Settings['metric'],
): ExperimentResult | null {
  let best: ExperimentResult | null = null;
  for (const row of rows) {
    const [value, max] = [readMetric(row, metric), best && readMetric(best, metric)];
    if (isBetter(value, max, metric)) best = row;
  }
  return best;
}

/** Returns candidates one at a time. */
export class Tuner {
  private waiting: Candidate[];
  private readonly rows: ExperimentResult[] = [];
  private trials = 0;
  private withoutGain = 0;

  /** `first`: known results, which do not count as trials. */
  constructor(
    candidates: readonly Candidate[],
    private readonly settings: Settings,
    first: readonly ExperimentResult[] = [],
  ) {
    const isRandom = settings.tuner_type === 'random';
    this.waiting = isRandom ? shuffle(candidates) : [...candidates];
    this.rows.push(...first);
  }

  /** Maximum number of remaining trials. */
  get left(): number {
    return Math.min(this.waiting.length, this.settings.tuner_num_trials - this.trials);
  }

  /**
   * Returns the next candidate; null after the last one, at the trial limit, or at an early stop.
   */
  next(): Candidate | null {
    const { tuner_early_stopping: patience, tuner_type: type } = this.settings;
    if (this.left <= 0 || (patience > 0 && this.withoutGain >= patience)) return null;
    const next = type === 'model_based' ? this.findMostPromising() : this.waiting[0];
    this.waiting = this.waiting.filter((candidate) => candidate !== next);
    return next ?? null;
  }

  /**
   * Records the last result. If memory was short, drops larger micro-batches of the same branch.
   */
  addResult(row: ExperimentResult): void {
    const { metric } = this.settings;
    const before = findBest(this.rows, metric);
    this.rows.push(row);
    this.trials++;
    const hasBest = findBest(this.rows, metric) !== null;
    this.withoutGain =
      findBest(this.rows, metric) !== before || !hasBest ? 0 : this.withoutGain + 1;
    if (!row.isShort) return;
    const { branch, microBatch } = row.candidate;
    this.waiting = this.waiting.filter(
      (candidate) => candidate.branch !== branch || candidate.microBatch <= microBatch,
    );
  }

  /** Returns whether candidates of `branch` remain. */
  hasWaiting(branch: string): boolean {
    return this.waiting.some((candidate) => candidate.branch === branch);
  }

  /** Makes `candidate` the next candidate. */
  add(candidate: Candidate): void {
    this.waiting.unshift(candidate);
  }

  /**
   * Returns the candidate with the highest predicted rate, corrected by measured results. Without
   * predictions, returns the first candidate in order.
   */
  private findMostPromising(): Candidate | undefined {
    if (this.waiting.some((candidate) => candidate.predicted === null)) return this.waiting[0];
    const { metric } = this.settings;
    /** Returns samples per second. For latency: a number in proportion to steps per second. */
    const rateOf = ({ predicted, config }: Candidate): number => {
      const samples = Number(config[MICRO]) * Number(config[STEPS]);
      return (predicted ?? 0) / (metric === 'latency' ? samples : 1);
    };
    const score = (candidate: Candidate): number =>
      rateOf(candidate) * this.computeCorrection(candidate.branch);
    return this.waiting.toSorted((a, b) => score(b) - score(a))[0];
  }

  /**
   * Returns the mean ratio of measured to predicted rates: of this branch, or of all if it has no
   * results.
   */
  private computeCorrection(branch: string): number {
    const reported = this.rows.filter(({ metrics, candidate }) => metrics && candidate.predicted);
    const branchRows = reported.filter(({ candidate }) => candidate.branch === branch);
    const used = branchRows.length > 0 ? branchRows : reported;
    if (used.length === 0) return 1;
    const ratios = used.map(
      ({ metrics, candidate }) => (metrics?.throughput ?? 0) / (candidate.predicted ?? 1),
    );
    return ratios.reduce((sum, ratio) => sum + ratio, 0) / ratios.length;
  }
}

/** Returns a pseudo-random order, equal in every search. Source: Park and Miller's generator. */
function shuffle(candidates: readonly Candidate[]): Candidate[] {
  let state = 1;
  const draw = (below: number): number => {
    state = (state * 48271) % 0x7fffffff;
    return state % below;
  };
  const shuffled = [...candidates];
  for (let i = shuffled.length - 1; i > 0; --i) {
    const j = draw(i + 1);
    [shuffled[i], shuffled[j]] = [required(shuffled[j]), required(shuffled[i])];
  }
  return shuffled;
}
