// Traces some steps of a run into a file. The file contains all work, or a table of device time by
// role.

import { writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { DsError } from '../../errors.js';
import { Trace, type TraceFile, writeTrace } from '../../profiler/index.js';
import { formatRoles, sumByRole } from '../../profiler/roles.js';
import type { Device } from '../../runtime/device.js';
import { formatValue } from '../../runtime/format-value.js';
import { makeFolderNow } from '../../runtime/make-folder.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireInteger } from '../../runtime/require-number.js';
import { errorMessage } from '../../runtime/system-error.js';
import { hasWatcher } from '../../runtime/watched-work.js';
import { type Phase, type PhaseTimer, WrappedTimer } from './phase-timer.js';

/** Options of engine.trace(). */
export interface TraceStepsOptions {
  /** Number of global steps to trace. Default: 1. */
  steps?: number;
  /**
   * Number of steps to skip first. Default: 0. The first steps of a run are not typical: they
   * allocate memory and select matrix algorithms.
   */
  after?: number;
}

/** The options, with the path of the file and the trace. The folder of the file exists. */
export interface TracedStepOptions extends Required<TraceStepsOptions> {
  path: string;
  trace: Trace;
}

/** Returns whether the file gets the table by role instead of the trace. */
const isTable = (path: string): boolean => path.endsWith('.txt');

function writeFile(path: string, file: TraceFile): void {
  if (isTable(path)) writeFileSync(path, `${formatRoles(sumByRole(file))}\n`);
  else writeTrace(path, file);
}

/**
 * Reads the options, and creates the file. Throws DS_ARGUMENT, and DS_IO if the file is not
 * writable. This way the error comes before the steps, not after them.
 */
export function readTraceOptions(
  path: string,
  given: TraceStepsOptions,
  { device, rank }: { device: Device; rank: number },
): TracedStepOptions {
  const op = 'engine.trace';
  if (typeof path !== 'string' || path === '') {
    const expected = 'the name of a file, such as "trace.json"';
    throw new DsError({ code: 'DS_ARGUMENT', op, expected, got: formatValue(path) });
  }
  const { steps = 1, after = 0 } = readOptions(op, given, namesOf.TraceStepsOptions);
  const options = {
    path: rank === 0 ? path : path.replace(/(\.json|\.txt)?$/, `.rank${rank}$1`),
    steps: requireInteger(`${op} steps`, steps, 1),
    after: requireInteger(`${op} after`, after, 0),
  };
  try {
    makeFolderNow(dirname(options.path));
    writeFileSync(options.path, isTable(path) ? '' : '{"traceEvents":[]}\n');
  } catch (cause) {
    const got = errorMessage(cause);
    const expected = 'a file that can be written';
    throw new DsError({ code: 'DS_IO', op: `${op} ${options.path}`, expected, got, cause });
  }
  return { ...options, trace: new Trace(device, { rank }) };
}

/**
 * A phase timer that traces some steps. Before these steps it records nothing. After them, and on
 * dispose(), it restores the inner timer. A thread can have only one trace at a time. After the
 * trace of another engine, this one begins with the next whole step.
 */
export class TracedSteps extends WrappedTimer {
  private hasBegun = false;
  private stepsBefore: number;
  private stepsLeft: number;
  private closeStep: ((name: string) => void) | null = null;
  /** Whether the present step began during the trace of another engine. */
  private belongsToOtherTrace = false;

  constructor(
    inner: PhaseTimer,
    private readonly options: TracedStepOptions,
    private readonly onEnd: (inner: PhaseTimer) => void,
  ) {
    super(inner);
    this.stepsBefore = options.after;
    this.stepsLeft = options.steps;
  }

  override time<T>(phase: Phase, body: () => T): T {
    if (this.stepsBefore > 0) return this.inner.time(phase, body);
    if (!this.hasBegun && hasWatcher()) this.belongsToOtherTrace = true;
    if (this.belongsToOtherTrace) return this.inner.time(phase, body);
    const { trace } = this.options;
    if (!this.hasBegun) trace.begin();
    this.hasBegun = true;
    this.closeStep ??= trace.open('step', 'step');
    const close = trace.open(phase, 'phase');
    try {
      return this.inner.time(phase, body);
    } finally {
      close();
    }
  }

  override finishStep(step: number, samples: number): void {
    super.finishStep(step, samples);
    if (this.stepsBefore > 0) {
      this.stepsBefore--;
      return;
    }
    if (this.belongsToOtherTrace) {
      this.belongsToOtherTrace = false;
      return;
    }
    this.closeStep?.(`step ${step}`);
    this.closeStep = null;
    if (--this.stepsLeft === 0) this.finish();
  }

  override dispose(): void {
    try {
      this.finish();
    } finally {
      super.dispose();
    }
  }

  refuseAnother(): DsError {
    const { path } = this.options;
    return new DsError({
      code: 'DS_ARGUMENT',
      op: 'engine.trace',
      expected: 'one trace at a time',
      got: `a second trace before the steps of ${path}`,
      hint: 'Increase `steps`, or call it again after these steps.',
    });
  }

  /**
   * Ends the trace and writes the file. If the file cannot be written, warns, and training
   * continues.
   */
  private finish(): void {
    this.onEnd(this.inner);
    if (!this.hasBegun) return;
    this.hasBegun = false;
    this.closeStep?.('unfinished step');
    this.closeStep = null;
    const { trace, path } = this.options;
    const file = trace.end();
    try {
      writeFile(path, file);
    } catch (error) {
      const warning = `engine.trace could not write ${path}: ${errorMessage(error)}`;
      process.emitWarning(warning, { type: 'DsWarning', code: 'DS_MONITOR' });
    }
  }
}
