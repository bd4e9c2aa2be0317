// Computes the metrics of pairs, by TRL's names.
import { stack, type Tensor } from '../../tensor/index.js';
import { type DeviceSums, meanOf } from '../step-metrics.js';

/** Metrics of logs and evaluations, by TRL's names. */
export const PAIR_METRICS = [
  'rewards/chosen',
  'rewards/rejected',
  'rewards/margins',
  'rewards/accuracies',
  'logps/chosen',
  'logps/rejected',
];

/** Metrics of the tokens of answers; see AnswerReports. */
export const TOKEN_METRICS = ['entropy', 'logits/chosen', 'logits/rejected', 'mean_token_accuracy'];

/** Rewards and log-probabilities of P pairs, [P] f32 each. */
interface PairValues {
  /** Rewards of chosen and rejected answers. */
  readonly rewards: readonly [chosen: Tensor, rejected: Tensor];
  /** Log-probabilities of chosen and rejected answers. */
  readonly logps: readonly [chosen: Tensor, rejected: Tensor];
}

/** Returns the sums of PAIR_METRICS. */
export function computePairMetrics({ rewards: [w, l], logps }: PairValues): DeviceSums {
  const margins = w.sub(l);
  return {
    'rewards/chosen': meanOf(w),
    'rewards/rejected': meanOf(l),
    'rewards/margins': meanOf(margins),
    'rewards/accuracies': meanOf(margins.gt(0).to('f32')),
    'logps/chosen': meanOf(logps[0]),
    'logps/rejected': meanOf(logps[1]),
  };
}

/** Stacks rewards as outputs of predict(), [P, 2]. */
export const stackPairOutputs = (rewards: readonly [Tensor, Tensor]): Tensor => stack(rewards, 1);
