// cpu_checkpointing with kept attention: a segment's results in pinned host memory.

import { required } from '../../runtime/required.js';
import { Event } from '../../runtime/stream.js';
import type { ResultStore } from '../kept-results.js';
import type { Tensor } from '../tensor.js';
import { HostCopy, type TransferLane, uploadAll } from './transfer-lane.js';

/**
 * Order by events only; the host never waits.
 *
 *     down stream  copies a result while the rest of its segment runs. The last reader of the
 *                  result on the device frees it, in the order of this stream.
 *     up stream    copies a segment's results back when the backward of its successor has reached
 *                  its first attention. By then most memory of the successor's replay is free, so
 *                  the peak of a step does not grow.
 */
export class OffloadedResults implements ResultStore {
  private references = 0;
  private state: 'host' | 'uploading' | 'restored' = 'host';
  /** Results in call order: a copy, or a tensor that stays on its device. */
  private readonly results: (HostCopy | Tensor)[] = [];
  private readonly uploaded: Event;
  /** The previous segment in forward order; null before restore(). */
  private predecessor: { upload(): void } | null = null;

  constructor(private readonly lane: TransferLane) {
    this.uploaded = new Event(lane.device);
  }

  add(result: Tensor): void {
    const { device, down } = this.lane;
    result.retain();
    if (result.device !== device || result.numel === 0) {
      this.results.push(result);
      return;
    }
    this.lane.orderAfter(down, device.compute);
    const copy = startCopy(this.lane, result);
    this.results.push(copy);
    copy.leaveDevice();
  }

  restore(): void {
    this.predecessor = this.lane.results.remove(this);
    this.upload();
    this.awaitUpload();
  }

  take(i: number): Tensor {
    const result = required(this.results[i]);
    if (!(result instanceof HostCopy)) return result.detach();
    const tensor = required(result.tensor).detach();
    result.release();
    return tensor;
  }

  prefetchPredecessor(): void {
    this.predecessor?.upload();
    this.predecessor = null;
  }

  upload(): void {
    if (this.state !== 'host') return;
    this.state = 'uploading';
    const copies = this.results.filter((result) => result instanceof HostCopy);
    uploadAll(this.lane, copies, this.uploaded);
  }

  retain(): void {
    if (this.references++ === 0) this.lane.results.add(this);
  }

  release(): void {
    if (--this.references > 0) return;
    this.lane.results.remove(this);
    this.awaitUpload();
    this.state = 'restored';
    for (const each of this.results.splice(0)) each.release();
    this.uploaded.dispose();
  }

  /** Makes later work of the compute stream wait for the uploaded results. */
  private awaitUpload(): void {
    if (this.state !== 'uploading') return;
    this.state = 'restored';
    this.lane.device.compute.wait(this.uploaded);
  }
}

/** Starts the copy of `result` to the host. Releases `result` if there is no memory for it. */
function startCopy(lane: TransferLane, result: Tensor): HostCopy {
  try {
    return new HostCopy(lane, result);
  } catch (error) {
    result.release();
    throw error;
  }
}
