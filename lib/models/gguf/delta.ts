// Describes gated delta nets in GGUF files: names of tensors, and the order of their values.
import type { RotarySizes } from '../rotary/config.js';
import type { GgufEntries } from './entries.js';
import {
  CONVOLUTION,
  DELTA_COLUMNS,
  DELTA_CONVOLUTION,
  DELTA_HEADS,
  DELTA_ROWS,
  DELTA_VALUES,
  NEGATIVE_EXP,
} from './layouts.js';
import { NORM_AFTER_ATTENTION } from './shared-names.js';

const COMMON = {
  isDelta: true,
  hasOffsetNorms: true,
  plainNorm: 'ssm_norm',
  names: { ...NORM_AFTER_ATTENTION, 'linear_attn.norm': 'ssm_norm' },
} as const;

/** Qwen3-Next. */
export const DELTA = {
  ...COMMON,
  names: {
    ...COMMON.names,
    'linear_attn.in_proj_ba': 'ssm_ba',
    'linear_attn.out_proj': 'ssm_out',
  },
  rules: [
    { modelName: 'linear_attn.A_log', fileNames: ['ssm_a'], change: NEGATIVE_EXP },
    { modelName: 'linear_attn.dt_bias', fileNames: ['ssm_dt.bias'] },
    {
      modelName: 'linear_attn.conv1d.weight',
      fileNames: ['ssm_conv1d.weight'],
      layout: CONVOLUTION,
    },
    {
      modelName: 'linear_attn.in_proj_qkvz.weight',
      layout: DELTA_ROWS,
      fileNames: ['attn_qkv.weight', 'attn_gate.weight'],
    },
  ],
} as const;

/** Qwen3.5: other projections, and value heads in another order. */
export const DELTA_35 = {
  ...COMMON,
  rules: [
    {
      modelName: 'linear_attn.A_log',
      fileNames: ['ssm_a'],
      change: NEGATIVE_EXP,
      layout: DELTA_HEADS,
    },
    { modelName: 'linear_attn.dt_bias', fileNames: ['ssm_dt.bias'], layout: DELTA_HEADS },
    {
      modelName: 'linear_attn.conv1d.weight',
      fileNames: ['ssm_conv1d.weight'],
      layout: DELTA_CONVOLUTION,
    },
    {
      modelName: 'linear_attn.in_proj_qkv.weight',
      fileNames: ['attn_qkv.weight'],
      layout: DELTA_VALUES,
    },
    {
      modelName: 'linear_attn.in_proj_z.weight',
      fileNames: ['attn_gate.weight'],
      layout: DELTA_HEADS,
    },
    {
      modelName: 'linear_attn.in_proj_a.weight',
      fileNames: ['ssm_alpha.weight'],
      layout: DELTA_HEADS,
    },
    {
      modelName: 'linear_attn.in_proj_b.weight',
      fileNames: ['ssm_beta.weight'],
      layout: DELTA_HEADS,
    },
    {
      modelName: 'linear_attn.out_proj.weight',
      fileNames: ['ssm_out.weight'],
      layout: DELTA_COLUMNS,
    },
  ],
  /** Text has the same position in all sections. */
  written({ headDim, partialRotaryFactor = 1 }: RotarySizes): GgufEntries {
    const pairs = Math.floor(headDim * partialRotaryFactor) / 2;
    const third = Math.ceil(pairs / 3);
    const sections = [third, third, pairs - 2 * third, 0];
    return { 'rope.dimension_sections': Int32Array.from(sections) };
  },
} as const;
