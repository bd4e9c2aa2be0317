// PromptDataset: tokenized prompts for a model to answer. Rows have TRL's keys; reward functions
// get the other columns.
import type { Dataset } from '../data/index.js';
import { DsError } from '../errors.js';
import { dataError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import type { ChatMessage } from './chat-template.js';
import { convertMessages, readInputs } from './conversation.js';
import { readInstruction } from './instruction-rows.js';
import { type RowSource, readLocatedRows } from './located-rows.js';
import type { LocatedRow, Row } from './row-reader.js';
import { readTokenizer } from './text-options.js';
import type { Tokenizer } from './tokenizer.js';

/** Options of PromptDataset.open(). */
export interface PromptOptions extends RowSource {
  /** Encodes texts. Its chat template formats messages. */
  tokenizer: Tokenizer | string;
  /** Drops prompts with more tokens. Default: keeps all. */
  length?: number;
}

/** A tokenized prompt, with the other columns of its row. */
export interface PromptSample {
  /** Index of the sample in its dataset. */
  index: number;
  /** The text or the messages. */
  prompt: string | readonly ChatMessage[];
  /** Tokens of the prompt. For messages, they end where the answer starts. */
  promptIds: Int32Array;
  /** All values of the row except the prompt. */
  columns: Row;
  /** File and line of the row, for errors. */
  location: string;
}

/** Counts of the rows that open() read. */
export interface PromptReport {
  /** Prompts in the dataset. */
  prompts: number;
  /** Dropped rows: the prompt is longer than `length`. */
  dropped: number;
  /** Tokens of the longest prompt. */
  longest: number;
}

/** Tokenized prompts in memory. open() creates it. */
export class PromptDataset implements Dataset<PromptSample> {
  /** Number of prompts. */
  readonly length: number;

  private constructor(
    private readonly samples: readonly PromptSample[],
    /** Counts of the rows that open() read. */
    readonly report: PromptReport,
  ) {
    this.length = samples.length;
  }

  /**
   * Reads rows of {prompt, ...columns}. A prompt is a text or a list of messages. Throws DS_DATA
   * with file and line for other rows and if no row is left, and DS_ARGUMENT.
   */
  static async open(given: PromptOptions): Promise<PromptDataset> {
    const op = 'PromptDataset.open';
    const { tokenizer: named, length, ...source } = readOptions(op, given, namesOf.PromptOptions);
    const tokenizer = readTokenizer(`${op} tokenizer`, named);
    const max = length === undefined ? null : requireInteger(`${op} length`, length, 1);
    const report: PromptReport = { prompts: 0, dropped: 0, longest: 0 };
    const samples: PromptSample[] = [];
    for (const located of await readLocatedRows(op, source)) {
      const sample = encodePrompt(tokenizer, located, samples.length);
      const tokens = sample.promptIds.length;
      if (max !== null && tokens > max) {
        report.dropped += 1;
        continue;
      }
      report.longest = Math.max(report.longest, tokens);
      samples.push(sample);
    }
    report.prompts = samples.length;
    if (samples.length > 0) return new PromptDataset(samples, report);
    if (max === null || report.dropped === 0) throw dataError(op, 'rows with a prompt', 'none');
    const hint =
      'Raise `length`; in ds train, lower --max_completion_length or shorten the prompts.';
    const got = `${report.dropped} longer prompts`;
    throw dataError(op, `a prompt of at most ${max} tokens`, got, hint);
  }

  /** Returns the prompt `index`. Throws DS_INDEX if `index` is out of range. */
  get(index: number): PromptSample {
    const sample = this.samples[index];
    if (sample) return sample;
    const expected = `a prompt of [0, ${this.length})`;
    throw new DsError({ code: 'DS_INDEX', op: 'PromptDataset.get', expected, got: `${index}` });
  }
}

function encodePrompt(
  tokenizer: Tokenizer,
  { row, location }: LocatedRow,
  index: number,
): PromptSample {
  const { prompt: given, ...columns } = row;
  const rawPrompt = given ?? readInstruction(row, tokenizer);
  const rest = { index, columns, location: location() };
  if (typeof rawPrompt === 'string') {
    const promptIds = tokenizer.encode(rawPrompt);
    if (promptIds.length > 0) return { ...rest, prompt: rawPrompt, promptIds };
    throw dataError(location(), 'a prompt with a token', 'an empty text');
  }
  if (Array.isArray(rawPrompt)) {
    const prompt = convertMessages(rawPrompt, location);
    const inputs = readInputs(row, location);
    try {
      const chat = tokenizer.applyChatTemplate(prompt, { ...inputs, addGenerationPrompt: true });
      return { ...rest, prompt, promptIds: chat.ids };
    } catch (cause) {
      const { message } = cause as Error;
      throw dataError(location(), 'messages that the chat template takes', message);
    }
  }
  const got = `a row with ${Object.keys(row).slice(0, 8).join(', ')}`;
  throw dataError(location(), '"prompt" as a string, or as a list of messages', got);
}

/** Returns whether `sample` comes from a PromptDataset. */
export function isPromptSample(sample: unknown): sample is PromptSample {
  const { promptIds, columns } = (sample ?? {}) as Record<string, unknown>;
  return promptIds instanceof Int32Array && typeof columns === 'object';
}
