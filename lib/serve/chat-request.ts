// POST /v1/chat/completions: a conversation to be answered.
import type { JsonObject } from '../../types/json.js';
import type { Format } from '../inference/grammar/format.js';
import { formatValue } from '../runtime/format-value.js';
import { answersIn } from './answer.js';
import { ChatFormat } from './answer-format.js';
import { ApiError, invalid } from './api-error.js';
import { messagesOf } from './chat-messages.js';
import type { QueueClient } from './fair-queue.js';
import { type FormatField, formatOf } from './format-fields.js';
import { type ParsedRequest, readDelivery, readOptions, TOP_LOGPROBS } from './parsed-request.js';
import type { ChatPromptOptions, PromptReader } from './prompt-reader.js';
import { RequestFields } from './request-fields.js';
import type { ServedModel } from './served-model.js';
import { type CallPlan, callPlan, readTools, type ToolRequest } from './tools.js';
import { requireSupported } from './unsupported.js';

/** Values of `reasoning_effort` in OpenAI's API. */
const EFFORTS = ['none', 'minimal', 'low', 'medium', 'high', 'xhigh'];

/** Throws 400, naming the field that is wrong. */
export function readChat(body: JsonObject, served: ServedModel): ParsedRequest {
  const fields = new RequestFields(body);
  const { prompt, tools } = readPrompt(fields, served);
  requireSupported(fields);
  const { options, asked, askedField } = readOptions(fields, served);
  const plan = callPlan(served.forms, tools);
  const given = formatOf(fields, served);
  const formatField = fieldOf(served, tools, plan) ?? given;
  const parsed: ParsedRequest = {
    model: fields.text('model') ?? null,
    options: {
      ...(given && { format: given.format }),
      ...(plan?.format && { format: { schema: plan.format } }),
      ...options,
      logprobs: logprobs(fields),
      beginsText: !continues(fields),
      ...(plan && { visibleTokens: plan.visibleTokens }),
    },
    asked,
    askedField,
    plan,
    formatField,
    delivery: readDelivery(fields, served),
    open: answersIn(new ChatFormat(served.tokenizer)),
    promptField: 'messages',
    echo: null,
    prompts: async (asker) => [heldPrompt(served, tools, parsed, await prompt(asker))],
  };
  fields.requireKnown();
  return parsed;
}

/** The format of calls that the server must check before the answer; null without one. */
function fieldOf(
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
 * Sets the format of the whole answer, which depends on the end of the prompt. Returns the prompt.
 * A forced call begins at once, without reasoning.
 */
function heldPrompt(
  { forms }: ServedModel,
  { forced, tools, isSingle }: ToolRequest,
  parsed: ParsedRequest,
  tokens: number[],
): number[] {
  const { format = null } = parsed.options;
  if (forced || (forms.family?.isWhole && format)) {
    return format ? [...tokens, ...forms.opening(tokens, forced !== null)] : tokens;
  }
  const whole = forms.answerFormat(tokens, { format, tools, isSingle });
  if (whole) parsed.options.format = whole;
  // The text after the reasoning is exactly the text of the format.
  if (format && parsed.plan) parsed.plan.form.isTrimmed = true;
  return tokens;
}

/** The messages of a request as a function that tokenizes them, and its tools. */
interface ChatPrompt {
  prompt: (asker: QueueClient) => Promise<number[]>;
  tools: ToolRequest;
}

/** Throws 400 with the name of the wrong field. */
export function readPrompt(fields: RequestFields, served: ServedModel): ChatPrompt {
  const reader = requireTemplate(served);
  const tools = readTools(fields, reader.knowsTools);
  const messages = messagesOf(fields.any('messages'));
  const named = tools.tools.length > 0 ? { tools: tools.tools } : {};
  const options = { ...chatOptions(fields), ...named };
  return { prompt: (asker) => reader.chat(messages, options, asker), tools };
}

function requireTemplate({ canChat, reader }: ServedModel): PromptReader {
  if (canChat && reader) return reader;
  const message =
    'messages: expected a model with a chat template, got a model without one. Use /v1/completions, or start the server with --chat-template.';
  throw new ApiError(400, message, { param: 'messages', code: 'no_chat_template' });
}

function logprobs(fields: RequestFields): number | undefined {
  const wanted = fields.flag('logprobs') ?? false;
  const top = fields.integer('top_logprobs', 0, TOP_LOGPROBS);
  if (top !== undefined && !wanted) {
    throw invalid('top_logprobs', '"logprobs": true with it', 'top_logprobs only');
  }
  return wanted ? (top ?? 0) : undefined;
}

/** Whether the answer continues the last message. */
const continues = (fields: RequestFields): boolean =>
  fields.flag('continue_final_message') ?? false;

/** The names are vLLM's. */
function chatOptions(fields: RequestFields): ChatPromptOptions {
  const continueFinalMessage = continues(fields);
  const addGenerationPrompt = fields.flag('add_generation_prompt') ?? !continueFinalMessage;
  if (addGenerationPrompt && continueFinalMessage) {
    const expected = 'false with continue_final_message';
    throw invalid('add_generation_prompt', expected, 'true');
  }
  const variables = { ...effortOf(fields), ...fields.object('chat_template_kwargs') };
  return { addGenerationPrompt, continueFinalMessage, variables };
}

/**
 * The template variables of `reasoning_effort`. "none" also clears the switches of Qwen3, GLM 4.5
 * and SmolLM3 (enable_thinking) and of DeepSeek V3.1 (thinking).
 */
function effortOf(fields: RequestFields): Record<string, unknown> {
  const effort = fields.text('reasoning_effort');
  if (effort === undefined) return {};
  if (!EFFORTS.includes(effort)) {
    throw invalid('reasoning_effort', EFFORTS.join(', '), formatValue(effort));
  }
  const off = effort === 'none' ? { enable_thinking: false, thinking: false } : {};
  return { reasoning_effort: effort, ...off };
}
