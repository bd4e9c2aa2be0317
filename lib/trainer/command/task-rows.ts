// Opens the rows of `ds train --task`, and a model with a head for their labels.
import { fromConfig, type HeadTask, type ProblemType, type TaskModel } from '../../models/index.js';
import { PROBLEMS, requireTask } from '../../models/tasks/task.js';
import { argumentError } from '../../runtime/input-errors.js';
import { requireOneOf } from '../../runtime/require-type.js';
import {
  type LabelKind,
  LabelledDataset,
  type LabelledTask,
  type TextBatch,
  type TextSample,
  type Tokenizer,
} from '../../text/index.js';
import type { EvalOptions } from '../evaluation-options.js';
import type { CheckedArguments } from './check-arguments.js';
import { findModel } from './hub-model.js';
import { openTaskModel } from './trained-model.js';
import type { Evaluation } from './trainer-options.js';

/** Default of --max_length. The model's maximum is used if it is smaller. */
const MAX_LENGTH = 512;

/** Arguments for rows of text without labels. */
const TEXT_ARGUMENTS = [
  'packing',
  'eval_packing',
  'packing_strategy',
  'completion_only_loss',
  'assistant_only_loss',
  'streaming',
  'sample',
] as const;

const KINDS: Readonly<Record<ProblemType, LabelKind>> = {
  regression: 'value',
  single_label_classification: 'class',
  multi_label_classification: 'classes',
};

/** Model and data of a run. */
interface TaskMaterial {
  model: TaskModel;
  train: LabelledDataset;
  eval?: EvalOptions<TextSample, TextBatch>;
  /** One line about each dataset, to print. */
  lines: string[];
}

/**
 * Returns the task of the arguments; null for a causal language model. Throws DS_ARGUMENT if the
 * task is unknown, or if an argument needs rows without labels.
 */
export function readTask(args: CheckedArguments): LabelledTask | null {
  const { task: taskName } = args;
  if (taskName === undefined || taskName === 'causal-lm') return null;
  const task = requireTask('--task', taskName);
  if (task === 'auto' || task === 'embedding' || task === 'causal-lm') {
    const hint = 'Embeddings are trained by a program: docs/classification.md.';
    throw argumentError('--task', 'a task of rows with labels', JSON.stringify(taskName), hint);
  }
  const conflicting = TEXT_ARGUMENTS.find(
    (name) => args[name] !== undefined && args[name] !== false,
  );
  if (conflicting)
    throw argumentError(
      `--${conflicting}`,
      `either --task with labels or --${conflicting}`,
      'both',
    );
  return task;
}

/**
 * Opens the rows, then a model with a head for their labels. Throws DS_DATA, DS_CHECKPOINT, DS_IO,
 * DS_ARGUMENT.
 */
export async function openTask(
  args: CheckedArguments,
  task: LabelledTask,
  { tokenizer, evaluation }: { tokenizer: Tokenizer; evaluation: Evaluation | null },
): Promise<TaskMaterial> {
  const shape = fromConfig(await findModel(args), { task: task as HeadTask });
  const { train_file: files, validation_file: evalFiles, problem_type: problem } = args;
  if (problem !== undefined) requireOneOf('--problem_type', problem, PROBLEMS);
  const { max_length: maxLength = Math.min(MAX_LENGTH, shape.maxSeq) } = args;
  if (maxLength > shape.maxSeq || maxLength < 3) {
    const expected = `3 to ${shape.maxSeq}, which the model takes`;
    throw argumentError('--max_length', expected, String(maxLength));
  }
  const [first, second] = args.text_column_names ?? [];
  const textKey = second !== undefined ? ([first, second] as [string, string]) : first;
  const rowOptions = {
    tokenizer,
    task,
    maxLength,
    columns: args.columns,
    labelKey: args.label_column_name,
    textKey: textKey ?? args.dataset_text_field,
    ...(problem !== undefined && { kind: KINDS[problem as ProblemType] }),
  };
  const opened = await LabelledDataset.open({ ...rowOptions, files });
  const labels = chooseLabels(opened, shape);
  const isRenamed = opened.labels !== null && labels?.join() !== opened.labels.join();
  const train = isRenamed
    ? await LabelledDataset.open({
        ...rowOptions,
        files,
        labels: labels as string[],
        kind: opened.kind,
      })
    : opened;
  const model = await openTaskModel(args, {
    task: task as HeadTask,
    ...(labels && { labels, problemType: findProblemType(opened.kind, task) }),
  });
  const lines = [`learns from ${files.join(', ')}: ${describeDataset(train)}`];
  if (!evaluation || !evalFiles) return { model, train, lines };
  const evalOptions = {
    ...rowOptions,
    ...(labels && { labels, kind: opened.kind }),
    files: evalFiles,
  };
  const data = await LabelledDataset.open(evalOptions);
  lines.push(`judged by ${evalFiles.join(', ')}: ${data.length} rows`);
  return { model, train, eval: { ...evaluation, data: data as never }, lines };
}

/**
 * Returns the labels of the model's head if they include all labels of the rows, else the labels of
 * the rows.
 */
function chooseLabels({ labels }: LabelledDataset, shape: TaskModel): readonly string[] | null {
  if (labels === null) return null;
  const labelNames = shape.labels;
  const isNamed = labelNames.some((name, i) => name !== `LABEL_${i}`);
  const isNumbered = labels.every((name, i) => name === `LABEL_${i}`);
  if (isNumbered) return isNamed && labelNames.length >= labels.length ? labelNames : labels;
  return labels.every((name) => labelNames.includes(name)) ? labelNames : labels;
}

function findProblemType(kind: LabelKind, task: LabelledTask): ProblemType | null {
  if (task !== 'sequence-classification') return null;
  const entry = Object.entries(KINDS).find(([, item]) => item === kind);
  return (entry?.[0] ?? null) as ProblemType | null;
}

function describeDataset({ length, labels, kind }: LabelledDataset): string {
  if (labels === null) return `${length} rows`;
  if (kind === 'value') return `${length} rows with values`;
  const shown = labels.slice(0, 8).join(', ');
  return `${length} rows with ${labels.length} labels: ${shown}${labels.length > 8 ? ', ..' : ''}`;
}
