// Compares a DataLoader's tokens per second with the tokens per second of GPT-2 124M training.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import {
  DataLoader,
  type Dataset,
  RepeatingLoader,
  TokenFileDataset,
  type TokenWindow,
  workerDataset,
  writeTokenFile,
} from '../lib/data/index.js';
import { device as findDevice } from '../lib/runtime/device.js';
import type { Options } from './main.js';
import { median } from './report.js';

/** Tokens per second of a training step: bench/results/train-124M.json, one H200, B 16, T 1024. */
const CONSUMER = 497_000;

interface Row {
  workers: number;
  tokens_per_second: number;
  times_consumer: number;
  /** Milliseconds of next() at the pace of training: the time that training loses. */
  wait_ms_at_consumers_pace: number;
  first_batch_ms: number;
}

/**
 * --batch, --seq, --seconds (per row), --workers (a list), --device. Two sources: windows of a
 * token file (--tokens, in millions, or --data, a raw u16 file), and text that is tokenised sample
 * by sample. The bench reads the file once before, so it is in the page cache.
 */
export async function loaderBench(options: Options): Promise<object> {
  const batch = Number(options.batch ?? 16);
  const seq = Number(options.seq ?? 1024);
  const folder = mkdtempSync(join(tmpdir(), 'ds-loader-bench-'));
  try {
    const path = options.data ?? join(folder, 'tokens.bin');
    if (!options.data) writeTokenFile(path, synthetic(Number(options.tokens ?? 32) * 1e6));
    const file = TokenFileDataset.open({ path, seq });
    for (let i = 0; i < file.length; ++i) file.get(i);
    const module = join(__dirname, 'loader-text.js');
    const text = workerDataset<TokenWindow>({ module, export: 'textDataset', args: [seq] });
    return {
      device: findDevice(options.device ?? 'auto').name,
      batch,
      seq,
      consumer_tokens_per_second: CONSUMER,
      token_file: await measureAll(file, batch * seq, options),
      text_tokenised_on_the_fly: await measureAll(text, batch * seq, options),
    };
  } finally {
    rmSync(folder, { recursive: true });
  }
}

async function measureAll(
  dataset: Dataset<TokenWindow>,
  tokensPerBatch: number,
  options: Options,
): Promise<Row[]> {
  const rows: Row[] = [];
  for (const numWorkers of (options.workers ?? '0,1,2,4').split(',').map(Number)) {
    const loader = new DataLoader(dataset, {
      batchSize: Number(options.batch ?? 16),
      device: options.device ?? 'auto',
      dropLast: true,
      numWorkers,
      persistentWorkers: true,
    });
    const row = await measure(loader, tokensPerBatch, Number(options.seconds ?? 4));
    rows.push({ workers: numWorkers, ...row });
  }
  return rows;
}

/** Tokens like text's: every one below GPT-2's vocabulary. */
function synthetic(count: number): Uint16Array {
  const tokens = new Uint16Array(count);
  for (let i = 0; i < count; ++i) tokens[i] = Math.imul(i, 2654435761) >>> 16;
  for (let i = 0; i < count; ++i) tokens[i] = (tokens[i] as number) % 50257;
  return tokens;
}

type Loader = DataLoader<TokenWindow>;

async function measure(
  loader: Loader,
  tokensPerBatch: number,
  seconds: number,
): Promise<Omit<Row, 'workers'>> {
  const batches = new RepeatingLoader(loader);
  const take = (): number => {
    const start = performance.now();
    const { tokens, targets } = batches.next().value;
    const elapsed = performance.now() - start;
    tokens.dispose();
    targets.dispose();
    return elapsed;
  };
  const first = take();
  for (let i = 0; i < 50; ++i) take();
  const start = performance.now();
  let count = 0;
  for (; performance.now() - start < seconds * 1000; ++count) take();
  const rate = (count * tokensPerBatch * 1000) / (performance.now() - start);
  const paced = Array.from({ length: 40 }, () => {
    pause((tokensPerBatch * 1000) / CONSUMER);
    return take();
  });
  loader.device.synchronize();
  await loader.close();
  return {
    tokens_per_second: Math.round(rate),
    times_consumer: round(rate / CONSUMER),
    wait_ms_at_consumers_pace: round(median(paced)),
    first_batch_ms: round(first),
  };
}

/** Blocks the calling thread, as waiting for a step does, without using its core. */
function pause(milliseconds: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, milliseconds);
}

const round = (x: number): number => Number(x.toFixed(2));
