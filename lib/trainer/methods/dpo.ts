// dpo(): direct preference optimization. The model learns to prefer chosen answers over rejected
// ones; a reference model limits how far it moves. Sources: Rafailov et al. 2023, TRL's DPOTrainer.
import type { CausalLM } from '../../models/causal-lm.js';
import type { Module } from '../../nn/index.js';
import { argumentError, valueError } from '../../runtime/input-errors.js';
import {
  boolean,
  declareOption,
  integer,
  number,
  type Options,
  oneOf,
  readDeclared,
  type Settings,
} from '../../runtime/option.js';
import { keysOf } from '../../runtime/typed-keys.js';
import { concat, exp, log, noGrad, scope, Tensor } from '../../tensor/index.js';
import type { PairBatch } from '../../text/index.js';
import type { Forward, Objective, SessionParts } from '../micro-batch.js';
import type { DeviceSums } from '../step-metrics.js';
import {
  type AnswerCounts,
  AnswerObjective,
  requirePairBatch,
  sumOnHost,
} from './answer-objective.js';
import { AnswerReports } from './answer-reports.js';
import { requireCausal, TrainingMethod } from './method.js';
import { DROPOUT } from './no-dropout.js';
import {
  DIVERGENCES,
  type Divergence,
  PAIR_LOSSES,
  type PairLossName,
  type PairSums,
  SMOOTHING_LIMITS,
  splitHalves,
} from './pair-losses.js';
import {
  computePairMetrics,
  PAIR_METRICS,
  stackPairOutputs,
  TOKEN_METRICS,
} from './pair-metrics.js';
import { REFERENCE, Reference } from './reference.js';

/** The declared options of dpo(). */
export const DPO = {
  /** Penalty for moving away from the reference. Default: 0.1. */
  beta: number('penalty for moving away from the reference; lower it to learn more from the data', {
    above: 0,
    default: 0.1,
    flag: 'beta',
  }),
  /**
   * Name of a loss in TRL, or a list of names. The losses of a list are added. Default: "sigmoid".
   */
  loss: declareOption(readLosses, '[loss](#losses), or a list of them', {
    default: ['sigmoid'],
    elsewhere: '`loss_type`',
  }),
  /** Factor of each loss in the list. Default: 1 each. */
  weights: declareOption(readWeights, 'weights of several losses', {
    default: null,
    shown: '1 each',
    elsewhere: '`loss_weights`',
  }),
  /** Probability that the answers of a pair are swapped, less than 0.5. Default: 0. */
  labelSmoothing: number('chance that a pair has the wrong order; above 0 for noisy data', {
    min: 0,
    below: 0.5,
    default: 0,
    flag: 'label_smoothing',
  }),
  /** The f-divergence between the model and the reference. Default: "reverse_kl". */
  divergence: oneOf<Divergence>(keysOf(DIVERGENCES))(
    '`"reverse_kl"`, `"forward_kl"`, `"js_divergence"` or `"alpha_divergence"`',
    {
      default: 'reverse_kl',
      flag: 'f_divergence_type',
    },
  ),
  /** Alpha of the divergence "alpha_divergence"; not 1. Default: 0.5. */
  fAlphaDivergenceCoef: number('alpha of `alpha_divergence`, other than 1', {
    default: 0.5,
    flag: 'f_alpha_divergence_coef',
  }),
  /** Temperature of the loss "discopop". Default: 0.05. */
  discopopTau: number('temperature of `discopop`', {
    above: 0,
    default: 0.05,
    flag: 'discopop_tau',
  }),
  /**
   * Factor of the longer answer's tokens beyond the length of the shorter answer (LD-DPO, Liu et
   * al. 2024). Default: 1.
   */
  ldAlpha: number(
    'below 1: tokens beyond the shorter answer count less (LD-DPO), against long answers',
    {
      min: 0,
      max: 1,
      default: 1,
      flag: 'ld_alpha',
    },
  ),
  /**
   * Whether pairs are weighted by the probability of their answers (WPO, Zhou et al. 2024). It
   * needs one more forward. Default: false.
   */
  useWeighting: boolean('weight pairs by their probability (WPO); one more forward', {
    default: false,
    flag: 'use_weighting',
  }),
  /** Whether the reference moves towards the model at intervals (TR-DPO). Default: false. */
  syncRefModel: boolean('move the reference towards the model at intervals (TR-DPO)', {
    default: false,
    flag: 'sync_ref_model',
  }),
  /** Number of updates between two moves of the reference. Default: 512. */
  refModelSyncSteps: integer('updates after which the reference moves', {
    min: 1,
    default: 512,
    flag: 'ref_model_sync_steps',
  }),
  /** Weight of the model in the moved reference. Default: 0.6. */
  refModelMixupAlpha: number('how far the reference moves: 1 makes it the model', {
    min: 0,
    max: 1,
    default: 0.6,
    flag: 'ref_model_mixup_alpha',
  }),
  /** Whether training runs without dropout. Default: true. */
  disableDropout: DROPOUT,
  /**
   * The reference model. Default: the model without its adapters. Rows that have ref_chosen_logps
   * and ref_rejected_logps need no reference.
   */
  reference: REFERENCE,
};

/** Options of dpo(). */
export interface DpoOptions extends Options<typeof DPO> {}

/**
 * Returns the `method` of a Trainer that learns from the pairs of a text.PairDataset. Throws
 * DS_ARGUMENT for invalid options.
 */
export function dpo(given: DpoOptions = {}): TrainingMethod {
  const settings = readDeclared('dpo', given, DPO);
  const { loss, weights, labelSmoothing, useWeighting, fAlphaDivergenceCoef: alpha } = settings;
  if (settings.syncRefModel && !settings.reference) {
    throw valueError('dpo syncRefModel', 'false without the option `reference`', true);
  }
  if (alpha === 1) throw valueError('dpo fAlphaDivergenceCoef', 'a number other than 1', alpha);
  const sorting = loss.find((name) => name === 'aot' || name === 'aot_unpaired');
  if (useWeighting && sorting) {
    throw valueError('dpo useWeighting', `false for the loss ${sorting}`, useWeighting);
  }
  if (weights && weights.length !== loss.length) {
    throw valueError('dpo weights', `${loss.length} numbers, one for each loss`, weights);
  }
  for (const name of loss) {
    const [low, high] = SMOOTHING_LIMITS[name] ?? [0, 0];
    if (labelSmoothing === 0 ? low === 0 : labelSmoothing < high) continue;
    const expected = low > 0 ? 'a number above 0, such as 0.001' : '0';
    throw valueError(`dpo labelSmoothing of ${name}`, expected, labelSmoothing);
  }
  return new Dpo(settings);
}

function readLosses(
  op: string,
  given: PairLossName | readonly PairLossName[],
): readonly PairLossName[] {
  const list = Array.isArray(given) ? given : [given];
  const isKnown = (name: unknown): boolean => Object.hasOwn(PAIR_LOSSES, name as string);
  if (list.length > 0 && list.every(isKnown)) return list as readonly PairLossName[];
  throw valueError(op, Object.keys(PAIR_LOSSES).join(', '), given);
}

function readWeights(op: string, given: readonly number[]): readonly number[] {
  if (Array.isArray(given) && given.every(Number.isFinite)) return given;
  throw valueError(op, 'a list of numbers', given);
}

class Dpo extends TrainingMethod {
  readonly name = 'dpo';
  override readonly lr = 1e-6;
  readonly metrics = [...PAIR_METRICS, ...TOKEN_METRICS];

  constructor(private readonly settings: Settings<typeof DPO>) {
    super();
  }

  override objectiveOf<Batch>(model: Module): Objective<Batch> {
    return new DpoObjective(requireCausal(this.name, model), this.settings);
  }
}

/** A batch of pairs, with targets for `ldAlpha`. */
interface SplitPairs extends PairBatch {
  /**
   * With `ldAlpha`, [4P, T] i32: the targets of each answer's first tokens, as many as the shorter
   * answer has; then the targets of its other tokens.
   */
  readonly split?: Tensor;
}

/** Log-probabilities of the answers, and weights of the pairs. */
interface DpoSums extends PairSums {
  /** Weights of the pairs, [P] f32; null: all 1. */
  readonly weights: Tensor | null;
  /** Null if no metrics will be computed. */
  readonly reports: AnswerReports | null;
}

/** Computes losses and rewards of micro-batches of pairs. */
class DpoObjective<Batch> extends AnswerObjective<Batch, SplitPairs, DpoSums> {
  private readonly reference: Reference;
  /** Names and weights of the losses, without "sft". */
  private readonly losses: readonly (readonly [PairLossName, number])[];
  /** Weight of the loss "sft", which is averaged over tokens; 0 without it. */
  private readonly sft: number;

  constructor(
    model: CausalLM,
    private readonly settings: Settings<typeof DPO>,
  ) {
    super('dpo', settings.disableDropout);
    this.reference = new Reference('dpo', model, settings.reference);
    const { loss, weights } = settings;
    const all = loss.map((name, i) => [name, weights?.[i] ?? 1] as const);
    this.losses = all.filter(([name]) => name !== 'sft');
    this.sft = all.reduce((sum, [name, weight]) => sum + (name === 'sft' ? weight : 0), 0);
  }

  override async open(parts: SessionParts): Promise<void> {
    await super.open(parts);
    await this.reference.open(parts.engine, parts.job);
  }

  endUpdate(step: number): void {
    const { syncRefModel, refModelSyncSteps: steps, refModelMixupAlpha: alpha } = this.settings;
    if (syncRefModel && step % steps === 0) this.reference.follow({ steps, alpha });
  }

  override async close(): Promise<void> {
    await super.close();
    await this.reference.close();
  }

  protected requireBatch(batch: unknown): SplitPairs {
    return requirePairBatch('dpo', batch);
  }

  protected override prepare(pairs: SplitPairs): SplitPairs {
    return this.settings.ldAlpha === 1 ? pairs : { ...pairs, split: splitTargets(pairs) };
  }

  protected count({ ids, answered }: PairBatch): AnswerCounts {
    const pairs = ids.size(0) / 2;
    const chosen = this.sft > 0 ? sumOnHost(answered.narrow(0, 0, pairs)) : 0;
    return { counted: pairs, tokens: sumOnHost(answered), further: chosen };
  }

  protected computeSums(forward: Forward, batch: SplitPairs, measures: boolean): DpoSums {
    const { ids, targets, answered, split } = batch;
    const { useWeighting, ldAlpha } = this.settings;
    this.reference.requireOneReference(batch.reference !== undefined);
    if (batch.reference && split) {
      const expected = 'a reference model, because ldAlpha needs log-probabilities of tokens';
      throw argumentError(
        'dpo ldAlpha',
        expected,
        'rows with summed log-probabilities of the reference',
      );
    }
    const weights = useWeighting ? this.computeWeights(forward, batch) : null;
    const rowNumbers = Array.from({ length: split?.size(0) ?? 0 }, (_, i) => i % ids.size(0));
    const scored = split ?? targets;
    const rows = split ? rowNumbers : true;
    const combineParts = (sums: Tensor): Tensor => {
      if (!split) return sums;
      const [first, rest] = splitHalves(sums);
      return first.add(rest.mul(ldAlpha));
    };
    const reference =
      batch.reference ?? combineParts(this.reference.computeLogProbs(forward, ids, scored, rows));
    const reports = measures ? new AnswerReports(ids.device) : null;
    const half = ids.size(0) / 2;
    const isChosen = Array.from({ length: scored.size(0) }, (_, i) => i % (2 * half) < half);
    const measured = reports && { reports: reports.selectReports(isChosen) };
    const policySums = combineParts(forward(ids, scored, { loss: { rows, ...measured } }));
    const [chosen, rejected] = splitHalves(policySums);
    const [chosenReference, rejectedReference] = splitHalves(reference);
    const [chosenTokens, rejectedTokens] = splitHalves(answered);
    return {
      chosen,
      rejected,
      chosenReference,
      rejectedReference,
      chosenTokens,
      rejectedTokens,
      weights,
      reports,
    };
  }

  /**
   * Returns the product of exp(mean(log p - log sum p^2)) of both answers, [P]. It runs row by row,
   * to limit the memory of the logits.
   */
  private computeWeights(forward: Forward, { ids, targets, answered }: PairBatch): Tensor {
    return noGrad(() => {
      const rows = Array.from({ length: ids.size(0) }, (_, row) =>
        scope(() => {
          const [rowIds, rowTargets] = [ids, targets].map((tensor) =>
            tensor.narrow(0, row, 1).contiguous(),
          );
          const logits = forward(rowIds, null).to('f32').logSoftmax(-1);
          return sumTokenWeights(logits, rowTargets as Tensor);
        }),
      );
      const [w, l] = splitHalves(exp(concat(rows, 0).div(answered.clamp(1))));
      return w.mul(l);
    });
  }

  /** Returns the weighted sum of the losses of each pair, [P]. */
  protected computeLoss(sums: DpoSums): Tensor {
    const parts = this.losses.map(([name, weight]) =>
      PAIR_LOSSES[name](sums, this.settings).mul(weight),
    );
    const [first = sums.chosen.mul(0), ...others] = parts;
    const total = others.reduce((sum, part) => sum.add(part), first);
    return sums.weights ? total.mul(sums.weights) : total;
  }

  protected override computeTokenLoss({ chosen }: PairSums): Tensor | null {
    return this.sft === 0 ? null : chosen.sum().mul(-this.sft);
  }

  protected computeDeviceSums(sums: DpoSums): DeviceSums {
    const { chosen, rejected, reports } = sums;
    const ownPairMetrics = computePairMetrics({
      rewards: this.rewards(sums),
      logps: [chosen, rejected],
    });
    return { ...ownPairMetrics, ...reports?.takeSums() };
  }

  protected computeOutputRows(sums: PairSums): Tensor {
    return stackPairOutputs(this.rewards(sums));
  }

  /** Returns the rewards of both answers, beta * (log p - log p_reference), [P] each. */
  private rewards({ chosen, rejected, ...sums }: PairSums): [w: Tensor, l: Tensor] {
    const { beta } = this.settings;
    return [
      chosen.sub(sums.chosenReference).mul(beta),
      rejected.sub(sums.rejectedReference).mul(beta),
    ];
  }
}

/**
 * Returns the sum over targets of log p - log sum p^2, [1]. `logs`: log-probabilities [1, T, V].
 */
function sumTokenWeights(logs: Tensor, targets: Tensor): Tensor {
  const counts = targets.ne(IGNORED);
  const indices = targets.mul(counts.to('i32')).to('i64').unsqueeze(2);
  const targetLogs = logs.gather(2, indices).squeeze(2);
  const squareLogs = log(exp(logs.mul(2)).sum(-1));
  return targetLogs.sub(squareLogs).mul(counts.to('f32')).sum(1);
}

const IGNORED = -100;

/** Computes `split` of SplitPairs, on the host. */
function splitTargets({ targets, answered }: PairBatch): Tensor {
  const [R, T] = targets.shape as [number, number];
  const allTargets = Int32Array.from(targets.toRaw(), Number);
  const counts = answered.toArray().map(Number);
  const split = new Int32Array(2 * R * T).fill(IGNORED);
  for (let row = 0; row < R; ++row) {
    const pair = (row + R / 2) % R;
    let left = Math.min(counts[row] as number, counts[pair] as number);
    for (let t = row * T; t < (row + 1) * T; ++t) {
      const target = allTargets[t] as number;
      if (target === IGNORED) continue;
      split[left > 0 ? t : R * T + t] = target;
      left -= 1;
    }
  }
  return Tensor.from(split, { shape: [2 * R, T], device: targets.device });
}
