// Reports all stream work and waits to a watcher. It replaces the addon's functions only while a
// watcher is active, so it costs nothing otherwise.

import type { Addon } from '../../types/addon.generated.js';
import { DsError } from '../errors.js';
import { addon, block } from './addon.js';
import { type OpCalls, ownCalls, runOpsBy } from './call.js';
import { collectiveKinds } from './job.js';
import { opNames } from './kernels.generated.js';
import { required } from './required.js';
import { Stream } from './stream.js';
import { keysOf } from './typed-keys.js';

/** Work for a stream, as it is enqueued. */
export interface StreamWork {
  /** The name of the work, such as "matmul", "copy" or "allGather of weights". */
  name: string;
  /** The processor that runs it: the stream's device, or host threads in the stream's order. */
  by: 'device' | 'host';
  /** The stream that orders it. */
  stream: Stream;
  /** Bytes of a copy; null for other work. */
  bytes: number | null;
}

/** Work of threads outside of streams, with times in nanoseconds of process.hrtime(). */
export interface ThreadWork {
  /** A transfer with a disk, or a collective of the CPU. */
  kind: 'read' | 'write' | 'collective';
  name: string;
  bytes: number;
  began: number;
  ended: number;
}

/** Receives stream work and waits for it. */
export interface WorkWatcher {
  /** Receives work. Must call `enqueue` once, which enqueues the work. */
  enqueued(work: StreamWork, enqueue: () => void): void;
  /**
   * Receives a wait. Must call `wait` once, in which this thread waits for a device, a stream or a
   * collective.
   */
  waited<T>(name: string, wait: () => T): T;
}

type Calls = OpCalls &
  Pick<
    Addon,
    | 'copy'
    | 'launchGraph'
    | 'beginCapture'
    | 'endCapture'
    | 'startCollective'
    | 'read'
    | 'write'
    | 'synchronizeEvent'
    | 'synchronizeStream'
    | 'synchronizeDevice'
    | 'waitCollective'
    | 'synchronizeCollective'
    | 'waitSwap'
  >;

let isWatched = false;
let isRecorded = false;

/** Returns whether a watcher is active: a second one would be rejected. */
export const hasWatcher = (): boolean => isWatched;

/**
 * Returns whether enqueued work is only recorded (graph.ts) while a watcher is active: its events
 * have no time.
 */
export const recordsOnly = (): boolean => isRecorded;

/**
 * Reports to `watcher` until the returned function is called. That function returns the work of
 * threads outside of streams. Throws DS_ARGUMENT if another watcher is active.
 */
export function watchWork(watcher: WorkWatcher): () => ThreadWork[] {
  if (isWatched) {
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'trace',
      expected: 'one trace at a time',
      got: 'a second trace',
      hint: 'Wait until the first trace has ended.',
    });
  }
  const calls: Calls = { ...addon, ...ownCalls };
  const { run, runOnHost, ...others } = watch(calls, watcher);
  Object.assign(addon, others);
  runOpsBy({ run, runOnHost });
  addon.keepWork(true);
  isWatched = true;
  return () => {
    const lines = addon.takeWork();
    addon.keepWork(false);
    for (const name of keysOf(others)) {
      Object.assign(addon, { [name]: calls[name] });
    }
    runOpsBy(ownCalls);
    isWatched = false;
    isRecorded = false;
    return threadWork(lines);
  };
}

function watch(calls: Calls, watcher: WorkWatcher): Calls {
  return { ...watchEnqueues(calls, watcher), ...watchWaits(calls, watcher) };
}

/**
 * Work for a stream without a name is not reported, because the addon rejects it. Recorded work is
 * not reported either.
 */
function watchEnqueues(calls: Calls, watcher: WorkWatcher) {
  const report = (handle: number, work: Omit<StreamWork, 'stream'>, enqueue: () => void): void => {
    const stream = Stream.of(handle);
    if (stream && !isRecorded) watcher.enqueued({ ...work, stream }, enqueue);
    else enqueue();
  };
  const op = (number: number, by: 'device' | 'host'): Omit<StreamWork, 'stream'> => {
    return { name: opNames[number] ?? 'op', by, bytes: null };
  };
  const run: Calls['run'] = (number, stream) =>
    report(stream, op(number, 'device'), () => calls.run(number, stream));
  const runOnHost: Calls['runOnHost'] = (number, stream) =>
    report(stream, op(number, 'host'), () => calls.runOnHost(number, stream));
  const copy: Calls['copy'] = (...words) => {
    const [bytes, stream] = [words[4], words[5]];
    report(stream, { name: 'copy', by: 'device', bytes }, () => calls.copy(...words));
  };
  const launchGraph: Calls['launchGraph'] = (graph, stream) =>
    report(stream, { name: 'graph', by: 'device', bytes: null }, () =>
      calls.launchGraph(graph, stream),
    );
  const beginCapture: Calls['beginCapture'] = (number) => {
    calls.beginCapture(number);
    isRecorded = true;
  };
  const endCapture: Calls['endCapture'] = (number, keep) => {
    isRecorded = false;
    return calls.endCapture(number, keep);
  };
  const startCollective: Calls['startCollective'] = (group, stream, purpose, label) => {
    const start = (): number => calls.startCollective(group, stream, purpose, label);
    // CPU collectives run on their own threads, which report their work.
    if ((Stream.of(stream)?.device.number ?? 0) === 0) return start();
    const kind = collectiveKinds[required(block[0])] ?? 'collective';
    const name = purpose === '' ? kind : `${kind} of ${purpose}`;
    let ticket = 0;
    report(stream, { name, by: 'device', bytes: null }, () => {
      ticket = start();
    });
    return ticket;
  };
  return { run, runOnHost, copy, launchGraph, beginCapture, endCapture, startCollective };
}

function watchWaits(calls: Calls, watcher: WorkWatcher) {
  const around =
    <Words extends unknown[], Result>(name: string, call: (...words: Words) => Result) =>
    (...words: Words): Result =>
      watcher.waited(name, () => call(...words));
  return {
    read: around('wait for numbers', calls.read),
    write: around('wait for a write', calls.write),
    synchronizeEvent: around('wait for an event', calls.synchronizeEvent),
    synchronizeStream: around('wait for a stream', calls.synchronizeStream),
    synchronizeDevice: around('wait for the device', calls.synchronizeDevice),
    waitCollective: around('wait for a collective', calls.waitCollective),
    synchronizeCollective: around('wait for a collective', calls.synchronizeCollective),
    waitSwap: around('wait for the disk', calls.waitSwap),
  };
}

/** Parses the addon's lines: "kind began ended bytes name". */
function threadWork(lines: string): ThreadWork[] {
  const all = lines.split('\n').filter(Boolean);
  return all.map((line) => {
    const [kind, began, ended, bytes, ...name] = line.split(' ');
    return {
      kind: kind as ThreadWork['kind'],
      name: name.join(' '),
      bytes: Number(bytes),
      began: Number(began),
      ended: Number(ended),
    };
  });
}
