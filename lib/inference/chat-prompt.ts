// Encodes a conversation with the chat template.
import { argumentError } from '../runtime/input-errors.js';
import type { ChatMessage, Tokenizer } from '../text/index.js';
import { renderableHistory } from '../text/tool-calls/history.js';
import { readMessages, requireWritten } from './chat-messages.js';

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
 * tokenizer or a template, and if the template leaves out tools, calls, messages or fields. Throws
 * DS_DATA if the template refuses the messages.
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
  const usual = tools.length > 0 ? tokenizer.templateText('tool_use') : null;
  const text = template ?? usual ?? tokenizer.templateText('default');
  if (tools.length > 0 && text && !text.includes('tools')) {
    throw argumentError(
      `${op} tools`,
      'no tools, because the chat template does not read them',
      'tools',
    );
  }
  if (!Array.isArray(messages)) return tokenizer.applyChatTemplate(messages, options).ids;
  const chatTemplate = text ?? '';
  const read = readMessages(op, messages, chatTemplate);
  const history = renderableHistory(read, render);
  if ('lost' in history) {
    const expected = 'no tool_calls, because the chat template does not write them';
    throw argumentError(`${op} messages[${history.lost}]`, expected, 'tool_calls');
  }
  const prompt = render(history.messages);
  requireWritten(op, history.messages, prompt, { render, template: chatTemplate });
  return tokenizer.encode(prompt, { addSpecialTokens: false });
}
