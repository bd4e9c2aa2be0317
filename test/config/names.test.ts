// Old names, second spellings and mistyped ones: every pair and every section of the schema.
import { checkConfig, type DsConfig, resolveConfig } from '../../lib/config/index.js';
import {
  configSchema,
  isSection,
  resolveSchema,
  type Schema,
  type Section,
} from '../../lib/config/schema.js';

const ONE = { worldSize: 1 };
const MICRO = { train_micro_batch_size_per_gpu: 2 };

function check(extra: Section) {
  return checkConfig({ ...MICRO, ...extra } as DsConfig, ONE);
}

/** `value` under `path`, in sections of its own. */
function at(path: readonly string[], value: unknown): Section {
  return path.reduceRight<unknown>((inner, key) => ({ [key]: inner }), value) as Section;
}

function get(config: unknown, path: readonly string[]): unknown {
  return path.reduce<unknown>((section, key) => (section as Section)[key], config);
}

/** Every key of the schema with its section, references resolved. */
function* keys(schema: Schema, path: string[] = []): Generator<{ path: string[]; schema: Schema }> {
  for (const [key, property] of Object.entries(schema.properties ?? {})) {
    const resolved = resolveSchema(property, undefined);
    yield { path: [...path, key], schema: resolved };
    yield* keys(resolved, [...path, key]);
  }
}

const all = [...keys(configSchema)];

const aliases = all.flatMap(({ path, schema }) => {
  return (schema.dsAlias ?? []).map((alias) => {
    return [path.join('.'), [...path.slice(0, -1), alias], schema] as const;
  });
});

test('the schema has aliases, deprecated names and sections to test', () => {
  expect(aliases.length).toBeGreaterThan(8);
  expect(deprecated.length).toBeGreaterThan(4);
  expect(sections.length).toBeGreaterThan(20);
});

const matching = (value: object): unknown => expect.objectContaining(value);

test.each(aliases)('%s has another spelling, %j', (name, alias, schema) => {
  const path = name.split('.');
  const plain = schema.type === 'boolean' ? !schema.default : 12;
  const value = schema.type === 'object' ? { tp_size: 12 } : plain;
  const section = { [alias.at(-1) as string]: value };
  const { config, errors, notices } = check(at(path.slice(0, -1), section));
  if (config)
    expect(get(config, path)).toEqual(typeof value === 'object' ? matching(value) : value);
  else expect(errors[0]?.hint).toMatch(/not supported yet/);
  for (const notice of notices) expect(notice.path).toBe(alias.join('.'));
  const both = at(path.slice(0, -1), {
    [path.at(-1) as string]: value,
    [alias.at(-1) as string]: value,
  });
  expect(check(both).errors).toEqual([
    expect.objectContaining({ path: alias.join('.'), hint: `Keep ${name}.` }),
  ]);
});

const deprecated = all
  .filter(({ schema }) => schema.deprecated && schema.dsReplacedBy)
  .map(({ path, schema }) => [path.join('.'), schema.dsReplacedBy as string, schema] as const);

test.each(deprecated)('%s is deprecated for %s', (old, current, schema) => {
  const path = old.split('.');
  const value = schema.type === 'boolean' ? true : schema.type === 'object' ? {} : 12;
  const { config, errors, notices } = check({ ...at(path, value) });
  expect(errors.filter(({ hint }) => !hint.includes('stage'))).toEqual([]);
  expect(notices.filter(({ kind }) => kind === 'deprecated')).toEqual([
    expect.objectContaining({ path: old, text: expect.stringContaining(current) }),
  ]);
  if (config) expect(get(config, path.slice(0, -1))).not.toHaveProperty(path.at(-1) as string);
});

test.each<[extra: Section, path: string, value: unknown]>([
  [{ zero_optimization: true }, 'zero_optimization.stage', 1],
  [{ zero_optimization: false }, 'zero_optimization.stage', 0],
  [
    { zero_optimization: true, allgather_size: 400 },
    'zero_optimization.allgather_bucket_size',
    400,
  ],
  [
    { zero_optimization: { stage: 2, cpu_offload: true } },
    'zero_optimization.offload_optimizer.device',
    'cpu',
  ],
  [
    { zero_optimization: { stage: 2, cpu_offload: false } },
    'zero_optimization.offload_optimizer.device',
    'none',
  ],
  [
    { zero_optimization: { stage: 2, cpu_offload_param: true } },
    'zero_optimization.offload_param.device',
    'cpu',
  ],
  [
    { zero_optimization: { stage: 2, cpu_offload_use_pin_memory: false } },
    'zero_optimization.offload_optimizer.pin_memory',
    true,
  ],
  [{ bfloat16: { enabled: true } }, 'bf16.enabled', true],
  [
    { zero_optimization: { stage3_gather_fp16_weights_on_model_save: true } },
    'zero_optimization.stage3_gather_16bit_weights_on_model_save',
    true,
  ],
])('an old form is read as today’s: %j', (extra, path, value) => {
  const { config, errors, notices } = check(extra);
  expect(errors).toEqual([]);
  expect(get(config, path.split('.'))).toEqual(value);
  expect(notices.some(({ kind }) => kind === 'deprecated')).toBe(true);
});

test('an error of a moved key points to its place in the file', () => {
  const text = '{\n"zero_optimization": true,\n"allgather_size": "many"\n}';
  const { errors } = checkConfig(Buffer.from(text).toString('base64'), ONE);
  expect(errors.map(({ location }) => location?.line)).toEqual([3]);
});

test.each<[extra: Section, path: string]>([
  [{ bfloat16: { enabled: true }, bf16: { enabled: false } }, 'bfloat16'],
  [
    { zero_optimization: { cpu_offload: true, offload_optimizer: {} } },
    'zero_optimization.cpu_offload',
  ],
  [
    { zero_optimization: { cpu_offload_param: false, offload_param: { device: 'none' } } },
    'zero_optimization.cpu_offload_param',
  ],
])('the old and the new name together are an error: %j', (extra, path) => {
  const { config, errors } = check(extra);
  expect(config).toBeNull();
  expect(errors).toEqual([expect.objectContaining({ path, got: 'both' })]);
});

const sections = [{ path: [], schema: configSchema }, ...all].filter(
  ({ path, schema }) =>
    schema.additionalProperties === false &&
    schema.properties &&
    !schema.deprecated &&
    !all.some(
      (other) => other.schema.deprecated && path.join('.').startsWith(other.path.join('.')),
    ),
);

test.each(
  sections.map(({ path, schema }) => [path.join('.') || 'the file', path, schema] as const),
)('a mistyped key of %s is guessed', (_, path, schema) => {
  const known = Object.keys(schema.properties ?? {}).find((key) => key.length > 4) as string;
  const typo = `${known.slice(0, 2)}${known.slice(3)}`;
  const { notices } = check(at([...path, typo], null));
  const notice = notices.find((found) => found.path === [...path, typo].join('.'));
  expect(notice).toMatchObject({ kind: 'unknown' });
  expect(notice?.text).toBe(`is unknown and ignored. Did you mean "${known}"?`);
});

test.each<[extra: Section, path: string, guess: string]>([
  [{ tensor_parallel: { autotp_sise: 2 } }, 'tensor_parallel.autotp_sise', 'autotp_size'],
  [{ tensor_parallel: { tp: { tp_sise: 2 } } }, 'tensor_parallel.tp.tp_sise', 'tp_size'],
  [{ pipeline: { stage: 2 } }, 'pipeline.stage', 'stages'],
])('%j: a notice, and an error under strict', (extra, path, guess) => {
  const text = expect.stringContaining(`Did you mean "${guess}"?`);
  expect(check(extra).notices).toEqual([expect.objectContaining({ kind: 'unknown', path, text })]);
  const { errors } = checkConfig({ ...MICRO, ...extra } as DsConfig, { ...ONE, strict: true });
  expect(errors).toEqual([expect.objectContaining({ path, hint: text })]);
});

test.each<[extra: Section, path: string, guess: string]>([
  [{ max_grad_norm: 1 }, 'max_grad_norm', 'gradient_clipping'],
  [{ optimizer: { type: 'AdamW', lr: 1e-5 } }, 'optimizer.lr', 'optimizer.params.lr'],
  [
    { scheduler: { type: 'WarmupLR', warmup_num_steps: 5 } },
    'scheduler.warmup_num_steps',
    'scheduler.params.warmup_num_steps',
  ],
  [
    { zero_optimization: { stage: 3, stage3_reduce_bucket_size: 9 } },
    'zero_optimization.stage3_reduce_bucket_size',
    'reduce_bucket_size',
  ],
])('a key in another place: %j', (extra, path, guess) => {
  const text = `is unknown and ignored. Did you mean "${guess}"?`;
  expect(check(extra).notices).toEqual([expect.objectContaining({ path, text })]);
});

test.each([
  ['warmup_steps', 'warmup_num_steps'],
  ['waprup_num_steps', 'warmup_num_steps'],
  ['WARMUP_TYPE', 'warmup_type'],
])('parameters of a schedule: %s', (typo, guess) => {
  const scheduler = { type: 'WarmupLR', params: { [typo]: 1 } };
  const { errors } = check({ scheduler });
  expect(errors).toEqual([expect.objectContaining({ hint: `Did you mean "${guess}"?` })]);
});

test('the learning rate of an optimizer', () => {
  const optimizer = { type: 'AdamW', params: { learning_rate: 1e-4 } };
  const { errors } = check({ optimizer });
  expect(errors).toEqual([expect.objectContaining({ hint: 'Did you mean "lr"?' })]);
});

test('names of every object are no keys', () => {
  const config = check(JSON.parse('{ "constructor": 1, "__proto__": { "fp16": 2 } }'));
  expect(config.notices.map(({ path }) => path)).toEqual(['constructor', '__proto__']);
  expect(isSection(config.config) && Object.hasOwn(config.config, 'constructor')).toBe(false);
});

test('Muon takes its own parameters; other optimizers refuse unknown ones', () => {
  const params = { lr: 0.1, nesterof: true };
  expect(check({ optimizer: { type: 'Adam', params } }).errors).toHaveLength(1);
  const muon = check({ optimizer: { type: 'muon', params } });
  expect(muon.errors).toEqual([]);
  expect(muon.notices).toEqual([expect.objectContaining({ path: 'optimizer.params.nesterof' })]);
  expect(resolveConfig({ ...MICRO, optimizer: { type: 'Muon' } }, ONE).optimizer?.type).toBe(
    'Muon',
  );
});
