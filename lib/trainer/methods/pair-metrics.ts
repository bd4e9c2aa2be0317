// Computes the metrics of preference pairs, by TRL's names.
import { stack, type Tensor } from '../../tensor/index.js';
import { type DeviceSums, meanOf } from '../step-metrics.js';

/** Names of the metrics in logs and evaluations, as in TRL. */
export const PAIR_METRICS = [
  'rewards/chosen',
  'rewards/rejected',
  'rewards/margins',
  'rewards/accuracies',
  'logps/chosen',
  'logps/rejected',
];

/** Names of the metrics of the answers' tokens; see AnswerReports. */
export const TOKEN_METRICS = ['entropy', 'logits/chosen', 'logits/rejected', 'mean_token_accuracy'];

/** Rewards and log-probabilities of P pairs, [P] f32 each. */
interface PairValues {
  /** Rewards of chosen and rejected answers. */
  readonly rewards: readonly [chosen: Tensor, rejected: Tensor];
  /** Log-probabilities of chosen and rejected answers. */
  readonly logps: readonly [chosen: Tensor, rejected: Tensor];
}

/** Returns sums and counts of the PAIR_METRICS. */
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

/** Stacks the rewards of pairs to the outputs of predict(), [P, 2]. */
export const stackPairOutputs = (rewards: readonly [Tensor, Tensor]): Tensor => stack(rewards, 1);
