// Cost of HTTP: the same requests through `engine.generate()` and through a server. The clients run
// in their own thread.
import { once } from 'node:events';
import { initInference, serve } from '../lib/index.js';
import type { InferenceEngine } from '../lib/inference/index.js';
import { device as findDevice } from '../lib/runtime/device.js';
import { startThread } from '../lib/runtime/thread.js';
import type { Options } from './main.js';
import { benchModel } from './models.js';
import type { ClientsDone, ClientsTask } from './serve-clients.js';

/** One measurement, tokens of all requests per second. */
interface Round {
  engine: number;
  http: number;
}

const DTYPES = { fp32: 'f32', fp16: 'f16', bf16: 'bf16' } as const;

const median = (values: readonly number[]): number =>
  [...values].sort((a, b) => a - b)[values.length >> 1] as number;

/**
 * [--model llama-tiny] [--device cpu] [--dtype bf16|fp16|fp32] [--clients 128] [--prompt 128]
 * [--tokens 128] [--rounds 5].
 */
export async function serveBench(options: Options): Promise<object> {
  const { model = 'llama-tiny', device = 'cpu', dtype = 'bf16' } = options;
  const clients = Number(options.clients ?? 128);
  const length = Number(options.prompt ?? 128);
  const tokens = Number(options.tokens ?? 128);
  const made = benchModel({ ...options, model }, length + tokens);
  // Weights of half the size go to the device.
  made.to(findDevice(device), DTYPES[dtype as keyof typeof DTYPES]);
  const engine = await initInference(made, {
    ...{ device, max_out_tokens: length + tokens, max_ragged_sequence_count: clients },
    enable_cuda_graph: 'auto', // As `ds serve` does.
  });
  const server = await serve(engine, { port: 0 });
  await server.ready;
  const rounds: Round[] = [];
  for (let i = 0; i < Number(options.rounds ?? 5); ++i) {
    // Prompts differ between rounds, so the prefix cache has no hits.
    const prompts = promptsOf(clients, length, engine.module.vocabSize);
    const alone = await engineAlone(engine, prompts, tokens);
    const behind = await throughHttp(server.url, [...prompts].reverse(), tokens);
    const all = clients * tokens;
    rounds.push({ engine: all / alone, http: all / behind });
    console.log(JSON.stringify(rounds.at(-1)));
  }
  await server.stop();
  await engine.destroy();
  const [engineRate, httpRate] = (['engine', 'http'] as const).map((name) =>
    median(rounds.map((round) => round[name])),
  ) as [number, number];
  return { rounds, engine: engineRate, http: httpRate, loss: 1 - httpRate / engineRate };
}

function promptsOf(count: number, length: number, vocabSize: number): number[][] {
  const token = (): number => Math.floor(Math.random() * vocabSize);
  return Array.from({ length: count }, () => Array.from({ length }, token));
}

/** Seconds from the first request to the last token. */
async function engineAlone(
  engine: InferenceEngine,
  prompts: readonly number[][],
  maxNewTokens: number,
): Promise<number> {
  const read = async (prompt: number[]): Promise<void> => {
    const request = { prompt, maxNewTokens, ignoreEos: true, cacheSalt: 'alone' };
    for await (const _ of engine.stream(request));
  };
  const start = performance.now();
  await Promise.all(prompts.map(read));
  return (performance.now() - start) / 1000;
}

/** The same, as the clients see it: they are there before it begins, and count afterwards. */
async function throughHttp(
  url: string,
  prompts: readonly number[][],
  tokens: number,
): Promise<number> {
  const task: ClientsTask = { url, prompts, tokens };
  const thread = startThread(__dirname, 'serve-clients', task);
  const [done] = (await once(thread, 'message')) as [ClientsDone];
  await thread.terminate();
  if (done.tokens === prompts.length * tokens) return done.seconds;
  throw new Error(`${done.tokens} tokens came of ${prompts.length * tokens}`);
}
