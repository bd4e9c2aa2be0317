// Selects the variables that are sent to every node: exported variables with some prefixes, and the
// variables of .deepspeed_env files. A file in the current folder may set only switches, because
// another user may have written it.
import { readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { isAbsolute, join } from 'node:path';
import type { Variables } from '../runtime/job-environment.js';
import { errorCode, errorMessage, workingDirectory } from '../runtime/system-error.js';
import { refuse } from './argument-error.js';

/** Prefixes of DeepSpeed (without PYTHON) and of this package. */
const PREFIXES = ['NCCL_', 'MV2_', 'UCX_', 'MLFLOW_', 'DS_', 'DEEPSPEED_'];
const FOREIGN_HINT =
  'Another user may have written this file: export the variable, put it into ~/.deepspeed_env, or name the file in DS_ENV_FILE.';
/** Variables that each node sets itself, or that are never forwarded by name. */
const NOT_FORWARDED = ['DS_JOB_SECRET', 'DS_NATIVE_BINDING', 'DS_ENV_FILE'];

/** Returns the variables that ssh does not forward by itself. */
export function selectForwarded(env: Variables): Record<string, string> {
  const pairs = Object.entries(env).flatMap(([name, value]) => {
    const isForwarded = PREFIXES.some((prefix) => name.startsWith(prefix));
    return value !== undefined && isForwarded && !NOT_FORWARDED.includes(name)
      ? [[name, value]]
      : [];
  });
  return Object.fromEntries(pairs);
}

/** Called with a file and the names of the variables read from it. */
type EnvironmentListener = (file: string, names: readonly string[]) => void;

/**
 * Reads KEY=VALUE lines of .deepspeed_env in the home folder, then in the current folder, which
 * overrides. DS_ENV_FILE is another name, or the path of the only file to read. The current folder
 * may belong to another user: findViolation() limits the variables of its file. Throws DS_ARGUMENT
 * with file and line.
 */
export function readFileVariables(
  env: Variables,
  folders: readonly string[] = [homedir(), workingDirectory()],
  onRead: EnvironmentListener = () => {},
): Record<string, string> {
  const name = env.DS_ENV_FILE ?? '.deepspeed_env';
  const files = isAbsolute(name) ? [name] : folders.map((folder) => join(folder, name));
  const contents = [...new Set(files)].map((file) => ({ file, text: readIfExists(file) }));
  if (env.DS_ENV_FILE !== undefined && contents.every(({ text }) => text === null)) {
    refuse('DS_ENV_FILE', 'a file that can be read', files.join(' or '));
  }
  const variables: Record<string, string> = {};
  for (const { file, text } of contents) {
    const fileValues = parseVariables(
      text ?? '',
      file,
      env.DS_ENV_FILE === undefined && file !== files[0],
    );
    if (Object.keys(fileValues).length > 0) onRead(file, Object.keys(fileValues));
    Object.assign(variables, fileValues);
  }
  return variables;
}

/**
 * Parses KEY=VALUE lines. Everything after the first "=" is the value, including quotes; "#" begins
 * a comment line. `isForeign`: another user may have written the file.
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
    const allowed = isForeign ? findViolation(name, value) : null;
    if (allowed !== null) refuse(`${file}:${index + 1}`, allowed, name, FOREIGN_HINT);
    variables[name] = value;
  });
  return variables;
}

function readIfExists(file: string): string | null {
  try {
    return readFileSync(file, 'utf8');
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return null;
    return refuse(file, 'a file that can be read', errorMessage(error));
  }
}

/** Prefixes of switches: communication libraries, and this package. */
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
/** Switches with numbers: of the device runtime, and numbers of threads. */
const NUMBER_NAMES = /^(CUDA_\w+|[A-Z]+_NUM_THREADS)$/;
/**
 * Parts of names that refer to files, folders, libraries and secrets. Plugins are allowed: a plain
 * name is looked up in the system's folders.
 */
const RESOURCE_NAMES =
  /(FILE|PATH|DIR|FOLDER|CACHE|CONF|MODULE|LIB|BINDING|SECRET|KEY|TOKEN|HOOK|EXEC)/;
/**
 * Values such as addresses, interfaces, devices, units and lists of these. A path would need a
 * slash.
 */
const PLAIN_VALUE = /^[\w.,:;=^+*%[\] -]*$/;

/**
 * Returns the allowed names or values if a file of the current folder must not set `name` to this
 * value; otherwise null. This is an allow-list, because many libraries load code that a variable
 * names.
 */
function findViolation(name: string, value: string): string | null {
  const isListed = NAMES.includes(name);
  if (!isListed && NUMBER_NAMES.test(name)) {
    return /^-?\d+$/.test(value) ? null : 'a number';
  }
  const isSwitch = SWITCHES.some((prefix) => name.startsWith(prefix));
  if (!isListed && !(isSwitch && !RESOURCE_NAMES.test(name) && !NOT_FORWARDED.includes(name))) {
    return `one of ${[...NAMES, ...SWITCHES.map((prefix) => `${prefix}*`)].join(', ')}`;
  }
  return PLAIN_VALUE.test(value) ? null : 'a number, an address or a name';
}
