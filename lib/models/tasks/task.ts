// Tasks of a model, their heads in transformers, and the labels of a head.
import type { JsonObject } from '../../../types/json.js';
import { formatValue } from '../../runtime/format-value.js';
import { argumentError } from '../../runtime/input-errors.js';
import { keysOf } from '../../runtime/typed-keys.js';
import type { ModelConfig } from '../model-config.js';

/** A task of a TaskModel. */
export type HeadTask =
  | 'sequence-classification'
  | 'token-classification'
  | 'question-answering'
  | 'masked-lm'
  | 'embedding';

/** A task of a model. */
export type Task = HeadTask | 'causal-lm';

/** The end of a class name in transformers, by task. */
export const CLASS_ENDS: Readonly<Record<HeadTask, string>> = {
  'sequence-classification': 'ForSequenceClassification',
  'token-classification': 'ForTokenClassification',
  'question-answering': 'ForQuestionAnswering',
  'masked-lm': 'ForMaskedLM',
  embedding: 'Model',
};

/** PEFT's names of tasks. */
export const PEFT_TASKS: Readonly<Partial<Record<HeadTask, string>>> = {
  'sequence-classification': 'SEQ_CLS',
  'token-classification': 'TOKEN_CLS',
  'question-answering': 'QUESTION_ANS',
};

/** Returns the task of an adapter with PEFT's name `name`; null for language models. */
export function adaptedTask(name: string | null): HeadTask | null {
  return keysOf(PEFT_TASKS).find((task) => PEFT_TASKS[task] === name) ?? null;
}

/** All tasks. */
const TASKS: readonly Task[] = [...keysOf(CLASS_ENDS), 'causal-lm'];

/** All problem types. */
export const PROBLEMS = [
  'regression',
  'single_label_classification',
  'multi_label_classification',
] as const;

/** How the loss of labels is computed, as in transformers. */
export type ProblemType = (typeof PROBLEMS)[number];

/** Whether a task's head has an output for each label. */
export const hasLabels = (task: Task): boolean =>
  task === 'sequence-classification' || task === 'token-classification';

/** Returns `task`. Throws DS_ARGUMENT for an unknown task. */
export function requireTask(op: string, task: unknown): Task | 'auto' {
  if (task === 'auto' || TASKS.includes(task as Task)) return task as Task | 'auto';
  const knownTasks = [...TASKS, 'auto'].map((text) => JSON.stringify(text)).join(', ');
  throw argumentError(op, knownTasks, formatValue(task));
}

/** Returns the task that `architectures` of a config.json names; null for other classes. */
export function detectTask({ architectures: names }: JsonObject): Task | null {
  const [name] = Array.isArray(names) ? names : [];
  if (typeof name !== 'string') return null;
  if (/(ForCausalLM|LMHeadModel)$/.test(name)) return 'causal-lm';
  const match = Object.entries(CLASS_ENDS).find(([, end]) => name.endsWith(end));
  if (match) return match[0] as HeadTask;
  return /ForPreTraining$/.test(name) ? 'masked-lm' : null;
}

/** Options for the labels of a head. */
export interface LabelOptions {
  /** Names of the labels, or their number. Default: the labels of the folder, else 2. */
  labels?: number | readonly string[];
  /** How the loss is computed. Default: by the number of labels and their dtype. */
  problemType?: ProblemType | null;
}

/** Labels of a head, with defaults. */
export interface Labels {
  readonly names: readonly string[];
  readonly problemType: ProblemType | null;
}

/**
 * Returns the labels that the caller gives. Throws DS_ARGUMENT for no label, or an unknown problem
 * type.
 */
export function readLabels(op: string, { labels = 2, problemType = null }: LabelOptions): Labels {
  if (problemType !== null && !PROBLEMS.includes(problemType)) {
    throw argumentError(`${op} problemType`, PROBLEMS.join(', '), formatValue(problemType));
  }
  const names =
    typeof labels === 'number' ? Array.from({ length: labels }, (_, i) => `LABEL_${i}`) : labels;
  const isNames = Array.isArray(names) && names.every((name) => typeof name === 'string');
  if (isNames && names.length > 0) return { names: [...names], problemType };
  throw argumentError(`${op} labels`, 'names of labels, or their number', formatValue(labels));
}

/**
 * Reads the labels in a config.json: id2label, else num_labels. Throws DS_CHECKPOINT for invalid
 * values.
 */
export function parseLabels(config: ModelConfig): Required<LabelOptions> {
  config.requireOneOf('problem_type', [null, ...PROBLEMS]);
  const problemType = config.get('problem_type') as ProblemType | null;
  const names = config.get('id2label');
  if (names === null) return { labels: config.size('num_labels', 2), problemType };
  const section = config.section('id2label');
  const labels = section.keys().map((_, i) => section.get(String(i)));
  const isNames = labels.every((name) => typeof name === 'string');
  if (!isNames) throw config.refusalError('id2label', 'a name for each id from 0 on', names);
  return { labels: labels, problemType };
}

/** Returns the entries of config.json for labels. */
export function describeLabels({ names, problemType }: Labels): JsonObject {
  return {
    id2label: Object.fromEntries(names.map((name, id) => [String(id), name])),
    label2id: Object.fromEntries(names.map((name, id) => [name, id])),
    ...(problemType !== null && { problem_type: problemType }),
  };
}
