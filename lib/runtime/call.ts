// Calls of ops: arguments go into one shared block of numbers, and one native call runs the op.

import { DsError } from '../errors.js';
import { addon, block as sharedBlock } from './addon.js';
import { openQueue } from './deferred-calls.js';
import { dtypeCode } from './dtype.js';
import { required } from './required.js';
import { withOwners } from './shortage.js';
import type { Stream } from './stream.js';
import { describe, type View } from './view.js';

/**
 * Functions that enqueue an op by its number, on the stream of a handle. The block holds the op's
 * arguments.
 */
export interface OpCalls {
  run(op: number, stream: number): void;
  runOnHost(op: number, stream: number): void;
}

/** A local binding: an imported one is read and type-checked for each argument. */
const block = sharedBlock;

/** A local binding: a lookup in the addon's table costs as much as the call. */
const { run: runBlock } = addon;

/** Positions of two arguments in the block. The next allocate() overwrites them. */
const [STREAM, OP] = [block.length - 2, block.length - 1];

/** The calls without a watcher. */
export const ownCalls: OpCalls = {
  run(op, stream) {
    block[STREAM] = stream;
    block[OP] = op;
    runBlock();
  },
  runOnHost: addon.runOnHost,
};

let { run: runNow, runOnHost } = ownCalls;

/** Selects the functions that run later ops: see watchWork(). */
export function runOpsBy(calls: OpCalls): void {
  ({ run: runNow, runOnHost } = calls);
}

/**
 * Writes a view at index `at` of the block and returns the next free index; null is an absent
 * optional operand.
 */
export function putView(view: View | null, at: number): number {
  if (view === null) {
    block[at] = 0;
    return at + 1;
  }
  const { shape, strides, buffer } = view;
  const ndim = shape.length;
  if (buffer.id === 0) throw releasedError(view);
  openQueue()?.operand(buffer);
  block[at] = buffer.id;
  block[at + 1] = dtypeCode(view.dtype);
  block[at + 2] = ndim;
  block[at + 3] = view.offset;
  for (let d = 0; d < ndim; ++d) {
    block[at + 4 + d] = required(shape[d]);
    block[at + 4 + ndim + d] = required(strides[d]);
  }
  return at + 4 + 2 * ndim;
}

/**
 * Runs `body` and then restores the block, because ops in `body` overwrite the arguments of another
 * op. (The first use of an operand may allocate its buffer.)
 */
export function preserveCall(body: () => void): void {
  const words = block.slice();
  try {
    body();
  } finally {
    block.set(words);
  }
}

function releasedError(view: View): DsError {
  const { isAbandoned } = view.buffer;
  return new DsError({
    code: 'DS_RELEASED',
    op: 'tensor',
    expected: 'a live tensor',
    got: `${describe(view)} that was ${isAbandoned ? 'never computed' : 'released'}`,
    hint: isAbandoned
      ? 'The rerun of a checkpointed function omits ops that backward does not need. Use the result of the first run.'
      : 'Call keep() on a tensor that must outlive its scope, and do not use it after dispose().',
  });
}

/**
 * Called with the number and arguments of each op. The returned function is called when the op is
 * enqueued on a device stream, possibly later (deferred-calls.ts) or never.
 */
type KernelObserver = (op: number, args: object) => (() => void) | null;

let observer: KernelObserver | null = null;

/**
 * Reports every later op to `next`; null ends it. Throws DS_ARGUMENT if another observer is set.
 */
export function observeKernels(next: KernelObserver | null): void {
  if (next && observer) {
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'observeKernels',
      expected: 'one observer at a time',
      got: 'a second observer',
      hint: 'End the first profile, then start this one.',
    });
  }
  observer = next;
}

/** Runs `body` without the observer: its ops are measurements, not work of the model. */
export function withoutObserver(body: () => void): void {
  const before = observer;
  observer = null;
  try {
    body();
  } finally {
    observer = before;
  }
}

/** Runs op `op` on `stream` with the arguments in the block. Throws DsError. */
export function call(op: number, stream: Stream, args: object): void {
  const noted = observer === null ? null : observer(op, args);
  const queue = openQueue();
  if (queue !== null) {
    const words = block.slice();
    const run = (): void => {
      block.set(words);
      enqueue(op, stream, noted);
    };
    queue.add(run, stream === stream.device.compute);
  } else enqueue(op, stream, noted);
}

function enqueue(op: number, stream: Stream, noted: (() => void) | null): void {
  noted?.();
  try {
    runNow(op, stream.handle);
  } catch (error) {
    throw withOwners(DsError.fromNative(error));
  }
}

/** Enqueues the CPU body of op `op` on `stream`, over pinned memory. Throws DsError. */
export function callOnHost(op: number, stream: Stream): void {
  const queue = openQueue();
  if (queue !== null) {
    const words = block.slice();
    queue.add(() => {
      block.set(words);
      enqueueOnHost(op, stream);
    }, false);
  } else enqueueOnHost(op, stream);
}

function enqueueOnHost(op: number, stream: Stream): void {
  try {
    runOnHost(op, stream.handle);
  } catch (error) {
    throw withOwners(DsError.fromNative(error));
  }
}
