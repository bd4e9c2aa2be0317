// The entry of a pool thread in tests: it doubles numbers, and fails on demand.
import { DsError } from '../../lib/errors.js';
import { answerQuestions } from '../../lib/runtime/thread-pool.js';

function double(question: number | string): number | Promise<number> {
  if (typeof question === 'number') return 2 * question;
  if (question === 'end') process.exit(3);
  if (question === 'end soon') setTimeout(() => process.exit(3), 1);
  if (question === 'end soon') return 0;
  if (question === 'grow') for (let all: object = {}; ; ) all = { all };
  if (question === 'hang') return new Promise(() => {});
  if (question === 'odd') throw new TypeError('odd');
  throw new DsError({ code: 'DS_DATA', op: 'doubling', expected: 'a number', got: question });
}

answerQuestions(
  double,
  () => [],
  () => ({ code: 'DS_INTERNAL', op: 'doubling', expected: 'an answer' }),
);
