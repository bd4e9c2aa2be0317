// Tokens of a conversation, as the chat template writes it.
import { argumentError } from '../runtime/input-errors.js';
import type { ChatMessage, Tokenizer } from '../text/index.js';
import { callHistory } from '../text/tool-calls/history.js';

/** A conversation with the inputs of its template. */
export interface Conversation {
  messages: readonly ChatMessage[];
  tools?: readonly object[];
  variables?: Record<string, unknown>;
  /** A Jinja text in place of the tokenizer's template. */
  template?: string;
}

/**
 * Returns the tokens of a prompt that an answer continues. Throws DS_ARGUMENT without a tokenizer
 * or a template, and if the template does not write tools or calls. Throws DS_DATA if it refuses
 * the messages.
 */
export function chatPrompt(
  op: string,
  tokenizer: Tokenizer | null,
  { messages, tools = [], variables = {}, template }: Conversation,
): Int32Array {
  if (!tokenizer) {
    const hint = 'initInference(folder) reads the tokenizer in the folder of the model.';
    throw argumentError(
      `${op} messages`,
      'a prompt, for an engine without a tokenizer',
      'messages',
      hint,
    );
  }
  const named = tools.length > 0 ? { tools } : {};
  const options = { addGenerationPrompt: true, variables, ...named, ...(template && { template }) };
  const render = (chat: readonly ChatMessage[]): string => tokenizer.chatText(chat, options);
  const text = template ?? tokenizer.templateText('tool_use') ?? tokenizer.templateText('default');
  if (tools.length > 0 && text && !text.includes('tools')) {
    throw argumentError(
      `${op} tools`,
      'none, for a chat template that does not read tools',
      'tools',
    );
  }
  const list = Array.isArray(messages) ? messages : [];
  const history = callHistory(list, render);
  if ('lost' in history) {
    const expected = 'texts, for a chat template that does not write calls';
    throw argumentError(`${op} messages[${history.lost}]`, expected, 'tool_calls');
  }
  const ownMessages = Array.isArray(messages) ? history.messages : messages;
  return tokenizer.applyChatTemplate(ownMessages, options).ids;
}
