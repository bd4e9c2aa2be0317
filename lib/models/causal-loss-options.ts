// Options of the loss of a language model.
import type { LossReport, Tensor } from '../tensor/index.js';
import type { TokenLogProbOptions } from './token-log-probs.js';

/** Reduction of the tokens' losses to one loss. */
export interface CausalLossOptions {
  /**
   * Divisor of the sum of the tokens' losses. Default: the number of targets that count, which
   * gives the mean.
   */
  divisor?: number | Tensor;
  /** Fraction of the target that all tokens share equally: in [0, 1]. Default 0. */
  labelSmoothing?: number;
  /** Receives, on the device, how many targets counted, and how many had the largest logit. */
  report?: LossReport;
  /** Skip ignored targets in the head's products; the host waits for the targets. Default false. */
  skipIgnored?: boolean;
  /**
   * Return the log-probability of each row's targets instead, [B] f32. A list has the row of tokens
   * for each row of targets [R, T]; the result is [R]. Default false.
   */
  rows?: boolean | readonly number[];
  /** @internal For each row of targets, with `rows`. */
  reports?: readonly LossReport[];
  /** Return the log-probability of each target instead, [B, T]; 0 for ignored ones. */
  tokens?: TokenLogProbOptions;
}
