// Detects leaked tensors: warns once about steady growth, with the source lines that create
// tensors.
import { basename, dirname, sep } from 'node:path';
import { liveTensors, observeCreation, type Tensor } from './tensor.js';

/** Steps of growth before creations are sampled, and before the warning. */
const SUSPECT_STEPS = 100;
const WARNING_STEPS = 200;
/** Smallest growth that is a leak, in tensors per step. */
const MIN_GROWTH = 0.5;
/** Approximate number of stacks that a step samples. */
const STACKS_PER_STEP = 16;
const STACK_FRAMES = 40;
const REPORTED_LOCATIONS = 3;

const libraryFolder = dirname(__dirname) + sep;
let reported = false;

interface Sample {
  tensor: WeakRef<Tensor>;
  stack: { stack?: string };
}

/**
 * Counts live tensors at the end of every step. After SUSPECT_STEPS steps of growth it samples the
 * stacks of creations, and after WARNING_STEPS it warns.
 */
export class TensorGrowth {
  private steps = 0;
  private firstLive = 0;
  private lastLive = Number.POSITIVE_INFINITY;
  private samples: Sample[] = [];
  /** Numbers of tensors that were created in this step, and in the previous step. */
  private created = 0;
  private createdBefore = STACKS_PER_STEP;

  /** Counts the end of a step with `live` tensors. */
  endStep(live: number = liveTensors()): void {
    if (reported) return;
    if (live < this.lastLive) this.restart(live);
    else this.steps++;
    this.lastLive = live;
    const growth = live - this.firstLive;
    if (this.steps < SUSPECT_STEPS) return;
    if (growth < MIN_GROWTH * this.steps) {
      this.restart(live);
      return;
    }
    this.samples = this.samples.filter(({ tensor }) => tensor.deref()?.isDisposed === false);
    this.createdBefore = Math.max(1, this.created);
    this.created = 0;
    if (this.steps < WARNING_STEPS) observeCreation((tensor) => this.sample(tensor));
    else this.report(growth, live);
  }

  /** Stops sampling. */
  dispose(): void {
    this.restart(Number.POSITIVE_INFINITY);
  }

  private restart(live: number): void {
    if (this.steps >= SUSPECT_STEPS) observeCreation(null);
    this.samples = [];
    this.steps = 0;
    this.firstLive = live;
    this.lastLive = live;
  }

  private sample(tensor: Tensor): void {
    this.created++;
    if (Math.random() * this.createdBefore > STACKS_PER_STEP) return;
    const stack: Sample['stack'] = {};
    const { stackTraceLimit } = Error;
    Error.stackTraceLimit = STACK_FRAMES;
    Error.captureStackTrace(stack);
    Error.stackTraceLimit = stackTraceLimit;
    this.samples.push({ tensor: new WeakRef(tensor), stack });
  }

  private report(growth: number, live: number): void {
    reported = true;
    const counts = new Map<string, number>();
    for (const { stack } of this.samples) {
      const site = locationOf(stack.stack ?? '');
      counts.set(site, (counts.get(site) ?? 0) + 1);
    }
    const sites = [...counts].sort(([, a], [, b]) => b - a).slice(0, REPORTED_LOCATIONS);
    const percentage = (count: number): string =>
      `${Math.round((100 * count) / this.samples.length)} %`;
    const where = sites.map(([site, count]) => `${site} (${percentage(count)})`).join(', ');
    const siteSentence = where ? ` Sampled creation sites: ${where}.` : '';
    process.emitWarning(
      `The number of live tensors has grown for ${this.steps} steps, by ${growth} to ${live}.${siteSentence} ` +
        'Run each step inside scope(() => ...), which frees its tensors. Collect numbers (loss.item()), ' +
        'not tensors. Call dispose() on kept tensors. This warning appears once.',
      { type: 'DsWarning', code: 'DS_TENSORS' },
    );
    this.restart(live);
  }
}

/** Returns the location of the nearest frame outside the library, as in "train.js:12". */
function locationOf(stack: string): string {
  for (const frame of stack.split('\n').slice(1)) {
    const [, file, line] = /\(?((?:file:\/\/)?\/[^():]*):(\d+):\d+\)?$/.exec(frame) ?? [];
    if (file && !file.includes(libraryFolder)) return `${basename(file)}:${line}`;
  }
  return 'inside the library';
}

/** @internal For tests: reports the next growth again. */
export function forgetGrowth(): void {
  reported = false;
}
