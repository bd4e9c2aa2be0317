// Reads the settings of the hub from the environment variables of Python's huggingface_hub.

import { readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { argumentError } from '../runtime/input-errors.js';

/** Settings of requests to the hub and of the cache. */
export interface HubSettings {
  /** Folder of the cache. */
  readonly cache: string;
  /** URL of the hub without a final slash. */
  readonly endpoint: string;
  /** Access token; null to send requests without a token. */
  readonly token: string | null;
  /** Name of the variable, or path of the file, of the token; for messages. */
  readonly tokenSource: string;
  /** Whether to use only the cache. */
  readonly offline: boolean;
  /** Whether to print progress to stderr. */
  readonly progress: boolean;
  /** Milliseconds without a byte after which a request fails. */
  readonly stallMs: number;
  /** Milliseconds before the first retry; each further pause is twice as long. */
  readonly backoffMs: number;
  /** Bytes of a range. Larger files are fetched in several ranges at the same time. */
  readonly segmentBytes: number;
}

type Variables = Readonly<Record<string, string | undefined>>;

const ENDPOINT = 'https://huggingface.co';
const STALL_SECONDS = 30;
const LEGACY = 'HUGGING_FACE_HUB_TOKEN';
/** Maximum length of a token; the hub's tokens have 37 characters. */
const TOKEN_LENGTH = 4096;

/** Reads the environment. Throws DS_ARGUMENT for an invalid variable. */
export function readHubSettings(env: Variables = process.env): HubSettings {
  const home = findHubHome(env);
  return {
    cache: findHubCache(env),
    endpoint: readEndpoint(env),
    ...readToken(env, home),
    offline: isOn(env, 'HF_HUB_OFFLINE') || isOn(env, 'TRANSFORMERS_OFFLINE'),
    progress: !isOn(env, 'HF_HUB_DISABLE_PROGRESS_BARS'),
    stallMs: readSeconds(env, 'HF_HUB_DOWNLOAD_TIMEOUT', STALL_SECONDS) * 1000,
    backoffMs: 500,
    segmentBytes: 64 * 2 ** 20,
  };
}

/** Returns the folder of the hub's cache. */
export function findHubCache(env: Variables): string {
  return (
    readVariable(env, 'HF_HUB_CACHE') ??
    readVariable(env, 'HUGGINGFACE_HUB_CACHE') ??
    join(findHubHome(env), 'hub')
  );
}

function findHubHome(env: Variables): string {
  const cache = readVariable(env, 'XDG_CACHE_HOME') ?? join(homedir(), '.cache');
  return readVariable(env, 'HF_HOME') ?? join(cache, 'huggingface');
}

/**
 * Returns the value of a variable, with "~" replaced by the home folder; null if it is empty or
 * missing.
 */
function readVariable(env: Variables, name: string): string | null {
  const value = env[name];
  if (!value) return null;
  return value === '~' || value.startsWith('~/') ? join(homedir(), value.slice(1)) : value;
}

const isOn = (env: Variables, name: string): boolean =>
  ['1', 'ON', 'YES', 'TRUE'].includes((env[name] ?? '').toUpperCase());

function readEndpoint(env: Variables): string {
  const endpoint = env.HF_ENDPOINT || ENDPOINT;
  const url = URL.canParse(endpoint) ? new URL(endpoint) : null;
  if (url && /^https?:$/.test(url.protocol) && !url.username && !url.password && !url.search) {
    return endpoint.replace(/\/+$/, '');
  }
  const expected = 'a URL without a user name, such as "https://huggingface.co"';
  throw argumentError(
    'HF_ENDPOINT',
    expected,
    url?.password ? 'a URL with a password' : JSON.stringify(endpoint),
  );
}

function readToken(env: Variables, home: string): Pick<HubSettings, 'token' | 'tokenSource'> {
  const file = readVariable(env, 'HF_TOKEN_PATH') ?? join(home, 'token');
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

/**
 * Returns the token. Throws DS_ARGUMENT for an invalid token; the message does not contain it.
 */
function requireToken(op: string, token: string): string {
  if (token.length <= TOKEN_LENGTH && /^[\x21-\x7e]+$/.test(token)) return token;
  throw argumentError(
    op,
    'an access token of at most 4096 ASCII characters, without blanks',
    `${token.length} characters, too many or with a blank or a non-ASCII character`,
    'Create a token at https://huggingface.co/settings/tokens.',
  );
}

function readSeconds(env: Variables, name: string, fallback: number): number {
  const text = env[name];
  if (!text) return fallback;
  const seconds = Number(text);
  if (seconds > 0 && seconds <= 86_400) return seconds;
  const expected = 'seconds above 0, at most 86400';
  throw argumentError(name, expected, JSON.stringify(text));
}
