// Opens the files of `ds train` as the data of a Trainer.
import type { CausalLM } from '../../models/index.js';
import { argumentError } from '../../runtime/input-errors.js';
import {
  type TextBatch,
  TextDataset,
  type TextOptions,
  type TextSample,
  TextStream,
  type Tokenizer,
} from '../../text/index.js';
import type { TrainerData } from '../data-source.js';
import type { EvalOptions } from '../evaluation-options.js';
import type { TrainArguments } from './arguments.js';
import { readTextOptions } from './text-part.js';
import type { Evaluation } from './trainer-options.js';

type Report = NonNullable<TextDataset['report']>;

/** Data for training and evaluation. */
export interface RowData {
  train: TrainerData<TextSample, TextBatch>;
  eval?: EvalOptions<TextSample, TextBatch>;
  /** One line about each dataset, to print. */
  lines: readonly string[];
}

/**
 * Opens the rows of `args`. With --streaming, rows are read during training, otherwise now. Throws
 * DS_DATA if files or rows cannot be read, DS_ARGUMENT for invalid arguments.
 */
export async function openRows(
  args: TrainArguments,
  evaluation: Evaluation | null,
  { tokenizer, model }: { tokenizer: Tokenizer; model: Pick<CausalLM, 'maxSeq' | 'vocabSize'> },
): Promise<RowData> {
  const { maxSeq } = model;
  const { train_file: files = [], validation_file: evalFiles } = args;
  const options = { tokenizer, files, ...readTextOptions(args, maxSeq, 'training') };
  const train = args.streaming ? null : await TextDataset.open(options);
  if (train) requireModelTokens(train, tokenizer, model);
  const lines = [
    `learns from ${files.join(', ')}: ${formatReport(train?.report ?? null, options)}`,
  ];
  const shuffle = args.train_sampling_strategy !== 'sequential';
  const data = train ?? createStream({ ...options, shuffle });
  if (!evaluation || !evalFiles) return { train: data, lines };
  const evalOptions = {
    tokenizer,
    files: evalFiles,
    ...readTextOptions(args, maxSeq, 'evaluation'),
  };
  const dataset = await TextDataset.open(evalOptions);
  requireModelTokens(dataset, tokenizer, model);
  lines.push(`judged by ${evalFiles.join(', ')}: ${formatReport(dataset.report, evalOptions)}`);
  return { train: data, eval: { ...evaluation, data: dataset }, lines };
}

/**
 * Throws DS_ARGUMENT if the rows contain a token that the model's embedding lacks. On a GPU, the
 * loss would become NaN without a hint at the cause.
 */
function requireModelTokens(
  { largestId }: TextDataset,
  tokenizer: Tokenizer,
  { vocabSize }: Pick<CausalLM, 'vocabSize'>,
): void {
  if (largestId < vocabSize) return;
  const { folder } = tokenizer;
  const got = `token ${largestId} of ${folder}, a tokenizer with ${tokenizer.vocabSize} tokens`;
  const hint =
    'Use the tokenizer of the model: check --tokenizer_name and the files of the folder.';
  throw argumentError(
    '--tokenizer_name',
    `tokens of [0, ${vocabSize}), as the model has`,
    got,
    hint,
  );
}

/** Returns a function that opens a stream of rows. The Trainer calls it for its rank. */
function createStream(how: TextOptions & { shuffle: boolean }): TrainerData<TextSample, TextBatch> {
  return async ({ tokenRanks, ...place }) =>
    await TextStream.open({ ...how, ...place, padToMultipleOf: tokenRanks });
}

function formatReport(report: Report | null, { length, packing }: TextOptions): string {
  const shape = `${packing ? 'packed to' : 'of at most'} ${length} tokens`;
  if (!report) return `a stream of samples ${shape}`;
  const { rows, samples, tokens, learned, cutRows, unlearned } = report;
  const lostTexts = [
    ...(cutRows > 0 ? [`${cutRows} rows cut`] : []),
    ...(unlearned > 0 ? [`${unlearned} left out, without a token to learn`] : []),
  ];
  const parts = [`${rows} rows, ${samples} samples ${shape}`, ...lostTexts];
  return `${parts.join(', ')}; ${tokens} tokens, ${learned} of them learned`;
}
