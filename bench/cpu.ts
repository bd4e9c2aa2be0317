// Compares CPU times of training, generation and single ops with PyTorch.
import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';

import { DsError } from '../lib/errors.js';
import { setThreads } from '../lib/runtime/device.js';
import { type Case, groups, prepareCase } from './cpu-cases.js';
import type { Options } from './main.js';
import { median } from './report.js';

/** Milliseconds of one call: by the clock, and of all threads of the process together. */
interface Times {
  wall: number;
  cpu: number;
}

/** Calls a case again and again, for so many seconds. */
async function own(item: Case, seconds: number): Promise<Times> {
  const { call, end } = await prepareCase(item);
  await call();
  const [begin, before] = [performance.now(), process.cpuUsage()];
  let calls = 0;
  while (calls === 0 || performance.now() - begin < 1000 * seconds) {
    await call();
    calls++;
  }
  const wall = performance.now() - begin;
  const { user, system } = process.cpuUsage(before);
  await end?.();
  return { wall: wall / calls, cpu: (user + system) / 1000 / calls };
}

/** bench/peers/cpu_torch.py, which answers each line with one. */
class Peer {
  private constructor(
    private readonly child: ChildProcess,
    private readonly lines: AsyncIterator<string>,
    readonly name: string,
  ) {}

  /** Throws DS_IO where it ends before it has answered. */
  static async start(python: string, threads: number): Promise<Peer> {
    // Debian's OpenBLAS has threads of its own and heeds no other variable.
    const count = String(threads);
    const env = { ...process.env, OMP_NUM_THREADS: count, OPENBLAS_NUM_THREADS: count };
    const stdio: ['pipe', 'pipe', 'inherit'] = ['pipe', 'pipe', 'inherit'];
    const child = spawn(python, ['bench/peers/cpu_torch.py'], { env, stdio });
    const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
    const { peer } = JSON.parse(await answer(lines)) as { peer: string };
    return new Peer(child, lines, peer);
  }

  async measure(item: Case, seconds: number): Promise<Times> {
    this.child.stdin?.write(`${JSON.stringify({ ...item, seconds })}\n`);
    return JSON.parse(await answer(this.lines)) as Times;
  }

  end(): void {
    this.child.stdin?.end();
  }
}

async function answer(lines: AsyncIterator<string>): Promise<string> {
  const { done, value } = await lines.next();
  if (!done) return value;
  const expected = 'an answer; its own words are above';
  throw new DsError({ code: 'DS_IO', op: 'bench cpu --peer', expected, got: 'its end' });
}

/** Throws DS_ARGUMENT if no group has this name. */
function group(name: string): readonly Case[] {
  if (Object.hasOwn(groups, name)) return groups[name] as readonly Case[];
  const expected = `some of ${Object.keys(groups).join(', ')}`;
  throw new DsError({ code: 'DS_ARGUMENT', op: 'bench cpu --only', expected, got: name });
}

/** Significant digits that a table keeps. */
const roundTo4 = (x: number): number => Number(x.toPrecision(4));

/** The median of each side; the ratio is the median over pairs, above 1 if our side is slower. */
async function row(
  item: Case,
  peer: Peer | null,
  rounds: number,
  seconds: number,
): Promise<object> {
  const [ours, theirs]: [Times[], Times[]] = [[], []];
  for (let round = 0; round < rounds; ++round) {
    ours.push(await own(item, seconds));
    if (peer && !item.bits) theirs.push(await peer.measure(item, seconds));
  }
  const middle = (times: Times[], which: keyof Times): number =>
    roundTo4(median(times.map((time) => time[which])));
  const ratio = (which: keyof Times): number =>
    roundTo4(median(theirs.map((time, i) => (ours[i] as Times)[which] / time[which])));
  return {
    ...item,
    wall_ms: middle(ours, 'wall'),
    cpu_ms: middle(ours, 'cpu'),
    ...(theirs.length > 0 && {
      peer: { wall_ms: middle(theirs, 'wall'), cpu_ms: middle(theirs, 'cpu') },
      ratio: { wall: ratio('wall'), cpu: ratio('cpu') },
    }),
  };
}

/**
 * --only train,decode,matmul,ops (default all); --peer PYTHON, an interpreter with PyTorch. Both
 * sides take turns: --threads 2 each; --rounds 5 turns of --seconds 0.3; --dtype f32|bf16. On a
 * shared machine compare `cpu` with --threads 1.
 */
export async function cpuBench(options: Options): Promise<object> {
  const threads = Number(options.threads ?? 2);
  const [rounds, seconds] = [Number(options.rounds ?? 5), Number(options.seconds ?? 0.3)];
  setThreads(threads);
  const peer = options.peer ? await Peer.start(options.peer, threads) : null;
  const rows: object[] = [];
  for (const name of (options.only ?? Object.keys(groups).join(',')).split(',')) {
    for (const one of group(name)) {
      if (options.dtype && options.dtype !== one.dtype) continue;
      const measured = await row(one, peer, rounds, seconds);
      console.log(JSON.stringify(measured));
      rows.push(measured);
    }
  }
  peer?.end();
  return { threads, peer: peer?.name ?? null, rows };
}
