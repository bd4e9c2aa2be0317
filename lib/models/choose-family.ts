// Chooses the family for a config.json by its model_type; in a multimodal file, by the text model.
import type { JsonObject, JsonValue } from '../../types/json.js';
import type { DsError } from '../errors.js';
import { isObject } from '../runtime/is-object.js';
import { closest } from '../runtime/suggestion.js';
import { findMissing } from './missing-families.js';
import { ModelConfig } from './model-config.js';
import { AROUND_TEXT } from './rotary/traits.js';

/** A family, as far as its choice needs it. */
interface NamedFamily {
  readonly modelType: string;
  readonly alsoTypes?: readonly string[] | undefined;
  readonly textOf?: readonly string[] | undefined;
  readonly anyHead?: boolean;
  readonly needsTask?: boolean;
}

/**
 * Returns the family, and the keys of its language model. Throws DS_CHECKPOINT for another
 * model_type and for other heads.
 */
export function chooseFamily<Family extends NamedFamily>(
  location: string,
  all: JsonObject,
  families: readonly Family[],
): { family: Family; values: JsonObject } {
  const { model_type: type } = all;
  const family = families.find(
    ({ modelType, alsoTypes }) =>
      modelType === type || (typeof type === 'string' && alsoTypes?.includes(type)),
  );
  if (family) {
    if (family.needsTask) throw noTaskError(location, all);
    if (!family.anyHead) requireLanguageModel(location, all);
    return { family, values: all };
  }
  const text = readTextConfig(all);
  const holders = families.filter(
    (family) => typeof type === 'string' && family.textOf?.includes(type),
  );
  const around = holders.find((holder) => holdsText(holder, type ?? null, text));
  if (around && text) {
    const beside = Object.entries(all).filter(([key]) => BESIDE_TEXT.test(key));
    const { tie_word_embeddings: tied } = all;
    const values = {
      ...(AROUND_TEXT.includes(String(type)) && SIZES[around.modelType]),
      ...Object.fromEntries(beside),
      ...text,
      ...FIXED[String(type)],
      model_type: around.modelType,
      // The outer config decides whether the head is tied to the embedding.
      ...(typeof tied === 'boolean' && { tie_word_embeddings: tied }),
    };
    return { family: around, values };
  }
  if (holders.length > 0 && text) {
    const knownTypes = holders.map(({ modelType }) => JSON.stringify(modelType)).join(', ');
    const config = new ModelConfig(`${location}: text_config`, text, OWN);
    throw config.refusalError('model_type', knownTypes, config.get('model_type'));
  }
  throw unknownFamilyError(location, all, families);
}

/** Default sizes of transformers, which text sections of LLaVA omit. */
const SIZES: Readonly<Record<string, JsonObject>> = {
  llama: {
    vocab_size: 32_000,
    hidden_size: 4096,
    intermediate_size: 11_008,
    num_hidden_layers: 32,
    num_attention_heads: 32,
  },
  mistral: {
    vocab_size: 32_000,
    hidden_size: 4096,
    intermediate_size: 14_336,
    num_hidden_layers: 32,
    num_attention_heads: 32,
  },
};

/** Entries of text models that transformers fixes, by multimodal model_type. */
const FIXED: Readonly<Record<string, JsonObject>> = { qwen3_vl_moe: { norm_topk_prob: true } };

const OWN = 'nn.loadWeights() fills your own Module.';

/** Multimodal model types that may have the language model's keys without a text section. */
const FLAT: readonly unknown[] = ['qwen2_vl', 'qwen2_5_vl'];

/** Returns the keys of the language model in a multimodal file; null if it has none. */
function readTextConfig(all: JsonObject): JsonObject | null {
  const { text_config: text, vision_config: _, architectures: __, ...flat } = all;
  if (isObject<JsonObject>(text)) return text;
  return FLAT.includes(all.model_type) ? flat : null;
}

/** Whether the text model of a multimodal file of type `outer` is of this family. */
function holdsText(
  { modelType, alsoTypes = [] }: NamedFamily,
  outer: JsonValue,
  text: JsonObject | null,
) {
  const type = text?.model_type ?? outer;
  return [modelType, ...alsoTypes, outer, `${outer}_text`].includes(type as string);
}

/** Keys of the outer config that also apply to the text model. */
const BESIDE_TEXT = /^(tie_word_embeddings|dtype|torch_dtype)$|_token_id$/;

/** An encoder, which is no causal language model. */
function noTaskError(location: string, all: JsonObject): DsError {
  const hint =
    'An encoder generates no text. Open it with nn.models.fromPretrained(dir, { task: "auto" }), or name its task, such as "embedding". `ds eval --task` measures a classifier, and `ds serve` answers embeddings and rankings.';
  const config = new ModelConfig(location, all, hint);
  return config.refusalError('model_type', 'a causal language model', config.get('model_type'));
}

/** An error lists at most so many families. */
const LISTED = 12;

function unknownFamilyError(
  location: string,
  all: JsonObject,
  families: readonly NamedFamily[],
): DsError {
  const { model_type: type } = all;
  const names = families
    .filter(({ needsTask }) => !needsTask)
    .flatMap(({ modelType, alsoTypes = [], textOf }) => [
      modelType,
      ...alsoTypes,
      ...(textOf ?? []),
    ]);
  const few = [...new Set(names)];
  const expected =
    few.length > LISTED
      ? 'a family of docs/models.md, such as "gemma3", "llama" or "qwen3"'
      : few.map((name) => JSON.stringify(name)).join(', ');
  const isAround = typeof type === 'string' && names.includes(type);
  const why = isAround ? '' : explainUnknown(type, names);
  const hint = `${why}nn.models.fromPretrained() loads the supported models; nn.loadWeights() fills your own Module.`;
  const config = new ModelConfig(location, all, hint);
  if (isAround) {
    const section = 'an object with the keys of the language model';
    return config.refusalError('text_config', section, config.get('text_config'));
  }
  return config.refusalError('model_type', expected, config.get('model_type'));
}

/** Says what a family lacks and which are near, or asks for a similar name; "" without either. */
function explainUnknown(type: JsonValue | undefined, names: readonly string[]): string {
  const missing = findMissing(type);
  if (missing === null) {
    const similar = typeof type === 'string' ? closest(type, names) : '';
    return similar === '' ? '' : `Did you mean ${JSON.stringify(similar)}? `;
  }
  const near = missing.near.map((name) => JSON.stringify(name)).join(' and ');
  const needs = `${JSON.stringify(type)} needs ${missing.feature}, which nn.models lacks. `;
  return near === '' ? needs : `${needs}The nearest models that load have the model_type ${near}. `;
}

/**
 * Throws DS_CHECKPOINT if `architectures` names only heads of other kinds. A body ("GPT2Model") is
 * a language model if the embedding is the head; its tensors show that.
 */
function requireLanguageModel(location: string, values: JsonObject): void {
  const config = new ModelConfig(location, values, '');
  const names = config.get('architectures', []);
  if (!Array.isArray(names) || !names.every((name) => typeof name === 'string')) {
    throw config.refusalError('architectures', 'a list of names', names);
  }
  if (names.length === 0 || !names.every((name) => OTHER_HEAD.test(name))) return;
  const hint =
    'This folder has the head of another task: fromPretrained(dir, { task: "auto" }) opens it, classify(texts) of a classifier returns labels, and `ds eval --task` measures it (docs/classification.md). For a new language model, omit "architectures".';
  throw config.refusalError(
    'architectures',
    'a language model, such as "LlamaForCausalLM"',
    names,
    hint,
  );
}

/** Ends of transformers' class names with other heads than a language model's. */
const OTHER_HEAD = /For(?!CausalLM)[A-Z]\w*$|DoubleHeadsModel$/;
