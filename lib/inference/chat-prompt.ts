// Encodes a conversation with the chat template.
import { argumentError } from '../runtime/input-errors.js';
import type { ChatMessage, Tokenizer } from '../text/index.js';
import { renderableHistory } from '../text/tool-calls/history.js';

/** A conversation with the inputs of its template. */
export interface Conversation {
  messages: readonly ChatMessage[];
  tools?: readonly object[];
  variables?: Record<string, unknown>;
  /** Jinja text that replaces the tokenizer's template. */
  template?: string;
}

/**
 * Returns the tokens of a prompt that ends where the answer starts. Throws DS_ARGUMENT without a
 * tokenizer or a template, and if the template does not render tools or calls. Throws DS_DATA if
 * the template refuses the messages.
 */
export function encodeConversation(
  op: string,
  tokenizer: Tokenizer | null,
  { messages, tools = [], variables = {}, template }: Conversation,
): Int32Array {
  if (!tokenizer) {
    const hint = 'initInference(folder) reads the tokenizer in the folder of the model.';
    throw argumentError(
      `${op} messages`,
      'a prompt of tokens, because the engine has no tokenizer',
      'messages',
      hint,
    );
  }
  const toolOptions = tools.length > 0 ? { tools } : {};
  const options = {
    addGenerationPrompt: true,
    variables,
    ...toolOptions,
    ...(template && { template }),
  };
  const render = (chat: readonly ChatMessage[]): string => tokenizer.chatText(chat, options);
  const text = template ?? tokenizer.templateText('tool_use') ?? tokenizer.templateText('default');
  if (tools.length > 0 && text && !text.includes('tools')) {
    throw argumentError(
      `${op} tools`,
      'no tools, because the chat template does not read them',
      'tools',
    );
  }
  const list = Array.isArray(messages) ? messages : [];
  const history = renderableHistory(list, render);
  if ('lost' in history) {
    const expected = 'no tool_calls, because the chat template does not write them';
    throw argumentError(`${op} messages[${history.lost}]`, expected, 'tool_calls');
  }
  const rendered = Array.isArray(messages) ? history.messages : messages;
  return tokenizer.applyChatTemplate(rendered, options).ids;
}
