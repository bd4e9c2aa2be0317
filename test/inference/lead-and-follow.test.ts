// What the first rank tells the others while it has nothing to do, and how they take it.
import { Follow } from '../../lib/inference/ranks/follow.js';
import { digestOf, Lead } from '../../lib/inference/ranks/lead.js';
import type { Message, StepLine } from '../../lib/inference/ranks/step-line.js';
import { type GenerateRequest, readRequest } from '../../lib/inference/request.js';
import type { StepBatch } from '../../lib/inference/step-batch.js';
import type { StepLoop } from '../../lib/inference/step-loop.js';
import type { StepRunner } from '../../lib/inference/step-runner.js';

const batch = { numbers: new Int32Array(2) } as StepBatch;
const idle = { isBusy: false, close: async () => {} } as StepLoop;

test('ranks that follow hear of the first one while it is idle, and of its end', async () => {
  jest.useFakeTimers();
  const told: string[] = [];
  const line = { tell: ({ kind }: Message) => told.push(kind), close: () => {} };
  const lead = new Lead(line as unknown as StepLine, 4000, () => idle);
  jest.advanceTimersByTime(9000);
  expect(told).toEqual([]);
  await lead.follow();
  jest.advanceTimersByTime(2000);
  expect(told).toEqual(['pulse', 'pulse']);
  lead.announce(batch);
  lead.rest();
  lead.rest();
  jest.advanceTimersByTime(2000);
  expect(told.slice(2)).toEqual(['step', 'rest', 'pulse']);
  await lead.close();
  jest.advanceTimersByTime(9000);
  expect(told.slice(5)).toEqual(['end']);
  jest.useRealTimers();
});

test('a follower computes steps, and ends with the first rank', async () => {
  const news: [] = [];
  const messages: Message[] = [
    ...[{ kind: 'pulse' } as const, { kind: 'step', batch, news } as const],
    ...[{ kind: 'rest', news } as const, { kind: 'end', news } as const],
  ];
  const waited: boolean[] = [];
  const next = async (soon: boolean): Promise<Message> => {
    waited.push(soon);
    return messages.shift() as Message;
  };
  const computed: unknown[] = [];
  const dispose = jest.fn();
  const runner = { compute: (given: unknown) => computed.push(given), dispose };
  const line = { next, close: () => {} } as unknown as StepLine;
  const follow = new Follow(1, line, runner as unknown as StepRunner);
  await follow.follow();
  expect(computed).toEqual([batch]);
  // The thread waits for what follows a step, and for nothing else.
  expect(waited).toEqual([false, false, true, false]);
  await follow.close();
  expect(dispose).toHaveBeenCalledTimes(1);
});

test('requests are other ones by whatever may change their texts', () => {
  const limits = {
    ...{ tokenizer: null, vocabSize: 99, maxTokens: 64, minNewTokens: 1, endTokens: [2] },
  };
  const asked = (more: Partial<GenerateRequest>): string =>
    digestOf(readRequest({ prompt: [1, 3], logitBias: new Map([[5, 1]]), ...more }, limits));
  const others: Partial<GenerateRequest>[] = [
    ...[{ stopTokens: [7] }, { ignoreEos: true }, { beginsText: true }, { cacheSalt: 'a' }],
    ...[{ logitBias: new Map([[5, 2]]) }, { topK: 4 }, { n: 2 }, { maxNewTokens: 5 }],
  ];
  expect(new Set([{}, ...others].map(asked)).size).toBe(1 + others.length);
  expect(asked({ seed: 5, signal: new AbortController().signal })).toBe(asked({}));
});
