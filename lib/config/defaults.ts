// Fills a checked configuration with the defaults that schema.json gives.
import { configSchema, isSection, resolveSchema, type Schema, type Section } from './schema.js';

/**
 * Returns a copy of `value` with the defaults of all current keys, also in missing sections and in
 * null sections whose default is a section.
 */
export function withDefaults(value: Section, schema: Schema = configSchema): Section {
  const out: Section = { ...value };
  for (const [key, property] of Object.entries(schema.properties ?? {})) {
    const declared = resolveSchema(property, value[key]);
    if (declared.deprecated) continue;
    const fallback = declared.default ?? property.default;
    if (out[key] === undefined || (out[key] === null && isSection(fallback))) {
      if (fallback === undefined) continue;
      out[key] = structuredClone(fallback);
    }
    const item = out[key];
    if (isSection(item)) out[key] = withDefaults(item, declared);
  }
  const { additionalProperties: named } = schema;
  if (typeof named !== 'object') return out;
  for (const [name, item] of Object.entries(value)) {
    if (isSection(item)) out[name] = withDefaults(item, resolveSchema(named, item));
  }
  return out;
}

/** Sets the default of overlap_comm: true at stage 3, as in DeepSpeed. */
export function deriveOverlap(value: Section): boolean {
  const zero = value.zero_optimization;
  if (!isSection(zero) || (zero.overlap_comm ?? null) !== null) return false;
  zero.overlap_comm = zero.stage === 3;
  return true;
}

/** A hyperparameter `key` whose default is another hyperparameter, `of`. */
interface Derived {
  key: string;
  of: string;
}

/**
 * Sets defaults of hyperparameters that depend on others and that `given` lacks, as DeepSpeed does:
 * Muon's Adam takes lr, and PyTorch's AdamW has a weight decay of its own. Returns the derived
 * hyperparameter.
 */
export function deriveParams({ optimizer }: Section, given: Section): Derived | null {
  if (!isSection(optimizer) || !isSection(optimizer.params)) return null;
  const { type, params } = optimizer;
  const ownParams = isSection(given.optimizer) ? given.optimizer.params : null;
  if (!isSection(ownParams)) return null;
  if (type === 'Muon' && ownParams.lr !== undefined && ownParams.adam_lr === undefined) {
    params.adam_lr = ownParams.lr;
    return { key: 'adam_lr', of: 'optimizer.params.lr' };
  }
  if (params.torch_adam && params.adam_w_mode && ownParams.weight_decay === undefined) {
    params.weight_decay = 0.01;
    return { key: 'weight_decay', of: 'optimizer.params.torch_adam' };
  }
  return null;
}

/** Makes `value` read-only at any depth. */
export function deepFreeze<T>(value: T): T {
  if (typeof value === 'object' && value !== null) {
    for (const item of Object.values(value)) deepFreeze(item);
    Object.freeze(value);
  }
  return value;
}
