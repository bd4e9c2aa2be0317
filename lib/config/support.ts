// Finds keys of DeepSpeed that have no effect here (a notice) or are not supported (an error),
// unless they are disabled.
import { isDeepStrictEqual } from 'node:util';

import { formatConfigValue } from './config-error.js';
import type { Draft } from './draft.js';
import { isSection, propertyOf, resolveSchema, type Schema, typesOf } from './schema.js';

/**
 * Adds notices and errors for the keys of `draft`, by the schema's dsNoEffect, dsNoEffectAlone,
 * dsNoEffectResident, dsNoEffectOffDisk, dsStages, dsUnsupported and dsUnsupportedValues.
 */
export function checkSupport(draft: Draft, worldSize: number): void {
  const stage = stageOf(draft);
  const weights = stage === 3 ? deviceOf(draft, 'offload_param') : undefined;
  const holdsAll = worldSize === 1 && weights !== 'cpu' && weights !== 'nvme';
  const stateDevice = deviceOf(draft, 'offload_optimizer');
  const isResident = stateDevice !== 'cpu' && stateDevice !== 'nvme';
  draft.visit(({ section, key, path, schema }) => {
    const value = section[key];
    const idle = isOff(value, schema) || isDefault(value, schema);
    if (schema.dsUnsupported) {
      const isOn = isSection(value) && value.enabled === true;
      if (!idle || isOn) {
        const hint = `It is not supported yet: ${schema.dsUnsupported}. Remove it or switch it off.`;
        const got = isSection(value) ? 'a section that is on' : formatConfigValue(value);
        draft.refuse(path, { expected: offValue(value, schema), got, hint });
      }
      delete section[key];
      return false;
    }
    if (schema.dsNoEffect) {
      if (!idle) draft.note('no-effect', path, `has no effect: ${schema.dsNoEffect}.`);
      if (isOff(value, schema) && typesOf(schema).includes('object')) delete section[key];
      return false;
    }
    const alone = holdsAll ? schema.dsNoEffectAlone : undefined;
    const resident = isResident ? schema.dsNoEffectResident : undefined;
    const onDisk = isOnDisk(path, { state: stateDevice, weights });
    const offDisk = onDisk ? undefined : schema.dsNoEffectOffDisk;
    const inactive = alone ?? resident ?? offDisk ?? inactiveAt(stage, schema);
    if (inactive && !idle) draft.note('no-effect', path, `has no effect: ${inactive}.`);
    if (inactive && isSection(value) && isOff(value, schema)) return false;
    const reasons = new Map(Object.entries(schema.dsUnsupportedValues ?? {}));
    const reason = reasons.get(typeof value === 'object' ? '' : String(value));
    // A disabled section may have unsupported values, as templates do.
    if (reason && section.enabled !== false) {
      const hint = `This value is not supported yet: ${reason}.`;
      draft.refuse(path, {
        expected: supportedValues(schema),
        got: formatConfigValue(value),
        hint,
      });
    }
    return true;
  });
}

/** Returns the ZeRO stage of an unchecked configuration. */
export function stageOf({ value: { zero_optimization: zero } }: Draft): unknown {
  return isSection(zero) ? (zero.stage ?? 0) : 0;
}

/**
 * Returns the device of the offloaded state or weights, in an unchecked configuration. Weights in
 * host memory move to the device when they are used, on one rank too.
 */
function deviceOf(
  { value: { zero_optimization: zero } }: Draft,
  key: 'offload_param' | 'offload_optimizer',
): unknown {
  const section = isSection(zero) ? zero[key] : null;
  return isSection(section) ? section.device : undefined;
}

/** Returns whether the state or weights of the key at `path` are on a disk. */
function isOnDisk(
  path: readonly unknown[],
  devices: Record<'state' | 'weights', unknown>,
): boolean {
  const { state, weights } = devices;
  if (path.includes('offload_param')) return weights === 'nvme';
  return state === 'nvme' || (path[0] === 'aio' && weights === 'nvme');
}

/**
 * Returns the reason why a key has no effect at `stage`; undefined if it has one or `stage` is
 * invalid.
 */
function inactiveAt(stage: unknown, { dsStages: stages }: Schema): string | undefined {
  if (!stages || typeof stage !== 'number' || stages.includes(stage)) return undefined;
  return `it acts at stage ${stages.join(', ').replace(/, (\d)$/, ' or $1')}, and this is ${stage}`;
}

/**
 * Returns whether a value disables its key: null, a section with enabled: false or device: "none",
 * or false for a key that is disabled by default.
 */
function isOff(value: unknown, schema: Schema): boolean {
  if (isSection(value)) return value.enabled === false || value.device === 'none';
  return value === null || (value === false && schema.default !== true);
}

/**
 * Returns whether `value` equals the default; for a section, whether all of its values do. A
 * section that is disabled by default, and not enabled, counts as default.
 */
function isDefault(value: unknown, schema: Schema): boolean {
  if (!isSection(value) || !schema.properties) {
    return 'default' in schema && isDeepStrictEqual(value, schema.default);
  }
  const enabled = propertyOf(schema, 'enabled');
  if (enabled && value.enabled === undefined && enabled.default === false) return true;
  return Object.entries(value).every(([key, item]) => {
    const property = propertyOf(schema, key);
    if (!property) return schema.additionalProperties !== true;
    return isDefault(item, resolveSchema(property, item));
  });
}

function offValue(value: unknown, schema: Schema): string {
  if (isSection(value) && propertyOf(schema, 'enabled')) return '"enabled": false';
  if (isSection(value) && propertyOf(schema, 'device')) return '"device": "none"';
  if (isSection(value)) return 'no such section';
  const { default: fallback } = schema;
  return fallback === undefined
    ? 'null or no such key'
    : `${JSON.stringify(fallback)}, the default`;
}

function supportedValues(schema: Schema): string {
  const refused = Object.keys(schema.dsUnsupportedValues ?? {});
  const values = schema.type === 'boolean' ? [true, false] : (schema.enum ?? []);
  const allowed = values.filter((value) => !refused.includes(String(value)));
  return allowed.map(formatConfigValue).join(', ') || 'another value';
}
