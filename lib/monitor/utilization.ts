// Model FLOPs utilization: what a token of a transformer costs, and what a device could do at best.
import { DsError } from '../errors.js';
import { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import { formatValue } from '../runtime/format-value.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';

/** The sizes of a transformer that decide what a token costs. */
export interface TransformerSize {
  /**
   * Parameters that a token is multiplied with: all but tables of positions and, unless the head is
   * tied to it, the table of tokens. All of them, where adapters alone are trained.
   */
  parameters: number;
  /** Blocks. */
  layers: number;
  /** Heads times their size: what attention's queries hold for a token. */
  width: number;
  /** Tokens of a sequence. */
  sequence: number;
}

const SIZE: OptionNames<TransformerSize> = {
  ...{ parameters: true, layers: true, width: true, sequence: true },
};

/**
 * FLOPs of forward and backward for a token: 6 parameters + 12 layers width sequence. Neither
 * recomputation nor what a causal mask saves is taken into account. Throws DS_ARGUMENT. Source:
 * Chowdhery et al. 2022 (PaLM), appendix B.
 */
export function flopsPerToken(given: TransformerSize): number {
  const size = readOptions('flopsPerToken', given, SIZE);
  const of = (name: keyof TransformerSize): number =>
    requireInteger(`flopsPerToken ${name}`, size[name], 1);
  return 6 * of('parameters') + 12 * of('layers') * of('width') * of('sequence');
}

/** TFLOP/s of a GPU at best: `half` in bf16 and f16 by tensor cores, dense, `f32` without them. */
interface Peak {
  name: RegExp;
  half: number;
  f32: number;
}

/**
 * The makers' data sheets, without sparsity; the first that a name matches. f32 has no tensor cores
 * here: products are not rounded to TF32.
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
 * FLOP/s of `device` at best with operands of `dtype`, by its name; null where no data sheet is
 * known, as of CPUs. Throws DS_ARGUMENT for what is no device.
 */
export function peakFlops(device: Device, dtype: DType): number | null {
  if (!(device instanceof Device)) {
    const [op, expected] = ['peakFlops', 'a device, such as engine.device'];
    throw new DsError({ code: 'DS_ARGUMENT', op, expected, got: formatValue(device) });
  }
  return device.kind === 'cpu' ? null : peakFlopsOf(device.info.name, dtype);
}

/** peakFlops() of the GPU that calls itself `name`. */
export function peakFlopsOf(name: string, dtype: DType): number | null {
  const peak = PEAKS.find((one) => one.name.test(name));
  if (!peak) return null;
  if (dtype === 'f32') return peak.f32 * 1e12;
  return dtype === 'f16' || dtype === 'bf16' ? peak.half * 1e12 : null;
}
