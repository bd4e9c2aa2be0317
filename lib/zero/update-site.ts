// Where updates run: the kernels and memory of a placement, and copies between them and the device.
import { deviceKernels, hostKernels, type UpdateKernels } from '../optim/update-kernels.js';
import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import { Event, type Stream } from '../runtime/stream.js';
import { held, Tensor } from '../tensor/index.js';
import { zeroRange } from './flat.js';
import { copyFlat, pinned } from './pinned.js';

export interface UpdateSite {
  readonly kernels: UpdateKernels;
  /** A flat tensor of zeros in the site's memory; the caller releases it. */
  allocate(numel: number, dtype: DType): Tensor;
  /** `to` on the device receives `from` of the site as its kernels so far leave it; later compute work sees it. */
  toDevice(to: Tensor, from: Tensor): void;
  /** `to` of the site receives `from` of the device as compute work so far leaves it; the site's later kernels see it. */
  toSite(to: Tensor, from: Tensor): void;
}

/** Updates run on the device, in the order of its compute stream. */
export class DeviceSite implements UpdateSite {
  readonly kernels = deviceKernels();

  constructor(private readonly device: Device) {}

  allocate(numel: number, dtype: DType): Tensor {
    const out = held(() => Tensor.empty([numel], dtype, this.device));
    zeroRange(out, { offset: 0, numel });
    return out;
  }

  toDevice(to: Tensor, from: Tensor): void {
    copyAll(to, from, this.device.compute);
  }

  toSite(to: Tensor, from: Tensor): void {
    copyAll(to, from, this.device.compute);
  }
}

/** Updates run on host threads in the order of `host`, over pinned memory. */
export class HostSite implements UpdateSite {
  readonly kernels: UpdateKernels;
  private readonly written: Event;

  constructor(
    private readonly device: Device,
    private readonly host: Stream,
  ) {
    this.kernels = hostKernels(host);
    this.written = new Event(device);
  }

  allocate(numel: number, dtype: DType): Tensor {
    return pinned(this.device, [numel], dtype);
  }

  toDevice(to: Tensor, from: Tensor): void {
    const { compute } = this.device;
    compute.wait(this.written.record(this.host));
    copyAll(to, from, compute);
  }

  toSite(to: Tensor, from: Tensor): void {
    const { compute } = this.device;
    copyAll(to, from, compute);
    this.host.wait(this.written.record(compute));
  }

  dispose(): void {
    this.written.dispose();
  }
}

function copyAll(to: Tensor, from: Tensor, stream: Stream): void {
  const all = { offset: 0, numel: to.numel };
  copyFlat(to, all, from, all, stream);
}
