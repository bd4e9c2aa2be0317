// The variables that travel to every node: exported ones with some prefixes, and the variables of
// .deepspeed_env files. A file of the current folder sets switches only, because another user may
// have written it.
import { readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { isAbsolute, join } from 'node:path';
import type { Variables } from '../runtime/job-environment.js';
import { errorCode, errorMessage, workingDirectory } from '../runtime/system-error.js';
import { refuse } from './argument-error.js';

/** DeepSpeed's, without PYTHON, and this package's own. */
const PREFIXES = ['NCCL_', 'MV2_', 'UCX_', 'MLFLOW_', 'DS_', 'DEEPSPEED_'];
const FOREIGN =
  'Another user may have written this file: export the variable, put it into ~/.deepspeed_env, or name the file in DS_ENV_FILE.';
/** Known to each node itself, or never forwarded by name. */
const KEPT_HOME = ['DS_JOB_SECRET', 'DS_NATIVE_BINDING', 'DS_ENV_FILE'];

/** Returns the variables that ssh does not forward by itself. */
export function forwardedVariables(env: Variables): Record<string, string> {
  const pairs = Object.entries(env).flatMap(([name, value]) => {
    const isForwarded = PREFIXES.some((prefix) => name.startsWith(prefix));
    return value !== undefined && isForwarded && !KEPT_HOME.includes(name) ? [[name, value]] : [];
  });
  return Object.fromEntries(pairs);
}

/** Receives a file and the names of its variables after they were taken. */
export type EnvironmentListener = (file: string, names: readonly string[]) => void;

/**
 * KEY=VALUE lines of .deepspeed_env in the home folder, then in the current one, which wins.
 * DS_ENV_FILE is another name, or the path of the only file read. The current folder may belong to
 * another user: forbidden() limits the variables of its file. Throws DS_ARGUMENT with file and
 * line.
 */
export function fileVariables(
  env: Variables,
  folders: readonly string[] = [homedir(), workingDirectory()],
  taken: EnvironmentListener = () => {},
): Record<string, string> {
  const name = env.DS_ENV_FILE ?? '.deepspeed_env';
  const files = isAbsolute(name) ? [name] : folders.map((folder) => join(folder, name));
  const found = [...new Set(files)].map((file) => ({ file, text: textOf(file) }));
  if (env.DS_ENV_FILE !== undefined && found.every(({ text }) => text === null)) {
    refuse('DS_ENV_FILE', 'a file that can be read', files.join(' or '));
  }
  const variables: Record<string, string> = {};
  for (const { file, text } of found) {
    const own = parseVariables(
      text ?? '',
      file,
      env.DS_ENV_FILE === undefined && file !== files[0],
    );
    if (Object.keys(own).length > 0) taken(file, Object.keys(own));
    Object.assign(variables, own);
  }
  return variables;
}

/**
 * Everything after the first "=" is the value, quotes included; "#" starts a line of comment.
 * `isForeign`: the file need not be the user's own.
 */
export function parseVariables(
  text: string,
  file: string,
  isForeign = false,
): Record<string, string> {
  const variables: Record<string, string> = {};
  text.split(/\r?\n/).forEach((line, index) => {
    if (line.trim() === '' || line.trimStart().startsWith('#')) return;
    const [, name, value] = /^\s*([A-Za-z_]\w*)=(.*)$/.exec(line) ?? [];
    if (name === undefined || value === undefined) {
      refuse(`${file}:${index + 1}`, 'KEY=VALUE', JSON.stringify(line));
    }
    const wanted = isForeign ? forbidden(name, value) : null;
    if (wanted !== null) refuse(`${file}:${index + 1}`, wanted, name, FOREIGN);
    variables[name] = value;
  });
  return variables;
}

function textOf(file: string): string | null {
  try {
    return readFileSync(file, 'utf8');
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return null;
    return refuse(file, 'a file that can be read', errorMessage(error));
  }
}

/** Switches of libraries that move data, and of this package. */
const SWITCHES = ['NCCL_', 'TORCH_NCCL_', 'UCX_', 'GLOO_', 'MV2_', 'FI_', 'DS_', 'DEEPSPEED_'];
const NAMES = [
  'MASTER_ADDR',
  'MASTER_PORT',
  'OMP_PROC_BIND',
  'OMP_PLACES',
  'TOKENIZERS_PARALLELISM',
  'CUDA_VISIBLE_DEVICES',
  'CUDA_DEVICE_ORDER',
  'CUDA_MODULE_LOADING',
  'TP_SOCKET_IFNAME',
];
/** Numbers of threads, and other switches of the device's runtime. */
const NUMBERS = /^(CUDA_\w+|[A-Z]+_NUM_THREADS)$/;
/**
 * Files, folders, libraries and secrets. Plugins are allowed: a plain name is looked up in the
 * system's folders.
 */
const PLACES = /(FILE|PATH|DIR|FOLDER|CACHE|CONF|MODULE|LIB|BINDING|SECRET|KEY|TOKEN|HOOK|EXEC)/;
/** Addresses, interfaces, devices, units and lists of these. A path needs a slash. */
const PLAIN = /^[\w.,:;=^+*%[\] -]*$/;

/**
 * Why a file of the current folder must not set `name` to this value; null if it may. An
 * allow-list: too many libraries load code that a variable names.
 */
function forbidden(name: string, value: string): string | null {
  const isListed = NAMES.includes(name);
  if (!isListed && NUMBERS.test(name)) {
    return /^-?\d+$/.test(value) ? null : 'a number';
  }
  const isSwitch = SWITCHES.some((prefix) => name.startsWith(prefix));
  if (!isListed && !(isSwitch && !PLACES.test(name) && !KEPT_HOME.includes(name))) {
    return `one of ${[...NAMES, ...SWITCHES.map((prefix) => `${prefix}*`)].join(', ')}`;
  }
  return PLAIN.test(value) ? null : 'a number, an address or a name';
}
