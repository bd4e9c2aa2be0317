// Runs the clients of bench/serve.ts in a thread. Each client streams one completion over its own
// connection.
import { Agent, type IncomingMessage, request } from 'node:http';
import { parentPort, workerData } from 'node:worker_threads';

/** Task of the clients' thread. */
export interface ClientsTask {
  url: string;
  prompts: readonly (readonly number[])[];
  /** New ones for each prompt. */
  tokens: number;
}

/** Result of the clients' thread. */
export interface ClientsDone {
  tokens: number;
  /** From the first request to the last byte of the last answer. */
  seconds: number;
}

const { url, prompts, tokens } = workerData as ClientsTask;
const agent = new Agent({ maxSockets: Number.POSITIVE_INFINITY });
const headers = { 'content-type': 'application/json' };

/** The answer as it came. */
async function ask(prompt: readonly number[]): Promise<string> {
  const sent = request(`${url}/v1/completions`, { method: 'POST', headers, agent });
  const body = { prompt, max_tokens: tokens, stream: true, ignore_eos: true, cache_salt: 'http' };
  sent.end(JSON.stringify({ ...body, return_token_ids: true }));
  const response = await new Promise<IncomingMessage>((resolve, reject) =>
    sent.once('response', resolve).once('error', reject),
  );
  let text = '';
  for await (const chunk of response.setEncoding('utf8')) text += chunk;
  return text;
}

function tokensIn(answer: string): number {
  const events = answer.match(/^data: \{.*$/gm) ?? [];
  return events.flatMap((event) => JSON.parse(event.slice(6)).choices[0].token_ids).length;
}

const start = performance.now();
Promise.all(prompts.map(ask)).then((answers) => {
  const seconds = (performance.now() - start) / 1000;
  const counts = answers.map(tokensIn);
  const done: ClientsDone = { tokens: counts.reduce((sum, count) => sum + count, 0), seconds };
  parentPort?.postMessage(done);
});
