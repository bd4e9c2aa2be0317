// What the first of the ranks that share a model tells the others: steps to compute, and what has
// become of the texts.
import { deserialize, serialize } from 'node:v8';
import { JointCall, type ProcessGroup, type Work } from '../../comm/index.js';
import { turn } from '../../data/event-loop.js';
import { DsError, type DsErrorFields } from '../../errors.js';
import { cpu } from '../../runtime/device.js';
import { held, Tensor } from '../../tensor/index.js';
import type { GenerationPiece } from '../continuation.js';
import type { StepBatch } from '../step-batch.js';

/** What has become of the request of this number, counted from 0 in the order of submission. */
export type News = { readonly number: number } & (
  | { readonly kind: 'asked'; readonly digest: string }
  | { readonly kind: 'piece'; readonly piece: GenerationPiece }
  | { readonly kind: 'failed'; readonly error: DsErrorFields }
  | { readonly kind: 'ended' }
);

/**
 * A step that all compute now; rest: none follows for now; pulse: the first rank is there; end: its
 * engine is not any more.
 */
export type Message =
  | { readonly kind: 'step'; readonly batch: StepBatch; readonly news: readonly News[] }
  | { readonly kind: 'rest'; readonly news: readonly News[] }
  | { readonly kind: 'pulse' }
  | { readonly kind: 'end'; readonly news: readonly News[] };

/** Bytes that every message has: those of most are in them. Its length comes first. */
const FIRST = 16 * 1024;
const HEAD = 4;

/** One side of a line over a group whose tensors lie in host memory. */
export class StepLine {
  private readonly first = held(() => Tensor.empty([FIRST], 'u8', cpu()));

  constructor(readonly group: ProcessGroup) {}

  /** The message is on its way when it returns. Throws DS_COMM. */
  report(message: Message): void {
    const bytes = serialize(message);
    const head = Buffer.alloc(HEAD);
    head.writeUInt32LE(bytes.length);
    this.first.buffer.write(0, Buffer.concat([head, bytes.subarray(0, FIRST - HEAD)]));
    this.send(this.first).wait();
    if (bytes.length <= FIRST - HEAD) return;
    const rest = held(() => Tensor.from(Uint8Array.from(bytes.subarray(FIRST - HEAD))));
    this.send(rest).wait();
    rest.release();
  }

  /**
   * The next message. `soon`: it is about to come, and the thread may wait for it. Rejects with
   * DS_COMM.
   */
  async next(soon: boolean): Promise<Message> {
    await turn();
    const coming = this.send(this.first);
    if (soon) coming.synchronize();
    else await coming.promise;
    const bytes = bytesOf(this.first);
    const length = bytes.readUInt32LE(0);
    const start = bytes.subarray(HEAD, HEAD + length);
    if (start.length === length) return deserialize(start);
    const rest = held(() => Tensor.empty([length - start.length], 'u8', cpu()));
    this.send(rest).wait();
    const whole = Buffer.concat([start, bytesOf(rest)]);
    rest.release();
    return deserialize(whole);
  }

  /** The job's failure (DS_COMM), after which no step succeeds; null before. It does not wait. */
  get failure(): DsError | null {
    try {
      this.group.check();
      return null;
    } catch (error) {
      return error as DsError;
    }
  }

  /** This rank listens no more, because of `error`: whoever tells it something gets DS_COMM. */
  giveUp(error: unknown): void {
    new JointCall({ always: [this.group] }).giveUp(error);
  }

  /** Gives its memory back. */
  close(): void {
    this.first.release();
  }

  private send(tensor: Tensor): Work {
    return this.group.broadcast(tensor, 0, { purpose: 'steps of an inference engine' });
  }
}

function bytesOf(tensor: Tensor): Buffer {
  const raw = tensor.toRaw();
  return Buffer.from(raw.buffer, raw.byteOffset, raw.byteLength);
}

/** An error as data. */
export function fieldsOf(thrown: unknown): DsErrorFields {
  if (thrown instanceof DsError) {
    const { code, op, expected, got, hint } = thrown;
    return { code, op, expected, got, hint };
  }
  const got = thrown instanceof Error ? thrown.message : String(thrown);
  return { code: 'DS_INTERNAL', op: 'InferenceEngine', expected: 'a step without an error', got };
}
