// Computes loss and metrics of a classifier, or another task model, on files of rows with labels.
import { CausalLM, TaskModel } from '../models/index.js';
import { DecoderTask } from '../models/tasks/decoder-task.js';
import { taskMetrics, taskSums } from '../models/tasks/metrics.js';
import { countTargets } from '../models/tasks/targets.js';
import { hasLabels, type ProblemType } from '../models/tasks/task.js';
import { argumentError, dataError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import {
  collateLabelled,
  type LabelKind,
  LabelledDataset,
  type LabelledOptions,
  type LabelledTask,
} from '../text/index.js';
import { type EvaluatedOptions, prepareEvaluation, runBatches } from './evaluated-model.js';

/** Options of evaluateTask(): the rows, as LabelledDataset reads them, and the batches. */
export interface TaskEvaluationOptions
  extends EvaluatedOptions,
    Omit<LabelledOptions, 'tokenizer' | 'task' | 'labels' | 'kind'> {}

/** Result of evaluateTask(). */
export interface TaskEvaluation {
  /** The task of the model. */
  task: LabelledTask;
  /** Mean loss of a row or token with a target. */
  loss: number;
  /** Metrics of the task by name, such as accuracy and f1. */
  metrics: Record<string, number>;
  /** Number of rows in the files. */
  rows: number;
}

const DEFAULT_LENGTH = 512;
/** Minimum length of a row: two special tokens and one token of the text. */
const SHORTEST = 3;

/** Kinds of labels by problem type. */
const KINDS: Readonly<Record<ProblemType, LabelKind>> = {
  regression: 'value',
  single_label_classification: 'class',
  multi_label_classification: 'classes',
};

/**
 * Computes the mean loss and the metrics of `model` on the rows of `options.files`, as evaluations
 * of a Trainer do. The labels of the rows must be labels of the model, or their numbers. The model
 * stays on its device, in its dtype and mode.
 *
 * Rejects with DS_ARGUMENT for wrong options, a model without a head for labels, a model that an
 * engine owns, and a job of several ranks. Rejects with DS_DATA for unreadable rows, and for rows
 * without a target.
 */
export async function evaluateTask(
  model: TaskModel,
  given: TaskEvaluationOptions,
): Promise<TaskEvaluation> {
  const op = 'evaluateTask';
  const { tokenizer, batchSize, ...options } = readOptions(
    op,
    given,
    namesOf.TaskEvaluationOptions,
  );
  const kind = { is: isTaskModel, name: taskModelName(model) };
  const evaluated = await prepareEvaluation(op, model, { tokenizer, batchSize }, kind);
  const { onProgress, maxLength = Math.min(DEFAULT_LENGTH, model.maxSeq), ...rows } = options;
  requireInteger(`${op} maxLength`, maxLength, SHORTEST);
  if (maxLength > model.maxSeq) {
    const expected = `at most ${model.maxSeq}, the maximum of the model`;
    throw argumentError(`${op} maxLength`, expected, String(maxLength));
  }
  const task = model.task as LabelledTask;
  const data = await LabelledDataset.open({
    ...rows,
    ...labelsOf(model),
    task,
    maxLength,
    tokenizer: evaluated.tokenizer,
  });
  const restore = setPadding(model, evaluated.tokenizer);
  const totals: Record<string, { sum: number; count: number }> = {};
  const add = (name: string, sum: number, count: number): void => {
    const total = totals[name] ?? { sum: 0, count: 0 };
    totals[name] = { sum: total.sum + sum, count: total.count + count };
  };
  try {
    const collate = collateLabelled(model.padTokenId ?? evaluated.tokenizer.padId ?? 0);
    await runBatches(
      evaluated,
      data,
      (samples) => {
        const { ids, mask, types, ...targets } = collate(samples, evaluated.device);
        const inputs = { mask, ...(model.hasTypes && { types }) };
        const counted = countTargets(task, { ids, ...targets }) ?? 0;
        if (counted > 0) {
          add('loss', model.call(ids, { ...inputs, ...targets }).item() * counted, counted);
        }
        const sums = taskSums(model, model.call(ids, inputs), { mask, ...targets });
        for (const [name, { sum, count }] of Object.entries(sums)) add(name, sum, count);
      },
      onProgress,
    );
  } finally {
    restore();
  }
  const { loss, ...metrics } = taskMetrics(totals, model.labels.length);
  if (loss === undefined) throw dataError(op, 'data with a target that counts', 'none');
  return { task, loss, metrics, rows: data.length };
}

const isTaskModel = (model: unknown): model is TaskModel =>
  model instanceof TaskModel && model.task !== 'embedding';

function taskModelName(model: unknown): string {
  const name =
    'a model with a head for labels, answers or masked tokens (fromPretrained with task)';
  return model instanceof CausalLM ? `${name}; evaluate() takes language models` : name;
}

/** Returns the names and the kind of labels of the model's head. */
function labelsOf({ task, labels, problemType }: TaskModel): Partial<LabelledOptions> {
  if (!hasLabels(task)) return {};
  const problem = problemType ?? (labels.length === 1 ? 'regression' : null);
  return { labels, ...(problem && { kind: KINDS[problem] }) };
}

/**
 * Sets the padding token of a decoder, by which it finds the last token of a row, as a Trainer
 * does. Returns a function that restores the model.
 */
function setPadding(
  model: TaskModel,
  { padId, eosId }: { padId: number | null; eosId: number | null },
): () => void {
  if (!(model instanceof DecoderTask) || model.padTokenId !== null) return () => {};
  model.padTokenId = padId ?? eosId;
  return () => {
    model.padTokenId = null;
  };
}
