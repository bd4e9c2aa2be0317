// Folders of tiny EAGLE-3 heads, and models that they serve.
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { writeSafetensors } from '../../lib/checkpoint/safetensors-writer.js';
import { Llama } from '../../lib/models/index.js';
import type { Module } from '../../lib/nn/module.js';
import { noGrad, scope, seed, Tensor } from '../../lib/tensor/index.js';

export const SIZES = { channels: 16, heads: 4, hidden: 24, layers: 8, vocabSize: 48 };
export const WIDE = { ...SIZES, maxSeq: 64, kvHeads: 2, eps: 1e-5, ropeTheta: 1e4 };

type Shape = readonly number[];

/** The weights of scripts/record-eagle3.py. */
export function formula(name: string, shape: Shape): Float32Array {
  const count = shape.reduce((all, value) => all * value, 1);
  const localValue = [...name].reduce((sum, letter) => sum + letter.charCodeAt(0), 0);
  const columns = shape.at(-1) as number;
  return Float32Array.from({ length: count }, (_, i) => {
    const value = Math.sin(i * 0.7 + 1.3 * localValue);
    return shape.length === 1 ? 1 + 0.1 * value : value / Math.sqrt(columns);
  });
}

/** Sets parameters of a model by name; null keeps them. */
export function setWeights(
  model: Module,
  valuesOf: (name: string, shape: Shape) => ArrayLike<number> | null,
): void {
  for (const [name, value] of Object.entries(model.stateDict())) {
    const values = valuesOf(name, value.shape);
    if (!values) continue;
    noGrad(() =>
      scope(() => {
        value.copy_(Tensor.from(Float32Array.from(values), { shape: value.shape }));
      }),
    );
  }
}

/** Shapes of the tensors of a head; `predicted` are the rows of its output. */
export function shapesOf(kvHeads: number, predicted: number): Record<string, Shape> {
  const { channels: c, heads, hidden } = SIZES;
  const dim = c / heads;
  return {
    'fc.weight': [c, 3 * c],
    'midlayer.input_layernorm.weight': [c],
    'midlayer.hidden_norm.weight': [c],
    'midlayer.self_attn.q_proj.weight': [c, 2 * c],
    'midlayer.self_attn.k_proj.weight': [kvHeads * dim, 2 * c],
    'midlayer.self_attn.v_proj.weight': [kvHeads * dim, 2 * c],
    'midlayer.self_attn.o_proj.weight': [c, c],
    'midlayer.post_attention_layernorm.weight': [c],
    'midlayer.mlp.gate_proj.weight': [hidden, c],
    'midlayer.mlp.up_proj.weight': [hidden, c],
    'midlayer.mlp.down_proj.weight': [c, hidden],
    'norm.weight': [c],
    'lm_head.weight': [predicted, c],
  };
}

export interface HeadOptions {
  kvHeads?: number;
  /** Tokens that the head predicts. Default: all, without tables. */
  targets?: readonly number[] | null;
  config?: object;
  rename?: (name: string) => string;
  valuesOf?: (name: string, shape: Shape) => ArrayLike<number>;
}

/** Writes the folder of a head, as SafeAILab publishes them. */
export async function writeHead(dir: string, headOptions: HeadOptions = {}): Promise<string> {
  const { kvHeads = 2, targets = null, config = {}, rename = (name: string) => name } = headOptions;
  const { valuesOf = (name: string, shape: Shape) => formula(`eagle.${name}`, shape) } =
    headOptions;
  const { channels, heads, hidden, vocabSize } = SIZES;
  mkdirSync(dir, { recursive: true });
  const all = {
    architectures: ['LlamaForCausalLMEagle3'],
    model_type: 'llama',
    num_hidden_layers: 1,
    hidden_size: channels,
    intermediate_size: hidden,
    num_attention_heads: heads,
    num_key_value_heads: kvHeads,
    vocab_size: vocabSize,
    max_position_embeddings: 160,
    rms_norm_eps: 1e-5,
    rope_theta: 1e4,
    hidden_act: 'silu',
    tie_word_embeddings: false,
    ...(targets && { draft_vocab_size: targets.length }),
    ...config,
  };
  writeFileSync(join(dir, 'config.json'), JSON.stringify(all));
  const shapes = shapesOf(kvHeads, targets?.length ?? vocabSize);
  const result = scope(() =>
    Object.entries(shapes).map(([name, shape]) => ({
      name: rename(name),
      shape,
      dtype: 'f32' as const,
      values: Tensor.from(Float32Array.from(valuesOf(name, shape)), { shape: [...shape] }).keep(),
    })),
  );
  const tables = scope(() => {
    if (!targets) return [];
    const offsets = targets.map((token, i) => token - i);
    const known = Array.from({ length: vocabSize }, (_, i) => targets.includes(i));
    return [
      {
        name: 'd2t',
        shape: [targets.length],
        dtype: 'i64' as const,
        values: Tensor.from(offsets, { dtype: 'i64' }).keep(),
      },
      {
        name: 't2d',
        shape: [vocabSize],
        dtype: 'bool' as const,
        values: Tensor.from(known.map(Number), { dtype: 'bool' }).keep(),
      },
    ];
  });
  const sources = [...result, ...tables];
  await writeSafetensors(join(dir, 'model.safetensors'), sources);
  for (const { values } of sources) values.dispose();
  return dir;
}

/** A model whose blocks change nothing: the scores depend on the last token only. */
export function lastTokenModel(): Llama {
  seed(5);
  const { channels, vocabSize } = SIZES;
  const model = new Llama({ ...WIDE, maxSeq: 160, kvHeads: 4 });
  const noise = formula('noise', [vocabSize, channels]);
  setWeights(model, (name, shape) => {
    if (/o_proj|down_proj/.test(name)) return new Float32Array(shape[0]! * shape[1]!);
    if (name === 'model.embed_tokens.weight') {
      // Equal norms and an equal channel 0: the head attends by this channel to the token itself.
      return noise.map((value, i) => (i % channels === 0 ? 0.5 : Math.sign(value)));
    }
    return name === 'lm_head.weight' ? formula(name, shape).map((value) => 2 * value) : null;
  });
  return model;
}

/** Weights of a head whose scores equal those of lastTokenModel(). */
export function perfectWeights(
  model: Llama,
  targets: readonly number[] | null = null,
): (name: string, shape: Shape) => ArrayLike<number> {
  const { channels, vocabSize } = SIZES;
  const state = model.stateDict();
  const of = (name: string): number[] => (state[name] as Tensor).toArray();
  return (name, [rows = 0, columns = 1]) => {
    const table = (value: (row: number, column: number) => number): Float32Array =>
      Float32Array.from({ length: rows * columns }, (_, i) =>
        value(Math.floor(i / columns), i % columns),
      );
    if (name === 'lm_head.weight') {
      const kept = targets ?? Array.from({ length: vocabSize }, (_, i) => i);
      const all = of('lm_head.weight');
      return kept.flatMap((token) => all.slice(token * channels, (token + 1) * channels));
    }
    if (name === 'norm.weight') return of('model.norm.weight');
    if (/hidden_norm|down_proj|fc/.test(name)) return table(() => 0);
    if (/layernorm/.test(name)) return table(() => 1);
    if (/v_proj|o_proj/.test(name)) return table((row, column) => (row === column ? 1 : 0));
    if (/[qk]_proj/.test(name)) return table((_, column) => (column === 0 ? 60 : 0));
    return formula(name, [rows, columns]);
  };
}
