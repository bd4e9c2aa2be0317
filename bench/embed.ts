// Measures the throughput of an encoder that embeds texts of different lengths.
import { noGrad, scope, seed } from '../lib/index.js';
import { ModernBert } from '../lib/models/encoders.js';
import { device as findDevice } from '../lib/runtime/device.js';
import { padRows } from '../lib/text/padding.js';
import type { Options } from './main.js';
import { median } from './report.js';

interface Shape {
  vocabSize: number;
  layers: number;
  heads: number;
  channels: number;
  hidden: number;
}

/** Source: the config.json of ModernBERT-base; tiny is for a dry run. */
const SHAPES: Readonly<Record<string, Shape>> = {
  'modernbert-base': { vocabSize: 50_368, layers: 22, heads: 12, channels: 768, hidden: 1152 },
  'modernbert-tiny': { vocabSize: 512, layers: 3, heads: 4, channels: 64, hidden: 96 },
};

/** Tokens on either side in the layers with a window, and the layers without one. */
const [REACH, WHOLE_EVERY] = [64, 3];

/**
 * Lengths of a batch from half of `longest` to `longest`. bench/peers/encoder_torch.py has them.
 */
const lengthsOf = (batch: number, longest: number, turn: number): number[] =>
  Array.from({ length: batch }, (_, text) => {
    const from = Math.ceil(longest / 2);
    return text === 0 ? longest : from + (((turn * batch + text) * 7919) % (longest - from + 1));
  });

/**
 * --model modernbert-base --device cuda --dtype bf16 --batch 64 --seq 256 --batches 16 --rounds 5.
 * Lengths are between half of --seq and --seq. tokens_per_s does not count padding.
 */
export async function embedBench(options: Options): Promise<object> {
  const [batch, longest] = [Number(options.batch ?? 64), Number(options.seq ?? 256)];
  const [batches, rounds] = [Number(options.batches ?? 16), Number(options.rounds ?? 5)];
  const device = findDevice(options.device ?? 'cuda');
  const name = options.model ?? 'modernbert-base';
  const shape = SHAPES[name];
  if (!shape) throw new Error(`--model ${Object.keys(SHAPES).join('|')}, got ${name}`);
  seed(1);
  const windows = Array.from({ length: shape.layers }, (_, layer) =>
    layer % WHOLE_EVERY === 0 ? null : REACH,
  );
  const model = new ModernBert({ ...shape, windows, maxSeq: 8192, pooling: 'mean' });
  model.to(device, (options.dtype ?? 'bf16') === 'bf16' ? 'bf16' : 'f32').eval();
  const texts = Array.from({ length: batches }, (_, turn) =>
    lengthsOf(batch, longest, turn).map((length, text) =>
      Int32Array.from({ length }, (_, i) => (text * 7919 + turn * 101 + i * 31) % shape.vocabSize),
    ),
  );
  const embed = (rows: readonly Int32Array[]): void =>
    noGrad(() =>
      scope(() => {
        const { ids, mask } = padRows('embed', rows, 0, { device });
        model.call(ids, { mask }).to('f32').toRaw();
      }),
    );
  const times = Array.from({ length: rounds + 2 }, () => {
    const begin = performance.now();
    for (const rows of texts) embed(rows);
    return performance.now() - begin;
  });
  const ms = median(times.slice(2));
  const tokens = texts.flat().reduce((sum, { length }) => sum + length, 0);
  const row = {
    model: name,
    batch,
    seq: longest,
    texts: batch * batches,
    ms_per_batch: ms / batches,
    texts_per_s: (batch * batches * 1000) / ms,
    tokens_per_s: (tokens * 1000) / ms,
    share_of_padding: 1 - tokens / (batch * batches * longest),
  };
  console.log(JSON.stringify(row));
  return { rows: [row] };
}
