// Runs one program as several ranks: real processes that meet at a store on this machine.
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export interface RankResult {
  rank: number;
  code: number | null;
  signal: NodeJS.Signals | null;
  /** What the rank reported: the JSON value of its last line of output. */
  report: unknown;
  stderr: string;
}

export interface RankOptions {
  /** Passed to the program as JSON. */
  job?: unknown;
  environment?: Record<string, string>;
  /** The command that runs a rank's own command, such as one that enters a network namespace. */
  wrapper?: (rank: number) => readonly string[];
  /** After so many milliseconds a process is killed, and `stderr` says where its threads were. */
  limit?: number;
  /** Sees each process after it was started. */
  started?: (children: readonly ChildProcess[]) => void;
  /** Called with each line that a rank prints. */
  line?: (rank: number, text: string, children: readonly ChildProcess[]) => void;
}

/** Longer than any test needs on a busy machine, less than jest waits; what is still running then is killed. */
const LIMIT_MS = 300_000;

/** What each thread of a process waits for, as far as the kernel tells: of one that hangs. */
function threadsOf(pid: number): string {
  const part = (path: string) => {
    try {
      return readFileSync(path, 'utf8').trim();
    } catch (error) {
      return `(${(error as NodeJS.ErrnoException).code})`;
    }
  };
  const folder = `/proc/${pid}/task`;
  const lines = readdirSync(folder).map((id) => {
    const at = (name: string) => part(`${folder}/${id}/${name}`);
    const state = /^State:\s*(.*)$/m.exec(at('status'))?.[1];
    const [user, system] = at('stat').split(') ').pop()?.split(' ').slice(11, 13) ?? [];
    const stack = at('stack').replaceAll('\n', '\n    ');
    const where = `wchan ${at('wchan')}, syscall ${at('syscall').split(' ')[0]}`;
    return `  ${id} ${at('comm')}: ${state}, ${where}, ticks ${user}+${system}\n    ${stack}`;
  });
  return `still running; its threads:\n${lines.join('\n')}\n`;
}

/**
 * Below those that systems give to outgoing connections, any of which would be in the way until
 * rank 0 listens; of a worker of jest its own, and of each job in it another one.
 */
const PORTS = { first: 10_000, ofWorker: 1000, workers: 10 };
let jobs = Math.floor(Math.random() * PORTS.ofWorker);

/** A port that nobody else chooses before rank 0 listens. */
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

/** How this Node runs `program`, a file of this folder without extension: compiled, or through swc. */
export function commandFor(program: string): string[] {
  const compiled = __filename.endsWith('.js');
  if (compiled) return [join(__dirname, `${program}.js`)];
  return ['-r', join(__dirname, '../support/run-typescript.cjs'), join(__dirname, `${program}.ts`)];
}

/** Starts `program` as ranks 0 to `count` - 1 and resolves when all have ended. */
export async function runRanks(
  program: string,
  count: number,
  options: RankOptions = {},
): Promise<RankResult[]> {
  const port = await freePort();
  const secret = randomBytes(16).toString('hex');
  const gate = mkdtempSync(join(tmpdir(), 'ds-gate-'));
  const own = [process.execPath, ...commandFor(program), JSON.stringify(options.job ?? null)];
  const children = Array.from({ length: count }, (_, rank) => {
    const [command, ...words] = [...(options.wrapper?.(rank) ?? []), ...own];
    return spawn(command as string, words, {
      env: {
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
        ...options.environment,
      },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
  });
  options.started?.(children);
  return Promise.all(
    children.map((child, rank) =>
      ended(child, rank, options.limit ?? LIMIT_MS, (text) => options.line?.(rank, text, children)),
    ),
  ).finally(() => rmSync(gate, { recursive: true }));
}

async function ended(
  child: ChildProcess,
  rank: number,
  limit: number,
  line: (text: string) => void,
): Promise<RankResult> {
  let stderr = '';
  let partial = '';
  let last = '';
  child.stderr?.on('data', (data) => {
    stderr += data;
  });
  child.stdout?.on('data', (data) => {
    const lines = (partial + data).split('\n');
    partial = lines.pop() ?? '';
    for (const text of lines) {
      last = text;
      line(text);
    }
  });
  const timer = setTimeout(() => {
    stderr += child.pid ? threadsOf(child.pid) : '';
    child.kill('SIGKILL');
  }, limit);
  const [code, signal] = await new Promise<[number | null, NodeJS.Signals | null]>((resolve) =>
    child.on('close', (...end) => resolve(end)),
  );
  clearTimeout(timer);
  return { rank, code, signal, report: parse(last), stderr };
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** Throws unless every rank ended well; returns their reports. */
export function reportsOf<T>(results: readonly RankResult[]): T[] {
  for (const { rank, code, signal, stderr } of results) {
    if (code !== 0) throw new Error(`rank ${rank} ended with ${code ?? signal}:\n${stderr}`);
  }
  return results.map(({ report }) => report as T);
}
