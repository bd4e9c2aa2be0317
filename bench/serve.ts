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

/** The rounds of one number of clients, and their medians. */
interface Row extends Partial<Round> {
  clients: number;
  rounds: Partial<Round>[];
  /** Share of the engine's rate that HTTP costs. */
  loss?: number;
  /** The engine's rate against the first row. */
  ratio: number;
}

/**
 * [--model llama-tiny] [--device cpu] [--dtype bf16|fp16|fp32] [--clients 128] [--prompt 128]
 * [--tokens 128] [--rounds 5] [--temperature 1]. A list of clients gives a row for each:
 * `--clients 128,512 --prompt 32 --tokens 512`. `--http false` runs the engine alone.
 */
export async function serveBench(options: Options): Promise<object> {
  const { model = 'llama-tiny', device = 'cpu', dtype = 'bf16' } = options;
  const counts = (options.clients ?? '128').split(',').map(Number);
  const length = Number(options.prompt ?? 128);
  const tokens = Number(options.tokens ?? 128);
  const temperature = Number(options.temperature ?? 1);
  const made = benchModel({ ...options, model }, length + tokens);
  // Weights of half the size go to the device.
  made.to(findDevice(device), DTYPES[dtype as keyof typeof DTYPES]);
  const engine = await initInference(made, {
    ...{ device, max_out_tokens: length + tokens, max_ragged_sequence_count: Math.max(...counts) },
    enable_cuda_graph: 'auto', // As `ds serve` does.
  });
  const server = options.http === 'false' ? null : await serve(engine, { port: 0 });
  await server?.ready;
  const rows: Row[] = [];
  for (const clients of counts) {
    const prompts = (): number[][] => promptsOf(clients, length, engine.module.vocabSize);
    // Records the steps of this size.
    await engineAlone(engine, prompts(), { tokens: Math.min(tokens, 16), temperature });
    const rounds: Partial<Round>[] = [];
    for (let i = 0; i < Number(options.rounds ?? 5); ++i) {
      // Prompts differ between rounds, so the prefix cache has no hits.
      const own = prompts();
      const all = clients * tokens;
      const round: Partial<Round> = {
        engine: all / (await engineAlone(engine, own, { tokens, temperature })),
      };
      if (server) round.http = all / (await throughHttp(server.url, own.reverse(), tokens));
      rounds.push(round);
      console.log(JSON.stringify({ clients, ...round }));
    }
    const of = (name: keyof Round): number => median(rounds.map((round) => round[name] as number));
    const alone = of('engine');
    const behind = server && { http: of('http'), loss: 1 - of('http') / alone };
    const ratio = alone / (rows[0]?.engine ?? alone);
    rows.push({ clients, rounds, engine: alone, ...behind, ratio });
  }
  await server?.stop();
  await engine.destroy();
  return rows.length === 1 ? (rows[0] as Row) : { rows };
}

function promptsOf(count: number, length: number, vocabSize: number): number[][] {
  const token = (): number => Math.floor(Math.random() * vocabSize);
  return Array.from({ length: count }, () => Array.from({ length }, token));
}

/** Seconds from the first request to the last token. */
async function engineAlone(
  engine: InferenceEngine,
  prompts: readonly number[][],
  { tokens, temperature }: { tokens: number; temperature: number },
): Promise<number> {
  const read = async (prompt: number[]): Promise<void> => {
    const rules = { maxNewTokens: tokens, temperature, ignoreEos: true, cacheSalt: 'alone' };
    const request = { prompt, ...rules };
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
