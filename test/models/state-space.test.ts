// Keys and options of models with state space layers.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn } from '../../lib/index.js';
import { noGrad, Tensor } from '../../lib/tensor/index.js';
import type { JsonObject } from '../../types/json.js';
import { folderOf } from './family-rows.js';

const configOf = (family: string): JsonObject =>
  JSON.parse(readFileSync(join(folderOf(family), 'config.json'), 'utf8')) as JsonObject;

const withKeys = (family: string, more: object): nn.models.RotaryLM =>
  nn.models.fromConfig({ ...configOf(family), ...more } as JsonObject) as nn.models.RotaryLM;

const mambaOf = (model: nn.models.RotaryLM) => model.config.mamba;

/** The logits of a model with random weights, after `change` of its parameters. */
function logitsOf(more: object, change: (name: string, values: Tensor) => void): number[] {
  const model = withKeys('granite-4-h', more);
  let seed = 1;
  noGrad(() => {
    for (const [name, parameter] of model.namedParameters()) {
      const next = (): number => {
        seed = (seed * 16_807) % 2_147_483_647;
        return (seed / 2_147_483_647 - 0.5) * 0.6;
      };
      const values = Tensor.from(Array.from({ length: parameter.numel }, next), {
        shape: parameter.shape,
      });
      parameter.copy_(values);
      change(name, parameter);
    }
  });
  const tokens = Tensor.from(Int32Array.of(3, 9, 4, 11, 7), { shape: [1, 5] });
  return noGrad(() => model.call(tokens).contiguous()).toArray();
}

test('steps within equal bounds do not depend on their bias', () => {
  const keep = (): void => {};
  const shift = (name: string, values: Tensor): void => {
    if (name.endsWith('dt_bias')) values.copy_(values.add(0.7));
  };
  const bound = { time_step_limit: [0.5, 0.5] };
  expect(logitsOf(bound, shift)).toEqual(logitsOf(bound, keep));
  const free = { time_step_limit: [0, 'Infinity'] };
  expect(logitsOf(free, shift)).not.toEqual(logitsOf(free, keep));
  expect(logitsOf(bound, keep)).not.toEqual(logitsOf(free, keep));
});

test('bounds of steps are read in each notation, and written', () => {
  const infinite = { __float__: 'Infinity' };
  for (const most of ['Infinity', 'inf', infinite]) {
    const model = withKeys('granite-4-h', { time_step_limit: [0, most] });
    expect(mambaOf(model)?.stepLimit).toEqual([0, null]);
  }
  const home = mkdtempSync(join(tmpdir(), 'ds-steps-'));
  try {
    const text = JSON.stringify({ ...configOf('granite-4-h'), time_step_limit: [0, 'WORD'] });
    writeFileSync(join(home, 'config.json'), text.replace('"WORD"', 'Infinity'));
    const model = nn.models.fromConfig(home) as nn.models.RotaryLM;
    expect(mambaOf(model)?.stepLimit).toEqual([0, null]);
    expect(model.describe().config.time_step_limit).toEqual([0, infinite]);
  } finally {
    rmSync(home, { recursive: true });
  }
  const bounded = withKeys('granite-4-h', { time_step_limit: [0.01, 10] });
  expect(bounded.describe().config.time_step_limit).toEqual([0.01, 10]);
  expect(() => withKeys('granite-4-h', { time_step_limit: [2, 1] })).toThrow(
    /time_step_limit: expected two numbers of 0 or more, got \[2,1\]/,
  );
});

test('older files list the blocks of Nemotron-H by letters', () => {
  const { layers_block_type: _, ...older } = configOf('nemotron-h');
  const read = (pattern: string): nn.models.RotaryLM =>
    nn.models.fromConfig({ ...older, hybrid_override_pattern: pattern }) as nn.models.RotaryLM;
  const model = read('M-*M');
  expect(mambaOf(model)?.layers).toEqual([true, false, false, true]);
  expect(model.config.feedLayers).toEqual([false, true, false, false]);
  expect(model.describe().config.layers_block_type).toEqual(['mamba', 'mlp', 'attention', 'mamba']);
  const mixed = read('ME-');
  expect(mixed.config.feedLayers).toEqual([false, true, true]);
  expect(mixed.config.moe).toMatchObject({ experts: 8, perToken: 2, denseLayers: [0, 2] });
  expect(mixed.describe().config.layers_block_type).toEqual(['mamba', 'moe', 'mlp']);
  expect(model.config.moe).toBeUndefined();
  expect(() => read('MX')).toThrow(
    /layers_block_type: expected 2 of "mamba".*, got \["mamba","X"\]/,
  );
});

test('experts of Nemotron-H may have a width of their own, without biases', () => {
  const { config } = withKeys('nemotron-h-moe', {});
  expect(config.moe).toMatchObject({ hidden: 8, sharedHidden: 9, latentDim: 8 });
  const keys = { moe_latent_size: null, norm_topk_prob: false };
  const { moe } = withKeys('nemotron-h-moe', keys).config;
  expect([moe?.latentDim, moe?.normalize]).toEqual([null, false]);
  expect(() => withKeys('nemotron-h-moe', { mlp_bias: true })).toThrow(
    /mlp_bias: expected false, got true/,
  );
  const build = (more: object) => () => new nn.models.NemotronH({ ...config, ...more } as never);
  expect(build({ mlpBias: true })).toThrow(/moe latentDim: expected null, because of mlpBias/);
  expect(build({ feedLayers: [false, false, false, true] })).toThrow(
    /NemotronH feedLayers: expected .*, true for experts and false for mamba/,
  );
  const qwen = withKeys('qwen3-moe', {}).config;
  const other = { ...qwen, moe: { ...qwen.moe, latentDim: 4 } };
  expect(() => new nn.models.Qwen3Moe(other as never)).toThrow(
    /Qwen3Moe moe latentDim: expected null, because the family has none, got 4/,
  );
});

test('ranks with other tokens share the projections of experts of another width', () => {
  const { config } = withKeys('nemotron-h-moe', {});
  const layers = (config as unknown as { layers: number }).layers;
  const feedLayers = Array.from({ length: layers }, () => true);
  const moe = { ...(config as unknown as { moe: object }).moe, denseLayers: [] };
  const own = { ...config, mamba: null, feedLayers, moe };
  const model = new nn.models.NemotronH(own as never);
  const names = model.tensorPlan().sequence?.byToken ?? [];
  for (const name of ['fc1_latent_proj', 'fc2_latent_proj']) {
    expect(names).toContain(`backbone.layers.*.mixer.${name}`);
  }
});

test('published sizes give the published numbers of parameters', () => {
  const countOf = (config: JsonObject): [number, number] => {
    const model = nn.models.fromConfig(config);
    const all = model.parameters().reduce((sum, { numel }) => sum + numel, 0);
    return [all, all - model.idleParameters()];
  };
  // Nemotron 3 Nano 30B-A3B.
  const [all, active] = countOf({
    model_type: 'nemotron_h',
    hybrid_override_pattern: 'MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME',
    hidden_size: 2688,
    num_key_value_heads: 2,
    vocab_size: 131_072,
    mamba_num_heads: 64,
    n_routed_experts: 128,
    num_experts_per_tok: 6,
    moe_intermediate_size: 1856,
    moe_shared_expert_intermediate_size: 3712,
  });
  expect([all / 1e9, active / 1e9].map((count) => count.toFixed(1))).toEqual(['31.6', '3.6']);
  const [falcon] = countOf({
    model_type: 'falcon_h1',
    hidden_size: 1024,
    intermediate_size: 2048,
    num_hidden_layers: 36,
    num_attention_heads: 8,
    num_key_value_heads: 2,
    head_dim: 64,
    mamba_d_ssm: 1536,
    mamba_n_heads: 24,
    mamba_d_head: 64,
    mamba_d_state: 128,
    vocab_size: 32_784,
  });
  expect((falcon / 1e6).toFixed(0)).toBe('521');
});

test('a token of Nemotron-H uses two matrices of each of its experts', () => {
  const model = withKeys('nemotron-h-moe', {});
  // 4 of 6 experts idle, with matrices of 8 times 8.
  expect(model.idleParameters()).toBe(4 * 2 * 8 * 8);
});

test('older files of Nemotron-H have other names of sizes', () => {
  const {
    n_groups,
    conv_kernel,
    use_conv_bias,
    time_step_min: _,
    ...older
  } = configOf('nemotron-h');
  const names = { mamba_n_groups: n_groups, mamba_d_conv: conv_kernel, mamba_dt_min: 0.25 };
  const model = nn.models.fromConfig({ ...older, ...names, mamba_conv_bias: false } as JsonObject);
  expect(mambaOf(model as nn.models.RotaryLM)).toMatchObject({
    groups: n_groups,
    taps: conv_kernel,
    convBias: false,
    stepLimit: [0.25, null],
  });
});

test('layers with and without rotation do not mix, and Nemotron-H has none that rotates', () => {
  const { config } = withKeys('granite-4-h', {});
  expect(config.ropeLayers).toEqual([false, false]);
  const { routerAuxLossCoef: _, ...options } = config;
  expect(
    () => new nn.models.GraniteHybrid({ ...options, ropeLayers: [true, false] } as never),
  ).toThrow(/GraniteHybrid ropeLayers: expected the same for all layers/);
  expect(withKeys('nemotron-h', {}).config).not.toHaveProperty('ropeLayers');
});

test('sizes that do not fit together are refused', () => {
  expect(() => withKeys('granite-4-h', { mamba_d_head: 7 })).toThrow(
    /mamba_d_head: expected mamba_expand \* hidden_size \/ 4, got 7/,
  );
  expect(() => withKeys('granite-4-h', { mamba_n_groups: 3 })).toThrow(
    /mamba_n_heads: expected a multiple of 3, got 4/,
  );
  expect(() => withKeys('granite-4-h', { layer_types: ['mamba', 'other'] })).toThrow(
    /layer_types: expected 2 of "mamba" or "attention"/,
  );
});

test('Falcon-H1 states the width of its state space layers', () => {
  const sizesAt = (more: object) => {
    const { heads = 0, headDim = 0 } = mambaOf(withKeys('falcon-h1', more)) ?? {};
    return [heads, headDim];
  };
  expect(sizesAt({})).toEqual([4, 5]);
  expect(sizesAt({ mamba_d_ssm: 32, mamba_d_head: 'auto' })).toEqual([4, 8]);
  expect(sizesAt({ mamba_d_ssm: null, mamba_d_head: 'auto', mamba_expand: 3 })).toEqual([4, 9]);
  const { mamba_d_ssm: _, ...absent } = configOf('falcon-h1');
  const model = nn.models.fromConfig({ ...absent, mamba_d_head: 'auto' } as JsonObject);
  expect(model.describe().config.mamba_d_ssm).toBe(1024);
  expect(() => withKeys('falcon-h1', { mamba_d_ssm: 24 })).toThrow(
    /mamba_d_head: expected mamba_d_ssm \/ 4, got 5/,
  );
});

test('Falcon-H1 chooses the norm of its state space layers', () => {
  const normAt = (has: boolean, isFirst: boolean) => {
    const keys = { mamba_rms_norm: has, mamba_norm_before_gate: isFirst };
    const model = withKeys('falcon-h1', keys);
    const { config } = model.describe();
    return [mambaOf(model)?.norm, config.mamba_rms_norm, config.mamba_norm_before_gate];
  };
  expect(normAt(false, true)).toEqual([null, false, false]);
  expect(normAt(true, true)).toEqual(['plain', true, true]);
  expect(normAt(true, false)).toEqual(['gated', true, false]);
  const { config } = withKeys('bamba', {});
  const mamba = { ...mambaOf(withKeys('bamba', {})), norm: null };
  expect(() => new nn.models.Bamba({ ...config, mamba } as never)).toThrow(
    /Bamba mamba norm: expected gated, got null/,
  );
});

test('Falcon-H1 has both layers in each block, with numbers as multipliers', () => {
  const { config } = withKeys('falcon-h1', {});
  const mamba = { ...config.mamba, layers: [true, false] };
  expect(() => new nn.models.FalconH1({ ...config, mamba } as never)).toThrow(
    /FalconH1 mamba layers: expected true for each of 2 layers/,
  );
  const multipliers = { feed: [1] };
  expect(() => new nn.models.FalconH1({ ...config, multipliers } as never)).toThrow(
    /FalconH1 multipliers feed: expected 2 numbers, got an array \[1\]/,
  );
  for (const [key, value, message] of [
    ['ssm_multipliers', [1, 2], /ssm_multipliers: expected 5 numbers, got \[1,2\]/],
    ['ssm_in_multiplier', 'x', /ssm_in_multiplier: expected a number, got "x"/],
    ['projectors_bias', true, /projectors_bias: expected false, got true/],
  ] as const) {
    expect(() => withKeys('falcon-h1', { [key]: value })).toThrow(message);
  }
  const absent = { ssm_multipliers: null, mlp_multipliers: null, attention_in_multiplier: null };
  expect(withKeys('falcon-h1', absent).config.multipliers).toMatchObject({
    attentionIn: 1,
    stateParts: [1, 1, 1, 1, 1],
    feed: [1, 1],
  });
});

test('block-sparse attention needs a layer with attention', () => {
  const keys = { num_hidden_layers: 1, layer_types: ['mamba'] };
  const pattern = { mode: 'fixed', block: 16 } as const;
  expect(() => nn.sparsify(withKeys('granite-4-h', keys), pattern)).toThrow(
    /sparsify: expected a model with attention layers .*, got a GraniteHybrid without such layers/,
  );
  expect(() => nn.sparsify(withKeys('granite-4-h', {}), pattern)).not.toThrow();
});
