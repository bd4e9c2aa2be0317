// Encodes rows to tokens and labels: text, conversations, prompts with completions, and token ids.
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { dataError } from '../runtime/input-errors.js';
import type { ChatMessage } from './chat-template.js';
import {
  type Conversation,
  convertMessages,
  readConversation,
  readInputs,
  type TemplateInputs,
} from './conversation.js';
import { asCompletionRow } from './instruction-rows.js';
import type { Row } from './row-reader.js';
import type { Tokenizer } from './tokenizer.js';

/** Label of tokens that are not learned. */
export const IGNORED = -100;

/** Kinds of tokens that are learned. */
export const LOSS_KINDS = ['all', 'completion', 'assistant'] as const;

/** Which tokens are learned: all tokens, the completion, or the assistant's messages. */
export type LossKind = (typeof LOSS_KINDS)[number];

/** Settings that apply to all rows. */
export interface RowSettings {
  /** Key of the text of a row. */
  textKey: string;
  /** Null: "completion" for rows with a prompt, else "all". */
  loss: LossKind | null;
}

/**
 * A tokenized row. Each label is the token itself or IGNORED; the first token of a document is
 * never learned.
 */
interface EncodedRow {
  ids: Int32Array;
  labels: Int32Array;
  /**
   * Whether a token spans the end of the prompt, so that the row does not start with the prompt's
   * own tokens.
   */
  isBlurred: boolean;
}

/** Options of a chat template. */
interface EncoderInputs extends TemplateInputs {
  addGenerationPrompt?: boolean;
  assistantMask?: boolean;
}

const KEYS =
  'text, messages (conversations), prompt and completion, instruction and output, or input_ids';

/** Keys of a tokenized row that mark the learned tokens, by loss. */
const MARKS = {
  completion: ['labels', 'completion_mask'],
  assistant: ['assistant_masks'],
} as const;

/** Column formats have null for a missing value. */
const hasValue = (row: Row, key: string): boolean => row[key] !== undefined && row[key] !== null;

/**
 * Encodes rows. Throws DS_DATA with the row's location for an unknown kind of row, and for a loss
 * that the row does not support.
 */
export class RowEncoder {
  constructor(
    private readonly tokenizer: Tokenizer,
    private readonly settings: RowSettings,
  ) {}

  encode(row: Row, location: () => string): EncodedRow {
    const encoded = this.encodeAny(row, location);
    if (encoded.labels.length > 0) encoded.labels[0] = IGNORED;
    return encoded;
  }

  /** Returns whether the end-of-turn token after an answer is not learned. */
  isUnended({ ids, labels }: EncodedRow): boolean {
    if (this.settings.loss !== 'assistant') return false;
    const isEnd = (id: number, i: number): boolean =>
      labels[i] === IGNORED && labels[i - 1] !== IGNORED && this.tokenizer.specialIds.has(id);
    return ids.some((id, i) => i > 0 && isEnd(id, i));
  }

  private encodeAny(row: Row, location: () => string): EncodedRow {
    const { loss, textKey } = this.settings;
    const conversation = readConversation(row, location);
    if (conversation) return this.encodeChat(conversation, location);
    if (hasValue(row, 'prompt') && hasValue(row, 'completion'))
      return this.encodeCompletion(row, location, loss);
    const isMarked =
      loss === null || loss === 'all' || MARKS[loss].some((key) => hasValue(row, key));
    if (hasValue(row, 'input_ids') && isMarked) return this.encodeTokens(row, location);
    // Published sets often have the whole text in another column.
    const isAnswerOnly = loss === 'completion' || loss === 'assistant';
    const instruction =
      hasValue(row, textKey) && !isAnswerOnly ? null : asCompletionRow(row, this.tokenizer);
    // The assistant has written the whole completion.
    const learned = loss === 'assistant' ? 'completion' : loss;
    if (instruction) return this.encodeCompletion(instruction, location, learned);
    if (loss === 'assistant') throw noLossError(location, 'messages', row);
    if (loss === 'completion') throw noLossError(location, 'prompt and completion', row);
    const text = row[textKey];
    if (typeof text === 'string') return learnAll(this.appendEnd(this.tokenizer.encode(text)));
    if (hasValue(row, textKey))
      throw dataError(location(), `a string "${textKey}"`, formatValue(text));
    throw dataError(location(), `a row with ${KEYS}`, formatValue(row), hintFor(row));
  }

  private encodeChat({ messages, inputs }: Conversation, location: () => string): EncodedRow {
    if (this.settings.loss === 'completion')
      throw noLossError(location, 'prompt and completion', { messages });
    const assistantMask = this.settings.loss === 'assistant';
    const { ids, assistant } = this.encodeConversation(
      messages,
      { ...inputs, assistantMask },
      location,
    );
    return assistant === null ? learnAll(ids) : learnSome(ids, (i) => assistant[i] === 1);
  }

  private encodeConversation(
    messages: readonly ChatMessage[],
    given: EncoderInputs,
    location: () => string,
  ) {
    try {
      return this.tokenizer.applyChatTemplate(messages, given);
    } catch (cause) {
      // A tokenizer without a chat template.
      if (cause instanceof DsError && cause.code === 'DS_ARGUMENT')
        throw dataError(location(), cause.expected, cause.got, cause.hint);
      const { message } = cause as Error;
      throw dataError(location(), 'messages that the chat template takes', message);
    }
  }

  private encodeCompletion(row: Row, location: () => string, loss: LossKind | null): EncodedRow {
    const { prompt, completion } = row;
    let before: Int32Array;
    let ids: Int32Array;
    if (typeof prompt === 'string' && typeof completion === 'string') {
      before = this.tokenizer.encode(prompt);
      ids = this.appendEnd(this.tokenizer.encode(prompt + completion));
    } else if (Array.isArray(prompt) && Array.isArray(completion)) {
      const inputs = readInputs(row, location);
      const promptMessages = convertMessages(prompt, location);
      ids = this.encodeConversation(
        [...promptMessages, ...convertMessages(completion, location)],
        inputs,
        location,
      ).ids;
      before = this.encodeConversation(
        promptMessages,
        { ...inputs, addGenerationPrompt: true },
        location,
      ).ids;
    } else {
      const expected = 'prompt and completion as two strings, or two lists of messages';
      throw dataError(
        location(),
        expected,
        `${formatValue(prompt)} and ${formatValue(completion)}`,
      );
    }
    if (loss === 'all') return learnAll(ids);
    if (loss === 'assistant') throw noLossError(location, 'messages', { prompt, completion });
    const isBlurred = before.some((id, i) => id !== ids[i]);
    return { ...learnSome(ids, (i) => i >= before.length), isBlurred };
  }

  /** Tokens with 0 in a mask are not learned, even if they have labels. Source: TRL's collator. */
  private encodeTokens(row: Row, location: () => string): EncodedRow {
    const { vocabSize } = this.tokenizer;
    const ids = readIntegers(row.input_ids, () => `${location()}, input_ids`, vocabSize);
    const readList = (key: string, below: number, other?: number): Int32Array | null => {
      if (!hasValue(row, key)) return null;
      const values = readIntegers(row[key], () => `${location()}, ${key}`, below, other);
      if (values.length === ids.length) return values;
      throw dataError(location(), `${ids.length} ${key}, one for each token`, `${values.length}`);
    };
    const labels = readList('labels', vocabSize, IGNORED) ?? ids;
    const completion = readList('completion_mask', 2);
    const masks = [
      this.settings.loss === 'all' ? null : completion,
      readList('assistant_masks', 2),
    ];
    const isLeftOut = (i: number): boolean => masks.some((mask) => mask?.[i] === 0);
    const learned = labels.map((label, i) => (isLeftOut(i) ? IGNORED : label));
    return { ids, labels: learned, isBlurred: false };
  }

  /** Appends the end token of a document. */
  private appendEnd(ids: Int32Array): Int32Array {
    const { eosId } = this.tokenizer;
    if (eosId === null || ids.at(-1) === eosId) return ids;
    return Int32Array.from([...ids, eosId]);
  }
}

const learnAll = (ids: Int32Array): EncodedRow => ({ ids, labels: ids.slice(), isBlurred: false });

function learnSome(ids: Int32Array, isLearned: (i: number) => boolean): EncodedRow {
  const labels = ids.map((id, i) => (isLearned(i) ? id : IGNORED));
  return { ids, labels, isBlurred: false };
}

/** Tokens, or `other`. Parquet's 64-bit integers are bigints. */
function readIntegers(
  list: unknown,
  location: () => string,
  below: number,
  other?: number,
): Int32Array {
  const isList = Array.isArray(list) || (ArrayBuffer.isView(list) && !(list instanceof DataView));
  if (!isList) throw dataError(location(), 'a list of tokens', formatValue(list));
  return Int32Array.from(list as ArrayLike<number | bigint>, (value) => {
    const number = Number(value);
    if (Number.isInteger(number) && number >= 0 && number < below) return number;
    if (number === other) return number;
    const expected = `integers of [0, ${below})${other === undefined ? '' : ` or ${other}`}`;
    throw dataError(location(), expected, String(value));
  });
}

/** Returns a hint for rows of preferences, of several turns, and with unknown keys. */
function hintFor(row: Row): string {
  if (hasValue(row, 'chosen') && hasValue(row, 'rejected')) {
    return 'Preferences need a method that learns from them, such as --method dpo: docs/post-training.md.';
  }
  if (hasValue(row, 'history')) {
    return 'Write rows with a history as messages of a user and an assistant.';
  }
  return 'Rename the keys as docs/text.md#rows lists them, or name the key of the text with `textKey` (--dataset_text_field).';
}

function noLossError(location: () => string, keys: string, row: Row): Error {
  const hint = 'Leave `loss` (--completion_only_loss) out for rows without these keys.';
  return dataError(location(), `a row with ${keys}, required by the loss`, formatValue(row), hint);
}
