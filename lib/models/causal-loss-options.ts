// Options of the loss of a language model.
import type { LossReport, Tensor } from '../tensor/index.js';
import type { TokenLogProbOptions } from './token-log-probs.js';

/** How the tokens' losses are reduced to one loss. */
export interface CausalLossOptions {
  /**
   * Divisor of the sum of the tokens' losses. Default: the number of targets that count, which
   * gives the mean.
   */
  divisor?: number | Tensor;
  /** Fraction of the target that all tokens share equally: in [0, 1]. Default: 0. */
  labelSmoothing?: number;
  /**
   * Receives, on the device, the number of targets and the number of targets with the largest
   * logit.
   */
  report?: LossReport;
  /**
   * Skips ignored targets in the head's products; the host waits for the targets. Default: false.
   */
  skipIgnored?: boolean;
  /**
   * Returns the log-probability of each row's targets, [B] f32, instead of a loss. A list maps each
   * row of targets [R, T] to its row of tokens; the result is [R]. Default: false.
   */
  rows?: boolean | readonly number[];
  /** @internal The row of tokens of each row of targets, with `rows`. */
  reports?: readonly LossReport[];
  /**
   * Returns the log-probability of each target, [B, T], instead of a loss; 0 for ignored targets.
   */
  tokens?: TokenLogProbOptions;
}
