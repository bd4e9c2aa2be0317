// `ds eval`: computes loss and multiple-choice accuracy of the model in a folder.
import {
  type ChoiceEvaluation,
  type Evaluation,
  evaluate,
  evaluateChoices,
} from '../evaluation/index.js';
import { openForEvaluation } from '../evaluation/open-model.js';
import { definedOnly } from '../runtime/options.js';
import { refuse } from './argument-error.js';
import { DTYPES, dtypeName, evalTaskCommand } from './eval-task.js';
import type { EvalFlags } from './model-options.js';

/** Results of an evaluation. */
interface Results {
  model: string;
  adapter: string | null;
  device: string;
  dtype: string;
  data: (Evaluation & { files: readonly string[] }) | null;
  tasks: (ChoiceEvaluation & { files: readonly string[] }) | null;
}

/**
 * Evaluates and returns the report. `progress` receives the numbers of finished and of all rows,
 * then null at the end. Throws as evaluate() and evaluateChoices() do.
 */
export async function evalCommand(
  folder: string,
  flags: EvalFlags,
  progress: (line: string | null) => void,
): Promise<string> {
  const { data, tasks, dtype, device, adapter, batch: batchSize, task } = flags;
  if (task !== undefined) return evalTaskCommand(folder, { ...flags, task }, progress);
  if (!data && !tasks) {
    refuse('eval', '--data FILE, --tasks FILE, or both', 'neither');
  }
  const labelFlag = flags.labelKey !== undefined ? '--label-key' : '--text-pair-key';
  if (flags.labelKey !== undefined || flags.textPairKey !== undefined) {
    refuse(labelFlag, `${labelFlag} with --task TASK`, 'no --task');
  }
  const weightOptions = dtype && { dtype: DTYPES[dtype] };
  const opened = await openForEvaluation(folder, { device, adapter, ...weightOptions });
  const { model } = opened;
  const tokenizer = flags.tokenizer ?? opened.tokenizer;
  const onProgress = (done: number, total: number) => progress(`${done} of ${total}`);
  const shared = { tokenizer, batchSize, onProgress };
  const { seq: length, packing, overlong, loss, textKey, columns, delimiter, addBos } = flags;
  const { device: weightDevice, dtype: weightDtype } = model.cacheShape();
  const results: Results = {
    model: folder,
    adapter: adapter ?? null,
    device: weightDevice.name,
    dtype: dtypeName(weightDtype),
    data: null,
    tasks: null,
  };
  try {
    if (data) {
      const rows = { files: data, length, packing, overlong, loss, textKey, columns };
      results.data = {
        files: data,
        ...(await evaluate(model, definedOnly({ ...shared, ...rows }))),
      };
    }
    if (tasks) {
      const rows = { files: tasks, columns, delimiter, addBos };
      const evaluation = await evaluateChoices(model, definedOnly({ ...shared, ...rows }));
      results.tasks = { files: tasks, ...evaluation };
    }
  } finally {
    progress(null);
  }
  return flags.json ? JSON.stringify(serializeResults(results), null, 2) : describeResults(results);
}

/** Renames the results of tasks as lm-evaluation-harness does. */
function serializeResults({ data, tasks, ...head }: Results): object {
  const { cutRows = 0, ...loss } = data ?? {};
  return {
    ...head,
    data: data && { ...loss, cut_rows: cutRows },
    tasks: tasks && {
      files: tasks.files,
      questions: tasks.questions,
      cut: tasks.cut,
      acc: tasks.accuracy,
      acc_stderr: tasks.accuracyStderr,
      acc_norm: tasks.normalizedAccuracy,
      acc_norm_stderr: tasks.normalizedAccuracyStderr,
    },
  };
}

const DIGITS = 4;

function describeResults({ model, adapter, device, dtype, data, tasks }: Results): string {
  const adapterText = adapter === null ? '' : ` with ${adapter}`;
  const lines = [`${model}${adapterText} on ${device}, ${dtype}`];
  if (data) {
    const { files, rows, samples, tokens, cutRows, loss, perplexity, accuracy } = data;
    const cut = cutRows > 0 ? `, ${cutRows} of them cut` : '';
    lines.push(
      `${files.join(', ')}: ${rows} rows${cut}, ${samples} samples, ${tokens} tokens`,
      `  loss        ${loss.toFixed(DIGITS)}`,
      `  perplexity  ${perplexity.toFixed(DIGITS)}`,
      `  accuracy    ${accuracy.toFixed(DIGITS)}`,
    );
  }
  if (tasks) {
    const { files, questions, cut } = tasks;
    const cutText = cut > 0 ? `, ${cut} contexts cut from the left` : '';
    lines.push(
      `${files.join(', ')}: ${questions} questions${cutText}`,
      `  acc         ${formatWithError(tasks.accuracy, tasks.accuracyStderr)}`,
      `  acc_norm    ${formatWithError(tasks.normalizedAccuracy, tasks.normalizedAccuracyStderr)}`,
    );
  }
  return lines.join('\n');
}

const formatWithError = (value: number, error: number | null): string =>
  `${value.toFixed(DIGITS)}${error === null ? '' : ` ± ${error.toFixed(DIGITS)}`}`;
