// Reads the files of a tokenizer's folder: tokenizer.json, tokenizer_config.json,
// special_tokens_map.json, chat templates.

import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import type { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { dataError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';
import { parseJson, withoutBom } from '../runtime/parse-json.js';
import { errorMessage } from '../runtime/system-error.js';
import { buildWordPieceJson, VOCABULARY_FILE, WORD_PIECE_ROLES } from './word-pieces.js';

export type Json = Record<string, unknown>;

/** Roles of special tokens, by Hugging Face's names. */
const ROLES = [
  'bos_token',
  'eos_token',
  'unk_token',
  'sep_token',
  'pad_token',
  'cls_token',
  'mask_token',
] as const;
export type Role = (typeof ROLES)[number];

export const TOKENIZER_FILE = 'tokenizer.json';

/** Side of a row on which padding is added or tokens are cut. */
export type Side = 'left' | 'right';

/** The sides of padding and of truncation. */
interface Sides {
  padding: Side;
  truncation: Side;
}

/** Checked content of a tokenizer's folder. */
export interface TokenizerFolder {
  /** Name of the tokenizer in errors. */
  location: string;
  /** tokenizer.json. */
  tokenizer: Json;
  /** tokenizer_config.json; empty if the file is missing. */
  config: Json;
  roles: Partial<Record<Role, string>>;
  sides: Sides;
  /** Chat templates by name; the usual template is "default". */
  templates: Record<string, string>;
}

/** Returns whether `folder` has a vocabulary that readTokenizerFolder() reads. */
export const hasTokenizerFiles = (folder: string): boolean =>
  [TOKENIZER_FILE, VOCABULARY_FILE].some((file) => existsSync(join(folder, file)));

/**
 * Reads the files of a folder. Throws DS_DATA with the file's path if a file is missing, damaged or
 * not supported.
 */
export function readTokenizerFolder(folder: string): TokenizerFolder {
  const path = join(folder, TOKENIZER_FILE);
  const location = join(folder, 'tokenizer_config.json');
  const config = readJsonIfPresent(location);
  const vocabulary = join(folder, VOCABULARY_FILE);
  if (!hasTokenizerFiles(folder)) throw noTokenizerError(folder);
  const tokenizerJson = existsSync(path)
    ? readJson(path)
    : buildWordPieceJson(readText(vocabulary), config);
  requireParts(tokenizerJson, path);
  const map = readJsonIfPresent(join(folder, 'special_tokens_map.json'));
  const templates = readTemplates(folder, config);
  const ofPieces = existsSync(path) ? {} : WORD_PIECE_ROLES;
  const roles = {
    ...ofPieces,
    ...paddingRole(tokenizerJson),
    ...readRoles(map),
    ...readRoles(config),
  };
  const sides = {
    padding: readSide('padding', tokenizerJson, config, location),
    truncation: readSide('truncation', tokenizerJson, config, location),
  };
  const tokenizer = {
    ...tokenizerJson,
    added_tokens: mergeAddedTokens(tokenizerJson, { config, roles, location }),
  };
  return { location: folder, tokenizer, config, roles, sides, templates };
}

function noTokenizerError(folder: string): DsError {
  const isFolder = existsSync(folder) && statSync(folder).isDirectory();
  const hint = isFolder
    ? 'Older folders have only vocab.json and merges.txt, or tokenizer.model (vocab.txt of BERT is read): AutoTokenizer.from_pretrained(folder).save_pretrained(folder) of transformers writes tokenizer.json.'
    : 'Check the path. Names of the Hugging Face hub are ORG/NAME, as in hub.pull("Qwen/Qwen3-0.6B").';
  const got = isFolder
    ? `a folder with ${readdirSync(folder).slice(0, 8).join(', ')}`
    : 'no folder';
  return dataError(folder, 'a folder with tokenizer.json', got, hint);
}

/** Refuses files that are incomplete or belong to another program. */
function requireParts(tokenizer: Json, path: string): void {
  for (const name of ['model', 'added_tokens']) {
    if (tokenizer[name] && typeof tokenizer[name] === 'object') continue;
    throw dataError(
      path,
      `a tokenizer with "${name}"`,
      formatValue(tokenizer),
      'Copy or download it again: it may be truncated.',
    );
  }
  readAddedTokens(tokenizer, path);
}

function readAddedTokens({ added_tokens: given }: Json, path: string): Json[] {
  const expected = '"added_tokens", a list of objects with a string "content"';
  if (!Array.isArray(given))
    throw dataError(
      path,
      expected,
      formatValue(given),
      'Copy or download it again: it may be truncated.',
    );
  const wrong = given.findIndex((item) => typeof item?.content !== 'string');
  if (wrong < 0) return given;
  throw dataError(
    path,
    expected,
    `${formatValue(given[wrong])} at ${wrong}`,
    'Copy or download it again: it may be truncated.',
  );
}

/** Returns the steps of a pre-tokenizer or normalizer, with nested sequences flattened. */
export function listSteps(part: unknown): Json[] {
  if (typeof part !== 'object' || part === null) return [];
  const { pretokenizers, normalizers } = part as { pretokenizers?: unknown; normalizers?: unknown };
  const inner = pretokenizers ?? normalizers;
  return Array.isArray(inner) ? inner.flatMap(listSteps) : [part as Json];
}

/** Content of tokenizer_config.json. `location` is its path; `roles` come from all files. */
interface NamedConfig {
  config: Json;
  roles: TokenizerFolder['roles'];
  location: string;
}

/**
 * Returns the added tokens, merged as transformers merges them. `added_tokens_decoder` overrides
 * tokenizer.json and may add tokens. Tokens with a role are special.
 */
function mergeAddedTokens(tokenizer: Json, { config, roles, location }: NamedConfig): Json[] {
  const vocab = readVocabulary(tokenizer.model as Json);
  const added = new Map((tokenizer.added_tokens as Json[]).map((token) => [token.content, token]));
  const decoder = isObject<Json>(config.added_tokens_decoder) ? config.added_tokens_decoder : {};
  for (const [key, token] of Object.entries(decoder)) {
    if (!isObject<Json>(token) || typeof token.content !== 'string' || !/^\d+$/.test(key)) {
      const expected = 'ids of tokens with their "content"';
      throw dataError(
        `${location} added_tokens_decoder`,
        expected,
        `${key}: ${formatValue(token)}`,
      );
    }
    const { content } = token;
    const id = added.get(content)?.id ?? vocab.get(content) ?? Number(key);
    added.set(content, { ...added.get(content), ...token, id });
  }
  for (const content of [...Object.values(roles), ...extraSpecials(config)]) {
    const existing = added.get(content) ?? { id: vocab.get(content), content, normalized: false };
    if (existing.id !== undefined) added.set(content, { ...existing, special: true });
  }
  return [...added.values()];
}

/** Returns ids by token. A Unigram vocabulary is a list of pairs. */
function readVocabulary({ vocab }: Json): ReadonlyMap<unknown, number> {
  if (Array.isArray(vocab)) return new Map(vocab.map((pair, id) => [pair?.[0], id]));
  return new Map(Object.entries((vocab ?? {}) as Record<string, number>));
}

/** Returns special tokens without a role; newer files may name them. */
function extraSpecials(config: Json): string[] {
  const lists = [config.additional_special_tokens, config.extra_special_tokens];
  return lists
    .flatMap((list) => Object.values(list ?? {}))
    .flatMap((item) => tokenContent(item) ?? []);
}

/** Returns the text of a token, which is a string or an object with `content`. */
function tokenContent(token: unknown): string | null {
  const content = isObject<Json>(token) ? token.content : token;
  return typeof content === 'string' ? content : null;
}

function readRoles(config: Json): Partial<Record<Role, string>> {
  const roles: Partial<Record<Role, string>> = {};
  for (const role of ROLES) {
    const content = tokenContent(config[role]);
    if (content !== null) roles[role] = content;
  }
  return roles;
}

/** Returns the padding token of tokenizer.json. */
function paddingRole({ padding }: Json): Partial<Record<Role, string>> {
  const token = isObject<Json>(padding) ? padding.pad_token : undefined;
  return typeof token === 'string' ? { pad_token: token } : {};
}

/**
 * Returns a side. tokenizer_config.json takes precedence over tokenizer.json, as in transformers.
 */
function readSide(what: keyof Sides, ownJson: Json, config: Json, location: string): Side {
  const part = ownJson[what];
  const side = config[`${what}_side`] ?? (isObject<Json>(part) ? part.direction : null) ?? 'right';
  const sideName = typeof side === 'string' ? side.toLowerCase() : side;
  if (sideName === 'left' || sideName === 'right') return sideName;
  throw dataError(`${location} ${what}_side`, '"left" or "right"', formatValue(side));
}

/**
 * Reads the chat templates. Files take precedence over tokenizer_config.json, as in transformers.
 */
function readTemplates(folder: string, config: Json): Record<string, string> {
  const templates: Record<string, string> = {};
  const given = config.chat_template;
  if (typeof given === 'string') templates.default = given;
  for (const [i, item] of (Array.isArray(given) ? given : []).entries()) {
    if (typeof item?.name !== 'string' || typeof item.template !== 'string') {
      const location = `${join(folder, 'tokenizer_config.json')} chat_template[${i}]`;
      throw dataError(
        location,
        'an object with the strings "name" and "template"',
        formatValue(item),
      );
    }
    templates[item.name] = item.template;
  }
  const main = join(folder, 'chat_template.jinja');
  if (existsSync(main)) templates.default = readText(main);
  const others = join(folder, 'additional_chat_templates');
  if (!existsSync(others)) return templates;
  if (!statSync(others).isDirectory()) {
    throw dataError(others, 'a folder of templates', 'a file', 'Remove it, or make it a folder.');
  }
  for (const file of readdirSync(others).filter((name) => name.endsWith('.jinja'))) {
    templates[file.slice(0, -'.jinja'.length)] = readText(join(others, file));
  }
  return templates;
}

function readJsonIfPresent(path: string): Json {
  return existsSync(path) ? readJson(path) : {};
}

function readJson(path: string): Json {
  const text = readText(path);
  let value: unknown;
  try {
    value = parseJson(text);
  } catch (cause) {
    throw dataError(
      path,
      'JSON',
      errorMessage(cause),
      'Download it again: it may be truncated, or a pointer of git-lfs.',
    );
  }
  if (isObject<Json>(value)) return value;
  throw dataError(path, 'a JSON object', formatValue(value));
}

function readText(path: string): string {
  try {
    // Opening a pipe would block until a process writes to it.
    if (!statSync(path).isFile()) throw new Error('it is not a regular file');
    return withoutBom(readFileSync(path, 'utf8'));
  } catch (cause) {
    throw dataError(path, 'a readable file', errorMessage(cause));
  }
}
