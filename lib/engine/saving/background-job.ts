// Describes an asynchronous save as plain data for its thread. Tensors become offers of pinned
// memory, which the thread takes.

import type { JsonObject } from '../../../types/json.js';
import type { CheckpointContent, LocalShard, SaveTarget } from '../../checkpoint/index.js';
import { DsError, type DsErrorCode } from '../../errors.js';
import type { Box } from '../../runtime/box.js';
import { Buffer } from '../../runtime/buffer.js';
import { cpu } from '../../runtime/device.js';
import type { DType } from '../../runtime/dtype.js';
import { required } from '../../runtime/required.js';
import { held, Tensor } from '../../tensor/index.js';
import type { WorldOffer } from './store-world.js';

/** A shard of the checkpoint. `memory` is the index of its memory in the job. */
interface OfferedShard {
  name: string;
  shape: readonly number[];
  box?: Box;
  from?: number;
  memory: number;
  dtype: DType;
  size: readonly number[];
  offset: number;
}

/** An asynchronous save as plain data. The thread takes each offer once. */
export interface BackgroundJob {
  target: SaveTarget;
  /** The offer of the job's store connection. Null on a single rank. */
  world: WorldOffer | null;
  memory: { offer: number; bytes: number }[];
  content: Omit<CheckpointContent, 'model' | 'optimizer'> & {
    model: OfferedShard[];
    optimizer: OfferedShard[];
  };
  /** [1] int32: becomes 1 when the save ends. */
  ended: Int32Array;
}

/**
 * Messages from the thread. First `begun`, then `written` or `failure`; `warning` may come at any
 * time.
 */
export type BackgroundAnswer =
  | { warning: { message: string; name: string; code?: string } }
  | { begun: string }
  | { written: string }
  | { failure: Failure };

interface Failure {
  code: DsErrorCode | null;
  op: string;
  expected: string;
  got: string;
  hint: string;
}

/**
 * Returns the description of a save. Its tensors must be views of pinned memory, because the thread
 * shares this memory.
 */
export function describeJob(
  target: SaveTarget,
  content: CheckpointContent<LocalShard>,
  world: WorldOffer | null,
): BackgroundJob {
  const buffers: Buffer[] = [];
  const offerShard = ({ tensor, ...rest }: LocalShard): OfferedShard => {
    const { buffer, dtype, shape: size, offset } = tensor;
    if (!buffers.includes(buffer)) buffers.push(buffer);
    return { ...rest, memory: buffers.indexOf(buffer), dtype, size, offset };
  };
  const copyJson = <T extends JsonObject | null>(value: T): T =>
    JSON.parse(JSON.stringify(value)) as T;
  const described = {
    ...content,
    model: content.model.map(offerShard),
    optimizer: content.optimizer.map(offerShard),
    state: copyJson(content.state),
    rankState: copyJson(content.rankState),
    description: copyJson(content.description),
  };
  const memory = buffers.map((buffer) => ({ offer: buffer.offer(), bytes: buffer.bytes }));
  const ended = new Int32Array(new SharedArrayBuffer(4));
  return { target, world, memory, content: described, ended };
}

/**
 * Takes the offered memory on the thread's side. Returns the content; the caller releases its
 * tensors.
 */
export function takeContent({ memory, content }: BackgroundJob): CheckpointContent<LocalShard> {
  const buffers = memory.map(({ offer, bytes }) => Buffer.take(cpu(), bytes, offer));
  const takeShard = ({ memory: index, dtype, size, offset, ...rest }: OfferedShard): LocalShard => {
    const buffer = required(buffers[index]);
    return {
      ...rest,
      tensor: held(() => new Tensor(buffer.retain(), dtype, size, undefined, offset)),
    };
  };
  try {
    return {
      ...content,
      model: content.model.map(takeShard),
      optimizer: content.optimizer.map(takeShard),
    };
  } finally {
    for (const buffer of buffers) buffer.release();
  }
}

export function failureOf(error: unknown): Failure {
  if (error instanceof DsError) {
    const { code, op, expected, got, hint } = error;
    return { code, op, expected, got, hint };
  }
  const got = error instanceof Error ? (error.stack ?? error.message) : String(error);
  return { code: null, op: 'saveCheckpoint', expected: 'success', got, hint: '' };
}

/** Returns a failure as an error. Errors of other libraries get the code DS_INTERNAL. */
export function errorOf({ code, ...rest }: Failure): DsError {
  return new DsError({ code: code ?? 'DS_INTERNAL', ...rest });
}
