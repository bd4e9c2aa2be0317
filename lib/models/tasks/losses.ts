// Computes the losses of heads as transformers does.

import { isFloating } from '../../runtime/dtype.js';
import { formatValue } from '../../runtime/format-value.js';
import { argumentError } from '../../runtime/input-errors.js';
import { leading } from '../../runtime/required.js';
import {
  binaryCrossEntropyWithLogits,
  crossEntropy,
  mse,
  noGrad,
  type Tensor,
  where,
} from '../../tensor/index.js';
import type { HeadTask, ProblemType } from './task.js';

/** Targets of a batch. */
export interface TaskLabels {
  /**
   * Of sequences: numbers of labels [B] i32 or i64, or values [B], [B, L] of a floating dtype. Of
   * tokens: [B, T] i32 or i64, where -100 does not count.
   */
  labels?: Tensor | null;
  /** Question answering: the first token of each answer, [B]; T or more does not count. */
  starts?: Tensor | null;
  /** The last token of each answer, [B]. */
  ends?: Tensor | null;
}

/** Reduction of a loss. */
export interface TaskLossOptions {
  /**
   * Divisor of the summed losses of sequences or tokens. Default: their number, as in transformers.
   */
  divisor?: number | Tensor;
  /** A factor for each label, [L]. A mean divides by the sum of the factors. */
  classWeights?: Tensor | null;
  /** Fraction of the target that all labels share equally. Default: 0. */
  labelSmoothing?: number;
}

/** The parts of a model that select the loss. */
interface Problem {
  task: HeadTask;
  problemType: ProblemType | null;
  op: string;
}

const IGNORED = -100;

/**
 * Returns the problem type of sequences. Without `problemType`, the outputs and labels decide, as
 * in transformers.
 */
function chooseProblem(
  problemType: ProblemType | null,
  outputs: number,
  labels: Tensor,
): ProblemType {
  if (problemType !== null) return problemType;
  if (outputs === 1) return 'regression';
  return isFloating(labels.dtype) ? 'multi_label_classification' : 'single_label_classification';
}

/** Returns the loss of outputs, a scalar f32. Throws DS_ARGUMENT without targets. */
export function taskLoss(
  outputs: Tensor,
  targets: TaskLabels,
  { task, problemType, op }: Problem,
  how: TaskLossOptions,
): Tensor {
  if (task === 'question-answering') return spanLoss(outputs, targets, op, how);
  const { labels } = targets;
  if (!labels) throw argumentError(`${op} labels`, 'labels of the batch', formatValue(labels));
  if (task !== 'sequence-classification') return choiceLoss(outputs, labels, how);
  const problem = chooseProblem(problemType, outputs.size(1), labels);
  if (problem === 'single_label_classification') return choiceLoss(outputs, labels, how);
  const values = labels.reshape(outputs.shape).to('f32');
  const wide = outputs.to('f32');
  const reduction = how.divisor === undefined ? 'mean' : 'sum';
  const loss =
    problem === 'regression'
      ? mse(wide, values, { reduction })
      : binaryCrossEntropyWithLogits(wide, values, {
          reduction,
          ...(how.classWeights && { weight: how.classWeights }),
        });
  // The mean over the labels of a sequence, summed over sequences.
  return how.divisor === undefined ? loss : loss.div(outputs.size(1)).div(how.divisor);
}

/** Returns the cross-entropy of one label for each row. */
function choiceLoss(outputs: Tensor, labels: Tensor, how: TaskLossOptions): Tensor {
  const { divisor, classWeights, labelSmoothing = 0 } = how;
  const options = {
    ignoreIndex: IGNORED,
    labelSmoothing,
    ...(classWeights && { weight: classWeights }),
  };
  if (divisor === undefined) return crossEntropy(outputs, labels, options);
  return crossEntropy(outputs, labels, { ...options, reduction: 'sum' }).div(divisor);
}

/** Returns the mean of the losses of both ends. Positions outside the text are ignored. */
function spanLoss(
  outputs: Tensor,
  { starts, ends }: TaskLabels,
  op: string,
  { divisor }: TaskLossOptions,
): Tensor {
  if (!starts || !ends) {
    throw argumentError(
      `${op} starts, ends`,
      'both ends of each answer',
      formatValue(starts ?? ends),
    );
  }
  const ignoreIndex = outputs.size(1);
  const [a, b] = leading(
    [starts, ends].map((places, side) => {
      const inside = noGrad(() => where(places.ge(ignoreIndex), ignoreIndex, places.clamp(0)));
      const logits = outputs.narrow(2, side, 1).squeeze(2).contiguous();
      if (divisor === undefined) return crossEntropy(logits, inside, { ignoreIndex });
      return crossEntropy(logits, inside, { ignoreIndex, reduction: 'sum' }).div(divisor);
    }),
    2,
  );
  return divisor === undefined ? a.add(b).mul(0.5) : a.add(b);
}
