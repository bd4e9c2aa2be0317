// engine.chat(): answers a conversation and runs the functions that the model calls.
import { randomUUID } from 'node:crypto';
import { formatValue } from '../runtime/format-value.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';
import { camelCase } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { errorMessage } from '../runtime/system-error.js';
import type { ChatMessage, Tokenizer } from '../text/index.js';
import { AnswerForms, type ParserNames } from '../text/tool-calls/answer-forms.js';
import { AnswerReader, type FunctionTool } from '../text/tool-calls/answer-reader.js';
import { encodeConversation } from './chat-prompt.js';
import type { FinishReason, GenerationPiece } from './continuation.js';
import { type Format, readFormat, type StandardSchema } from './grammar/format.js';
import type { GenerateRequest } from './request.js';

/** A function that the model may call. */
export interface ChatTool {
  /** Name of the function in calls. */
  name: string;
  /** Describes the function to the model. */
  description?: string;
  /** A JSON schema or a Standard Schema (zod) of the arguments. Default: any object. */
  parameters?: object;
  /**
   * Returns the result, a text or a value for JSON. The model reads a thrown error as the result.
   */
  run: (input: never, call: { id: string; signal: AbortSignal | null }) => unknown;
}

/** Events of a conversation, in order. */
export type ChatEvent =
  | { type: 'content' | 'reasoning'; text: string }
  | { type: 'call'; id: string; name: string; arguments: string }
  | { type: 'result'; id: string; name: string; content: string; isError: boolean };

type Sampling = Omit<
  GenerateRequest,
  | ('prompt' | 'messages' | 'tools' | 'n' | 'beginsText' | 'visibleTokens' | 'onStart')
  | ('numBeams' | 'lengthPenalty' | 'earlyStopping')
>;

/** A conversation to be continued. */
export interface ChatRequest extends Sampling, Partial<ParserNames> {
  /** The conversation so far. */
  messages: readonly ChatMessage[];
  /** Functions that the model may call. Default: none. */
  tools?: readonly ChatTool[];
  /** Maximum number of answers of the model. Default: 8. */
  maxRounds?: number;
  /** A Jinja text in place of the tokenizer's chat template. */
  chatTemplate?: string;
  /** Receives texts, calls and results as they come. */
  onEvent?: (event: ChatEvent) => void;
}

/** Result of engine.chat(). */
export interface ChatResult {
  /** The text of the last answer. */
  content: string;
  /** The reasoning of the last answer. */
  reasoning: string;
  /** All messages: the messages of the request, answers with calls, and results. */
  messages: ChatMessage[];
  /**
   * Why the last answer ended. "rounds": `maxRounds` was reached while the model called functions.
   */
  finishReason: Exclude<FinishReason, 'abort'> | 'rounds';
  /** Answers of the model. */
  rounds: number;
  /** Tokens of all prompts. */
  promptTokens: number;
  /** Tokens of all answers. */
  generatedTokens: number;
}

/** The part of an engine that a conversation uses. */
interface ChatEngine {
  readonly tokenizer: Tokenizer | null;
  /** Maximum number of tokens of a prompt and its answer. */
  readonly maxTokens: number;
  stream(request: GenerateRequest): AsyncIterable<GenerationPiece>;
}

const OP = 'InferenceEngine.chat';
const ROUNDS = 8;

interface ReadTool extends ChatTool {
  described: FunctionTool;
}

interface Call {
  id: string;
  name: string;
  arguments: string;
}

interface Answer {
  content: string;
  reasoning: string;
  calls: Call[];
  finishReason: FinishReason;
}

/**
 * Answers the conversation. Runs the calls of each answer concurrently, until an answer has no
 * calls. Rejects with DS_ARGUMENT for invalid options, with the errors of generate(), and with the
 * reason of an aborted signal. The model gets the errors of functions.
 */
export async function chat(engine: ChatEngine, request: ChatRequest): Promise<ChatResult> {
  const { messages, tools = [], maxRounds = ROUNDS, chatTemplate, onEvent, ...rest } = request;
  const { toolParser = 'auto', reasoningParser = 'auto', variables, ...sampling } = rest;
  requireInteger(`${OP} maxRounds`, maxRounds, 1);
  const { tokenizer } = engine;
  const checkedTools = readTools(tools);
  const template = chatTemplate ?? tokenizer?.templateText('default') ?? '';
  const forms = new AnswerForms(tokenizer, template, { toolParser, reasoningParser });
  const history: ChatMessage[] = Array.isArray(messages) ? [...messages] : [];
  const counts = { promptTokens: 0, generatedTokens: 0 };
  const report = (event: ChatEvent): void => onEvent?.(event);
  for (let rounds = 1; ; ++rounds) {
    const described = checkedTools.map((tool) => tool.described);
    const conversation = { messages: history, tools: described, ...(variables && { variables }) };
    const current = chatTemplate === undefined ? conversation : { ...conversation, template };
    const prompt = Array.from(encodeConversation(OP, tokenizer, current));
    counts.promptTokens += prompt.length;
    const turn = { prompt, forms, tools: described, sampling };
    const answer = await generateAnswer(engine, turn, counts, report);
    history.push(answerToMessage(answer));
    const { content, reasoning, calls, finishReason } = answer;
    const isOver = calls.length === 0 || finishReason !== 'stop';
    if (isOver || rounds === maxRounds) {
      const reason = isOver ? (finishReason as 'stop' | 'length') : 'rounds';
      return { content, reasoning, messages: history, finishReason: reason, rounds, ...counts };
    }
    const { signal = null } = sampling;
    history.push(
      ...(await Promise.all(calls.map((call) => runCall(call, checkedTools, signal, report)))),
    );
    signal?.throwIfAborted();
  }
}

interface Turn {
  prompt: number[];
  forms: AnswerForms;
  tools: readonly FunctionTool[];
  sampling: { format?: Format };
}

/**
 * Generates one answer. Parses its text into content, reasoning and calls, and adds its tokens to
 * `counts`.
 */
async function generateAnswer(
  engine: ChatEngine,
  { prompt, forms, tools, sampling }: Turn,
  counts: { generatedTokens: number },
  report: (event: ChatEvent) => void,
): Promise<Answer> {
  const family = tools.length > 0 || forms.family?.isWhole ? forms.family : null;
  const form = { family, reasoning: forms.reasoning, tools };
  const visibleTokens = forms.visibleTokens(form);
  const { format: requestedFormat = null } = sampling;
  const isFormatted = family?.isWhole && requestedFormat !== null;
  const format = isFormatted
    ? requestedFormat
    : forms.answerFormat(prompt, { format: requestedFormat, tools });
  const answerForm = { ...form, isTrimmed: requestedFormat !== null };
  const reader = new AnswerReader(answerForm, forms.promptEnd(prompt, visibleTokens));
  const answer: Answer = { content: '', reasoning: '', calls: [], finishReason: 'stop' };
  const formatOption = format ? { format } : {};
  const limited = limitAnswer(sampling, engine.maxTokens - prompt.length);
  const request = { ...limited, ...formatOption, prompt, beginsText: true, visibleTokens };
  for await (const { text, tokens, finishReason } of engine.stream(request)) {
    counts.generatedTokens += tokens.length;
    const events = reader.push(text);
    if (finishReason !== null) events.push(...reader.end());
    for (const event of events) {
      if (event.type === 'call') {
        const id = `call${randomUUID().replaceAll('-', '')}`.slice(0, family?.idLength ?? 32);
        answer.calls.push({ id, name: event.name, arguments: '' });
      } else if (event.type === 'arguments') {
        const call = answer.calls[event.index];
        if (call) call.arguments += event.text;
      } else {
        answer[event.type] += event.text;
        report({ type: event.type, text: event.text });
      }
    }
    if (finishReason !== null) answer.finishReason = finishReason;
  }
  const { signal } = sampling as { signal?: AbortSignal };
  if (answer.finishReason === 'abort') signal?.throwIfAborted();
  for (const call of answer.calls) report({ type: 'call', ...call });
  return answer;
}

/** Returns `sampling`; without a limit of new tokens, with all tokens that fit: `room`. */
function limitAnswer(sampling: Sampling, room: number): Sampling {
  const isLimit = ([name, value]: [string, unknown]): boolean =>
    value !== undefined && camelCase(name) === 'maxNewTokens';
  if (Object.entries(sampling).some(isLimit)) return sampling;
  return { ...sampling, maxNewTokens: Math.max(1, room) };
}

function answerToMessage({ content, reasoning, calls }: Answer): ChatMessage {
  const tool_calls = calls.map(({ id, name, arguments: text }) => {
    const args = parseJson(text);
    return { id, type: 'function', function: { name, arguments: isObject(args) ? args : {} } };
  });
  return {
    role: 'assistant',
    content,
    ...(reasoning !== '' && { reasoning_content: reasoning }),
    ...(tool_calls.length > 0 && { tool_calls }),
  };
}

/**
 * Runs a call and returns its result as a message. A thrown error becomes the result, which the
 * model reads.
 */
async function runCall(
  { id, name, arguments: text }: Call,
  tools: readonly ReadTool[],
  signal: AbortSignal | null,
  report: (event: ChatEvent) => void,
): Promise<ChatMessage> {
  let content: string;
  let isError = false;
  try {
    const tool = tools.find((tool) => tool.name === name);
    if (!tool) {
      const names = tools.map((tool) => tool.name).join(', ');
      throw new Error(`there is no function "${name}"; the functions are ${names}`);
    }
    const value = await tool.run((await parseInput(tool, text)) as never, { id, signal });
    content = typeof value === 'string' ? value : (JSON.stringify(value) ?? 'null');
  } catch (error) {
    isError = true;
    content = `Error: ${errorMessage(error)}`;
  }
  report({ type: 'result', id, name, content, isError });
  return { role: 'tool', tool_call_id: id, name, content };
}

/** Parses the arguments of a call. A Standard Schema validates and converts them. */
async function parseInput({ parameters }: ReadTool, text: string): Promise<unknown> {
  const input = parseJson(text);
  if (!isObject(input)) throw new Error(`the arguments are no JSON object: ${text.slice(0, 200)}`);
  const standard = standardProps(parameters);
  if (!standard?.validate) return input;
  const { value, issues } = await standard.validate(input);
  if (!issues) return value;
  throw new Error(issues.map(({ message }) => message).join('; '));
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null; // The caller treats null as no object.
  }
}

/** Source: https://standardschema.dev. */
interface StandardProps {
  validate?: (value: unknown) => ValidationResult | Promise<ValidationResult>;
}
interface ValidationResult {
  value?: unknown;
  issues?: readonly { message: string }[];
}

const standardProps = (schema: object | undefined): StandardProps | undefined =>
  (schema as { '~standard'?: StandardProps } | undefined)?.['~standard'];

function readTools(tools: readonly ChatTool[]): ReadTool[] {
  if (!Array.isArray(tools)) throw valueError(`${OP} tools`, 'a list of functions', tools);
  return tools.map((tool: ChatTool, i) => {
    const op = `${OP} tools[${i}]`;
    if (!isObject(tool) || typeof tool.name !== 'string' || typeof tool.run !== 'function') {
      const expected = '{ name, description, parameters, run }';
      throw argumentError(op, expected, formatValue(tool), '`run` is the function.');
    }
    const { name, description, parameters = { type: 'object' } } = tool;
    const schema = standardProps(parameters) ? toJsonSchema(op, parameters) : parameters;
    const described = { name, ...(description && { description }), parameters: schema };
    return { ...tool, described: { type: 'function', function: described } };
  });
}

function toJsonSchema(op: string, parameters: object): object {
  const { source } = readFormat(`${op} parameters`, parameters as StandardSchema);
  return source.kind === 'schema' ? (source.schema as object) : {};
}
