// Tests schema.json: keys have descriptions and types, defaults are valid, references exist, and
// the editor schema accepts the same files as the reader.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Ajv2020 } from 'ajv/dist/2020.js';

import {
  annotations,
  configSchema,
  isSection,
  resolveSchema,
  type Schema,
} from '../../lib/config/schema.js';

const root = join(__dirname, '../..');

/** Every declared key with its dotted path; a key of one section type is "optimizer<SGD>.lr". */
function* declaredKeys(schema: Schema, path: string): Generator<[path: string, schema: Schema]> {
  for (const [key, property] of Object.entries(schema.properties ?? {})) {
    const place = path ? `${path}.${key}` : key;
    const resolved = resolveSchema(property, null);
    yield [place, resolved];
    yield* declaredKeys(resolved, place);
  }
  for (const option of schema.oneOf ?? []) {
    yield* declaredKeys(option, `${path}<${option.properties?.type?.const}>`);
  }
}

const keys = [...declaredKeys(configSchema, '')];

const ajv = new Ajv2020({
  allErrors: true,
  discriminator: true,
  strict: true,
  strictTypes: false,
  strictRequired: false,
});
for (const [keyword, schemaType] of Object.entries(annotations)) {
  ajv.addKeyword({ keyword, schemaType });
}

test('has the sections and keys of DeepSpeed', () => {
  expect(keys.length).toBeGreaterThan(400);
});

test('every key has a description of one sentence', () => {
  const bad = keys.filter(([, { description = '' }]) => !/^\S[^\n]*\.$/.test(description));
  expect(bad.map(([path]) => path)).toEqual([]);
});

test('every key has a type', () => {
  const typeOf = (s: Schema) => s.type ?? s.enum ?? s.const ?? s.anyOf;
  expect(keys.filter(([, schema]) => !typeOf(schema)).map(([path]) => path)).toEqual([]);
});

test('every section declares whether it allows other keys', () => {
  const open = keys.filter(([, s]) => s.properties && s.additionalProperties === undefined);
  expect(open.map(([path]) => path)).toEqual([]);
});

test('every default is valid', () => {
  const wrong = keys.flatMap(([path, schema]) => {
    if (schema.default === undefined) return [];
    const refers = JSON.stringify(schema).includes('$ref');
    const check = ajv.compile({ ...schema, ...(refers && { $defs: configSchema.$defs }) });
    return check(schema.default) ? [] : [{ path, errors: check.errors }];
  });
  expect(wrong).toEqual([]);
});

test('every deprecated key names a current key as its replacement', () => {
  const known = new Map(keys);
  const old = keys.filter(([, { deprecated, dsReplacedBy }]) => deprecated || dsReplacedBy);
  expect(old.length).toBeGreaterThan(0);
  for (const [path, { deprecated, dsReplacedBy }] of old) {
    expect(deprecated).toBe(true);
    const target = known.get(dsReplacedBy as string);
    expect([path, target?.deprecated ?? false, Boolean(target)]).toEqual([path, false, true]);
  }
});

test('no other name of a key is a key itself', () => {
  const known = new Map(keys);
  const others = keys.flatMap(([path, { dsAlias = [] }]) =>
    dsAlias.map((alias) => path.replace(/[^.]+$/, alias)),
  );
  expect(others).toContain('zero_optimization.prefetch_bucket_size');
  expect(others.filter((path) => known.has(path))).toEqual([]);
});

test('unsupported values are values of their key', () => {
  for (const [path, schema] of keys) {
    for (const value of Object.keys(schema.dsUnsupportedValues ?? {})) {
      const values = schema.type === 'boolean' ? ['true', 'false'] : schema.enum;
      expect([path, ...(values ?? [schema.const])]).toContain(value);
    }
  }
});

describe('the schema for editors', () => {
  const published = JSON.parse(readFileSync(join(root, 'ds_config.schema.json'), 'utf8'));
  const check = ajv.compile(published);

  test('uses no keyword of this project', () => {
    const words = (value: unknown): string[] =>
      typeof value !== 'object' || value === null
        ? []
        : Object.entries(value).flatMap(([key, item]) => [key, ...words(item)]);
    expect(words(published).filter((word) => /^ds[A-Z]|^discriminator$/.test(word))).toEqual([]);
  });

  test.each([
    [{}],
    [{ optimizer: null, scheduler: null, wandb: null, sparse_attention: false }],
    [{ optimizer: { type: 'adamw', params: { lr: 'auto', betas: 'auto' } } }],
    [{ optimizer: { type: 'ADAGRAD' }, scheduler: { type: 'LRRangeTest' } }],
    [{ train_batch_size: 'auto', bf16: { enabled: 'auto' }, gradient_clipping: 'auto' }],
    [{ scheduler: { type: 'WarmupDecayLR', params: { total_num_steps: 'auto' } } }],
    [{ bfloat16: { enabled: true }, zero_optimization: { cpu_offload: true } }],
    [{ zero_optimization: { prefetch_bucket_size: 1, stage3_max_live_parameters: 1e9 } }],
    [
      {
        data_types: { grad_accum_dtype: 'torch.float32', param_dtype: null, buffer_dtype: 'FP16' },
      },
    ],
    [{ communication_data_type: 'FP32', checkpoint: { tag_validation: 'FAIL' } }],
    [{ aio: { thread_count: 8 }, elasticity: { prefer_large_batch: true } }],
    [{ pipeline: { micro_batch_size: 0 }, amp: { of_my_own: 1 } }],
  ])('accepts %j', (config) => {
    expect([check(config), check.errors]).toEqual([true, null]);
  });

  test.each([
    [{ train_batch_size: 'sixteen' }],
    [{ gradient_cliping: 1 }],
    [{ pipeline: { stage: 2 } }],
    [{ optimizer: { type: 'adamx' } }],
    [{ optimizer: { type: 'sgd', params: { betas: [0, 0] } } }],
    [{ optimizer: {} }],
    [{ scheduler: { type: 'WarmupDecayLR' } }],
    [{ communication_data_type: 'fp8' }],
    [{ data_types: { grad_accum_dtype: 'torch-float32' } }],
    [{ zero_optimization: { prefetch_bucket_size: -1 } }],
  ])('reports %j', (config) => {
    expect(check(config)).toBe(false);
  });

  test('accepts the configuration of the examples, which names it', () => {
    const example = JSON.parse(readFileSync(join(root, 'examples/ds_config.json'), 'utf8'));
    expect(join(root, 'examples', example.$schema)).toBe(join(root, 'ds_config.schema.json'));
    expect(isSection(example) && check(example)).toBe(true);
  });
});
