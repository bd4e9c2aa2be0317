// cpu_checkpointing: moves a segment's inputs to pinned host memory, and back before their replay.
import type { Device } from '../../runtime/device.js';
import { isFloating } from '../../runtime/dtype.js';
import { Event } from '../../runtime/stream.js';
import { ResidentResults, type ResultStore } from '../kept-results.js';
import { Tensor } from '../tensor.js';
import { OffloadedResults } from './pinned-results.js';
import { type ActivationStore, type KeptInputs, onDevice } from './store.js';
import {
  drainLanes,
  HostCopy,
  laneOf,
  spanOf,
  type TransferLane,
  uploadAll,
} from './transfer-lane.js';

/** An input with a copy in host memory. */
interface MovedInput {
  readonly index: number;
  readonly copy: HostCopy;
}

/**
 * Order by events only; the host never waits.
 *
 *     down stream  copies the inputs while their segment runs. Their device memory is freed in the
 *                  order of this stream when the next segment starts, which waits for that copy.
 *                  So the inputs of two segments are on the device at a time.
 *     up stream    copies a segment's inputs back while its successor is replayed
 *
 * The newest segment's inputs stay on the device, because the backward begins with them.
 */
class OffloadedInputs implements KeptInputs {
  private references = 0;
  private state: 'device' | 'host' | 'uploading' | 'restored' = 'device';
  private readonly moved: MovedInput[] = [];
  /** The inputs, with null for moved inputs. */
  private readonly residents: unknown[];
  private readonly uploaded: Event;

  constructor(
    private readonly lane: TransferLane,
    inputs: readonly unknown[],
  ) {
    this.residents = [...inputs];
    this.uploaded = new Event(lane.device);
  }

  retain(): this {
    if (this.references++ > 0) return this;
    for (const input of this.residents) if (input instanceof Tensor) input.retain();
    const { device, down, inputs } = this.lane;
    inputs.newest?.leaveDevice();
    inputs.add(this);
    this.lane.orderAfter(down, device.compute);
    this.residents.forEach((input, index) => {
      if (!(input instanceof Tensor) || !isMovable(input, device)) return;
      this.moved.push({ index, copy: new HostCopy(this.lane, input) });
      this.residents[index] = null;
    });
    return this;
  }

  release(): void {
    if (--this.references > 0) return;
    this.lane.inputs.remove(this);
    this.awaitUpload();
    for (const { copy } of this.moved) copy.release();
    for (const input of this.residents) if (input instanceof Tensor) input.release();
    this.uploaded.dispose();
  }

  restore(): readonly unknown[] {
    const predecessor = this.lane.inputs.remove(this);
    this.upload();
    this.awaitUpload();
    predecessor?.upload();
    const inputs = [...this.residents];
    for (const { index, copy } of this.moved) inputs[index] = copy.tensor;
    return inputs;
  }

  /** Releases the device's copies. Their memory can be reused from here on. */
  leaveDevice(): void {
    if (this.state !== 'device') return;
    this.state = 'host';
    for (const { copy } of this.moved) copy.leaveDevice();
    const { device, down } = this.lane;
    this.lane.orderAfter(device.compute, down);
  }

  upload(): void {
    if (this.state !== 'host') return;
    this.state = 'uploading';
    const copies = this.moved.map(({ copy }) => copy);
    uploadAll(this.lane, copies, this.uploaded);
  }

  /** Makes later work of the compute stream wait for the uploaded inputs. */
  private awaitUpload(): void {
    if (this.state !== 'uploading') return;
    this.state = 'restored';
    this.lane.device.compute.wait(this.uploaded);
  }
}

/**
 * Returns whether an input can move: floating, on the device, without gaps in memory, and not a
 * leaf, which stays in memory anyway. Other inputs (indices, masks, parameters) stay.
 */
function isMovable(input: Tensor, device: Device): boolean {
  const isLeaf = input.requiresGrad && !input.gradFn;
  if (isLeaf || input.numel === 0 || !isFloating(input.dtype)) return false;
  return input.device === device && spanOf(input) <= input.numel;
}

/**
 * Stores inputs of segments in pinned host memory. Copies overlap compute. On the CPU they save no
 * memory, and give the same bits.
 */
export class PinnedStore implements ActivationStore {
  keep(inputs: readonly unknown[]): KeptInputs {
    const first = inputs.find((input) => input instanceof Tensor);
    return first ? new OffloadedInputs(laneOf(first.device), inputs) : onDevice.keep(inputs);
  }

  results(device: Device | null): ResultStore {
    return device ? new OffloadedResults(laneOf(device)) : new ResidentResults();
  }

  prefetchNewest(device: Device): void {
    laneOf(device).results.newest?.upload();
  }

  dispose(): void {
    drainLanes();
  }
}
