// Detects leaked tensors: warns once about steady growth, with the source lines that create
// tensors.
import { basename, dirname, sep } from 'node:path';
import { liveTensors, observeCreation, type Tensor } from './tensor.js';

/** Steps of growth until creations are sampled, and until the warning. */
const SUSPECT = 100;
const CERTAIN = 200;
/** Smallest growth that counts, in tensors per step. */
const RATE = 0.5;
/** Stacks taken in a step, about. */
const SAMPLES = 16;
const FRAMES = 40;
const LINES = 3;

const library = dirname(__dirname) + sep;
let reported = false;

interface Sample {
  made: WeakRef<Tensor>;
  stack: { stack?: string };
}

/**
 * Counts at the end of every step. It does nothing else until growth has lasted for SUSPECT steps.
 */
export class TensorGrowth {
  private steps = 0;
  private first = 0;
  private last = Number.POSITIVE_INFINITY;
  private samples: Sample[] = [];
  /** Tensors made in this step and the last one. */
  private made = 0;
  private madeBefore = SAMPLES;

  /** A step has ended. */
  stepped(live: number = liveTensors()): void {
    if (reported) return;
    if (live < this.last) this.restart(live);
    else this.steps++;
    this.last = live;
    const growth = live - this.first;
    if (this.steps < SUSPECT) return;
    if (growth < RATE * this.steps) {
      this.restart(live);
      return;
    }
    this.samples = this.samples.filter(({ made }) => made.deref()?.isDisposed === false);
    this.madeBefore = Math.max(1, this.made);
    this.made = 0;
    if (this.steps < CERTAIN) observeCreation((tensor) => this.sample(tensor));
    else this.report(growth, live);
  }

  /** Stops sampling. */
  dispose(): void {
    this.restart(Number.POSITIVE_INFINITY);
  }

  private restart(live: number): void {
    if (this.steps >= SUSPECT) observeCreation(null);
    this.samples = [];
    this.steps = 0;
    this.first = live;
    this.last = live;
  }

  private sample(tensor: Tensor): void {
    this.made++;
    if (Math.random() * this.madeBefore > SAMPLES) return;
    const stack: Sample['stack'] = {};
    const { stackTraceLimit } = Error;
    Error.stackTraceLimit = FRAMES;
    Error.captureStackTrace(stack);
    Error.stackTraceLimit = stackTraceLimit;
    this.samples.push({ made: new WeakRef(tensor), stack });
  }

  private report(growth: number, live: number): void {
    reported = true;
    const counts = new Map<string, number>();
    for (const { stack } of this.samples) {
      const site = siteOf(stack.stack ?? '');
      counts.set(site, (counts.get(site) ?? 0) + 1);
    }
    const sites = [...counts].sort(([, a], [, b]) => b - a).slice(0, LINES);
    const share = (count: number): string => `${Math.round((100 * count) / this.samples.length)} %`;
    const where = sites.map(([site, count]) => `${site} (${share(count)})`).join(', ');
    const made = where ? ` Sampled creation sites: ${where}.` : '';
    process.emitWarning(
      `The number of live tensors has grown for ${this.steps} steps, by ${growth} to ${live}.${made} ` +
        'Run each step inside scope(() => ...), which frees its tensors. Collect numbers (loss.item()), ' +
        'not tensors. Call dispose() on kept tensors. This warning appears once.',
      { type: 'DsWarning', code: 'DS_TENSORS' },
    );
    this.restart(live);
  }
}

/** "train.js:12": the nearest frame outside the library. */
function siteOf(stack: string): string {
  for (const frame of stack.split('\n').slice(1)) {
    const [, file, line] = /\(?((?:file:\/\/)?\/[^():]*):(\d+):\d+\)?$/.exec(frame) ?? [];
    if (file && !file.includes(library)) return `${basename(file)}:${line}`;
  }
  return 'inside the library';
}

/** @internal For tests: reports the next growth again. */
export function forgetGrowth(): void {
  reported = false;
}
