// From a row to tokens and labels: text, conversations, prompts with completions, and tokens as
// they are.
import { formatValue } from '../runtime/format-value.js';
import { dataError } from '../runtime/input-errors.js';
import type { ChatMessage } from './chat-template.js';
import {
  type Conversation,
  conversationIn,
  inputsIn,
  messagesOf,
  type TemplateInputs,
} from './conversation.js';
import type { Row } from './row-reader.js';
import type { Tokenizer } from './tokenizer.js';

/** Labels that no loss counts. */
export const IGNORED = -100;

/**
 * Which tokens are learned: all, the completion's, or the assistant's.
 */
export type LossKind = 'all' | 'completion' | 'assistant';

/** Settings of all rows. */
export interface RowSettings {
  /** Key of the text of a row. */
  textKey: string;
  /** Null: "completion" for rows with a prompt, else "all". */
  loss: LossKind | null;
}

/**
 * A row as tokens, and for each token itself or IGNORED; the first token of a document is never
 * learned.
 */
interface EncodedRow {
  ids: Int32Array;
  labels: Int32Array;
  /** The prompt's tokens are not the first ones of the whole: a token spans the border. */
  isBlurred: boolean;
}

/** Options of a chat template. */
interface EncoderInputs extends TemplateInputs {
  addGenerationPrompt?: boolean;
  assistantMask?: boolean;
}

const KEYS = 'text, messages (conversations), prompt and completion, or input_ids';

/** For each loss, keys of a tokenized row that mark the learned tokens. */
const MARKS = {
  completion: ['labels', 'completion_mask'],
  assistant: ['assistant_masks'],
} as const;

/** Files of columns have null where a row of another kind has nothing. */
const isGiven = (row: Row, key: string): boolean => row[key] !== undefined && row[key] !== null;

/**
 * Throws DS_DATA, naming the row's location, for a row of no known kind, and for a loss that it
 * cannot have.
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

  /** Returns whether the end-of-turn token behind an answer is not learned. */
  isUnended({ ids, labels }: EncodedRow): boolean {
    if (this.settings.loss !== 'assistant') return false;
    const isEnd = (id: number, i: number): boolean =>
      labels[i] === IGNORED && labels[i - 1] !== IGNORED && this.tokenizer.specialIds.has(id);
    return ids.some((id, i) => i > 0 && isEnd(id, i));
  }

  private encodeAny(row: Row, location: () => string): EncodedRow {
    const { loss, textKey } = this.settings;
    const conversation = conversationIn(row, location);
    if (conversation) return this.chat(conversation, location);
    if (isGiven(row, 'prompt') && isGiven(row, 'completion')) return this.completion(row, location);
    const isMarked =
      loss === null || loss === 'all' || MARKS[loss].some((key) => isGiven(row, key));
    if (isGiven(row, 'input_ids') && isMarked) return this.tokens(row, location);
    if (loss === 'assistant') throw noLoss(location, 'messages', row);
    if (loss === 'completion') throw noLoss(location, 'prompt and completion', row);
    const text = row[textKey];
    if (typeof text === 'string') return plain(this.withEnd(this.tokenizer.encode(text)));
    throw dataError(location(), `a row with ${KEYS}`, formatValue(row), hintFor(row));
  }

  private chat({ messages, inputs }: Conversation, location: () => string): EncodedRow {
    if (this.settings.loss === 'completion')
      throw noLoss(location, 'prompt and completion', { messages });
    const assistantMask = this.settings.loss === 'assistant';
    const { ids, assistant } = this.conversation(messages, { ...inputs, assistantMask }, location);
    return assistant === null ? plain(ids) : maskIds(ids, (i) => assistant[i] === 1);
  }

  private conversation(
    messages: readonly ChatMessage[],
    given: EncoderInputs,
    location: () => string,
  ) {
    try {
      return this.tokenizer.applyChatTemplate(messages, given);
    } catch (cause) {
      const { message } = cause as Error;
      throw dataError(location(), 'messages that the chat template takes', message);
    }
  }

  private completion(row: Row, location: () => string): EncodedRow {
    const { prompt, completion } = row;
    let before: Int32Array;
    let ids: Int32Array;
    if (typeof prompt === 'string' && typeof completion === 'string') {
      before = this.tokenizer.encode(prompt);
      ids = this.withEnd(this.tokenizer.encode(prompt + completion));
    } else if (Array.isArray(prompt) && Array.isArray(completion)) {
      const inputs = inputsIn(row, location);
      const promptMessages = messagesOf(prompt, location);
      ids = this.conversation(
        [...promptMessages, ...messagesOf(completion, location)],
        inputs,
        location,
      ).ids;
      before = this.conversation(
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
    if (this.settings.loss === 'all') return plain(ids);
    if (this.settings.loss === 'assistant')
      throw noLoss(location, 'messages', { prompt, completion });
    const isBlurred = before.some((id, i) => id !== ids[i]);
    return { ...maskIds(ids, (i) => i >= before.length), isBlurred };
  }

  /** Tokens with a 0 in a mask are not learned, with labels too. Source: TRL's collator. */
  private tokens(row: Row, location: () => string): EncodedRow {
    const { vocabSize } = this.tokenizer;
    const ids = integers(row.input_ids, () => `${location()}, input_ids`, vocabSize);
    const forEach = (key: string, below: number, other?: number): Int32Array | null => {
      if (!isGiven(row, key)) return null;
      const given = integers(row[key], () => `${location()}, ${key}`, below, other);
      if (given.length === ids.length) return given;
      throw dataError(location(), `${ids.length} ${key}, one for each token`, `${given.length}`);
    };
    const labels = forEach('labels', vocabSize, IGNORED) ?? ids;
    const completion = forEach('completion_mask', 2);
    const masks = [this.settings.loss === 'all' ? null : completion, forEach('assistant_masks', 2)];
    const isLeftOut = (i: number): boolean => masks.some((mask) => mask?.[i] === 0);
    const learned = labels.map((label, i) => (isLeftOut(i) ? IGNORED : label));
    return { ids, labels: learned, isBlurred: false };
  }

  /** Documents end with the end token. */
  private withEnd(ids: Int32Array): Int32Array {
    const { eosId } = this.tokenizer;
    if (eosId === null || ids.at(-1) === eosId) return ids;
    return Int32Array.from([...ids, eosId]);
  }
}

const plain = (ids: Int32Array): EncodedRow => ({ ids, labels: ids.slice(), isBlurred: false });

function maskIds(ids: Int32Array, isLearned: (i: number) => boolean): EncodedRow {
  const labels = ids.map((id, i) => (isLearned(i) ? id : IGNORED));
  return { ids, labels, isBlurred: false };
}

/** Tokens, or `other`. Parquet's 64-bit integers are bigints. */
function integers(
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

/** Alpaca's rows have keys of their own. */
function hintFor(row: Row): string {
  if (row.instruction === undefined) {
    return 'Name the key of the text with `textKey` (--dataset_text_field).';
  }
  return 'Write rows { instruction, input, output } as { prompt, completion }, or as messages of a user and an assistant.';
}

function noLoss(location: () => string, keys: string, row: Row): Error {
  const hint = 'Leave `loss` (--completion_only_loss) out for rows without these keys.';
  return dataError(location(), `a row with ${keys}, required by the loss`, formatValue(row), hint);
}
