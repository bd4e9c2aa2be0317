// The entry of a thread that turns prompts into tokens.
import { workerData } from 'node:worker_threads';

import { answerQuestions } from '../runtime/thread-pool.js';
import { Tokenizer } from '../text/index.js';
import type { PromptQuestion, PromptSetup } from './prompt-reader.js';

const { folder, chatTemplate: template } = workerData as PromptSetup;
let tokenizer: Tokenizer | null = null;

function encode(question: PromptQuestion): Int32Array {
  tokenizer ??= Tokenizer.fromPretrained(folder);
  if ('text' in question) return tokenizer.encode(question.text);
  const { messages, options } = question;
  return tokenizer.applyChatTemplate(messages, { ...options, template }).ids;
}

answerQuestions(
  encode,
  ({ buffer }) => [buffer as ArrayBuffer],
  () => ({ code: 'DS_INTERNAL', op: 'encoding a prompt', expected: 'tokens' }),
);
