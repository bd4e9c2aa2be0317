// The settings of the hub, from the environment variables of Python's huggingface_hub.

import { readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { argumentError } from '../runtime/input-errors.js';

/** Where models are downloaded from, and how. */
export interface HubSettings {
  /** Folder of the cache. */
  readonly cache: string;
  /** URL of the hub without a final slash. */
  readonly endpoint: string;
  /** Null: requests carry no token. */
  readonly token: string | null;
  /** Origin of the token, for messages. */
  readonly tokenSource: string;
  /** True: only the cache is read. */
  readonly offline: boolean;
  /** True: progress is printed to stderr. */
  readonly progress: boolean;
  /** Milliseconds without a byte until a request counts as broken. */
  readonly stallMs: number;
  /** First pause before a repetition; each further one is twice as long. */
  readonly backoffMs: number;
  /** Bytes of a range of a file; larger files are fetched in several ranges at once. */
  readonly segmentBytes: number;
}

export type Variables = Readonly<Record<string, string | undefined>>;

const ENDPOINT = 'https://huggingface.co';
const STALL_SECONDS = 30;
const LEGACY = 'HUGGING_FACE_HUB_TOKEN';
/** Longest token; the hub's have 37 characters. */
const TOKEN_LENGTH = 4096;

/** Reads the environment at each call. Throws DS_ARGUMENT for an invalid variable. */
export function hubSettings(env: Variables = process.env): HubSettings {
  const home = hubHome(env);
  return {
    cache: hubCache(env),
    endpoint: endpointOf(env),
    ...tokenOf(env, home),
    offline: isOn(env, 'HF_HUB_OFFLINE') || isOn(env, 'TRANSFORMERS_OFFLINE'),
    progress: !isOn(env, 'HF_HUB_DISABLE_PROGRESS_BARS'),
    stallMs: secondsOf(env, 'HF_HUB_DOWNLOAD_TIMEOUT', STALL_SECONDS) * 1000,
    backoffMs: 500,
    segmentBytes: 64 * 2 ** 20,
  };
}

/** Returns the folder of the hub's cache. */
export function hubCache(env: Variables): string {
  return set(env, 'HF_HUB_CACHE') ?? set(env, 'HUGGINGFACE_HUB_CACHE') ?? join(hubHome(env), 'hub');
}

function hubHome(env: Variables): string {
  const cache = set(env, 'XDG_CACHE_HOME') ?? join(homedir(), '.cache');
  return set(env, 'HF_HOME') ?? join(cache, 'huggingface');
}

/** Returns the value of a variable with "~" as the home folder; null if it is empty or missing. */
function set(env: Variables, name: string): string | null {
  const value = env[name];
  if (!value) return null;
  return value === '~' || value.startsWith('~/') ? join(homedir(), value.slice(1)) : value;
}

const isOn = (env: Variables, name: string): boolean =>
  ['1', 'ON', 'YES', 'TRUE'].includes((env[name] ?? '').toUpperCase());

function endpointOf(env: Variables): string {
  const given = env.HF_ENDPOINT || ENDPOINT;
  const url = URL.canParse(given) ? new URL(given) : null;
  if (url && /^https?:$/.test(url.protocol) && !url.username && !url.password && !url.search) {
    return given.replace(/\/+$/, '');
  }
  const expected = 'a URL without a user name, such as "https://huggingface.co"';
  throw argumentError(
    'HF_ENDPOINT',
    expected,
    url?.password ? 'a URL with a password' : JSON.stringify(given),
  );
}

function tokenOf(env: Variables, home: string): Pick<HubSettings, 'token' | 'tokenSource'> {
  const file = set(env, 'HF_TOKEN_PATH') ?? join(home, 'token');
  const none = { token: null, tokenSource: file };
  if (isOn(env, 'HF_HUB_DISABLE_IMPLICIT_TOKEN')) return none;
  for (const name of ['HF_TOKEN', LEGACY]) {
    const token = env[name]?.trim();
    if (token) return { token: requireToken(name, token), tokenSource: name };
  }
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch {
    return none;
  }
  const token = text.trim();
  return token ? { token: requireToken(file, token), tokenSource: file } : none;
}

/** The message never shows the token. */
function requireToken(op: string, token: string): string {
  if (token.length <= TOKEN_LENGTH && /^[\x21-\x7e]+$/.test(token)) return token;
  throw argumentError(
    op,
    'an access token of the hub, without blanks and non-ASCII characters',
    `${token.length} characters with a blank or a non-ASCII character`,
    'Create a token at https://huggingface.co/settings/tokens.',
  );
}

function secondsOf(env: Variables, name: string, usual: number): number {
  const given = env[name];
  if (!given) return usual;
  const seconds = Number(given);
  if (seconds > 0 && seconds <= 86_400) return seconds;
  const expected = 'seconds between 0 and 86400';
  throw argumentError(name, expected, JSON.stringify(given));
}
