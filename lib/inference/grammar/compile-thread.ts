// Entry of a worker thread that compiles formats.
import { answerQuestions } from '../../runtime/thread-pool.js';
import type { FormatSource } from './format.js';
import { compileRules } from './rules.js';

answerQuestions(
  (source: FormatSource) => compileRules(source),
  ({ buffer }) => [buffer],
  () => ({ code: 'DS_INTERNAL', op: 'format', expected: 'the rules of a format' }),
);
