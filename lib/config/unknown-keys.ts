// Removes keys that the schema does not have, with a notice and a suggestion; refuses them under
// `strict`.
import { closest } from '../runtime/suggestion.js';
import type { Draft } from './draft.js';
import { dottedPath, type Path } from './parse.js';
import { isSection, propertyOf, resolveSchema, type Schema, type Section } from './schema.js';

/** Hints for keys of older versions and of other configurations. */
const KNOWN_MISTAKES = new Map([
  ['max_model_len', 'In an inference configuration, it is "max_out_tokens".'],
  ['gpu_memory_utilization', 'In an inference configuration, set "kv_cache.memory" in bytes.'],
  ['tensor_parallel_size', 'Did you mean "tensor_parallel.tp_size"?'],
  ['max_grad_norm', 'Did you mean "gradient_clipping"?'],
  [
    'optimizer.params.max_grad_norm',
    'Clipping is set at the top of the file: "gradient_clipping".',
  ],
  ['optimizer.params.learning_rate', 'Did you mean "lr"?'],
  ['zero_optimization.offload_optimizer.buffer_size', 'DeepSpeed no longer has it.'],
]);

/**
 * Maximum number of unknown keys per file with a suggestion, because each search takes time.
 */
const MAX_GUESSES = 100;

/** Removes the unknown keys from every section of `draft`. */
export function removeUnknownKeys(draft: Draft, strict: boolean): void {
  refuseAccelerate(draft);
  removeUnknownIn(draft, draft.value, { schema: draft.schema, path: [], strict });
  draft.visit(({ section, key, path, schema }) => {
    const item = section[key];
    if (!isSection(item)) return;
    removeUnknownIn(draft, item, { schema, path, strict: strict || isConstructed(draft, path) });
  });
}

/**
 * Returns whether DeepSpeed passes the section at `path` to a constructor, which refuses unknown
 * keys. Muon's constructor ignores them.
 */
function isConstructed(draft: Draft, path: Path): boolean {
  const name = dottedPath(path);
  if (name === 'scheduler.params') return true;
  const { optimizer } = draft.value;
  return name === 'optimizer.params' && isSection(optimizer) && optimizer.type !== 'Muon';
}

interface Rules {
  schema: Schema;
  path: Path;
  strict: boolean;
}

function removeUnknownIn(draft: Draft, section: Section, { schema, path, strict }: Rules): void {
  if (schema.additionalProperties !== false) return;
  for (const key of Object.keys(section)) {
    if (propertyOf(schema, key)) continue;
    const here = [...path, key];
    const hint = hintFor(draft, here, schema);
    if (strict || dottedPath(here) === 'optimizer.params.max_grad_norm') {
      const expected = path.length > 0 ? `a key of ${dottedPath(path)}` : 'a key of this file';
      draft.refuse(here, { expected, got: `"${key}", which is unknown`, hint });
    } else {
      draft.note('unknown', here, `is unknown and ignored. ${hint}`.trim());
    }
    delete section[key];
  }
}

function hintFor(draft: Draft, path: Path, schema: Schema): string {
  const known = KNOWN_MISTAKES.get(dottedPath(path));
  if (known) return known;
  if (draft.errors.length + draft.notices.length >= MAX_GUESSES) return '';
  const key = String(path.at(-1));
  const { params } = schema.properties ?? {};
  if (params && propertyOf(resolveSchema(params, undefined), key)) {
    return `Did you mean "${dottedPath([...path.slice(0, -1), 'params', key])}"?`;
  }
  const bare = key.replace(/^stage3_/, '');
  const guess = propertyOf(schema, bare) ? bare : closest(key, namesIn(schema));
  if (guess) return `Did you mean "${guess}"?`;
  const elsewhere = sectionsWith(key, draft.schema);
  return elsewhere.length === 1 ? `Did you mean "${elsewhere[0]}"?` : '';
}

/** Returns the keys of a section under all of their names. */
function namesIn({ properties = {} }: Schema): string[] {
  return Object.entries(properties).flatMap(([key, { dsAlias = [] }]) => [key, ...dsAlias]);
}

/** Returns the dotted paths of the keys with this name. */
function sectionsWith(key: string, schema: Schema): readonly string[] {
  let paths = pathsByKey.get(schema);
  if (!paths) {
    paths = new Map();
    collectPaths(schema, [], paths);
    pathsByKey.set(schema, paths);
  }
  return paths.get(key) ?? [];
}

/** By schema: the dotted paths of every key's name. */
const pathsByKey = new WeakMap<Schema, Map<string, string[]>>();

function collectPaths(schema: Schema, path: Path, paths: Map<string, string[]>): void {
  for (const [name, property] of Object.entries(schema.properties ?? {})) {
    const here = [...path, name];
    paths.set(name, [...(paths.get(name) ?? []), dottedPath(here)]);
    collectPaths(resolveSchema(property, undefined), here, paths);
  }
}

// Refuses configuration files of accelerate, which have other keys than ds_config.json.

/** Keys of every accelerate file that no ds_config.json has. */
const MARKS = ['compute_environment', 'distributed_type'];

/**
 * Refuses an accelerate file. Removes its keys from the draft, so that they are not reported as
 * unknown keys too.
 */
function refuseAccelerate(draft: Draft): void {
  const { value } = draft;
  const mark = MARKS.find((key) => value[key] !== undefined);
  if (mark === undefined) return;
  const plugin = pluginOf(value);
  const { deepspeed_config_file: file } = plugin;
  const hint =
    typeof file === 'string'
      ? `Pass the file that it names: ${file}.`
      : `Write a file of ${JSON.stringify(translate(plugin, value))} instead.`;
  draft.refuse([mark], {
    expected: 'the keys of a DeepSpeed configuration',
    got: 'a configuration of accelerate',
    hint: `${hint} \`ds --num_gpus\` sets the number of ranks.`,
  });
  for (const key of Object.keys(value)) delete value[key];
}

/**
 * Returns the deepspeed_config of the file. In JSON it is a section. YAML is read as Hjson, so its
 * lines become keys of the file, and the first line becomes the value of the section.
 */
function pluginOf(value: Section): Section {
  const { deepspeed_config: pluginConfig } = value;
  if (isSection(pluginConfig)) return pluginConfig;
  const [, key = '', first = ''] = String(pluginConfig ?? '').match(/^(\w+):\s*(.*)$/) ?? [];
  return { ...value, ...(key && { [key]: numberOr(first.replace(/^(['"])(.*)\1$/, '$2')) }) };
}

const numberOr = (text: string): string | number =>
  text !== '' && Number.isFinite(Number(text)) ? Number(text) : text;

/** Returns an accelerate plugin section as a DeepSpeed section. */
function translate(plugin: Section, { mixed_precision: precision }: Section): Section {
  const offload = (what: string): Section => {
    const device = plugin[`${what}_device`];
    if (device === undefined || device === null || device === 'none') return {};
    const path = plugin[`${what}_nvme_path`];
    return { [what]: { device, ...(path ? { nvme_path: path } : {}) } };
  };
  const copied = ['gradient_accumulation_steps', 'gradient_clipping'].filter(
    (key) => plugin[key] !== undefined,
  );
  const sixteen = precision === 'bf16' || precision === 'fp16' ? precision : null;
  return {
    train_micro_batch_size_per_gpu: 'auto',
    ...Object.fromEntries(copied.map((key) => [key, plugin[key]])),
    zero_optimization: {
      stage: plugin.zero_stage ?? 2,
      ...offload('offload_optimizer'),
      ...offload('offload_param'),
      ...(plugin.zero3_save_16bit_model === true && {
        stage3_gather_16bit_weights_on_model_save: true,
      }),
    },
    ...(sixteen && { [sixteen]: { enabled: true } }),
  };
}
