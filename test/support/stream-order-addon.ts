// The native addon with a stream order checker, for DS_NATIVE_BINDING. A use of memory without an
// ordering event throws at the enqueue. The checker finds the written operands of an op by their
// changed bytes.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type DType, dtypeSizes, dtypes } from '../../lib/runtime/dtypes.generated.js';
import { addonCandidates } from '../../lib/runtime/native-files.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import type { Addon } from '../../types/addon.generated.js';
import { type Bytes, HOST, isWithin, overlap, StreamOrder } from './stream-order.js';

const localAddon = require(addonCandidates()[0] as string) as Addon;
const order = new StreamOrder();

/** Number of queries until an event reports that it is complete. */
const NOT_YET = 2;

/** An op: the words that go into the block for it, in order. */
interface Op {
  name: string;
  words: readonly { name: string; isView: boolean }[];
  /** Indices of operands among its words that were seen to change. */
  readonly written: Set<number>;
  /** How often the other operands were compared. */
  readonly looks: Map<number, number>;
}

/** After so many runs without a change, an operand counts as read only. */
const LOOKS = 40;

/** The ops from kernels.generated.ts. */
function readOps(): Map<number, Op> {
  const path = join(packageRoot(), 'lib', 'runtime', 'kernels.generated.ts');
  const text = readFileSync(path, 'utf8');
  const ops = new Map<number, Op>();
  const bodies = /^function put(\w+)\(args: \w+\): void \{\n([\s\S]*?)^\}$/gm;
  for (const [, name, body] of text.matchAll(bodies)) {
    const words = [
      ...(body as string).matchAll(
        /putView\(args\.([\w.]+), at\)|block\[at\+\+\]|block\[(?:at|\d+)\] = /g,
      ),
    ];
    const call = new RegExp(`  put${name}\\(args\\);\\n  call\\((\\d+), `).exec(text);
    if (!call) throw new Error(`${path}: no call of ${name}`);
    ops.set(Number(call[1]), {
      name: name as string,
      words: words.map(([, view]) => ({ name: view ?? '', isView: view !== undefined })),
      written: new Set(words.flatMap(([, view], word) => (view === 'out' ? [word] : []))),
      looks: new Map(),
    });
  }
  return ops;
}

const ops = readOps();
let block: Float64Array = new Float64Array(2);
/** By buffer: the stream that allocates and frees its memory; pinned memory has no stream. */
const owners = new Map<number, number>();
const asked = new Map<number, number>();

function check(error: string | null): void {
  if (error) throw new Error(`race: ${error}`);
}

/** An operand in the block, and its index there. */
interface Operand extends Bytes {
  word: number;
}

function operandsOf(op: Op): Operand[] {
  const out: Operand[] = [];
  let at = 0;
  for (const [word, { isView }] of op.words.entries()) {
    const buffer = block[at] as number;
    if (!isView || buffer === 0) {
      at += 1;
      continue;
    }
    const [size, ndim, offset] = [
      dtypeSizes[dtypes[block[at + 1] as number] as DType],
      block[at + 2] as number,
      block[at + 3] as number,
    ];
    let [last, isEmpty] = [0, false];
    for (let d = 0; d < ndim; ++d) {
      const [n, stride] = [block[at + 4 + d] as number, block[at + 4 + ndim + d] as number];
      if (n === 0) isEmpty = true;
      last += (n - 1) * Math.abs(stride);
    }
    at += 4 + 2 * ndim;
    if (isEmpty) continue;
    out.push({ word, buffer, from: offset * size, to: (offset + last + 1) * size });
  }
  return out;
}

function contents({ buffer, from, to }: Bytes, stream: number): Buffer {
  const out = Buffer.alloc(to - from);
  localAddon.read(buffer, from, out, stream);
  return out;
}

/** Runs op `number` by `run` on `stream`, and records its reads and writes. */
function runWatched(number: number, stream: number, run: () => void): void {
  const op = ops.get(number) as Op;
  const operands = operandsOf(op);
  // If two operands overlap, the written one cannot be determined.
  const isAlone = (operand: Operand): boolean =>
    operands.every((other) => other === operand || !overlap(operand, other));
  const unknown = operands.filter(
    (operand) =>
      !op.written.has(operand.word) &&
      (op.looks.get(operand.word) ?? 0) < LOOKS &&
      isAlone(operand),
  );
  const before = unknown.map((operand) => contents(operand, stream));
  run();
  unknown.forEach((operand, i) => {
    if (!contents(operand, stream).equals(before[i] as Buffer)) op.written.add(operand.word);
    op.looks.set(operand.word, (op.looks.get(operand.word) ?? 0) + 1);
  });
  order.begin(stream);
  for (const { word, ...bytes } of operands) {
    const label = `${op.name}, ${op.words[word]?.name},`;
    check(order.use(stream, bytes, op.written.has(word), { what: label }));
  }
}

/** One separate use by `stream`. */
function uses(stream: number, bytes: Bytes, writes: boolean, label: string): void {
  order.begin(stream);
  check(order.use(stream, bytes, writes, { what: label }));
}

const range = (buffer: number, from: number, bytes: number): Bytes => ({
  buffer,
  from,
  to: from + bytes,
});

/** Live streams. */
const streams = new Set<number>();

function waitForAll(): void {
  for (const stream of streams) order.follow(HOST, stream);
}

/** A transfer between memory and a disk, as an actor; `at` is the file offset. */
interface Transfer {
  actor: number;
  file: number;
  memory: Bytes;
  at: Bytes;
}
let transfers: Transfer[] = [];
/** By file and place in memory. */
const movers = new Map<string, number>();

function moverOf(place: string): number {
  const actor = movers.get(place) ?? -1 - movers.size;
  movers.set(place, actor);
  return actor;
}

/** `actor` waits for the transfers of `file` that touch these bytes. */
function followTransfers(actor: number, file: number, ...touched: readonly Bytes[]): void {
  for (const transfer of transfers) {
    const isTouched = touched.some(
      (bytes) => overlap(bytes, transfer.memory) || overlap(bytes, transfer.at),
    );
    if (transfer.file === file && isTouched) order.follow(actor, transfer.actor);
  }
}

interface Group {
  /** Ranks. */
  size: number;
  /** Events after its collectives, by ticket. */
  ends: Map<number, number>;
}
const groups = new Map<number, Group>();
let lastEnd = 0;
/** Whether input and output have a slot for each rank, in the order of collectiveKinds. */
const SLOTS: readonly (readonly [input: boolean, output: boolean])[] = [
  [false, false],
  [true, false],
  [false, true],
  [false, false],
  [false, false],
  [true, true],
  [false, false],
  [false, false],
  [false, false],
];

/** Words of the block. */
type Ten = [
  ...[number, number, number, number, number],
  ...[number, number, number, number, number],
];

/** Later work of `actor` comes after the collective. */
function noteLanding(group: number, ticket: number, actor: number): void {
  const end = groups.get(group)?.ends.get(ticket);
  if (end !== undefined) order.wait(actor, end);
}

const watchedCalls: Partial<Addon> = {
  setArguments(values) {
    block = values;
    localAddon.setArguments(values);
  },
  open(number) {
    const stream = localAddon.open(number);
    order.name(stream, 'compute');
    streams.add(stream);
    return stream;
  },
  run() {
    const [stream, op] = [block[block.length - 2] as number, block[block.length - 1] as number];
    runWatched(op, stream, localAddon.run);
  },
  runOnHost(op, stream) {
    runWatched(op, stream, () => localAddon.runOnHost(op, stream));
  },
  allocate() {
    const [stream, bytes] = [block[block.length - 2] as number, block[block.length - 1] as number];
    localAddon.allocate();
    const buffer = block[block.length - 2] as number;
    owners.set(buffer, stream);
    // The memory is free since the last work of the stream: any stream that waited for that may use
    // it.
    check(order.use(stream, range(buffer, 0, bytes), true, { what: 'the allocation' }));
  },
  allocatePinned(number, bytes) {
    const buffer = localAddon.allocatePinned(number, bytes);
    uses(HOST, range(buffer, 0, bytes), true, 'the allocation');
    return buffer;
  },
  release(buffer) {
    const owner = owners.get(buffer);
    owners.delete(buffer);
    localAddon.release(buffer);
    if (owner === undefined) return;
    order.begin(owner);
    check(order.free(owner, buffer, owner, 'the release'));
  },
  releaseOn(buffer, stream) {
    localAddon.releaseOn(buffer, stream);
    const owner = owners.get(buffer) as number;
    owners.delete(buffer);
    order.begin(stream);
    check(order.free(stream, buffer, owner, 'the release'));
  },
  copy(...call) {
    const [to, toOffset, from, fromOffset, bytes, stream] = call;
    localAddon.copy(...call);
    order.begin(stream);
    check(order.use(stream, range(from, fromOffset, bytes), false, { what: 'a copy' }));
    check(order.use(stream, range(to, toOffset, bytes), true, { what: 'a copy' }));
  },
  read(buffer, offset, target, stream) {
    localAddon.read(buffer, offset, target, stream);
    uses(stream, range(buffer, offset, target.byteLength), false, 'read()');
    order.follow(HOST, stream);
  },
  write(buffer, offset, source, stream) {
    localAddon.write(buffer, offset, source, stream);
    uses(stream, range(buffer, offset, source.byteLength), true, 'write()');
    order.follow(HOST, stream);
  },
  record(event, stream) {
    localAddon.record(event, stream);
    order.record(event, stream);
    asked.delete(event);
  },
  wait(stream, event) {
    localAddon.wait(stream, event);
    order.wait(stream, event);
  },
  done(event) {
    localAddon.done(event);
    if (order.hasPassed(event)) return true;
    const times = (asked.get(event) ?? 0) + 1;
    asked.set(event, times);
    if (times <= NOT_YET) return false;
    order.wait(HOST, event);
    return true;
  },
  synchronizeEvent(event) {
    localAddon.synchronizeEvent(event);
    order.wait(HOST, event);
  },
  synchronizeStream(stream) {
    localAddon.synchronizeStream(stream);
    order.follow(HOST, stream);
  },
  synchronizeDevice(number) {
    localAddon.synchronizeDevice(number);
    waitForAll();
  },
  createStream(number, urgency) {
    const stream = localAddon.createStream(number, urgency);
    streams.add(stream);
    return stream;
  },
  releaseStream(stream) {
    localAddon.releaseStream(stream);
    waitForAll();
    streams.delete(stream);
    order.end(stream);
  },
  releaseEvent(event) {
    localAddon.releaseEvent(event);
    order.forget(event);
    asked.delete(event);
  },
  startSwap(...call) {
    const [file, writes, offset, buffer, bufferOffset, bytes, stream] = call;
    localAddon.startSwap(...call);
    order.begin(stream);
    const actor = moverOf(`${file} ${buffer} ${bufferOffset}`);
    const memory = range(buffer, bufferOffset, bytes);
    const at = range(-file, offset, bytes);
    order.follow(actor, stream);
    followTransfers(actor, file, memory, at);
    const isGone = (transfer: Transfer): boolean =>
      transfer.file === file && isWithin(transfer.memory, memory);
    transfers = transfers.filter((transfer) => !isGone(transfer));
    transfers.push({ actor, file, memory, at });
    order.name(actor, writes ? 'a write to a disk' : 'a read from a disk');
    uses(actor, memory, !writes, 'a transfer');
  },
  waitSwap(file, buffer, bufferOffset, bytes, stream) {
    localAddon.waitSwap(file, buffer, bufferOffset, bytes, stream);
    followTransfers(stream, file, range(buffer, bufferOffset, bytes));
  },
  async openGroup(job, deviceStream, name, ranks, rank) {
    const group = await localAddon.openGroup(job, deviceStream, name, ranks, rank);
    groups.set(group, { size: ranks.length, ends: new Map() });
    return group;
  },
  startCollective(group, stream, purpose, label) {
    const [kind, , dtype, count, , input, inputAt, output, outputAt, rows] = Array.from(
      block.slice(0, 10),
    ) as Ten;
    const ticket = localAddon.startCollective(group, stream, purpose, label);
    const { size, ends } = groups.get(group) as Group;
    // On a GPU it runs in the order of its stream.
    order.begin(stream);
    const options = { what: purpose || label, holds: true };
    const width = dtypeSizes[dtypes[dtype] as DType];
    const [inSlots, outSlots] = SLOTS[kind] as readonly [boolean, boolean];
    const part = (buffer: number, at: number, isAll: boolean): Bytes =>
      range(buffer, at * width, count * rows * width * (isAll ? size : 1));
    if (input) check(order.use(stream, part(input, inputAt, inSlots), false, options));
    if (output) check(order.use(stream, part(output, outputAt, outSlots), true, options));
    order.record(--lastEnd, stream);
    ends.set(ticket, lastEnd);
    return ticket;
  },
  waitCollective(group, ticket, stream) {
    localAddon.waitCollective(group, ticket, stream);
    noteLanding(group, ticket, stream);
  },
  synchronizeCollective(group, ticket) {
    localAddon.synchronizeCollective(group, ticket);
    noteLanding(group, ticket, HOST);
  },
  collectiveDone(group, ticket) {
    const isDone = localAddon.collectiveDone(group, ticket);
    if (isDone) noteLanding(group, ticket, HOST);
    return isDone;
  },
  writeFile(path, offset, head, segments, crc) {
    for (let at = 0; at < segments.length; at += 3) {
      const [buffer, from, bytes] = segments.slice(at, at + 3) as unknown as [
        number,
        number,
        number,
      ];
      ofTheHost(range(buffer, from, bytes), false, `a write to ${path}`);
    }
    return localAddon.writeFile(path, offset, head, segments, crc);
  },
  readFile(...call) {
    const [, path, , bytes, buffer, bufferOffset] = call;
    ofTheHost(range(buffer, bufferOffset, bytes), true, `a read from ${path}`);
    return localAddon.readFile(...call);
  },
};

/**
 * A host access to pinned memory. On the CPU, tensors are host memory too; on a GPU, they are
 * copied.
 */
function ofTheHost(bytes: Bytes, writes: boolean, label: string): void {
  if (!owners.has(bytes.buffer)) uses(HOST, bytes, writes, label);
}

module.exports = { ...localAddon, ...watchedCalls };
