// The losses of preference pairs, by TRL's names. Each returns a loss per pair, [P] f32. The
// comments name the papers; letters follow them: beta, and e for label smoothing.
import { exp, sigmoid, softplus, sort, type Tensor } from '../../tensor/index.js';

/**
 * Sums over the answers of P pairs, [P] f32 each. "Trained" is the model, "reference" the
 * reference.
 */
export interface PairSums {
  /** Log-probabilities of chosen answers by the trained model. */
  readonly chosen: Tensor;
  /** Log-probabilities of rejected answers by the trained model. */
  readonly rejected: Tensor;
  /** Log-probabilities of chosen answers by the reference. */
  readonly chosenReference: Tensor;
  /** Log-probabilities of rejected answers by the reference. */
  readonly rejectedReference: Tensor;
  /** Number of tokens of the chosen answers. */
  readonly chosenTokens: Tensor;
  /** Number of tokens of the rejected answers. */
  readonly rejectedTokens: Tensor;
}

/** Options of the losses; see DPO in dpo.ts. */
interface PairLossOptions {
  /** Penalty for moving away from the reference. */
  readonly beta: number;
  /** Probability that the answers of a pair are swapped. */
  readonly labelSmoothing: number;
  /** The f-divergence between the model and the reference. */
  readonly divergence: Divergence;
  /** Alpha of "alpha_divergence". */
  readonly fAlphaDivergenceCoef: number;
  /** Temperature of "discopop". */
  readonly discopopTau: number;
}

/**
 * Functions f of the f-divergences of Wang et al. 2023. `alpha` is used by "alpha_divergence" only.
 */
export const DIVERGENCES = {
  reverse_kl: (x: Tensor): Tensor => x,
  forward_kl: (x: Tensor): Tensor => exp(x.neg()).neg(),
  js_divergence: (x: Tensor): Tensor => logSigmoid(x),
  alpha_divergence: (x: Tensor, alpha: number): Tensor =>
    exp(x.mul(alpha - 1).clamp(Number.NEGATIVE_INFINITY, 80)).div(alpha - 1),
};
/** Name of an f-divergence, as in TRL. */
export type Divergence = keyof typeof DIVERGENCES;

const logSigmoid = (x: Tensor): Tensor => softplus(x.neg()).neg();

/**
 * Returns w, l and d. w: the log-probability of the chosen answer, minus its log-probability by the
 * reference. l: the same of the rejected answer. d: the difference f(w) - f(l).
 */
function computeRatios(
  sums: PairSums,
  { divergence, fAlphaDivergenceCoef: alpha }: PairLossOptions,
) {
  const w = sums.chosen.sub(sums.chosenReference);
  const l = sums.rejected.sub(sums.rejectedReference);
  const f = DIVERGENCES[divergence];
  return { w, l, d: f(w, alpha).sub(f(l, alpha)) };
}

type PairLoss = (sums: PairSums, options: PairLossOptions) => Tensor;

/** Returns -(1 - e) log sigmoid(x) - e log sigmoid(-x). */
const smoothedLoss = (x: Tensor, e: number): Tensor =>
  e === 0
    ? logSigmoid(x).neg()
    : logSigmoid(x)
        .mul(e - 1)
        .sub(logSigmoid(x.neg()).mul(e));

const sortTensor = (x: Tensor): Tensor => sort(x, 0).values;

/** Returns the difference between the chosen and the rejected answer of x per token. */
const computeMeanDifference = (sums: PairSums, options: PairLossOptions): Tensor => {
  const { w, l } = computeRatios(sums, options);
  return w.div(sums.chosenTokens.clamp(1)).sub(l.div(sums.rejectedTokens.clamp(1)));
};

/** The losses by TRL's names. */
export const PAIR_LOSSES = {
  /** Rafailov et al. 2023; with label smoothing, Mitchell 2023. */
  sigmoid: (sums, options) =>
    smoothedLoss(computeRatios(sums, options).d.mul(options.beta), options.labelSmoothing),
  /** Zhao et al. 2023. */
  hinge: (sums, options) => computeRatios(sums, options).d.mul(-options.beta).add(1).relu(),
  /** Azar et al. 2023. */
  ipo: (sums, options) =>
    computeMeanDifference(sums, options)
      .sub(1 / (2 * options.beta))
      .square(),
  /** Lambert et al. 2024. */
  sigmoid_norm: (sums, options) =>
    logSigmoid(computeMeanDifference(sums, options).mul(options.beta)).neg(),
  /** Chowdhury et al. 2024. */
  robust: (sums, options) => {
    const { beta, labelSmoothing: e } = options;
    const x = computeRatios(sums, options).d.mul(beta);
    const loss = logSigmoid(x)
      .mul(e - 1)
      .add(logSigmoid(x.neg()).mul(e));
    return loss.div(1 - 2 * e);
  },
  /** Ji et al. 2024. */
  exo_pair: (sums, options) => {
    const e = options.labelSmoothing;
    const x = computeRatios(sums, options).d.mul(options.beta);
    const [q, rest] = [sigmoid(x), sigmoid(x.neg())];
    const first = q.mul(logSigmoid(x).sub(Math.log(1 - e)));
    return first.add(rest.mul(logSigmoid(x.neg()).sub(Math.log(e))));
  },
  /** Chen et al. 2024. */
  nca_pair: (sums, options) => {
    const { w, l } = computeRatios(sums, options);
    const [a, b] = [w, l].map((tensor) => tensor.mul(options.beta)) as [Tensor, Tensor];
    const both = logSigmoid(a.neg()).add(logSigmoid(b.neg())).mul(0.5);
    return logSigmoid(a).add(both).neg();
  },
  /** Jung et al. 2024, but without their running mean. */
  bco_pair: (sums, options) => {
    const { w, l } = computeRatios(sums, options);
    return logSigmoid(w.mul(options.beta))
      .add(logSigmoid(l.mul(-options.beta)))
      .neg();
  },
  /** Wu et al. 2024. */
  sppo_hard: (sums, options) => {
    const { w, l } = computeRatios(sums, options);
    const half = 0.5 / options.beta;
    return w.sub(half).square().add(l.add(half).square());
  },
  /** Melnyk et al. 2024. It sorts the pairs of a micro-batch. */
  aot: (sums, options) => {
    const policy = sortTensor(sums.chosen.sub(sums.rejected));
    const reference = sortTensor(sums.chosenReference.sub(sums.rejectedReference));
    return smoothedLoss(policy.sub(reference).mul(options.beta), options.labelSmoothing);
  },
  /** Melnyk et al. 2024. It sorts chosen and rejected answers separately. */
  aot_unpaired: (sums, options) => {
    const { w, l } = computeRatios(sums, options);
    return smoothedLoss(sortTensor(w).sub(sortTensor(l)).mul(options.beta), options.labelSmoothing);
  },
  /** D'Oosterlinck et al. 2024. */
  apo_zero: (sums, options) => {
    const { w, l } = computeRatios(sums, options);
    return sigmoid(l.mul(options.beta))
      .sub(sigmoid(w.mul(options.beta)))
      .add(1);
  },
  /** D'Oosterlinck et al. 2024, for chosen answers that are worse than the model's own answers. */
  apo_down: (sums, options) => {
    const { w, d } = computeRatios(sums, options);
    return sigmoid(w.mul(options.beta))
      .add(1)
      .sub(sigmoid(d.mul(options.beta)));
  },
  /** Lu et al. 2024. */
  discopop: (sums, options) => {
    const g = computeRatios(sums, options).d.mul(options.beta);
    const k = sigmoid(g.div(options.discopopTau));
    return exp(g.neg())
      .mul(k)
      .sub(logSigmoid(g).mul(k.neg().add(1)));
  },
  /** The next-token loss of chosen answers: the mean over their tokens in the micro-batch. */
  sft: ({ chosen, chosenTokens }) =>
    chosen.mul(chosen.numel).div(chosenTokens.sum().clamp(1)).neg(),
} satisfies Readonly<Record<string, PairLoss>>;

/** Name of a loss of pairs, as in TRL. */
export type PairLossName = keyof typeof PAIR_LOSSES;

/** Allowed label smoothing of a loss: at least low, less than high. Other losses require 0. */
export const SMOOTHING_LIMITS: Readonly<
  Partial<Record<PairLossName, readonly [low: number, high: number]>>
> = {
  sigmoid: [0, 0.5],
  robust: [0, 0.5],
  aot: [0, 0.5],
  aot_unpaired: [0, 0.5],
  exo_pair: [Number.MIN_VALUE, 0.5],
};

/** Splits 2P numbers into P numbers of chosen answers and P numbers of rejected answers. */
export function splitHalves(both: Tensor): [chosen: Tensor, rejected: Tensor] {
  const pairs = both.size(0) / 2;
  return [both.narrow(0, 0, pairs), both.narrow(0, pairs, pairs)];
}
