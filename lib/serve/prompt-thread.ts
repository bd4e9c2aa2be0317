// Entry of a worker thread that tokenizes prompts.
import { workerData } from 'node:worker_threads';

import { answerQuestions } from '../runtime/thread-pool.js';
import { type ChatMessage, Tokenizer } from '../text/index.js';
import { findLostMessage } from '../text/lost-messages.js';
import { renderableHistory } from '../text/tool-calls/history.js';
import type { PromptAnswer, PromptQuestion, PromptSetup } from './prompt-reader.js';

const { folder, chatTemplate: template, max, characters } = workerData as PromptSetup;
let tokenizer: Tokenizer | null = null;
try {
  tokenizer = Tokenizer.fromPretrained(folder);
} catch {
  // The first question reports the error.
}

function encode(question: PromptQuestion): PromptAnswer {
  tokenizer ??= Tokenizer.fromPretrained(folder);
  if ('text' in question) {
    const { text, addSpecialTokens = true } = question;
    return { tokens: tokenizer.encode(text, { addSpecialTokens }) };
  }
  if ('decode' in question) return { text: tokenizer.decode(question.decode) };
  const { options } = question;
  const loaded = tokenizer;
  const render = (chat: readonly ChatMessage[]) => loaded.chatText(chat, { ...options, template });
  const history = renderableHistory(question.messages, render);
  if ('lost' in history) return { lostCalls: history.lost };
  const { messages } = history;
  const text = render(messages);
  if (text.length > characters) return { characters: text.length };
  const lost = findLostMessage(messages, text, render);
  if (lost >= 0) return { lost };
  const minTokens = tokenizer.fewestTokens(text);
  return minTokens > max
    ? { minTokens }
    : { tokens: tokenizer.encode(text, { addSpecialTokens: false }) };
}

answerQuestions(
  encode,
  (answer) => ('tokens' in answer ? [answer.tokens.buffer as ArrayBuffer] : []),
  () => ({ code: 'DS_INTERNAL', op: 'encoding a prompt', expected: 'tokens' }),
);
