// Model FLOPs utilization: the FLOPs per token of a transformer, and the peak FLOP/s of a device.
import { DsError } from '../errors.js';
import { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import { formatValue } from '../runtime/format-value.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';

/** The sizes that determine a transformer's FLOPs per token. */
export interface TransformerSize {
  /**
   * Parameters in a product with a token: all except the position table and, unless tied to the
   * head, the token table.
   *
   * If only adapters are trained: all parameters.
   */
  parameters: number;
  /** Number of blocks. */
  layers: number;
  /** Heads times head size: the width of attention's queries. */
  width: number;
  /** Tokens per sequence. */
  sequence: number;
}

const SIZE: OptionNames<TransformerSize> = {
  ...{ parameters: true, layers: true, width: true, sequence: true },
};

/**
 * Returns the FLOPs per token of forward and backward: 6 x parameters + 12 x layers x width x
 * sequence. Ignores recomputation and causal masks.
 *
 * Throws DS_ARGUMENT. Source: Chowdhery et al. 2022 (PaLM), appendix B.
 */
export function flopsPerToken(given: TransformerSize): number {
  const size = readOptions('flopsPerToken', given, SIZE);
  const of = (name: keyof TransformerSize): number =>
    requireInteger(`flopsPerToken ${name}`, size[name], 1);
  return 6 * of('parameters') + 12 * of('layers') * of('width') * of('sequence');
}

/** Peak TFLOP/s of a GPU: `half` for dense bf16 and f16 on tensor cores, `f32` without them. */
interface Peak {
  name: RegExp;
  half: number;
  f32: number;
}

/**
 * From the vendors' data sheets, without sparsity. The first match of the name applies.
 *
 * f32 does not use tensor cores: products are not rounded to TF32.
 */
const PEAKS: readonly Peak[] = [
  { name: /\bB200\b/, half: 2250, f32: 75 },
  { name: /\bH[12]00 NVL\b/, half: 835.5, f32: 60 },
  { name: /\bH100 PCIe\b/i, half: 756, f32: 51 },
  { name: /\bG?H[12]00\b/, half: 989.4, f32: 66.9 },
  { name: /\bA[18]00\b/, half: 312, f32: 19.5 },
  { name: /\bL40S\b/, half: 362, f32: 91.6 },
  { name: /\bRTX 6000 Ada\b/, half: 364.2, f32: 91.1 },
  { name: /\bRTX A6000\b/, half: 154.8, f32: 38.7 },
  { name: /\bA40\b/, half: 149.7, f32: 37.4 },
  { name: /\bA10\b/, half: 125, f32: 31.2 },
  { name: /\bL4\b/, half: 121, f32: 30.3 },
  { name: /\bRTX 4090\b/, half: 165.2, f32: 82.6 },
  { name: /\bRTX 3090\b(?! Ti)/, half: 71, f32: 35.6 },
];

/**
 * Returns the peak FLOP/s of `device` for operands of `dtype`, from the device's name. Null for
 * CPUs and unknown devices.
 *
 * Throws DS_ARGUMENT if `device` is not a Device.
 */
export function peakFlops(device: Device, dtype: DType): number | null {
  if (!(device instanceof Device)) {
    const [op, expected] = ['peakFlops', 'a device, such as engine.device'];
    throw new DsError({ code: 'DS_ARGUMENT', op, expected, got: formatValue(device) });
  }
  return device.kind === 'cpu' ? null : peakFlopsOf(device.info.name, dtype);
}

/** peakFlops() of a GPU by its name. */
export function peakFlopsOf(name: string, dtype: DType): number | null {
  const peak = PEAKS.find((one) => one.name.test(name));
  if (!peak) return null;
  if (dtype === 'f32') return peak.f32 * 1e12;
  return dtype === 'f16' || dtype === 'bf16' ? peak.half * 1e12 : null;
}
