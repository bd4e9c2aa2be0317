// Opens the files of `ds train` as a Trainer's data and counts their rows.
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
import { textPart } from './text-part.js';
import type { Evaluation } from './trainer-options.js';

type Report = NonNullable<TextDataset['report']>;

/** Data of a Trainer. */
export interface RowData {
  train: TrainerData<TextSample, TextBatch>;
  eval?: EvalOptions<TextSample, TextBatch>;
  /** A line to print for each kind of data. */
  lines: readonly string[];
}

/**
 * Reads the rows of `args`: all rows, or with --streaming on demand. Throws DS_DATA for
 * files and rows that cannot be read, DS_ARGUMENT.
 */
export async function openRows(
  args: TrainArguments,
  evaluation: Evaluation | null,
  { tokenizer, maxSeq }: { tokenizer: Tokenizer; maxSeq: number },
): Promise<RowData> {
  const { train_file: files = [], validation_file: judged } = args;
  const how = { tokenizer, files, ...textPart(args, maxSeq, 'training') };
  const train = args.streaming ? null : await TextDataset.open(how);
  const lines = [`learns from ${files.join(', ')}: ${formatReport(train?.report ?? null, how)}`];
  const shuffle = args.train_sampling_strategy !== 'sequential';
  const data = train ?? stream({ ...how, shuffle });
  if (!evaluation || !judged) return { train: data, lines };
  const alike = { tokenizer, files: judged, ...textPart(args, maxSeq, 'evaluation') };
  const dataset = await TextDataset.open(alike);
  lines.push(`judged by ${judged.join(', ')}: ${formatReport(dataset.report, alike)}`);
  return { train: data, eval: { ...evaluation, data: dataset }, lines };
}

/** A stream of rows; the Trainer opens it, because the Trainer knows the ranks. */
function stream(how: TextOptions & { shuffle: boolean }): TrainerData<TextSample, TextBatch> {
  return async ({ tokenRanks, ...place }) =>
    await TextStream.open({ ...how, ...place, padToMultipleOf: tokenRanks });
}

function formatReport(report: Report | null, { length, packing }: TextOptions): string {
  const shape = `${packing ? 'packed to' : 'of at most'} ${length} tokens`;
  if (!report) return `a stream of samples ${shape}`;
  const { rows, samples, tokens, learned, cutRows, unlearned } = report;
  const lost = [
    ...(cutRows > 0 ? [`${cutRows} rows cut`] : []),
    ...(unlearned > 0 ? [`${unlearned} left out, without a token to learn`] : []),
  ];
  const parts = [`${rows} rows, ${samples} samples ${shape}`, ...lost];
  return `${parts.join(', ')}; ${tokens} tokens, ${learned} of them learned`;
}
