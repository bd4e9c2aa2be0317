// Weights that stay in their files until somebody needs them, range by range, in any dtype.
import { converted, type WeightFiles } from '../checkpoint/index.js';
import type { StoredValues } from '../nn/parameter.js';
import { cpu } from '../runtime/device.js';
import { type DType, dtypeSize, isFloating } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { numel } from '../runtime/view.js';
import { held, noGrad, scope, Tensor } from '../tensor/index.js';

/** Host memory through which values go. */
const CHUNK_BYTES = 16 * 2 ** 20;

/** Files that are closed when nobody needs a tensor of them any more. */
export class OpenWeights {
  private users = 0;
  private staging = new Uint8Array(0);

  constructor(readonly files: WeightFiles) {}

  /** Host memory of `bytes` bytes, which the next call gives again. */
  stage(bytes: number): Uint8Array {
    if (this.staging.length < bytes) this.staging = new Uint8Array(bytes);
    return this.staging.subarray(0, bytes);
  }

  /** One tensor more is needed. */
  retain(): this {
    this.users++;
    return this;
  }

  /** One is not needed any more. */
  release(): void {
    if (--this.users > 0) return;
    this.files.close().catch(() => {}); // Nothing was written that a failure could have lost.
  }
}

/** Where a tensor lies, and what becomes of it. */
export interface StoredWeight {
  /** In the files. */
  name: string;
  /** In which a parameter has it. */
  dtype: DType;
  /** Whether it is a matrix of which the parameter is the transpose. */
  transposed: boolean;
}

/** One tensor of open files. */
export class StoredWeights implements StoredValues {
  readonly dtype: DType;
  readonly origin: string;
  private readonly files: WeightFiles;
  private readonly saved: { readonly dtype: DType; readonly shape: readonly number[] };

  constructor(
    private readonly open: OpenWeights,
    private readonly weight: StoredWeight,
  ) {
    const { files } = open.retain();
    this.files = files;
    this.saved = files.tensors.get(weight.name) as typeof this.saved;
    this.dtype = weight.dtype;
    this.origin = `${weight.name} of ${files.bytes} bytes of weights, ${this.saved.dtype}`;
  }

  read(out: Tensor, from: number): void {
    noGrad(() =>
      scope(() => {
        if (this.weight.transposed) this.readTransposed(out, from);
        else this.readRange(out, from);
      }),
    );
  }

  done(): void {
    this.open.release();
  }

  private readRange(out: Tensor, from: number): void {
    const { dtype } = this.saved;
    const size = dtypeSize(dtype);
    const step = CHUNK_BYTES / size;
    for (let at = 0; at < out.numel; at += step) {
      const count = Math.min(step, out.numel - at);
      const part = this.open.stage(count * size);
      this.files.readNow(this.weight.name, (from + at) * size, part);
      const place = out.alias([count], undefined, out.offset + at);
      if (dtype === out.dtype) {
        out.buffer.write(place.offset * size, part);
        continue;
      }
      const read = held(() => Tensor.empty([count], dtype, wayOf(out)));
      read.buffer.write(0, part);
      const values = held(() => this.converted(read, out.dtype, false));
      kernels.copy({ in: values.to(out.device), out: place });
      values.release();
    }
  }

  /** The whole matrix, for any part of it: rows there are columns here. */
  private readTransposed(out: Tensor, from: number): void {
    const { dtype, shape } = this.saved;
    const whole = held(() => Tensor.empty(shape, dtype, cpu()));
    const flat = whole.alias([numel(shape)]);
    this.readRange(flat, 0);
    const values = held(() => this.converted(whole, out.dtype, true));
    const part = values.alias([out.numel], undefined, values.offset + from);
    kernels.copy({ in: part.to(out.device), out: out.alias([out.numel]) });
    values.release();
  }

  private converted(values: Tensor, dtype: DType, transposed: boolean): Tensor {
    return converted(this.weight.name, values, { dtype, transposed });
  }
}

/** Rounding to f16 is checked on the host; the rest happens where the values go. */
const wayOf = ({ dtype, device }: Tensor) => (dtype === 'f16' ? cpu() : device);

/**
 * The dtype of a model's parameters: the one that all floating tensors of its files have, else the
 * one that config.json names, else f32.
 */
export function storedDType({ tensors, config }: WeightFiles): DType {
  const found = new Set<DType>();
  for (const { dtype } of tensors.values()) if (isFloating(dtype)) found.add(dtype);
  const [first, ...others] = found;
  if (first && others.length === 0) return first;
  const named = String(config?.dtype ?? config?.torch_dtype ?? '').replace(/^torch\./, '');
  const known: Record<string, DType> = { float16: 'f16', bfloat16: 'bf16' };
  return known[named] ?? 'f32';
}
