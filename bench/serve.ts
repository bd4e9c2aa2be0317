// What HTTP costs: the same requests at an inference engine by itself, and through the server with
// clients in a thread of their own.
import { once } from 'node:events';
import { initInference, serve } from '../lib/index.js';
import type { InferenceEngine } from '../lib/inference/index.js';
import { startThread } from '../lib/runtime/thread.js';
import type { Options } from './main.js';
import { benchModel } from './models.js';
import type { ClientsDone, ClientsTask } from './serve-clients.js';

/** One measurement, tokens of all requests per second. */
interface Round {
  engine: number;
  http: number;
}

const median = (values: readonly number[]): number =>
  [...values].sort((a, b) => a - b)[values.length >> 1] as number;

/**
 * [--model llama-tiny] [--device cpu] [--dtype bf16] [--clients 128] [--prompt 128] [--tokens 128]
 * [--rounds 5].
 */
export async function serveBench(options: Options): Promise<object> {
  const { model = 'llama-tiny', device = 'cpu', dtype } = options;
  const clients = Number(options.clients ?? 128);
  const length = Number(options.prompt ?? 128);
  const tokens = Number(options.tokens ?? 128);
  const config = { device, dtype, max_out_tokens: length + tokens };
  const made = benchModel({ ...options, model }, length + tokens);
  const given = Object.entries(config).filter(([, value]) => value !== undefined);
  const engine = await initInference(made, Object.fromEntries(given));
  const rounds: Round[] = [];
  for (let i = 0; i < Number(options.rounds ?? 5); ++i) {
    // Nobody finds another's beginning in the cache.
    const prompts = promptsOf(clients, length, engine.module.vocabSize);
    const alone = await timed(() => engineAlone(engine, prompts, tokens));
    const behind = await timed(() => throughHttp(engine, [...prompts].reverse(), tokens));
    const all = clients * tokens;
    rounds.push({ engine: all / alone, http: all / behind });
    console.log(JSON.stringify(rounds.at(-1)));
  }
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

async function timed(run: () => Promise<void>): Promise<number> {
  const start = performance.now();
  await run();
  return (performance.now() - start) / 1000;
}

async function engineAlone(
  engine: InferenceEngine,
  prompts: readonly number[][],
  maxNewTokens: number,
): Promise<void> {
  const read = async (prompt: number[]): Promise<void> => {
    const request = { prompt, maxNewTokens, ignoreEos: true, cacheSalt: 'alone' };
    for await (const _ of engine.stream(request));
  };
  await Promise.all(prompts.map(read));
}

async function throughHttp(
  engine: InferenceEngine,
  prompts: readonly number[][],
  tokens: number,
): Promise<void> {
  const server = await serve(engine, { port: 0 });
  await server.ready;
  const task: ClientsTask = { url: server.url, prompts, tokens };
  const thread = startThread(__dirname, 'serve-clients', task);
  const [done] = (await once(thread, 'message')) as [ClientsDone];
  if (done.tokens !== prompts.length * tokens) {
    throw new Error(`${done.tokens} tokens came of ${prompts.length * tokens}`);
  }
  await thread.terminate();
  await server.stop();
}
