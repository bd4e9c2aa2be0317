// Runs `ds` as users do, and finds every process that a run left behind.
import { type ChildProcess, spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

const ROOT = join(__dirname, '..', '..');
const HOOK = join(ROOT, 'test', 'support', 'run-typescript.cjs');
const THREADS = join(ROOT, 'test', 'support', 'threads.ts');
/** In compiled tests, Node runs programs without a hook. */
const COMPILED = __filename.endsWith('.js');
const CLI = join(ROOT, 'lib', 'launch', COMPILED ? 'cli.js' : 'cli.ts');
/** Arguments of Node that make it `ds`. */
export const DS = COMPILED ? [CLI] : ['-r', HOOK, CLI];

/**
 * The text of a script that runs `program`, a file without extension; threads that it starts do the
 * same.
 */
export function scriptOf(program: string): string {
  if (COMPILED) return `require(${JSON.stringify(`${program}.js`)});`;
  const [hook, threads] = [HOOK, THREADS].map((path) => JSON.stringify(path));
  return `require(${hook}); require(${threads}); require(${JSON.stringify(`${program}.ts`)});`;
}

export interface Finished {
  code: number | null;
  signal: NodeJS.Signals | null;
  stdout: string;
  stderr: string;
}

/** A run of Node at the head of its own process group, as a shell starts it. */
export class Run {
  stdout = '';
  stderr = '';
  readonly child: ChildProcess;
  readonly finished: Promise<Finished>;
  private readonly mark = randomUUID();

  constructor(args: readonly string[], cwd: string, env: Record<string, string> = {}) {
    this.child = spawn(process.execPath, args, {
      cwd,
      env: { ...process.env, HOME: cwd, ...env, LAUNCH_TEST_MARK: this.mark },
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.child.stdout?.setEncoding('utf8').on('data', (text) => {
      this.stdout += text;
    });
    this.child.stderr?.setEncoding('utf8').on('data', (text) => {
      this.stderr += text;
    });
    this.finished = new Promise((resolve) => {
      this.child.on('close', (code, signal) => {
        resolve({ code, signal, stdout: this.stdout, stderr: this.stderr });
      });
    });
  }

  /** To the whole group, as a terminal sends Ctrl-C. */
  signalGroup(signal: NodeJS.Signals): void {
    process.kill(-(this.child.pid as number), signal);
  }

  /** Resolves once standard output holds `text`; the run's end is an error. */
  async whenPrinted(text: string): Promise<void> {
    let over = false;
    void this.finished.then(() => {
      over = true;
    });
    while (!this.stdout.includes(text)) {
      if (over) throw new Error(`ended without "${text}": ${this.stdout}${this.stderr}`);
      await pause(10);
    }
  }

  /** Pids of living processes of this run, the launcher included. */
  processes(): number[] {
    return readdirSync('/proc')
      .filter((name) => /^\d+$/.test(name))
      .map(Number)
      .filter((pid) => this.isOurs(pid));
  }

  /** Resolves when no process of this run is left. */
  async whenGone(): Promise<void> {
    while (this.processes().length > 0) await pause(10);
  }

  /** A process that is dead but not yet waited for has an empty environment. */
  private isOurs(pid: number): boolean {
    try {
      return readFileSync(`/proc/${pid}/environ`, 'utf8').includes(this.mark);
    } catch {
      return false;
    }
  }
}

export function pause(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
