// Measures the cost of HTTP: sends the same requests to `engine.generate()` and to a server. The
// clients run in their own thread.
import { once } from 'node:events';
import { initInference, serve } from '../lib/index.js';
import type { InferenceEngine } from '../lib/inference/index.js';
import { device as findDevice } from '../lib/runtime/device.js';
import { startThread } from '../lib/runtime/thread.js';
import { benchTokenizer, longSchema } from './formats.js';
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
  /** Share of requests with a schema. */
  formats?: number;
  rounds: Partial<Round>[];
  /** Share of the engine's rate that HTTP costs. */
  loss?: number;
  /** The engine's rate against the first row. */
  ratio: number;
}

/**
 * [--model llama-tiny] [--device cpu] [--dtype bf16|fp16|fp32] [--clients 128] [--prompt 128]
 * [--tokens 128] [--rounds 5] [--temperature 1]. A list of clients gives a row for each: `--clients
 * 128,512 --prompt 32 --tokens 512`. `--http false` runs the engine alone. `--format 0,1` gives a
 * row for each share of requests with a JSON schema, over a tokenizer of 100,256 tokens.
 */
export async function serveBench(options: Options): Promise<object> {
  const { model = 'llama-tiny', device = 'cpu', dtype = 'bf16' } = options;
  const counts = (options.clients ?? '128').split(',').map(Number);
  const length = Number(options.prompt ?? 128);
  const tokens = Number(options.tokens ?? 128);
  const temperature = Number(options.temperature ?? 1);
  const result = benchModel({ ...options, model }, length + tokens);
  // Weights of half the size go to the device.
  result.to(findDevice(device), DTYPES[dtype as keyof typeof DTYPES]);
  const shares = options.format?.split(',').map(Number) ?? null;
  const config = {
    device,
    max_out_tokens: length + tokens,
    max_ragged_sequence_count: Math.max(...counts),
    enable_cuda_graph: 'auto' as const, // As `ds serve` does.
  };
  const engine = await initInference(
    result,
    config,
    shares ? { tokenizer: benchTokenizer() } : undefined,
  );
  const server = options.http === 'false' || shares ? null : await serve(engine, { port: 0 });
  await server?.ready;
  const rows: Row[] = [];
  const cases = counts.flatMap((clients) =>
    (shares ?? [undefined]).map((formats) => ({ clients, formats })),
  );
  const prompts = (clients: number): number[][] =>
    promptsOf(clients, length, engine.module.vocabSize);
  for (const { clients, formats } of cases) {
    // Records the steps of this size.
    const settings = { tokens: Math.min(tokens, 16), temperature, formats };
    await engineAlone(engine, prompts(clients), settings);
  }
  const found = cases.map((item) => ({ ...item, rounds: [] as Partial<Round>[] }));
  // Cases take turns, so that a change of the clock rate meets all of them.
  for (let i = 0; i < Number(options.rounds ?? 5); ++i) {
    for (const { clients, formats, rounds } of found) {
      // Prompts differ between rounds, so the prefix cache has no hits.
      const localRows = prompts(clients);
      const all = clients * tokens;
      const round: Partial<Round> = {
        engine: await engineAlone(engine, localRows, { tokens, temperature, formats }),
      };
      if (server) round.http = all / (await throughHttp(server.url, localRows.reverse(), tokens));
      rounds.push(round);
      console.log(JSON.stringify({ clients, formats, ...round }));
    }
  }
  for (const { clients, formats, rounds } of found) {
    const of = (name: keyof Round): number => median(rounds.map((round) => round[name] as number));
    const alone = of('engine');
    const behind = server && { http: of('http'), loss: 1 - of('http') / alone };
    const ratio = alone / (rows[0]?.engine ?? alone);
    rows.push({ clients, formats, rounds, engine: alone, ...behind, ratio });
  }
  await server?.stop();
  await engine.destroy();
  return rows.length === 1 ? (rows[0] as Row) : { rows };
}

function promptsOf(count: number, length: number, vocabSize: number): number[][] {
  const token = (): number => Math.floor(Math.random() * vocabSize);
  return Array.from({ length: count }, () => Array.from({ length }, token));
}

/** Schemas of a benchmark: requests take turns. */
const KINDS = 8;

/** Tokens per second, from the first request to the last token. */
async function engineAlone(
  engine: InferenceEngine,
  prompts: readonly number[][],
  {
    tokens,
    temperature,
    formats = 0,
  }: { tokens: number; temperature: number; formats?: number | undefined },
): Promise<number> {
  let total = 0;
  const read = async (prompt: number[], i: number): Promise<void> => {
    const rules = { maxNewTokens: tokens, temperature, ignoreEos: true, cacheSalt: 'alone' };
    const hasFormat = i < formats * prompts.length;
    const request = { prompt, ...rules, ...(hasFormat && { format: longSchema(i % KINDS) }) };
    for await (const piece of engine.stream(request)) total += piece.tokens.length;
  };
  const start = performance.now();
  await Promise.all(prompts.map(read));
  return total / ((performance.now() - start) / 1000);
}

/**
 * Seconds from the first request to the last token as the clients see them. The clients are ready
 * before it begins, and count afterwards.
 */
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
