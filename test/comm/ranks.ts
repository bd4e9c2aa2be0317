// Runs one program as several ranks: real processes that meet at a store on this machine.
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { commandFor, type RankOptions, type RankResult, whenEnded } from './rank-child.js';
import { canStand, runOnStanding } from './standing-ranks.js';

export { commandFor, type RankOptions, type RankResult } from './rank-child.js';

/**
 * Below the ephemeral ports, because an outgoing connection could use a port before rank 0 listens.
 * Each jest worker has its own ports, and each job of a worker a different one. Two runs of jest
 * side by side start at different ports by DS_TEST_PORTS.
 */
const PORTS = {
  first: 10_000 + Number(process.env.DS_TEST_PORTS ?? 0),
  ofWorker: 1000,
  workers: 10,
};
let jobs = Math.floor(Math.random() * PORTS.ofWorker);

/** A port that stays free until rank 0 listens. */
async function freePort(): Promise<number> {
  const worker = Number(process.env.JEST_WORKER_ID ?? process.pid) % PORTS.workers;
  for (;;) {
    const port = PORTS.first + worker * PORTS.ofWorker + (jobs++ % PORTS.ofWorker);
    if (await isFree(port)) return port;
  }
}

function isFree(port: number): Promise<boolean> {
  const server = createServer();
  return new Promise((resolve) => {
    server.once('error', () => resolve(false));
    server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)));
  });
}

/** Environment variables of the ranks of a job. */
async function environmentsOf(
  count: number,
  gate: string,
  options: Record<string, string> = {},
): Promise<NodeJS.ProcessEnv[]> {
  const port = await freePort();
  const secret = randomBytes(16).toString('hex');
  return Array.from({ length: count }, (_, rank) => ({
    ...process.env,
    RANK: String(rank),
    LOCAL_RANK: String(rank),
    WORLD_SIZE: String(count),
    MASTER_ADDR: '127.0.0.1',
    MASTER_PORT: String(port),
    DS_JOB_SECRET: secret,
    DS_NUM_THREADS: '1',
    DS_TEST_GATE: gate,
    DS_TEST_RANKS: String(count),
    ...options,
  }));
}

/** Runs `program` as ranks 0 to `count` - 1 and resolves when all have ended. */
export async function runRanks(
  program: string,
  count: number,
  options: RankOptions = {},
): Promise<RankResult[]> {
  const gate = mkdtempSync(join(tmpdir(), 'ds-gate-'));
  try {
    const environments = await environmentsOf(count, gate, options.environment);
    const run = canStand(program, options) ? runOnStanding : startRanks;
    return await run(program, environments, options);
  } finally {
    rmSync(gate, { recursive: true });
  }
}

function startRanks(
  program: string,
  environments: readonly NodeJS.ProcessEnv[],
  options: RankOptions,
): Promise<RankResult[]> {
  const localTexts = [
    process.execPath,
    ...commandFor(program),
    JSON.stringify(options.job ?? null),
  ];
  const children = environments.map((env, rank) => {
    const [command, ...words] = [...(options.wrapper?.(rank) ?? []), ...localTexts];
    return spawn(command as string, words, { env, stdio: ['ignore', 'pipe', 'pipe'] });
  });
  options.started?.(children);
  return Promise.all(
    children.map((child, rank) =>
      whenEnded(child, rank, options.limit, (text) => options.line?.(rank, text, children)),
    ),
  );
}

/**
 * Throws unless every rank exited with 0; returns their reports. The error of a rank that a signal
 * ended has its report too: with a report, the rank failed while it ended.
 */
export function reportsOf<T>(results: readonly RankResult[]): T[] {
  for (const { rank, code, signal, stderr, report } of results) {
    if (code === 0) continue;
    const reported = code === null ? `\nreport: ${JSON.stringify(report) ?? 'none'}` : '';
    throw new Error(`rank ${rank} ended with ${code ?? signal}:\n${stderr}${reported}`);
  }
  return results.map(({ report }) => report as T);
}
