// Sends random siblings of valid requests to a server. Every answer must be documented, and a good
// client in between must always get its own.
import { connect, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';

import { seededRandom } from '../support/random.js';
import { answersIn, faultOf, type RawAnswer } from './read-answers.js';
import { type Sibling, Siblings } from './request-siblings.js';

export interface TryOptions {
  url: string;
  key: string;
  seed: number;
  /** Siblings under way at a time. */
  clients: number;
  /** Called before each sibling; false ends the run. */
  goesOn: () => boolean;
}

export interface TryCounts {
  siblings: number;
  answers: number;
  /** Connections that ended without an answer, although the client waited. */
  silent: number;
  statuses: Record<string, number>;
  goodAnswers: number;
  /** The longest time of the good client, in milliseconds. */
  slowestGood: number;
  /** The first faults, each with its request. */
  faults: string[];
}

/** Milliseconds that a patient client waits for the end of its answers. */
const PATIENCE_MS = 120_000;
const MAX_FAULTS = 50;

export async function tryRequests(options: TryOptions): Promise<TryCounts> {
  const counts: TryCounts = {
    siblings: 0,
    answers: 0,
    silent: 0,
    statuses: {},
    goodAnswers: 0,
    slowestGood: 0,
    faults: [],
  };
  const fault = (text: string): void => {
    if (counts.faults.length < MAX_FAULTS) counts.faults.push(text);
  };
  const siblings = new Siblings(seededRandom(options.seed), options.key);
  let isOver = false;
  const good = (async () => {
    while (!isOver) {
      await tryGood(options, counts, fault);
      await delay(100);
    }
  })();
  const crowd = Array.from({ length: options.clients }, async () => {
    while (options.goesOn()) {
      counts.siblings++;
      const sibling = siblings.next();
      check(sibling, await send(options.url, sibling), counts, fault);
    }
  });
  await Promise.all(crowd);
  isOver = true;
  await good;
  return counts;
}

async function tryGood(
  { url, key }: TryOptions,
  counts: TryCounts,
  fault: (text: string) => void,
): Promise<void> {
  const began = performance.now();
  try {
    const answer = await fetch(`${url}/v1/chat/completions`, {
      method: 'POST',
      body: JSON.stringify({
        messages: [{ role: 'user', content: 'Hello' }],
        max_tokens: 4,
        temperature: 0,
        ignore_eos: true,
      }),
      headers: { 'content-type': 'application/json', authorization: `Bearer ${key}` },
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    const { usage, error } = (await answer.json()) as {
      usage?: { completion_tokens: number };
      error?: object;
    };
    const count = usage?.completion_tokens;
    if (count !== 4) fault(`the good client: ${answer.status} ${JSON.stringify(error ?? usage)}`);
    else counts.goodAnswers++;
  } catch (error) {
    fault(`the good client: ${(error as Error).message} ${String((error as Error).cause ?? '')}`);
  }
  counts.slowestGood = Math.max(counts.slowestGood, performance.now() - began);
}

function check(
  { what, path, client, count }: Sibling,
  { answers, rest, isLate, odd }: Received,
  counts: TryCounts,
  fault: (text: string) => void,
): void {
  const place = `${path}: ${what}`;
  if (odd) fault(`${place}: ${odd}`);
  if (isLate) fault(`${place}: no end`);
  counts.answers += answers.length;
  // A client that closes its side has gone: its last answer may be incomplete.
  const waits = client === 'patient' || client.startsWith('slow');
  for (const answer of answers) {
    counts.statuses[answer.status] = (counts.statuses[answer.status] ?? 0) + 1;
    const found = waits ? faultOf(answer) : null;
    if (found) fault(`${place}: ${found}`);
  }
  if (!waits) return;
  if (answers.length === 0) counts.silent++;
  if (answers.filter(({ status }) => status !== 100).length > count + 1) {
    fault(`${place}: ${answers.length} answers to ${count} requests`);
  }
  if (rest.length > 0 && count === 1) fault(`${place}: an incomplete answer`);
}

interface Received {
  answers: RawAnswer[];
  rest: Buffer;
  isLate: boolean;
  odd: string | null;
}

/** Sends a sibling as its client does; resolves with the client's answers. */
async function send(url: string, { bytes, client, count }: Sibling): Promise<Received> {
  const { port, hostname: host } = new URL(url);
  const socket = connect({ port: Number(port), host, allowHalfOpen: true });
  const chunks: Buffer[] = [];
  let isLate = false;
  const over = new Promise<void>((resolve) => {
    socket.on('error', () => {});
    socket.once('close', () => resolve());
    socket.once('end', () => socket.destroy());
  });
  const timer = setTimeout(() => {
    isLate = true;
    socket.destroy();
  }, PATIENCE_MS);
  const idle = quietly(socket, client);
  socket.on('data', (chunk) => {
    chunks.push(chunk);
    idle.refresh();
    if (client === 'gone late') socket.destroy();
    if (client === 'slow reader') {
      socket.pause();
      setTimeout(() => socket.resume(), 20);
    }
    if (isComplete(chunks, count)) socket.destroy();
  });
  await write(socket, bytes, client);
  await over;
  clearTimeout(timer);
  clearTimeout(idle);
  try {
    return { ...answersIn(Buffer.concat(chunks)), isLate, odd: null };
  } catch (error) {
    return { answers: [], rest: Buffer.alloc(0), isLate, odd: (error as Error).message };
  }
}

/** Some requests get no answer for long, such as a body that does not come: the client leaves. */
function quietly(socket: Socket, client: Sibling['client']): NodeJS.Timeout {
  return setTimeout(() => socket.destroy(), client === 'gone late' ? 3000 : 20_000);
}

function isComplete(chunks: readonly Buffer[], count: number): boolean {
  try {
    const { answers, rest } = answersIn(Buffer.concat(chunks), false);
    return rest.length === 0 && answers.filter(({ status }) => status !== 100).length >= count;
  } catch {
    return true;
  }
}

async function write(socket: Socket, bytes: Buffer, client: Sibling['client']): Promise<void> {
  if (client === 'gone early') {
    socket.write(bytes.subarray(0, bytes.length / 2));
    await delay(5);
    socket.destroy();
    return;
  }
  if (client === 'slow writer') {
    const step = Math.ceil(bytes.length / 8);
    for (let at = 0; at < bytes.length && !socket.destroyed; at += step) {
      socket.write(bytes.subarray(at, at + step));
      await delay(10);
    }
  } else if (!socket.destroyed) socket.write(bytes);
  if (client === 'half closed') socket.end();
}
