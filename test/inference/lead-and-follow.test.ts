// Tests the messages from the first rank to the others while it is idle, and how they process them.
import type { GenerationPiece } from '../../lib/inference/continuation.js';
import type { Submitted } from '../../lib/inference/generator.js';
import { FollowerGenerator } from '../../lib/inference/ranks/follow.js';
import { LeaderGenerator, requestDigest } from '../../lib/inference/ranks/lead.js';
import type { Message, RequestEvent, StepChannel } from '../../lib/inference/ranks/step-channel.js';
import {
  type GenerateRequest,
  type ReadRequest,
  readRequest,
} from '../../lib/inference/request.js';
import type { StepBatch } from '../../lib/inference/step-batch.js';
import type { StepLoop } from '../../lib/inference/step-loop.js';
import type { StepRunner } from '../../lib/inference/step-runner.js';

const batch = { numbers: new Int32Array(2) } as StepBatch;
const limits = {
  tokenizer: null,
  vocabSize: 99,
  maxTokens: 64,
  minNewTokens: 1,
  endTokens: [2],
};
const idle = { isBusy: false, close: async () => {} } as StepLoop;

test('following ranks notice an idle leader, and its end', async () => {
  jest.useFakeTimers();
  const reported: string[] = [];
  const channel = { send: ({ kind }: Message) => reported.push(kind), close: () => {} };
  const lead = new LeaderGenerator(channel as unknown as StepChannel, 4000, () => idle);
  jest.advanceTimersByTime(9000);
  expect(reported).toEqual([]);
  await lead.follow();
  jest.advanceTimersByTime(2000);
  expect(reported).toEqual(['heartbeat', 'heartbeat']);
  lead.announce(batch);
  lead.idle();
  lead.idle();
  jest.advanceTimersByTime(2000);
  expect(reported.slice(2)).toEqual(['step', 'idle', 'heartbeat']);
  await lead.close();
  jest.advanceTimersByTime(9000);
  expect(reported.slice(5)).toEqual(['end']);
  jest.useRealTimers();
});

test('a follower computes steps, and ends with the first rank', async () => {
  const events: [] = [];
  const messages: Message[] = [
    { kind: 'heartbeat' } as const,
    { kind: 'step', batch, events } as const,
    { kind: 'idle', events } as const,
    { kind: 'end', events } as const,
  ];
  const waited: boolean[] = [];
  const next = async (soon: boolean): Promise<Message> => {
    waited.push(soon);
    return messages.shift() as Message;
  };
  const computed: unknown[] = [];
  const dispose = jest.fn();
  const runner = { compute: (options: unknown) => computed.push(options), dispose };
  const channel = { next, close: () => {} } as unknown as StepChannel;
  const follow = new FollowerGenerator(1, channel, runner as unknown as StepRunner);
  await follow.follow();
  expect(computed).toEqual([batch]);
  // The thread waits for the message after a step, and for no other.
  expect(waited).toEqual([false, false, true, false]);
  await follow.close();
  expect(dispose).toHaveBeenCalledTimes(1);
});

/** A follower, and a function that sends it messages of the first rank. */
function follower() {
  const waiting: ((message: Message) => void)[] = [];
  const next = () => new Promise<Message>((resolve) => waiting.push(resolve));
  const channel = { next, close: () => {} } as unknown as StepChannel;
  const runner = { compute: () => {}, dispose: () => {} } as unknown as StepRunner;
  const follow = new FollowerGenerator(1, channel, runner);
  const say = async (message: Message) => {
    waiting.shift()?.(message);
    await new Promise((resolve) => setImmediate(resolve));
  };
  return { follow, say, isListening: () => waiting.length > 0 };
}

describe('a request of a following rank', () => {
  const requestOf = (prompt: number[]) => readRequest({ prompt }, limits);
  const piece = { index: 0, text: 'a', tokens: [4] } as unknown as GenerationPiece;
  const events = (number: number, request: ReadRequest): RequestEvent[] => [
    { kind: 'submitted', number, digest: requestDigest(request) },
    { kind: 'piece', number, piece },
    { kind: 'ended', number },
  ];

  /** All pieces, or the error in their place; null if neither arrives. */
  async function outcome({ pieces }: Submitted): Promise<unknown> {
    const got: GenerationPiece[] = [];
    const all = (async () => {
      for await (const generationPiece of pieces) got.push(generationPiece);
      return got;
    })();
    const never = new Promise((resolve) => setTimeout(resolve, 200, null));
    return Promise.race([all.catch((error: unknown) => error), never]);
  }

  test('that equals the request of the first rank gets its text without further waits', async () => {
    const { follow, say, isListening } = follower();
    const handle = follow.submit(requestOf([1, 3]));
    await say({ kind: 'idle', events: events(0, requestOf([1, 3])) });
    expect(await outcome(handle)).toEqual([piece]);
    expect([isListening(), follow.isBusy]).toEqual([false, false]);
  });

  test('may be submitted after the leader has finished it', async () => {
    const { follow, say, isListening } = follower();
    const [first, second, third] = [requestOf([1, 3]), requestOf([1, 5]), requestOf([1, 7])];
    follow.submit(first);
    const all = [...events(0, first), ...events(1, second), ...events(2, third)];
    await say({ kind: 'idle', events: all });
    expect(await outcome(follow.submit(second))).toEqual([piece]);
    const message = expect.stringContaining('the same requests');
    expect(await outcome(follow.submit(second))).toMatchObject({ expected: message });
    expect([isListening(), follow.isBusy]).toEqual([false, false]);
  });

  test('that differs from the request of the leader fails at its first event', async () => {
    const { follow, say } = follower();
    const other = follow.submit(requestOf([1, 4]));
    const [first, ...rest] = events(0, requestOf([1, 3]));
    await say({ kind: 'idle', events: [first as RequestEvent] });
    expect(await outcome(other)).toMatchObject({
      code: 'DS_ARGUMENT',
      op: 'InferenceEngine request',
      expected: expect.stringContaining('the same requests'),
    });
    await say({ kind: 'idle', events: rest });
    expect(follow.isBusy).toBe(false);
  });

  test('fails if the leader fails', async () => {
    const { follow, say } = follower();
    const handle = follow.submit(requestOf([1, 3]));
    const error = { code: 'DS_LIMIT', op: 'x', expected: 'a', got: 'b' } as const;
    const failed = { kind: 'failed', number: 0, error } as unknown as RequestEvent;
    await say({ kind: 'idle', events: [events(0, requestOf([1, 3]))[0] as RequestEvent, failed] });
    expect(await outcome(handle)).toMatchObject({ code: 'DS_LIMIT' });
    expect(follow.isBusy).toBe(false);
  });
});

test('every option that can change a text distinguishes requests', () => {
  const requestText = (more: Partial<GenerateRequest>): string =>
    requestDigest(readRequest({ prompt: [1, 3], logitBias: new Map([[5, 1]]), ...more }, limits));
  const others: Partial<GenerateRequest>[] = [
    { stopTokens: [7] },
    { ignoreEos: true },
    { beginsText: true },
    { cacheSalt: 'a' },
    { logitBias: new Map([[5, 2]]) },
    { topK: 4 },
    { n: 2 },
    { maxNewTokens: 5 },
  ];
  expect(new Set([{}, ...others].map(requestText)).size).toBe(1 + others.length);
  expect(requestText({ seed: 5, signal: new AbortController().signal })).toBe(requestText({}));
});
