// Computes the two numbers of model FLOPs utilization: FLOPs per token, and peak FLOP/s of a
// device.

import { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import { valueError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { findGpuByName } from './gpus.js';

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

/**
 * Returns the FLOPs per token of forward and backward: 6 x parameters + 12 x layers x width x
 * sequence. Ignores recomputation and causal masks.
 *
 * Throws DS_ARGUMENT unless each size is an integer from 1. Source: Chowdhery et al. 2022 (PaLM),
 * appendix B.
 */
export function flopsPerToken(given: TransformerSize): number {
  const size = readOptions('flopsPerToken', given, namesOf.TransformerSize);
  const readSize = (name: keyof TransformerSize): number =>
    requireInteger(`flopsPerToken ${name}`, size[name], 1);
  return (
    6 * readSize('parameters') + 12 * readSize('layers') * readSize('width') * readSize('sequence')
  );
}

/**
 * Returns the peak FLOP/s of `device` for operands of `dtype`, from the device's name. Null for
 * CPUs and unknown devices.
 *
 * Throws DS_ARGUMENT if `device` is not a Device.
 */
export function peakFlops(device: Device, dtype: DType): number | null {
  if (!(device instanceof Device)) {
    const [op, expected] = ['peakFlops', 'a device, such as engine.device'];
    throw valueError(op, expected, device);
  }
  return device.kind === 'cpu' ? null : peakFlopsOf(device.info.name, dtype);
}

/** Returns the peak FLOP/s of a GPU by the name that its driver reports; null if unknown. */
export function peakFlopsOf(name: string, dtype: DType): number | null {
  const peak = findGpuByName(name);
  if (!peak) return null;
  if (dtype === 'f32') return peak.f32 * 1e12;
  return dtype === 'f16' || dtype === 'bf16' ? peak.half * 1e12 : null;
}
