// Streams without a token for long: comments keep proxies from closing them.
import type { ServerResponse } from 'node:http';
import { type Answer, answerOpener } from '../../lib/serve/answer.js';
import { TextFormat } from '../../lib/serve/answer-format.js';
import { ApiError } from '../../lib/serve/api-error.js';
import { tokenizer } from './fake-engine.js';

beforeEach(() => jest.useFakeTimers());
afterEach(() => jest.useRealTimers());

/** A response that records its writes. */
class Kept {
  readonly written: string[] = [];
  status = 0;
  writableLength = 0;
  writableEnded = false;
  destroyed = false;
  headersSent = false;
  writeHead(status: number): void {
    this.status = status;
    this.headersSent = true;
  }
  write(text: string): void {
    this.written.push(text);
  }
  end(text?: string): void {
    if (text) this.written.push(text);
    this.writableEnded = true;
  }
}

function answerTo(kept: Kept, stream = true): Answer {
  return answerOpener(new TextFormat(tokenizer))({
    response: kept as unknown as ServerResponse,
    delivery: { stream, includeUsage: true, tokenIds: false },
    choices: 1,
    model: 'm',
    promptTokens: 1,
    maxUnread: 1024,
    overflow: () => {},
  });
}

const usage = { promptTokens: 1, completionTokens: 1, cachedTokens: 0 };
const part = { text: 'a', tokens: null, logprobs: null, finishReason: null, offset: 0 };
const comments = ({ written }: Kept): string[] => written.filter((text) => text.startsWith(':'));

test('a comment is sent after every 15 s without an event, from the start', () => {
  const kept = new Kept();
  const answer = answerTo(kept);
  jest.advanceTimersByTime(14_999);
  expect([kept.status, kept.written]).toEqual([0, []]);
  jest.advanceTimersByTime(1);
  expect([kept.status, kept.written]).toEqual([200, [': waiting\n\n']]);
  jest.advanceTimersByTime(10_000);
  answer.part(0, part);
  jest.advanceTimersByTime(14_999);
  expect(comments(kept)).toHaveLength(1);
  jest.advanceTimersByTime(30_001);
  expect(comments(kept)).toHaveLength(4);
  answer.end(usage);
  expect(kept.written.at(-1)).toBe('data: [DONE]\n\n');
  jest.advanceTimersByTime(60_000);
  expect(comments(kept)).toHaveLength(4);
});

test('an error after a comment is sent as the last event', () => {
  const kept = new Kept();
  const answer = answerTo(kept);
  jest.advanceTimersByTime(15_000);
  answer.fail(new ApiError(503, 'odd'));
  expect(kept.written.at(-1)).toMatch(/^data: .*"odd"/);
  expect(kept.writableEnded).toBe(true);
  jest.advanceTimersByTime(60_000);
  expect(comments(kept)).toHaveLength(1);
});

test('slow readers and complete answers get no comments', () => {
  const slow = new Kept();
  answerTo(slow).part(0, part);
  slow.writableLength = 100;
  const keptRows = new Kept();
  const answer = answerTo(keptRows, false);
  jest.advanceTimersByTime(60_000);
  expect([comments(slow), keptRows.written]).toEqual([[], []]);
  answer.end(usage);
  expect(keptRows.status).toBe(200);
  expect(jest.getTimerCount()).toBeLessThan(2);
});
