// Tests the log for updates with different sequence lengths, padding, and speed with evaluations
// and checkpoints.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type LogEvent, Tensor, Trainer, type text } from '../../lib/index.js';
import { Device } from '../../lib/runtime/device.js';
import { Logbook, type LogbookOptions } from '../../lib/trainer/logbook.js';
import { TrainerState } from '../../lib/trainer/trainer-state.js';
import { SEQ, samples, tinyModel } from './tiny.js';

/** A GPU with a name only. */
const h100: Device = Object.create(Device.prototype, {
  kind: { value: 'cuda' },
  info: { value: { name: 'NVIDIA H100 80GB HBM3' } },
});
const PEAK = 989.4e12;

test('the share of the peak is that of the FLOPs since the last log, at every length', () => {
  const state = new TrainerState();
  const engine = {
    device: h100,
    globalRank: 1,
    worldSize: 2,
    skippedSteps: 0,
    config: { bf16: { enabled: true }, fp16: { enabled: false } },
    getGlobalLoss: () => 1,
    getGlobalGradNorm: () => 1,
  };
  const settings = { progress: false, report: [], log: { every: 1, nanFilter: true } };
  const costOf = (sequence: number): number => 1e6 * sequence;
  const book = new Logbook({
    engine,
    settings,
    state,
    costOf,
    length: { maxSteps: 9 },
  } as unknown as LogbookOptions);
  book.begin();
  const updates = [
    [4, 8],
    [16, 32],
    [64, 128],
  ] as const;
  const ratios: number[] = [];
  let tokens = 0;
  for (const [i, [sequence, read]] of updates.entries()) {
    book.countTokens(tokens); // Tokens of the previous update.
    book.noteUpdate({ step: i + 1, epoch: 0, lr: 1, isDue: i > 0 }, sequence);
    tokens += read;
    for (const event of book.readPending()) {
      if (event.type !== 'log') continue;
      ratios.push(((event.mfu as number) * PEAK * engine.worldSize) / event.tokensPerSecond);
    }
  }
  expect(ratios).toEqual([4e6, 16e6].map((cost) => expect.closeTo(cost, 0)));
  book.countTokens(tokens);
  expect(state.flops).toBe(8 * 4e6 + 32 * 16e6 + 128 * 64e6);
});

test('tokens exclude padding', async () => {
  const lengths = [3, 7, 5, 4];
  const row = (i: number): text.TextSample => {
    const ids = Int32Array.from({ length: lengths[i] as number }, (_, at) => 9 * i + at);
    const positions = ids.map((_, at) => at);
    return { ids, labels: ids, positions, documents: new Int32Array(ids.length) };
  };
  const train = { length: lengths.length, get: row };
  const logs: LogEvent[] = [];
  const trainer = new Trainer({
    model: tinyModel(),
    train,
    batchSize: 2,
    epochs: 1,
    device: 'cpu',
    progress: false,
    data: { sampling: 'sequential' },
    log: { every: 1 },
    stopSignals: [],
    callbacks: [{ log: (event) => void logs.push(event) }],
  });
  await trainer.train();
  expect(logs.map(({ tokens }) => tokens)).toEqual([3 + 7, 3 + 7 + 5 + 4]);
  const state = await trainer.state();
  expect(state.tokens).toBe(3 + 7 + 5 + 4);
  await trainer.destroy();
});

// For samples [B, T] a mask [B, 1, T, T] sets which tokens see which, often as zeros and -inf.
test('a mask of another shape does not count as padding', async () => {
  const logs: LogEvent[] = [];
  const stack = (rows: Int32Array[]) => {
    const values = Int32Array.from(rows.flatMap((row) => [...row]));
    return Tensor.from(values, { shape: [rows.length, SEQ], dtype: 'i32' });
  };
  const trainer = new Trainer({
    model: tinyModel(),
    train: samples(4),
    batchSize: 2,
    epochs: 1,
    device: 'cpu',
    log: { every: 1 },
    stopSignals: [],
    progress: false,
    data: {
      collate: (rows) => ({
        tokens: stack(rows.map(({ tokens }) => tokens)),
        targets: stack(rows.map(({ targets }) => targets)),
        attention_mask: Tensor.from(new Float32Array(rows.length * SEQ * SEQ), {
          shape: [rows.length, 1, SEQ, SEQ],
        }),
      }),
    },
    callbacks: [{ log: (event) => void logs.push(event) }],
  });
  await trainer.train();
  expect(logs.map(({ tokens }) => tokens)).toEqual([2 * SEQ, 4 * SEQ]);
  await trainer.destroy();
});

test('the speed excludes evaluations and checkpoints', async () => {
  let now = 0;
  const pass = (seconds: number): void => {
    now += 1000 * seconds;
  };
  const clock = jest.spyOn(performance, 'now').mockImplementation(() => now);
  const dir = mkdtempSync(join(tmpdir(), 'ds-speed-'));
  const logs: LogEvent[] = [];
  const trainer = new Trainer({
    model: tinyModel(),
    train: samples(8),
    batchSize: 2,
    epochs: 1,
    device: 'cpu',
    progress: false,
    log: { every: 1 },
    stopSignals: [],
    save: { dir, every: 2 },
    eval: {
      data: samples(2),
      every: 1,
      atStart: true,
      metrics: () => {
        pass(3600);
        return { judged: { sum: 1, count: 1 } };
      },
    },
    callbacks: [
      {
        step: () => pass(0.5),
        log: (event) => void logs.push(event),
        save: () => pass(60),
      },
    ],
  });
  await trainer.train();
  clock.mockRestore();
  await trainer.destroy();
  rmSync(dir, { recursive: true });
  // Half a second for each update, of 2 rows.
  expect(logs.map(({ tokensPerSecond }) => tokensPerSecond)).toEqual(Array(4).fill(2 * SEQ * 2));
});
