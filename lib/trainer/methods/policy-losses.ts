// The token losses of grpo() and rloo(), by TRL's names. The comments name the papers. A is the
// advantage of a completion. r is the ratio of a token's probability to its probability at
// sampling.
import { exp, minimum, sigmoid, type Tensor } from '../../tensor/index.js';

/** Values of B completions. */
export interface PolicyBatch {
  /** Log-probabilities of the trained model, [B, T]. */
  readonly logp: Tensor;
  /** Log-probabilities of the model at the time of sampling, [B, T]. */
  readonly old: Tensor;
  /** 1 for tokens that count, 0 for others, [B, T]. */
  readonly mask: Tensor;
  /** Advantages of the completions, [B, 1]. */
  readonly advantages: Tensor;
  /** Log-probabilities of the reference, [B, T]; null without a KL term. */
  readonly reference: Tensor | null;
  /** Log-probabilities that the sampler recorded, [B, T]; null without a correction. */
  readonly sampler: Tensor | null;
}

/** Names of the corrections. */
export const CORRECTIONS = [
  'token_truncate',
  'token_mask',
  'sequence_truncate',
  'sequence_mask',
] as const;

/** How losses are corrected if the sampler has other rounding errors than training. */
export type Correction = (typeof CORRECTIONS)[number];

/** Whether each token or each whole completion has a ratio. */
export const LEVELS = ['token', 'sequence'] as const;

/** Options of the losses; see GRPO in grpo.ts. */
export interface PolicyLossOptions {
  readonly loss: PolicyLossName;
  readonly epsilon: number;
  readonly epsilonHigh: number;
  readonly delta: number | null;
  readonly level: (typeof LEVELS)[number];
  readonly beta: number;
  readonly temperatures: readonly [positive: number, negative: number];
  readonly correction: Correction | null;
  readonly correctionRange: readonly [min: number, max: number];
}

/**
 * Ratios of the tokens, [B, T]. At the level of completions, all tokens of a row have the same
 * ratio.
 */
export interface Ratios {
  readonly ratio: Tensor;
  readonly batch: PolicyBatch;
  /** Ratios of the completions, [B, 1]; absent at the level of tokens. */
  readonly bySequence?: Tensor;
}

type TokenLoss = (ratios: Ratios, options: PolicyLossOptions) => Tensor;

/** Returns max(-r A, -clip(r) A). `delta` limits the unclipped r. Source: Schulman et al. 2017. */
const clip: TokenLoss = ({ ratio, batch: { advantages } }, { epsilon, epsilonHigh, delta }) => {
  const first = delta === null ? ratio : ratio.clamp(null, delta);
  const second = ratio.clamp(1 - epsilon, 1 + epsilonHigh);
  return minimum(first.mul(advantages), second.mul(advantages)).neg();
};

/** Returns `positive` where the advantage is larger than 0, else `negative`. */
const chooseBySign = (advantages: Tensor, positive: number, negative: number): Tensor =>
  advantages
    .gt(0)
    .to(advantages.dtype)
    .mul(positive - negative)
    .add(negative);

/** Returns the weights of whole completions in the loss "vespo", [B, 1], without a gradient. */
export function computeVespoWeights({ advantages, logp, old, mask }: PolicyBatch): Tensor {
  const log = logp.detach().sub(old).mul(mask).sum({ dim: 1, keepDim: true });
  const [k, l] = [chooseBySign(advantages, 2, 3), chooseBySign(advantages, 3, 2)];
  return exp(log.mul(k).add(l).sub(exp(log).mul(l)));
}

/** The token losses, by TRL's names. */
export const POLICY_LOSSES = {
  /** Shao et al. 2024. */
  grpo: clip,
  /** The mean is taken over the tokens of a micro-batch. */
  bnpo: clip,
  /** Liu et al. 2025. */
  dr_grpo: clip,
  /** Yu et al. 2025. */
  dapo: clip,
  /** Zheng et al. 2025 (GSPO), multiplied by the number of tokens. */
  luspo: clip,
  /** MiniMax 2025. */
  cispo: ({ ratio, batch: { advantages, logp } }, { epsilonHigh }) =>
    ratio.detach().clamp(null, epsilonHigh).mul(advantages).mul(logp).neg(),
  /** Gao et al. 2025. */
  sapo: ({ ratio, batch: { advantages } }, { temperatures: [positive, negative] }) => {
    const t = chooseBySign(advantages, positive, negative);
    return sigmoid(ratio.sub(1).mul(t)).mul(-4).div(t).mul(advantages);
  },
  /** VESPO 2026. It weights whole completions. */
  vespo: ({ batch }) => computeVespoWeights(batch).mul(batch.advantages).mul(batch.logp).neg(),
} satisfies Readonly<Record<string, TokenLoss>>;

/** Name of a loss of policies, as in TRL. */
export type PolicyLossName = keyof typeof POLICY_LOSSES;

/** Returns the ratios of tokens, or of completions: exp of the mean of log r over their tokens. */
export function computeRatios(batch: PolicyBatch, level: PolicyLossOptions['level']): Ratios {
  const { logp, old, mask } = batch;
  const log = logp.sub(old).mul(mask);
  if (level === 'token') return { ratio: exp(log), batch };
  const tokens = mask.sum({ dim: 1, keepDim: true }).clamp(1);
  const ratio = exp(log.sum({ dim: 1, keepDim: true }).div(tokens));
  return { ratio: ratio.expand(logp.shape), batch, bySequence: ratio };
}

/**
 * Returns the loss of each token, [B, T], including the KL term. Tokens that do not count have 0.
 */
export function computeTokenLosses(ratios: Ratios, options: PolicyLossOptions): Tensor {
  const { logp, reference, mask } = ratios.batch;
  const uncorrected = POLICY_LOSSES[options.loss](ratios, options).mul(mask);
  const factor = computeCorrection(ratios.batch, options);
  const losses = factor ? uncorrected.mul(factor) : uncorrected;
  if (!reference || options.beta === 0) return losses;
  return losses.add(estimateDivergence(logp, reference).mul(options.beta).mul(mask));
}

/**
 * Returns the k3 estimate of each token's KL divergence from the reference. Source: Schulman 2020.
 */
export function estimateDivergence(logp: Tensor, reference: Tensor): Tensor {
  const x = reference.sub(logp);
  return exp(x).sub(x).sub(1);
}

/**
 * Returns exp(old - sampler) of tokens [B, T] or completions [B, 1]. Values outside of the range
 * are truncated to it, or become 0. Returns null without a correction.
 */
export function computeCorrection(
  { old, sampler, mask }: PolicyBatch,
  {
    correction,
    correctionRange: [min, max],
  }: Pick<PolicyLossOptions, 'correction' | 'correctionRange'>,
): Tensor | null {
  if (!sampler || !correction) return null;
  const log = old.sub(sampler).mul(mask);
  const isByToken = correction.startsWith('token');
  const factor = exp(isByToken ? log : log.sum({ dim: 1, keepDim: true }));
  if (correction.endsWith('truncate')) return factor.clamp(min, max);
  const { dtype } = factor;
  return factor.mul(factor.ge(min).to(dtype)).mul(factor.le(max).to(dtype));
}

/** The unit of the mean of token losses. */
type Reduction = 'sequences' | 'tokens' | 'micro-batch';

const REDUCTIONS: Readonly<Record<PolicyLossName, Reduction>> = {
  grpo: 'sequences',
  sapo: 'sequences',
  bnpo: 'micro-batch',
  dapo: 'tokens',
  cispo: 'tokens',
  vespo: 'tokens',
  dr_grpo: 'tokens',
  luspo: 'tokens',
};

/**
 * Returns the sum of the losses of a micro-batch. It is divided by the sum of the countWeight() of
 * all micro-batches.
 */
export function sumLosses(losses: Tensor, mask: Tensor, name: PolicyLossName): Tensor {
  const reduction = REDUCTIONS[name];
  if (reduction === 'tokens') return losses.sum();
  if (reduction === 'micro-batch') return losses.sum().div(mask.sum().clamp(1));
  return losses.sum(1).div(mask.sum(1).clamp(1)).sum();
}

/**
 * Returns the weight of a micro-batch with `sequences` completions and `tokens` counted tokens.
 * `max`: maximum number of tokens of a completion.
 */
export function countWeight(
  name: PolicyLossName,
  { sequences, tokens, max }: { sequences: number; tokens: number; max: number },
): number {
  if (name === 'dr_grpo') return sequences * max;
  if (name === 'bnpo') return 1;
  return name === 'dapo' || name === 'cispo' || name === 'vespo' ? tokens : sequences;
}

/** Returns the ratio of each completion for RLOO, the product over its tokens, [B, 1]. */
export function computeSequenceRatios({ logp, old, mask }: PolicyBatch): Tensor {
  return exp(logp.sub(old).mul(mask).sum({ dim: 1, keepDim: true }));
}

/** Returns RLOO's losses of the completions, with clipped ratios, [B]. */
export function computeSequenceLosses(
  { advantages }: PolicyBatch,
  ratio: Tensor,
  epsilon: number,
): Tensor {
  const second = ratio.clamp(1 - epsilon, 1 + epsilon);
  return minimum(ratio.mul(advantages), second.mul(advantages)).neg().squeeze(1);
}
