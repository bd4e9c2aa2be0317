// offloadStates() and reloadStates(): move the states of an engine to host memory between phases,
// and back. Tensors stay the same objects, because only the memory of their buffers moves. Source:
// DeepSpeed's offload_states.
import type { Buffer } from '../../runtime/buffer.js';
import { Buffer as Memory } from '../../runtime/buffer.js';
import { argumentError, configError, valueError } from '../../runtime/input-errors.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireOneOf } from '../../runtime/require-type.js';
import { Event, Stream } from '../../runtime/stream.js';
import type { Tensor } from '../../tensor/index.js';
import type { EngineCalls } from '../calls.js';
import { OFFLOAD_STATES, type OffloadState } from '../calls.js';
import type { EngineCore } from '../engine-parts.js';
import { wholeParameters } from './owned-parameters.js';

const DEVICES = ['cpu', 'none'] as const;

/** Options of offloadStates(). */
export interface OffloadStatesOptions {
  /** The states to move. Default: null, which means all. */
  include?: readonly OffloadState[] | null;
  /** "cpu" moves the states to host memory; "none" leaves them in place. Default: "cpu". */
  device?: (typeof DEVICES)[number];
  /** Copy to page-locked memory. It is kept for later calls. Default: true. */
  pinMemory?: boolean;
  /** Return before the copies to page-locked memory have ended. Default: false. */
  nonBlocking?: boolean;
}

/** Options of reloadStates(). */
export interface ReloadStatesOptions {
  /**
   * Return before the copies have ended. Later work on the device waits for them. Default: false.
   */
  nonBlocking?: boolean;
}

/** Bytes that left the device, by state. */
export type OffloadedBytes = Partial<Record<OffloadState, number>>;

/** Owns the host copies of an engine's states, and the stream of their transfers. */
export class OffloadedStates {
  private stream: Stream | null = null;
  private event: Event | null = null;
  /** By buffer: the host copy of its contents. */
  private readonly copies = new Map<Buffer, Buffer | Uint8Array>();
  /** Page-locked memory of earlier copies, for reuse, because its allocation is slow. */
  private readonly spareBuffers: Buffer[] = [];

  constructor(
    private readonly engine: EngineCore,
    private readonly calls: EngineCalls,
  ) {}

  /** See Engine.offloadStates(). */
  offload(given: OffloadStatesOptions | undefined): OffloadedBytes {
    const op = 'engine.offloadStates';
    this.calls.requireChangeable(op, []);
    const options = readOptions(op, given, namesOf.OffloadStatesOptions);
    const { include, device = 'cpu', pinMemory = true, nonBlocking = false } = options;
    const names = readNames(op, include ?? OFFLOAD_STATES);
    requireOneOf(`${op} device`, device, DEVICES);
    if (device === 'none') return {};
    requireOnDevice(op, this.engine);
    this.engine.synchronize();
    const { compute } = this.engine.device;
    const { stream, event } = this.transfers();
    stream.wait(event.record(compute));
    const bytes: OffloadedBytes = {};
    for (const name of names) {
      bytes[name] = 0;
      if (this.calls.use.offloaded.has(name)) continue;
      if (name === 'lp_params') this.engine.parts.stage.vacate();
      const tensors = memoryOf(this.engine, name);
      this.calls.use.offloaded.add(name);
      for (const buffer of new Set(tensors.map((tensor) => tensor.buffer))) {
        if (!buffer.isPresent || buffer.bytes === 0) continue;
        const host = pinMemory ? this.copyToPinned(buffer) : new Uint8Array(buffer.bytes);
        buffer.evict(host, stream);
        this.copies.set(buffer, host);
        bytes[name] += buffer.bytes;
      }
    }
    if (!nonBlocking) stream.synchronize();
    return bytes;
  }

  /** See Engine.reloadStates(). */
  reload(given: ReloadStatesOptions | undefined): void {
    const op = 'engine.reloadStates';
    this.calls.requireOpen(op);
    const { nonBlocking = false } = readOptions(op, given, namesOf.ReloadStatesOptions);
    this.restore(() => true);
    this.calls.use.offloaded.clear();
    if (!nonBlocking) this.stream?.synchronize();
  }

  /** Reloads the weights, because the model keeps them. Frees all host copies. */
  dispose(): void {
    const { calls, engine, stream } = this;
    if (calls.use.offloaded.has('lp_params')) {
      const weights = new Set(memoryOf(engine, 'lp_params').map(({ buffer }) => buffer));
      this.restore((buffer) => weights.has(buffer));
    }
    stream?.synchronize();
    for (const copy of this.copies.values()) if (copy instanceof Memory) copy.release();
    for (const copy of this.spareBuffers.splice(0)) copy.release();
    this.copies.clear();
    calls.use.offloaded.clear();
    stream?.dispose();
    this.event?.dispose();
    this.stream = null;
    this.event = null;
  }

  private restore(isWanted: (buffer: Buffer) => boolean): void {
    const { stream, event } = this.transfers();
    for (const [buffer, copy] of [...this.copies]) {
      if (!isWanted(buffer)) continue;
      // Skips buffers of released tensors. If memory is short, restore() throws, and a second call
      // continues here.
      if (!buffer.isReleased) buffer.restore(copy, stream, event);
      this.copies.delete(buffer);
      if (copy instanceof Memory) this.spareBuffers.push(copy);
    }
    this.engine.device.compute.wait(event.record(stream));
  }

  private transfers(): { stream: Stream; event: Event } {
    const { device } = this.engine;
    this.stream ??= Stream.create(device, 'states to and from host memory');
    this.event ??= new Event(device);
    return { stream: this.stream, event: this.event };
  }

  private copyToPinned({ bytes, device }: Buffer): Buffer {
    const index = this.spareBuffers.findIndex((buffer) => buffer.bytes === bytes);
    const [spare] = index < 0 ? [] : this.spareBuffers.splice(index, 1);
    return spare ?? Memory.allocatePinned(device, bytes);
  }
}

/**
 * Throws DS_CONFIG if the configuration offloads states of `engine`. DeepSpeed refuses this too.
 */
export function requireOnDevice(op: string, { config }: EngineCore): void {
  const { offload_optimizer: optimizer, offload_param: weights } = config.zero_optimization;
  for (const [key, value] of Object.entries({
    offload_optimizer: optimizer,
    offload_param: weights,
  })) {
    if (!value || value.device === 'none') continue;
    const expected = `a configuration without zero_optimization.${key}`;
    const hint = 'These states are in host memory or on a disk already.';
    throw configError(op, expected, `device "${value.device}"`, hint);
  }
}

function readNames(op: string, include: unknown): OffloadState[] {
  if (!Array.isArray(include)) throw valueError(`${op} include`, 'a list of states', include);
  for (const name of include) requireOneOf(`${op} include`, name, OFFLOAD_STATES);
  if (new Set(include).size < include.length) {
    throw argumentError(`${op} include`, 'each state once', include.join(', '));
  }
  return include;
}

/**
 * Returns the device tensors of a state. A buffer that belongs to several states counts for the
 * first one moved.
 */
function memoryOf(engine: EngineCore, name: OffloadState): Tensor[] {
  const { state, stage, units } = engine.parts;
  const gradients = units.map(({ gradient }) => gradient.memory);
  const tensorsOf: Record<OffloadState, () => (Tensor | null)[]> = {
    optim_states: () => state.deviceMemory.states,
    hp_params: () => state.deviceMemory.masters,
    lp_params: () => {
      const shards = [...stage.partitions, ...stage.frozen];
      const whole = [...wholeParameters(engine)].map(({ parameter }) => parameter);
      return [...shards.flatMap(({ storage, unit }) => [storage.memory, unit.memory]), ...whole];
    },
    lp_grads: () => [
      ...stage.partitions.map(({ grad }) => grad),
      ...gradients.map(({ sum }) => sum),
    ],
    contiguous_grad_buffer: () => gradients.map(({ backwardGrad }) => backwardGrad),
  };
  const tensors = tensorsOf[name]().filter((tensor) => tensor !== null);
  return tensors.filter(({ buffer }) => !buffer.pinned);
}
