// Parses POST /v1/chat/completions.
import type { JsonObject } from '../../types/json.js';
import type { Format } from '../inference/grammar/format.js';
import { formatValue } from '../runtime/format-value.js';
import { answerOpener } from './answer.js';
import { ChatFormat } from './answer-format.js';
import { ApiError, invalidError } from './api-error.js';
import { parseMessages } from './chat-messages.js';
import type { QueueClient } from './fair-queue.js';
import { type FormatField, readFormatField } from './format-fields.js';
import { type ParsedRequest, readDelivery, readOptions, TOP_LOGPROBS } from './parsed-request.js';
import type { ChatPromptOptions, PromptReader } from './prompt-reader.js';
import { RequestFields } from './request-fields.js';
import type { ServedModel } from './served-model.js';
import { type CallPlan, callPlan, readTools, type ToolRequest } from './tools.js';
import { requireSupported } from './unsupported.js';

/** Values of OpenAI's `reasoning_effort`. */
const EFFORTS = ['none', 'minimal', 'low', 'medium', 'high', 'xhigh'];

/** Parses the request. Throws 400, naming the wrong field. */
export function readChat(body: JsonObject, served: ServedModel): ParsedRequest {
  const fields = new RequestFields(body);
  const { prompt, tools } = readPrompt(fields, served);
  requireSupported(fields);
  const { options, requestedTokens, requestedField } = readOptions(fields, served);
  const plan = callPlan(served.forms, tools);
  const requestedFormat = readFormatField(fields, served);
  const formatField = strictCallsFormat(served, tools, plan) ?? requestedFormat;
  const parsed: ParsedRequest = {
    model: fields.text('model') ?? null,
    options: {
      ...(requestedFormat && { format: requestedFormat.format }),
      ...(plan?.format && { format: { schema: plan.format } }),
      ...options,
      logprobs: readLogprobs(fields),
      beginsText: !continuesLast(fields),
      ...(plan && { visibleTokens: plan.visibleTokens }),
    },
    requestedTokens,
    requestedField,
    plan,
    formatField,
    delivery: readDelivery(fields, served),
    open: answerOpener(new ChatFormat(served.tokenizer)),
    promptField: 'messages',
    echo: null,
    prompts: async (queueClient) => [
      constrainAnswer(served, tools, parsed, await prompt(queueClient)),
    ],
  };
  fields.requireKnown();
  return parsed;
}

/**
 * Returns the format of strict calls, so that it can be compiled before the answer starts; null
 * without strict tools.
 */
function strictCallsFormat(
  { forms }: ServedModel,
  { tools }: ToolRequest,
  plan: CallPlan | null,
): FormatField | null {
  if (plan?.format) return { format: { schema: plan.format }, field: 'tools' };
  const strict = tools.filter((tool) => tool.function.strict);
  const format = forms.answerFormat<Format>([], { format: null, tools: strict });
  return format && { format, field: 'tools' };
}

/**
 * Constrains the whole answer by a grammar, which depends on the end of the prompt. Returns the
 * prompt. A forced call starts at once, without reasoning.
 */
function constrainAnswer(
  { forms }: ServedModel,
  { forced, tools, isSingle }: ToolRequest,
  parsed: ParsedRequest,
  tokens: number[],
): number[] {
  const { format = null } = parsed.options;
  if (forced || (forms.family?.isWhole && format)) {
    return format ? [...tokens, ...forms.opening(tokens, forced !== null)] : tokens;
  }
  const answerFormat = forms.answerFormat(tokens, { format, tools, isSingle });
  if (answerFormat) parsed.options.format = answerFormat;
  // The text after the reasoning is exactly the text of the format.
  if (format && parsed.plan) parsed.plan.form.isTrimmed = true;
  return tokens;
}

/** The tools of a request, and a function that tokenizes its messages. */
interface ChatPrompt {
  prompt: (queueClient: QueueClient) => Promise<number[]>;
  tools: ToolRequest;
}

/** Parses messages and tools. Throws 400 with the name of the wrong field. */
export function readPrompt(fields: RequestFields, served: ServedModel): ChatPrompt {
  const reader = requireTemplate(served);
  const tools = readTools(fields, reader.knowsTools);
  const messages = parseMessages(fields.any('messages'));
  const toolOptions = tools.tools.length > 0 ? { tools: tools.tools } : {};
  const options = { ...readChatOptions(fields), ...toolOptions };
  return { prompt: (queueClient) => reader.encodeChat(messages, options, queueClient), tools };
}

function requireTemplate({ canChat, reader }: ServedModel): PromptReader {
  if (canChat && reader) return reader;
  const message =
    'messages: expected a model with a chat template, got a model without one. Use /v1/completions, or start the server with --chat-template.';
  throw new ApiError(400, message, { param: 'messages', code: 'no_chat_template' });
}

function readLogprobs(fields: RequestFields): number | undefined {
  const isRequested = fields.flag('logprobs') ?? false;
  const top = fields.integer('top_logprobs', 0, TOP_LOGPROBS);
  if (top !== undefined && !isRequested) {
    throw invalidError('top_logprobs', '"logprobs": true with it', 'top_logprobs only');
  }
  return isRequested ? (top ?? 0) : undefined;
}

/** Returns whether the answer continues the last message. */
const continuesLast = (fields: RequestFields): boolean =>
  fields.flag('continue_final_message') ?? false;

/** Reads the options of the chat template, under vLLM's names. */
function readChatOptions(fields: RequestFields): ChatPromptOptions {
  const continueFinalMessage = continuesLast(fields);
  const addGenerationPrompt = fields.flag('add_generation_prompt') ?? !continueFinalMessage;
  if (addGenerationPrompt && continueFinalMessage) {
    const expected = 'false with continue_final_message';
    throw invalidError('add_generation_prompt', expected, 'true');
  }
  const variables = { ...readEffort(fields), ...fields.object('chat_template_kwargs') };
  return { addGenerationPrompt, continueFinalMessage, variables };
}

/**
 * Returns the template variables of `reasoning_effort`. The value "none" also turns off thinking in
 * Qwen3, GLM 4.5, SmolLM3 (enable_thinking) and DeepSeek V3.1 (thinking).
 */
function readEffort(fields: RequestFields): Record<string, unknown> {
  const effort = fields.text('reasoning_effort');
  if (effort === undefined) return {};
  if (!EFFORTS.includes(effort)) {
    throw invalidError('reasoning_effort', EFFORTS.join(', '), formatValue(effort));
  }
  const off = effort === 'none' ? { enable_thinking: false, thinking: false } : {};
  return { reasoning_effort: effort, ...off };
}
