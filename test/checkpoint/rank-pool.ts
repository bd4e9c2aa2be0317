// A pool of processes that run commands as ranks of worlds of any size, started once for many
// tests.
import { type ChildProcess, spawn } from 'node:child_process';
import { join } from 'node:path';

import { StoreServer } from '../../lib/runtime/job.js';
import type { Answer, Command } from './rank-process.js';

const HOOK = join(__dirname, '..', 'support', 'run-typescript.cjs');
const LIMIT_MS = 300_000;

export class RankPool {
  private commands = 0;

  private constructor(
    private readonly server: StoreServer,
    private readonly children: readonly ChildProcess[],
  ) {}

  static async start(size: number): Promise<RankPool> {
    const at = { host: '127.0.0.1', secret: 'of this test' };
    const server = new StoreServer({ ...at, port: 0 });
    const store = { ...at, port: server.port };
    const children = Array.from({ length: size }, (_, rank) =>
      spawn(
        process.execPath,
        ['-r', HOOK, join(__dirname, 'rank-process.ts'), JSON.stringify([store, rank, size])],
        {
          stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
          env: { ...process.env, DS_NUM_THREADS: '1' },
        },
      ),
    );
    const pool = new RankPool(server, children);
    await Promise.all(children.map(answerOf));
    return pool;
  }

  /**
   * Sends `command` to ranks 0 to `size` - 1 of a world, merged with `own` per rank; null skips a
   * rank.
   */
  async run(
    size: number,
    stage: number,
    command: Pick<Command, 'what' | 'dir' | 'tag' | 'method'>,
    own: (rank: number) => Partial<Command> | null = () => ({}),
  ): Promise<(Answer | null)[]> {
    const name = `test/${this.commands++}`;
    return Promise.all(
      this.children.slice(0, size).map(async (child, rank) => {
        const more = own(rank);
        if (!more) return null;
        child.send({ name, place: { stage, rank, size }, ...command, ...more });
        return answerOf(child);
      }),
    );
  }

  stop(): void {
    for (const child of this.children) child.kill('SIGKILL');
    this.server.stop();
  }
}

function answerOf(child: ChildProcess): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error('a rank does not answer')), LIMIT_MS);
    child.once('message', (answer: Answer) => {
      clearTimeout(timer);
      resolve(answer);
    });
  });
}
