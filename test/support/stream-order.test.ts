// Tests that the stream order checker finds races, and that the library's streams have no race.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { commandFor } from '../comm/rank-child.js';
import { HOST, StreamOrder } from './stream-order.js';

const [A, B] = [7, 8];
const EVENT = 1;
const some = { buffer: 3, from: 0, to: 64 };

/** An order with some bytes written by A. */
function writtenOrder(): StreamOrder {
  const order = new StreamOrder();
  order.begin(A);
  expect(order.use(A, some, true, { what: 'a copy' })).toBeNull();
  return order;
}

test('what another stream has written is read after an event, or after a wait of the host', () => {
  const race = /a read of stream 8 reads bytes 32 to 96.*a copy of stream 7 writes bytes 0 to 64/;
  const reads = (prepare: (order: StreamOrder) => void): string | null => {
    const order = writtenOrder();
    prepare(order);
    order.begin(B);
    return order.use(B, { ...some, from: 32, to: 96 }, false, { what: 'a read' });
  };
  expect(reads(() => {})).toMatch(race);
  expect(reads((order) => order.record(EVENT, A))).toMatch(race);
  const waits: readonly ((order: StreamOrder) => void)[] = [
    (order) => {
      order.record(EVENT, A);
      order.wait(B, EVENT);
    },
    (order) => {
      order.record(EVENT, A);
      expect(order.hasPassed(EVENT)).toBe(false);
      order.wait(HOST, EVENT);
      expect(order.hasPassed(EVENT)).toBe(true);
    },
    (order) => order.follow(HOST, A),
  ];
  for (const wait of waits) expect(reads(wait)).toBeNull();
});

test('an event orders only earlier work, and other bytes need no event', () => {
  const order = new StreamOrder();
  order.record(EVENT, A);
  order.begin(A);
  order.use(A, some, true, { what: 'a copy' });
  order.wait(B, EVENT);
  order.begin(B);
  expect(order.use(B, some, true, { what: 'a fill' })).toMatch(/a fill of stream 8 writes/);
  expect(order.use(B, { ...some, from: 64, to: 80 }, true, { what: 'a fill' })).toBeNull();
  expect(order.use(B, { ...some, buffer: 4 }, true, { what: 'a fill' })).toBeNull();
});

test('reads need no order, and a write after them does', () => {
  const order = writtenOrder();
  for (const reader of [A, B]) {
    order.follow(reader, A);
    order.begin(reader);
    expect(order.use(reader, some, false, { what: 'a read' })).toBeNull();
  }
  order.begin(A);
  expect(order.use(A, some, true, { what: 'a fill' })).toMatch(
    /nothing orders it after this: a read of stream 8/,
  );
});

test('memory is given back after what other streams do with it', () => {
  const order = writtenOrder();
  order.begin(B);
  expect(order.free(B, some.buffer, B, 'the release')).toMatch(/the release of stream 8/);
  const localStreamOrder = writtenOrder();
  localStreamOrder.begin(B);
  // The buffer is allocated again in the order of A, which has read it by then.
  expect(localStreamOrder.free(B, some.buffer, A, 'the release')).toBeNull();
});

/** Runs a program in a process on the CPU, with the checker. */
function runWatched(
  program: string,
  ...words: string[]
): { status: number | null; output: string } {
  const extension = __filename.slice(-3);
  const { status, stdout, stderr } = spawnSync(
    process.execPath,
    [...commandFor(program), ...words],
    {
      encoding: 'utf8',
      timeout: 200_000,
      env: {
        ...process.env,
        DS_NATIVE_BINDING: join(__dirname, `stream-order-addon${extension}`),
        DS_NUM_THREADS: '1',
        NODE_NO_WARNINGS: '1',
      },
    },
  );
  return { status, output: `${stdout}${stderr}` };
}

test('a missing wait fails at the work that needed it', () => {
  const { status, output } = runWatched('../support/racing-process');
  expect(output).toMatch(/race: buffer \d+: Copy, in, of compute reads bytes 0 to 16, and nothing/);
  expect(status).toBe(1);
}, 120_000);

test.each([
  ['a resident update reads a gradient that the exchange between ranks has completed', 'resident'],
  ['tried weights replace weights that backward still reads', 'frozen'],
])(
  '%s: in order',
  (_, label) => {
    const { status, output } = runWatched('../zero/waits-process', label);
    expect([status, output]).toEqual([0, 'no race\n']);
  },
  120_000,
);

test.each([
  ['collectives of one rank', 1, 'a collective of one rank|in 8 bits on one rank'],
  [
    'homes, and attention in host memory',
    1,
    'attention is kept|keepLast|both processors: (checkpoints|each|offloaded)|masters in halves, weights in host',
  ],
  ['weights that are gathered', 1, 'resident: (optimizer and weights|weights), none kept, bf16'],
  ['a disk', 1, 'weights on disk: max_in_cpu'],
  ['updates that are tried out', 1, 'speculative offload.*bf16, .*sub-groups of 1000'],
  ['batches', 1, 'staged uploads'],
  ['two ranks', 2, 'resume on 2 ranks equals never having stopped: bf16, offload|whole copies'],
  ['two ranks with resident optimizers', 2, 'on 2 ranks equals never having stopped: moments in'],
])(
  '%s has no race',
  (_, ranks, only) => {
    const words = ['--device', 'cpu', '--gpus', String(ranks), '--only', only];
    const { status, output } = runWatched('../gpu', ...words);
    expect(output).toMatch(/^[1-9]\d* passed, 0 failed, 0 skipped$/m);
    expect(status).toBe(0);
  },
  240_000,
);
