// Measures the perplexity of a small Llama with weights of 8 and 4 bits, and with FP8 keys and
// values. The benchmark first trains the model; it measures on held-out text.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { initInference, initialize, nn, noGrad, scope, seed, Tensor } from '../lib/index.js';
import { packageRoot } from '../lib/runtime/package-root.js';
import type { Options } from './main.js';

const SEQ = 128;
const ROWS = 16;

const SIZES = {
  vocabSize: 256,
  maxSeq: SEQ,
  layers: 3,
  channels: 256,
  heads: 4,
  kvHeads: 2,
  hidden: 512,
  tied: false,
};

const SCHEMES: Readonly<Record<string, nn.QuantizeModelOptions | null>> = {
  f32: null,
  int8: { bits: 8 },
  'int8, head int8': { bits: 8, head: 8 },
  'int4 g128': { bits: 4, groupSize: 128 },
  'int4 g64': { bits: 4, groupSize: 64 },
  'int4 g32': { bits: 4, groupSize: 32 },
  'int4 g128, head int8': { bits: 4, groupSize: 128, head: 8 },
};

/** The bytes of this repository's documentation, in the order of its pages. */
function text(): Buffer {
  const docs = join(packageRoot(), 'docs');
  const pages = readdirSync(docs).filter((name) => name.endsWith('.md'));
  return Buffer.concat(pages.sort().map((name) => readFileSync(join(docs, name))));
}

/** Inputs and targets of `rows` stretches of bytes that begin at `at`. */
function batch(bytes: Buffer, starts: readonly number[]): [tokens: Tensor, targets: Tensor] {
  const rows = (shift: number): Tensor => {
    const ids = starts.flatMap((at) => [...bytes.subarray(at + shift, at + shift + SEQ)]);
    return Tensor.from(Int32Array.from(ids), { shape: [starts.length, SEQ] }).keep();
  };
  return [rows(0), rows(1)];
}

async function train(model: nn.models.Llama, bytes: Buffer, steps: number): Promise<number> {
  const { engine } = await initialize({
    model,
    device: 'cpu',
    config: {
      train_micro_batch_size_per_gpu: ROWS,
      gradient_clipping: 1,
      optimizer: { type: 'AdamW', params: { lr: 2e-3, weight_decay: 0.05 } },
      scheduler: {
        type: 'WarmupCosineLR',
        params: { total_num_steps: steps, warmup_num_steps: Math.ceil(steps / 20) },
      },
    },
  });
  let [state, last] = [7, Number.NaN];
  for (let step = 0; step < steps; ++step) {
    const starts = Array.from({ length: ROWS }, () => {
      state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
      return Math.floor((state / 2 ** 32) * (bytes.length - SEQ - 1));
    });
    const [tokens, targets] = batch(bytes, starts);
    const loss = engine.forward(tokens, targets);
    if (step % 20 === 0 || step === steps - 1) {
      last = loss.item();
      console.error(`step ${step}: ${last.toFixed(3)}`);
    }
    engine.backward(loss);
    engine.step();
    tokens.dispose();
    targets.dispose();
  }
  await engine.destroy();
  return last;
}

/** exp of the mean loss of every byte of `bytes`, in rows of their own. */
function perplexity(model: nn.models.CausalLM, bytes: Buffer): number {
  model.eval();
  const rows = Math.floor((bytes.length - 1) / SEQ);
  let sum = 0;
  for (let from = 0; from < rows; from += ROWS) {
    const count = Math.min(ROWS, rows - from);
    const starts = Array.from({ length: count }, (_, i) => (from + i) * SEQ);
    const [tokens, targets] = batch(bytes, starts);
    sum += count * noGrad(() => scope(() => model.call(tokens, targets).item()));
    tokens.dispose();
    targets.dispose();
  }
  return Math.exp(sum / rows);
}

/** Rows of text whose perplexity is measured through a cache of keys and values. */
const CACHED_ROWS = 24;

/** The same for some rows, by an engine that reads earlier tokens from its cache. */
async function cachedPerplexity(
  model: nn.models.CausalLM,
  bytes: Buffer,
  dtype: 'auto' | 'fp8',
): Promise<number> {
  const kv_cache = { dtype, blocks: 2048, block_size: 16 };
  const engine = await initInference(model, { device: 'cpu', max_out_tokens: SEQ, kv_cache });
  const rows = Math.min(CACHED_ROWS, Math.floor((bytes.length - 1) / SEQ));
  const stride = Math.floor((bytes.length - SEQ) / rows);
  let [sum, count] = [0, 0];
  for (let row = 0; row < rows; ++row) {
    const text = [...bytes.subarray(row * stride, row * stride + SEQ)];
    const requests = text.slice(1).map((token, i) => {
      const prompt = text.slice(0, i + 1);
      return { prompt, allowedTokens: [token], maxNewTokens: 1, logprobs: 0 };
    });
    for (const [one] of await engine.generateBatch(requests)) {
      sum += one?.logprobs?.[0]?.logprob ?? Number.NaN;
      count++;
    }
  }
  await engine.destroy();
  return Math.exp(-sum / count);
}

/** Bytes of a model's parameters. */
function bytesOf(model: nn.Module): number {
  const sizes = { f32: 4, f16: 2, bf16: 2, f64: 8, i32: 4, i64: 8, u8: 1, bool: 1 };
  return model.parameters().reduce((sum, { numel, dtype }) => sum + numel * sizes[dtype], 0);
}

/**
 * --steps 400; --rows of held-out text at most (all of it). On the CPU; the same numbers every
 * time.
 */
export async function quantizationQualityBench(options: Options): Promise<object> {
  const steps = Number(options.steps ?? 400);
  const bytes = text();
  const cut = Math.floor(bytes.length * 0.9);
  const rest = bytes.subarray(cut);
  const end = options.rows === undefined ? rest.length : Number(options.rows) * SEQ + 1;
  const [before, after] = [bytes.subarray(0, cut), rest.subarray(0, end)];
  seed(1);
  const model = new nn.models.Llama(SIZES);
  const loss = await train(model, before, steps);
  const trained = Object.entries(model.stateDict()).map(
    ([name, values]) => [name, noGrad(() => scope(() => values.clone().keep()))] as const,
  );
  const rows = Object.entries(SCHEMES).map(([name, scheme]) => {
    const copy = new nn.models.Llama(SIZES);
    copy.loadStateDict(Object.fromEntries(trained));
    if (scheme) nn.quantizeModel(copy, scheme);
    return { weights: name, perplexity: perplexity(copy, after), bytes: bytesOf(copy) };
  });
  const keys: object[] = [];
  for (const dtype of ['auto', 'fp8'] as const) {
    const copy = new nn.models.Llama(SIZES);
    copy.loadStateDict(Object.fromEntries(trained));
    keys.push({ keys_and_values: dtype, perplexity: await cachedPerplexity(copy, after, dtype) });
  }
  const text_bytes = { trained: before.length, measured: after.length };
  return { model: SIZES, steps, last_loss: loss, text_bytes, rows, keys };
}
