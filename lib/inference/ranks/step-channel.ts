// Messages from rank 0 to the other ranks that share a model: steps to compute, and request events.
import { deserialize, serialize } from 'node:v8';
import { JointCall, type ProcessGroup, type Work } from '../../comm/index.js';
import { DsError, type DsErrorFields } from '../../errors.js';
import { cpu } from '../../runtime/device.js';
import { waitForEventLoop } from '../../runtime/event-loop.js';
import { held, Tensor } from '../../tensor/index.js';
import type { GenerationPiece } from '../continuation.js';
import type { StepBatch } from '../step-batch.js';

/** An event of a request. Requests are numbered from 0 in the order of submission. */
export type RequestEvent = { readonly number: number } & (
  | { readonly kind: 'submitted'; readonly digest: string }
  | { readonly kind: 'piece'; readonly piece: GenerationPiece }
  | { readonly kind: 'failed'; readonly error: DsErrorFields }
  | { readonly kind: 'ended' }
);

/**
 * step: all ranks compute this batch now. idle: no step follows for now. heartbeat: rank 0 is
 * alive.
 * 0. end: rank 0 has destroyed its engine.
 */
export type Message =
  | { readonly kind: 'step'; readonly batch: StepBatch; readonly events: readonly RequestEvent[] }
  | { readonly kind: 'idle'; readonly events: readonly RequestEvent[] }
  | { readonly kind: 'heartbeat' }
  | { readonly kind: 'end'; readonly events: readonly RequestEvent[] };

/**
 * Bytes of the first broadcast. Most messages fit into it. A message starts with its length (u32).
 */
const FIRST_BYTES = 16 * 1024;
const LENGTH_BYTES = 4;

/** One endpoint of the message channel, over a group with host tensors. */
export class StepChannel {
  private readonly first = held(() => Tensor.empty([FIRST_BYTES], 'u8', cpu()));

  constructor(readonly group: ProcessGroup) {}

  /** Sends a message and waits until it has left this rank. */
  send(message: Message): void {
    const bytes = serialize(message);
    const head = Buffer.alloc(LENGTH_BYTES);
    head.writeUInt32LE(bytes.length);
    this.first.buffer.write(
      0,
      Buffer.concat([head, bytes.subarray(0, FIRST_BYTES - LENGTH_BYTES)]),
    );
    this.broadcast(this.first).wait();
    if (bytes.length <= FIRST_BYTES - LENGTH_BYTES) return;
    const remainder = held(() =>
      Tensor.from(Uint8Array.from(bytes.subarray(FIRST_BYTES - LENGTH_BYTES))),
    );
    this.broadcast(remainder).wait();
    remainder.release();
  }

  /**
   * Receives the next message. If `soon` is set, the message is due, and the call may block the
   * thread. Rejects with DS_COMM.
   */
  async next(soon: boolean): Promise<Message> {
    await waitForEventLoop();
    const coming = this.broadcast(this.first);
    if (soon) coming.synchronize();
    else await coming.promise;
    const bytes = bytesOf(this.first);
    const length = bytes.readUInt32LE(0);
    const start = bytes.subarray(LENGTH_BYTES, LENGTH_BYTES + length);
    if (start.length === length) return deserialize(start);
    const remainder = held(() => Tensor.empty([length - start.length], 'u8', cpu()));
    this.broadcast(remainder).wait();
    const received = Buffer.concat([start, bytesOf(remainder)]);
    remainder.release();
    return deserialize(received);
  }

  /**
   * The job's failure (DS_COMM), after which no step succeeds; null before. This getter does not
   * wait.
   */
  get failure(): DsError | null {
    try {
      this.group.check();
      return null;
    } catch (error) {
      return error as DsError;
    }
  }

  /** Stops receiving because of `error`. Later sends to this rank fail with DS_COMM. */
  giveUp(error: unknown): void {
    new JointCall({ always: [this.group] }).giveUp(error);
  }

  close(): void {
    this.first.release();
  }

  private broadcast(tensor: Tensor): Work {
    return this.group.broadcast(tensor, 0, { purpose: 'steps of an inference engine' });
  }
}

function bytesOf(tensor: Tensor): Buffer {
  const raw = tensor.toRaw();
  return Buffer.from(raw.buffer, raw.byteOffset, raw.byteLength);
}

/** Converts an error to serializable fields. */
export function errorFields(thrown: unknown): DsErrorFields {
  if (thrown instanceof DsError) {
    const { code, op, expected, got, hint } = thrown;
    return { code, op, expected, got, hint };
  }
  const got = thrown instanceof Error ? thrown.message : String(thrown);
  return { code: 'DS_INTERNAL', op: 'InferenceEngine', expected: 'a step without an error', got };
}
