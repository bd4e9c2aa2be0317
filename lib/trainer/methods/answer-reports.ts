// AnswerReports: collects entropy, mean logits and accuracy of answers while the loss is computed.
import type { Device } from '../../runtime/device.js';
import type { Tensor } from '../../tensor/index.js';
import { TokenReport } from '../../tensor/ops/loss-report.js';
import type { DeviceSums } from '../step-metrics.js';

/** Copies the sums of a report, [1] f32 each, and frees the report. */
function takeReport(
  report: TokenReport,
): Record<'tokens' | 'correct' | 'entropy' | 'logits', Tensor> {
  const { counted, correct, entropy, logits } = report;
  const values = {
    tokens: counted.to('f32'),
    correct: correct.to('f32'),
    entropy: entropy.clone(),
    logits: logits.clone(),
  };
  report.dispose();
  return values;
}

/** Reports of two groups of rows: chosen or desirable answers, and all others. */
export class AnswerReports {
  private readonly chosen: TokenReport;
  private readonly rejected: TokenReport;

  constructor(device: Device) {
    this.chosen = new TokenReport(device);
    this.rejected = new TokenReport(device);
  }

  /** Returns the report that each row adds to. */
  selectReports(isChosen: readonly boolean[]): TokenReport[] {
    return isChosen.map((item) => (item ? this.chosen : this.rejected));
  }

  /** Returns the sums by TRL's names, as tensors of the current scope. Frees the reports. */
  takeSums(): DeviceSums {
    const [w, l] = [takeReport(this.chosen), takeReport(this.rejected)];
    return {
      entropy: { sum: w.entropy.add(l.entropy), count: w.tokens.add(l.tokens) },
      'logits/chosen': { sum: w.logits, count: w.tokens },
      'logits/rejected': { sum: l.logits, count: l.tokens },
      mean_token_accuracy: { sum: w.correct, count: w.tokens },
    };
  }
}
