// The boundary's hot path: op arguments go into one shared block of numbers, one call runs the op.
import { DsError } from '../errors.js';
import { addon } from './addon.js';
import { dtypeCode } from './dtype.js';
import type { Stream } from './stream.js';
import { describe, type View } from './view.js';

/** Shared with the addon; valid between writing an op's arguments and its call. */
export const block = new Float64Array(512);
addon.setArguments(block);

/** Writes a view at word `at` and returns the next free word; null is an absent optional operand. */
export function putView(view: View | null, at: number): number {
  if (view === null) {
    block[at] = 0;
    return at + 1;
  }
  const { shape, strides } = view;
  const ndim = shape.length;
  if (view.buffer.handle === 0) throw released(view);
  block[at] = view.buffer.handle;
  block[at + 1] = dtypeCode(view.dtype);
  block[at + 2] = ndim;
  block[at + 3] = view.offset;
  for (let d = 0; d < ndim; ++d) {
    block[at + 4 + d] = shape[d] as number;
    block[at + 4 + ndim + d] = strides[d] as number;
  }
  return at + 4 + 2 * ndim;
}

function released(view: View): DsError {
  return new DsError({
    code: 'DS_RELEASED',
    op: 'tensor',
    expected: 'a live tensor',
    got: `${describe(view)} that was released`,
    hint: 'Call keep() on a tensor that must outlive its scope, and do not use it after dispose().',
  });
}

/** Told of an op, by its number and arguments, before it is enqueued on a device stream. */
export type KernelObserver = (op: number, args: object) => void;

let observer: KernelObserver | null = null;

/** Lets `next` see every op from now on; null ends it. Throws DS_ARGUMENT while another one watches. */
export function observeKernels(next: KernelObserver | null): void {
  if (next && observer) {
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'observeKernels',
      expected: 'one observer at a time',
      got: 'a second one',
      hint: 'End the other profile first.',
    });
  }
  observer = next;
}

/** Runs op `op`, whose arguments are in the block, on `stream`. Throws DsError. */
export function call(op: number, stream: Stream, args: object): void {
  if (observer !== null) observer(op, args);
  try {
    addon.run(op, stream.handle);
  } catch (error) {
    throw DsError.fromNative(error);
  }
}

/** Enqueues the CPU body of op `op` on `stream`, over pinned memory. Throws DsError. */
export function callOnHost(op: number, stream: Stream): void {
  try {
    addon.runOnHost(op, stream.handle);
  } catch (error) {
    throw DsError.fromNative(error);
  }
}

/** Calls into the addon elsewhere in this room: native errors become DsErrors with this call's stack. */
export function native<T>(body: () => T): T {
  try {
    return body();
  } catch (error) {
    throw DsError.fromNative(error);
  }
}
