// Tests which modules get an adapter, and the errors for options and files.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { cpu, type nn, peft, seed } from '../../lib/index.js';
import { logits, tinyGpt2, tinyLlama } from './models.js';

const adaptedNames = (model: nn.Module, options: peft.LoraOptions): string[] => [
  ...peft.lorasOf(peft.addLora(model, options)).keys(),
];
const inLayer = (layer: number, ...names: string[]): string[] =>
  names.map((name) => `model.layers.${layer}.${name}`);

test.each<[string, peft.LoraOptions, string[]]>([
  [
    'the default',
    {},
    [0, 1].flatMap((layer) => inLayer(layer, 'self_attn.q_proj', 'self_attn.v_proj')),
  ],
  [
    'ends of names',
    { targetModules: ['mlp.up_proj'] },
    [0, 1].flatMap((l) => inLayer(l, 'mlp.up_proj')),
  ],
  [
    'an expression',
    { targetModules: '.*layers\\.1\\..*(q|k)_proj' },
    inLayer(1, 'self_attn.q_proj', 'self_attn.k_proj'),
  ],
  [
    'an expression that an engine which backtracks never finishes',
    { targetModules: '([a-z_.0-9]+)+!|.*layers\\.1\\..*q_proj' },
    inLayer(1, 'self_attn.q_proj'),
  ],
  [
    'an expression is for whole names',
    { targetModules: 'model.layers.0.mlp.(up|gate)_proj' },
    inLayer(0, 'mlp.gate_proj', 'mlp.up_proj'),
  ],
  ['layers', { targetModules: ['o_proj'], layersToTransform: 1 }, inLayer(1, 'self_attn.o_proj')],
  [
    'layers of a list',
    { targetModules: ['o_proj'], layersToTransform: [0], layersPattern: 'layers' },
    inLayer(0, 'self_attn.o_proj'),
  ],
  [
    'exclusion',
    { targetModules: ['o_proj'], excludeModules: ['layers.0.self_attn.o_proj'] },
    inLayer(1, 'self_attn.o_proj'),
  ],
  [
    'no layers, which are all',
    { targetModules: ['o_proj'], layersToTransform: [] },
    [0, 1].flatMap((l) => inLayer(l, 'self_attn.o_proj')),
  ],
  [
    'a whole name, whatever the layers',
    {
      targetModules: ['o_proj', 'model.layers.0.mlp.up_proj'],
      layersToTransform: [1],
      layersPattern: ['(?:h|layers)'],
    },
    [...inLayer(0, 'mlp.up_proj'), ...inLayer(1, 'self_attn.o_proj')],
  ],
  [
    'nothing of what is trained whole',
    { targetModules: ['o_proj', 'up_proj'], modulesToSave: ['layers.0.self_attn', 'mlp'] },
    inLayer(1, 'self_attn.o_proj'),
  ],
])('%s', (_, options, names) => {
  expect(adaptedNames(tinyLlama(), options)).toEqual(names);
});

test('all-linear leaves the head and the embeddings out', () => {
  expect(adaptedNames(tinyLlama(), { targetModules: 'all-linear' })).toHaveLength(2 * 7);
  expect(adaptedNames(tinyGpt2(), { targetModules: 'all-linear' })).toHaveLength(2 * 4);
  expect(adaptedNames(tinyGpt2(), {})).toEqual([
    'transformer.h.0.attn.c_attn',
    'transformer.h.1.attn.c_attn',
  ]);
});

test('ranks and factors by pattern', () => {
  const model = peft.addLora(tinyLlama(), {
    r: 4,
    loraAlpha: 8,
    rankPattern: { 'layers.1.*v_proj': 2, q_proj: 8 },
    alphaPattern: { 'model.layers.0.self_attn.q_proj': 32 },
  });
  const sizes = Object.fromEntries(
    Array.from(
      peft.lorasOf(model),
      ([
        name,
        {
          sizes: { r, scaling },
        },
      ]) => [name, [r, scaling]],
    ),
  );
  expect(sizes).toEqual({
    'model.layers.0.self_attn.q_proj': [8, 4],
    'model.layers.0.self_attn.v_proj': [4, 2],
    'model.layers.1.self_attn.q_proj': [8, 1],
    'model.layers.1.self_attn.v_proj': [2, 4],
  });
});

test('A and B have the initial values of the option', () => {
  const norm = (parameter: nn.Parameter): number => Math.hypot(...parameter.toArray());
  const starts = ([true, 'gaussian', false] as const).map((initLoraWeights) => {
    const model = peft.addLora(tinyLlama(), { initLoraWeights, targetModules: ['q_proj'] });
    const [first] = peft.lorasOf(model).values();
    return (first as peft.LoraLayer).factors.map(norm) as [number, number];
  });
  expect(starts.map(([a]) => a > 0)).toEqual([true, true, true]);
  expect(starts.map(([, b]) => b > 0)).toEqual([false, false, true]);
});

test.each<peft.LoraOptions>([
  {},
  { initLoraWeights: 'gaussian' },
  { initLoraWeights: false },
  { useDora: true },
])('matrices have different initial values that follow the seed: %j', (options) => {
  const starts = (from: number): string[] => {
    const model = tinyLlama();
    seed(from);
    peft.addLora(model, { targetModules: 'all-linear', ...options });
    const named = [...model.namedParameters()].filter(([name]) => /lora_[AB]\.weight$/.test(name));
    const values = named.map(([, parameter]) => parameter.toArray());
    return values
      .filter((value) => value.some((x) => x !== 0))
      .map((value) => value.slice(0, 64).map(Math.sign).join());
  };
  const first = starts(5);
  expect(new Set(first).size).toBe(options.initLoraWeights === false ? 28 : 14);
  expect(first).toHaveLength(new Set(first).size);
  expect(starts(5)).toEqual(first);
  expect(starts(6).some((start) => first.includes(start))).toBe(false);
});

test('only named parts are trained, biases and whole modules included', () => {
  const trainedNames = (options: peft.LoraOptions): string[] => {
    const model = peft.addLora(tinyGpt2(), options);
    const all = [...model.namedParameters()].filter(([, { requiresGrad }]) => requiresGrad);
    return all.map(([name]) => name.replace(/\.h\.\d\./, '.h.N.'));
  };
  const lora = [
    'transformer.h.N.attn.c_attn.lora_A.weight',
    'transformer.h.N.attn.c_attn.lora_B.weight',
  ];
  expect([...new Set(trainedNames({}))]).toEqual(lora);
  expect(new Set(trainedNames({ bias: 'lora_only' }))).toEqual(
    new Set(['transformer.h.N.attn.c_attn.bias', ...lora]),
  );
  expect(trainedNames({ bias: 'all' }).filter((name) => name.endsWith('bias'))).toHaveLength(
    2 * 6 + 1,
  );
  expect(trainedNames({ modulesToSave: ['ln_f'] })).toContain('transformer.ln_f.weight');
});

test.each<[peft.LoraOptions | object, RegExp]>([
  [
    { targetModules: ['nothing'] },
    /modules named nothing, got no such module\. Its linear layers are q_proj/,
  ],
  [
    { targetModules: ['input_layernorm'] },
    /input_layernorm: expected a Linear or an Embedding .*, got a RMSNorm/,
  ],
  [{ targetModules: ['lm_head'] }, /reads directly\. modulesToSave: \["lm_head"\]/],
  [{ targetModules: '(' }, /a regular expression/],
  [{ modulesToSave: ['heads'] }, /modulesToSave: expected names of modules, got "heads"/],
  [
    { layersPattern: 'h' },
    /addLora layersPattern: expected layersToTransform with layersPattern, got "h"/,
  ],
  [{ layersToTransform: 0, layersPattern: '(' }, /addLora layersPattern: expected a regular exp/],
  [{ layersToTransform: 0, layersPattern: [1] }, /addLora layersPattern: expected a list of names/],
  [{ r: 0 }, /addLora r: expected an integer of at least 1/],
  [{ loraDropout: 1 }, /addLora loraDropout/],
  [{ bias: 'some' }, /addLora bias: expected "none", "all", "lora_only"/],
  [{ useQalora: true }, /addLora useQalora: expected no QA-LoRA/],
  [{ lora_bias: true }, /addLora lora_bias: expected no bias of B/],
  [{ useDora: 1 }, /addLora useDora: expected true or false/],
  [{ initLoraWeights: 'pissa' }, /addLora initLoraWeights/],
  [{ modulesToSave: [''] }, /addLora modulesToSave: expected a list of names/],
  [{ fanInFanOut: 'x' }, /addLora fanInFanOut: expected true or false/],
  [{ baseModelNameOrPath: 3 }, /addLora baseModelNameOrPath: expected a string/],
  [{ taskType: {} }, /addLora taskType: expected a string/],
  [{ alpha: 3 }, /alpha/],
])('%j is refused', (options, message) => {
  const model = tinyLlama();
  expect(() => peft.addLora(model, options as peft.LoraOptions)).toThrow(message);
  expect(peft.lorasOf(model).size).toBe(0);
  expect(model.parameters().every(({ requiresGrad }) => requiresGrad)).toBe(true);
});

test('a tied head cannot be trained under one of its names only', () => {
  expect(() => peft.addLora(tinyGpt2(), { modulesToSave: ['lm_head'] })).toThrow(/tied to/);
  peft.addLora(tinyGpt2(), { modulesToSave: ['lm_head', 'wte'] });
});

test.each(['lm_head', 'wte'])('ensureWeightTying trains the twin of %s', (name) => {
  const model = peft.addLora(tinyGpt2(), { modulesToSave: [name], ensureWeightTying: true });
  expect(model.transformer.wte.weight.requiresGrad).toBe(true);
  const targets = { targetModules: ['wte', 'c_attn'], ensureWeightTying: true };
  const other = tinyGpt2();
  expect(() => peft.addLora(other, targets)).toThrow(
    /ensureWeightTying: expected adapters of layers that are not tied, got transformer\.wte/,
  );
  expect(peft.lorasOf(other).size).toBe(0);
});

test('the update of an embedding is not merged if a tied head reads its weight', () => {
  const model = peft.addLora(tinyGpt2(), { targetModules: ['wte', 'c_attn'] });
  const layers = [...peft.lorasOf(model).values()];
  expect(() => peft.merge(model)).toThrow(
    /merge transformer\.wte: expected a weight that no other module reads, got one that lm_head/,
  );
  expect(layers.some(({ isMerged }) => isMerged)).toBe(false);
  peft.merge(peft.addLora(tinyLlama(), { targetModules: ['embed_tokens'] }));
});

test('adapters return when a promise ends or rejects', async () => {
  const model = peft.addLora(tinyLlama(), { initLoraWeights: false });
  const logitsNow = (): number[] => logits(model, cpu());
  const [adapted, plain] = [logitsNow(), peft.withoutAdapters(model, logitsNow)];
  expect(adapted).not.toEqual(plain);
  const later = peft.withoutAdapters(model, async () => {
    await Promise.resolve();
    return logitsNow();
  });
  expect(await later).toEqual(plain);
  expect(logitsNow()).toEqual(adapted);
  const failing = peft.withoutAdapters(model, async () => Promise.reject(new Error('no')));
  await expect(failing).rejects.toThrow('no');
  expect(logitsNow()).toEqual(adapted);
});

test('adapters return after the last of several bodies, in any order', async () => {
  const model = peft.addLora(tinyLlama());
  const areEnabled = (): boolean =>
    [...peft.lorasOf(model).values()].every((value) => value.isEnabled);
  const ends: (() => void)[] = [];
  const wait = (): Promise<void> => new Promise((end) => ends.push(end));
  const [first, second] = [peft.withoutAdapters(model, wait), peft.withoutAdapters(model, wait)];
  ends[0]?.();
  await first;
  expect(areEnabled()).toBe(false);
  ends[1]?.();
  await second;
  expect(areEnabled()).toBe(true);
});

test('a model has one set of adapters', () => {
  const model = peft.addLora(tinyLlama());
  expect(() => peft.addLora(model)).toThrow(/a model without adapters/);
  expect(() => peft.merge(tinyLlama())).toThrow(/a model with adapters/);
  peft.merge(model);
  expect(() => peft.withoutAdapters(model, () => 0)).toThrow(/unmerge\(\) first/);
});

const plainConfig = {
  peft_type: 'LORA',
  r: 4,
  target_modules: ['q_proj'],
  use_dora: false,
  loftq_config: {},
};

test.each<[object, RegExp]>([
  [{ peft_type: 'IA3' }, /peft_type: expected "LORA", got "IA3"/],
  [{ use_qalora: true }, /use_qalora: expected no QA-LoRA/],
  [
    { trainable_token_indices: [1] },
    /trainable_token_indices: expected no value: the key is not supported, got \[1\]/,
  ],
  [{ constructor: 1 }, /constructor: expected no value: the key is not supported, got 1/],
  [{ r: -1 }, /r: expected an integer/],
  ...['pissa', 'pissa_niter_16', 'olora', 'OLoRA', 'corda', 'loftq', 'lora_ga'].map(
    (init_lora_weights): [object, RegExp] => [
      { init_lora_weights },
      /init_lora_weights: expected an initialization that .*path_initial_model_for_weight_conversion/,
    ],
  ),
  ...['pisa', 'pissa_niter_', 7].map((init_lora_weights): [object, RegExp] => [
    { init_lora_weights },
    /init_lora_weights: expected true, false, "gaussian", "eva", "orthogonal", got .* PEFT never writes/,
  ]),
  ...[true, false, null, 'gaussian', 'Gaussian', 'eva', 'orthogonal'].map(
    (init_lora_weights): [object, RegExp] => [{ init_lora_weights }, /adapter_model\.safetensors/],
  ),
  [{ init_lora_weights: 'eva', eva_config: { rho: 2 } }, /adapter_model\.safetensors/],
  [{}, /adapter_model\.safetensors|no such file/],
])('a folder with %j is refused', async (change, message) => {
  const dir = mkdtempSync(join(tmpdir(), 'ds-adapter-'));
  try {
    writeFileSync(join(dir, 'adapter_config.json'), JSON.stringify({ ...plainConfig, ...change }));
    await expect(peft.loadAdapter(tinyLlama(), dir)).rejects.toThrow(message);
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
});
