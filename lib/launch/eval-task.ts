// `ds eval --task`: computes loss and metrics of a classifier, or of another task model.
import { evaluateTask, type TaskEvaluation } from '../evaluation/index.js';
import { openTaskForEvaluation } from '../evaluation/open-model.js';
import { definedOnly } from '../runtime/options.js';
import { required } from '../runtime/required.js';
import { refuse } from './argument-error.js';
import type { EvalFlags } from './model-options.js';

/** Dtypes by the names of `--dtype`. */
export const DTYPES = { fp32: 'f32', fp16: 'f16', bf16: 'bf16' } as const;

/** Returns the name of a dtype in reports, such as "fp32". */
export const dtypeName = (dtype: string): string => dtype.replace(/^f(?=\d)/, 'fp');

/** Digits after the point. */
const DIGITS = 4;

/** Evaluates and returns the report; see evalCommand(). Throws as evaluateTask() does. */
export async function evalTaskCommand(
  folder: string,
  flags: EvalFlags & { task: NonNullable<EvalFlags['task']> },
  progress: (line: string | null) => void,
): Promise<string> {
  const { task, data: files, dtype, device, adapter, batch: batchSize } = flags;
  const { labelKey, columns } = flags;
  if (!files) refuse('eval --task', '--data FILE, rows with labels', 'no --data');
  const weightOptions = dtype && { dtype: DTYPES[dtype] };
  const opened = await openTaskForEvaluation(
    folder,
    task,
    definedOnly({ device, adapter, ...weightOptions }),
  );
  const { model } = opened;
  const options = {
    files,
    columns,
    labelKey,
    textKey: textKeyOf(flags),
    maxLength: flags.seq,
    tokenizer: flags.tokenizer ?? opened.tokenizer,
    batchSize,
    onProgress: (done: number, total: number) => progress(`${done} of ${total}`),
  };
  const evaluation = await evaluateTask(model, definedOnly(options)).finally(() => progress(null));
  const { device: modelDevice, dtype: weights } = required(model.parameters()[0]);
  const head = {
    model: folder,
    adapter: adapter ?? null,
    device: modelDevice.name,
    dtype: dtypeName(weights),
    labels: model.labels,
  };
  const { task: _, rows, loss, metrics } = evaluation;
  return flags.json
    ? JSON.stringify({ ...head, task, data: { files, rows, loss, ...metrics } }, null, 2)
    : describe(head, files, evaluation);
}

/** Returns the key of the text, or the keys of both texts. Throws DS_ARGUMENT. */
function textKeyOf({ textKey, textPairKey }: EvalFlags): string | [string, string] | undefined {
  if (textPairKey === undefined) return textKey;
  if (textKey !== undefined) return [textKey, textPairKey];
  return refuse('--text-pair-key', '--text-key KEY of the first text too', 'no --text-key');
}

function describe(
  {
    model,
    adapter,
    device,
    dtype,
  }: Record<'model' | 'device' | 'dtype', string> & {
    adapter: string | null;
  },
  files: readonly string[],
  { task, rows, loss, metrics }: TaskEvaluation,
): string {
  const adapterText = adapter === null ? '' : ` with ${adapter}`;
  const results = Object.entries({ loss, ...metrics });
  const width = Math.max(...results.map(([name]) => name.length)) + 2;
  return [
    `${model}${adapterText} on ${device}, ${dtype}`,
    `${files.join(', ')}: ${rows} rows, ${task}`,
    ...results.map(([name, value]) => `  ${name.padEnd(width)}${value.toFixed(DIGITS)}`),
  ].join('\n');
}
