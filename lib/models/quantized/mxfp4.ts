// MXFP4 weights of experts: 4-bit codes with a power of two for each 32 inputs. They are read as
// plain values, or kept. Source: OCP Microscaling Formats (MX) 1.0; transformers' folders of
// gpt-oss.

import type { JsonObject } from '../../../types/json.js';
import type { WeightFiles } from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import { Experts } from '../../nn/experts.js';
import { zeros } from '../../nn/initializers.js';
import type { Module } from '../../nn/module.js';
import { MXFP4_BLOCK, Mxfp4Experts } from '../../nn/mxfp4-experts.js';
import type { Parameter } from '../../nn/parameter.js';
import { replaceModules } from '../../nn/replace-modules.js';
import type { StoredValues } from '../../nn/stored-values.js';
import { type Box, boxesOf, wholeBox } from '../../runtime/box.js';
import type { DType } from '../../runtime/dtype.js';
import { leading, required } from '../../runtime/required.js';
import { describe } from '../../runtime/view.js';
import type { Tensor } from '../../tensor/index.js';
import type { Layout } from '../load-weights.js';
import { type OpenWeights, StoredWeights } from '../stored-weights.js';
import { writeDecoded } from './decoded.js';

const { inputs: BLOCK, bytes: BLOCK_BYTES } = MXFP4_BLOCK;
/** Exponent of a scale byte of 0. */
const BIAS = 127;
/** Values of the codes; bit 3 is the sign. */
const VALUES = [0, 0.5, 1, 1.5, 2, 3, 4, 6].flatMap((value, i, all) =>
  i === 7 ? [value, ...all.map((value) => -value)] : [value],
);

/** Names of a tensor's codes and scales in the files. */
interface StoredMxfp4 {
  readonly blocks: string;
  readonly scales: string;
}

/**
 * Finds the experts of `model` that `files` have in MXFP4; returns a layout that decodes them.
 * Throws DS_CHECKPOINT for tensors of other sizes.
 */
export function wrapMxfp4Layout(
  model: Module,
  files: WeightFiles,
  layout: Layout,
  dtype: DType,
): Layout {
  const parameters = new Map(model.namedParameters());
  const consumed = new Set<string>();
  const decoded = new Map<string, (open: OpenWeights) => StoredValues>();
  for (const blocks of files.tensors.keys()) {
    if (!blocks.endsWith('_blocks')) continue;
    const base = blocks.slice(0, -'_blocks'.length);
    const stored = { blocks, scales: `${base}_scales` };
    const parameterName = layout.nameOf(base);
    const shape = parameterName === null ? undefined : parameters.get(parameterName)?.region.whole;
    if (parameterName === null || shape?.length !== 3) {
      throw damagedError(files, blocks, 'the matrices of experts', 'a tensor that the model lacks');
    }
    requireSizes(files, stored, leading(shape, 3));
    for (const name of Object.values(stored)) consumed.add(name);
    decoded.set(parameterName, (open) => new Mxfp4Values(open, stored, leading(shape, 3), dtype));
  }
  const nameOf = (name: string): string | null => (consumed.has(name) ? null : layout.nameOf(name));
  return { ...layout, nameOf, decoded };
}

/**
 * Keeps experts of `model` in 4 bits if files have them in MXFP4 and nothing has read them yet. For
 * inference.
 */
export function replaceByMxfp4(model: Module): void {
  const instead = new Map<Module, Module>();
  for (const module of model.modules()) {
    if (!(module instanceof Experts)) continue;
    const { gate_up_proj: up, down_proj: down } = module;
    if (!(up.stored instanceof Mxfp4Values) || !(down.stored instanceof Mxfp4Values)) continue;
    const experts = new Mxfp4Experts(module);
    up.stored.startPacked(experts.gate_up_proj_blocks, experts.gate_up_proj_scales);
    down.stored.startPacked(experts.down_proj_blocks, experts.down_proj_scales);
    // The plain experts drop their stored values.
    for (const parameter of [up, down]) parameter.initialize(zeros);
    instead.set(module, experts);
  }
  replaceModules(model, instead);
}

/** The quantization_config of a model with experts in 4 bits; null if it has none. */
export function mxfp4Config(model: Module): JsonObject | null {
  if (![...model.modules()].some((module) => module instanceof Mxfp4Experts)) return null;
  const layer = (end: string): string => `model.layers.*.${end}`;
  const others = [layer('self_attn'), layer('mlp.router'), 'model.embed_tokens', 'lm_head'];
  return { quant_method: 'mxfp4', modules_to_not_convert: others };
}

function requireSizes(
  files: WeightFiles,
  { blocks, scales }: StoredMxfp4,
  [experts, inputs, outputs]: readonly [number, number, number],
): void {
  const groups = inputs / BLOCK;
  const expectedShapes = { [blocks]: [experts, outputs, groups, BLOCK_BYTES] };
  Object.assign(expectedShapes, { [scales]: [experts, outputs, groups] });
  for (const [name, shape] of Object.entries(expectedShapes)) {
    const entry = files.tensors.get(name);
    if (entry?.dtype === 'u8' && entry.shape.join() === shape.join()) continue;
    const got = entry ? describe(entry) : 'no such tensor';
    throw damagedError(files, name, describe({ dtype: 'u8', shape }), got);
  }
}

/** Matrices [experts, inputs, outputs] with codes [experts, outputs, inputs / 32, 16]. */
class Mxfp4Values implements StoredValues {
  readonly origin: string;

  constructor(
    private readonly open: OpenWeights,
    private readonly stored: StoredMxfp4,
    private readonly shape: readonly [number, number, number],
    readonly dtype: DType,
  ) {
    const { files } = open.retain();
    this.origin = `${stored.blocks} of ${files.bytes} bytes of weights, MXFP4`;
  }

  read(out: Tensor, from: number, box: Box = wholeBox(this.shape)): void {
    let at = out.offset;
    for (const part of boxesOf({ box, from, numel: out.numel })) {
      const [expert, input, output] = leading(part.offset, 3);
      const [experts, inputs, outputs] = leading(part.shape, 3);
      for (let e = 0; e < experts; e++) {
        const values = this.decode(expert + e, [input, inputs], [output, outputs]);
        writeDecoded(this.stored.blocks, values, out.alias([values.length], undefined, at));
        at += values.length;
      }
    }
  }

  done(): void {
    this.open.release();
  }

  /** Lets the parameters start with the codes and the scales of the files. */
  startPacked(blocks: Parameter, scales: Parameter): void {
    const { open, stored } = this;
    const weights = (name: string) =>
      new StoredWeights(open, { name, dtype: 'u8', transposed: false });
    blocks.startFrom(weights(stored.blocks));
    scales.startFrom(weights(stored.scales));
  }

  /** [inputs, outputs] of an expert, row-major. */
  private decode(
    expert: number,
    [firstInput, inputs]: readonly [number, number],
    [firstOutput, outputs]: readonly [number, number],
  ): Float32Array {
    const [, allInputs, allOutputs] = this.shape;
    const groups = allInputs / BLOCK;
    const row = (expert * allOutputs + firstOutput) * groups;
    const codes = new Uint8Array(outputs * groups * BLOCK_BYTES);
    const scales = new Uint8Array(outputs * groups);
    const { files } = this.open;
    files.readNow(this.stored.blocks, row * BLOCK_BYTES, codes);
    files.readNow(this.stored.scales, row, scales);
    const values = new Float32Array(inputs * outputs);
    for (let output = 0; output < outputs; output++) {
      for (let i = 0; i < inputs; i++) {
        const input = firstInput + i;
        const scale = required(scales[output * groups + (input >> 5)]);
        const byte = required(codes[output * groups * BLOCK_BYTES + (input >> 1)]);
        const code = input & 1 ? byte >> 4 : byte & 15;
        values[i * outputs + output] = required(VALUES[code]) * required(POWERS[scale]);
      }
    }
    return values;
  }
}

/** 2^(scale - 127) of each scale byte. */
const POWERS = Array.from({ length: 256 }, (_, scale) => 2 ** (scale - BIAS));

function damagedError(files: WeightFiles, name: string, expected: string, got: string): DsError {
  return new DsError({ code: 'DS_CHECKPOINT', op: `${files.path}: ${name}`, expected, got });
}
