// Gated delta nets in GGUF files: names, and the order of values.
import type { RotarySizes } from '../rotary/config.js';
import type { Entries } from './entries.js';
import {
  CONVOLUTION,
  DELTA_COLUMNS,
  DELTA_CONVOLUTION,
  DELTA_HEADS,
  DELTA_ROWS,
  DELTA_VALUES,
  NEGATIVE_EXP,
} from './layouts.js';
import { SECOND } from './shared-names.js';

const COMMON = {
  isDelta: true,
  hasOffsetNorms: true,
  plainNorm: 'ssm_norm',
  names: { ...SECOND, 'linear_attn.norm': 'ssm_norm' },
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
    { own: 'linear_attn.A_log', stored: ['ssm_a'], change: NEGATIVE_EXP },
    { own: 'linear_attn.dt_bias', stored: ['ssm_dt.bias'] },
    { own: 'linear_attn.conv1d.weight', stored: ['ssm_conv1d.weight'], layout: CONVOLUTION },
    {
      own: 'linear_attn.in_proj_qkvz.weight',
      layout: DELTA_ROWS,
      stored: ['attn_qkv.weight', 'attn_gate.weight'],
    },
  ],
} as const;

/** Qwen3.5: other projections, and value heads in another order. */
export const DELTA_35 = {
  ...COMMON,
  rules: [
    {
      own: 'linear_attn.A_log',
      stored: ['ssm_a'],
      change: NEGATIVE_EXP,
      layout: DELTA_HEADS,
    },
    { own: 'linear_attn.dt_bias', stored: ['ssm_dt.bias'], layout: DELTA_HEADS },
    { own: 'linear_attn.conv1d.weight', stored: ['ssm_conv1d.weight'], layout: DELTA_CONVOLUTION },
    { own: 'linear_attn.in_proj_qkv.weight', stored: ['attn_qkv.weight'], layout: DELTA_VALUES },
    { own: 'linear_attn.in_proj_z.weight', stored: ['attn_gate.weight'], layout: DELTA_HEADS },
    { own: 'linear_attn.in_proj_a.weight', stored: ['ssm_alpha.weight'], layout: DELTA_HEADS },
    { own: 'linear_attn.in_proj_b.weight', stored: ['ssm_beta.weight'], layout: DELTA_HEADS },
    { own: 'linear_attn.out_proj.weight', stored: ['ssm_out.weight'], layout: DELTA_COLUMNS },
  ],
  /** Text has the same position in all sections. */
  written({ headDim, partialRotaryFactor = 1 }: RotarySizes): Entries {
    const pairs = Math.floor(headDim * partialRotaryFactor) / 2;
    const third = Math.ceil(pairs / 3);
    const sections = [third, third, pairs - 2 * third, 0];
    return { 'rope.dimension_sections': Int32Array.from(sections) };
  },
} as const;
