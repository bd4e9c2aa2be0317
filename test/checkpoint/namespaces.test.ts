// Tests savers that cannot see each other: two PID namespaces with one host name save into one
// folder.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { listTags } from '../../lib/checkpoint/index.js';
import { random } from '../support/random.js';
import { limit, times } from '../support/times.js';
import { valuesOf } from './content.js';
import type { NamespaceJob } from './namespace-process.js';

const HOOK = join(__dirname, '..', 'support', 'run-typescript.cjs');
const SAVER = join(__dirname, 'namespace-process.ts');
const UNSHARE = ['--user', '--map-root-user', '--pid', '--fork', '--kill-child', '--mount-proc'];
const SAVES = 8;

/** Why this machine cannot run them; '' if it can. */
function refusal(): string {
  const { status, error, stderr } = spawnSync('unshare', [...UNSHARE, 'true'], {
    encoding: 'utf8',
  });
  return status === 0 ? '' : (error?.message ?? stderr.trim());
}

interface Saver {
  child: ChildProcess;
  /** Tags in the order of its reports. */
  saved: string[];
  errors: () => string;
  end: Promise<number | null>;
}

/**
 * `before` processes start first, so that this process number does not exist in the other
 * namespace.
 */
function start(job: NamespaceJob, before = 0): Saver {
  const script = `for ((i = 0; i < ${before}; ++i)); do /bin/true; done; "$@"; exit $?`;
  const saver = [process.execPath, '-r', HOOK, SAVER, JSON.stringify(job)];
  const args = [...UNSHARE, 'bash', '-c', script, 'bash', ...saver];
  const env = { ...process.env, DS_NUM_THREADS: '1' };
  const child = spawn('unshare', args, { env, stdio: ['ignore', 'pipe', 'pipe'] });
  const saved: string[] = [];
  let text = '';
  child.stdout.on('data', (chunk) => {
    text += chunk;
    const lines = text.split('\n');
    text = lines.pop() ?? '';
    saved.push(...lines);
  });
  let errors = '';
  child.stderr.on('data', (chunk) => {
    errors += chunk;
  });
  const end = new Promise<number | null>((resolve) => child.once('close', resolve));
  return { child, saved, errors: () => errors, end };
}

/** All elements of a checkpoint must equal its number. */
async function requireWhole(dir: string, tag: string): Promise<void> {
  const values = await valuesOf(dir, tag);
  const kinds = new Set(Object.values(values).flat());
  expect([tag, kinds.size]).toEqual([tag, 1]);
}

const why = refusal();
const rounds = times(3, 30);
const name = `${2 * rounds} savers in two PID namespaces: none incomplete, none lost, nothing left`;

(why === '' ? test : test.skip)(
  why === '' ? name : `${name} (skipped: ${why})`,
  async () => {
    const dir = mkdtempSync(join(tmpdir(), 'ds-namespaces-'));
    try {
      for (let round = 0; round < rounds; ++round) {
        const savers = ['a', 'b'].map((who, before) => {
          return start({ dir, who: `${who}${round}`, saves: SAVES }, before * 40);
        }) as [Saver, Saver];
        const victim = round % 2 === 1 ? savers[round % 4 === 1 ? 0 : 1] : null;
        if (victim) {
          await new Promise((resolve) => victim.child.stdout?.once('data', resolve));
          await new Promise((resolve) => setTimeout(resolve, random() * 100));
          victim.child.kill('SIGKILL');
        }
        for (const saver of savers) {
          const code = await saver.end;
          if (saver === victim) continue;
          expect([code, saver.errors()]).toEqual([0, '']);
          expect(saver.saved).toHaveLength(SAVES);
        }
        const tags = await listTags(dir);
        expect(tags).toEqual(expect.arrayContaining(savers.flatMap(({ saved }) => saved)));
        for (const tag of tags) await requireWhole(dir, tag);
        for (const tag of tags) if (tag !== 'shared') rmSync(join(dir, tag), { recursive: true });
      }
      const last = start({ dir, who: 'last', saves: 2 });
      expect([await last.end, last.errors()]).toEqual([0, '']);
      expect(readdirSync(dir).filter((text) => text.startsWith('.'))).toEqual([]);
    } finally {
      rmSync(dir, { recursive: true, force: true });
    }
  },
  limit(rounds, 20_000),
);
