// The variables that travel to every node: those of some prefixes, and those of .deepspeed_env
// files, which may be somebody else's and therefore set none that makes a process load code.
import { readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { isAbsolute, join } from 'node:path';
import type { Variables } from '../runtime/job-environment.js';
import { refuse } from './argument-error.js';

/** DeepSpeed's, without PYTHON, and this package's own. */
const PREFIXES = ['NCCL_', 'MV2_', 'UCX_', 'MLFLOW_', 'DS_', 'DEEPSPEED_'];
const FOREIGN =
  "The current folder may be somebody else's: export it, put it into ~/.deepspeed_env, or name the file in DS_ENV_FILE.";
/** Known to each node itself, or never forwarded by name. */
const KEPT_HOME = ['DS_JOB_SECRET', 'DS_NATIVE_BINDING', 'DS_ENV_FILE'];

/** What ssh does not carry over by itself. */
export function forwardedVariables(env: Variables): Record<string, string> {
  const pairs = Object.entries(env).filter(
    ([name, value]) =>
      value !== undefined &&
      !KEPT_HOME.includes(name) &&
      PREFIXES.some((prefix) => name.startsWith(prefix)),
  );
  return Object.fromEntries(pairs) as Record<string, string>;
}

/** Told of a file whose variables were taken, and of their names. */
export type Taken = (file: string, names: readonly string[]) => void;

/**
 * KEY=VALUE lines of .deepspeed_env in the home folder, then in the current one, which wins.
 * DS_ENV_FILE is another name, or the path of the only file read. What loads code is refused in the
 * current folder, which may be somebody else's: see loadsCode(). Throws DS_ARGUMENT with file and
 * line.
 */
export function fileVariables(
  env: Variables,
  folders: readonly string[] = [homedir(), process.cwd()],
  taken: Taken = () => {},
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
    const wanted = isForeign ? loadsCode(name, value) : null;
    if (wanted !== null) refuse(`${file}:${index + 1}`, wanted, name, FOREIGN);
    variables[name] = value;
  });
  return variables;
}

function textOf(file: string): string | null {
  try {
    return readFileSync(file, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    return refuse(file, 'a file that can be read', (error as Error).message);
  }
}

/** They name code, or files that are run, whatever their value. */
const ALWAYS = [
  ...['NODE_OPTIONS', 'NODE_PATH', 'NODE_REPL_EXTERNAL_MODULE', 'DS_NATIVE_BINDING'],
  ...['LD_PRELOAD', 'LD_AUDIT', 'BASH_ENV', 'ENV', 'SHELLOPTS', 'BASHOPTS', 'GCONV_PATH'],
  ...['PYTHONSTARTUP', 'PYTHONPATH', 'PERL5OPT', 'PERL5LIB', 'DYLD_INSERT_LIBRARIES'],
];
/**
 * Lists of folders to load from. A folder with an absolute name was there before the file; one
 * beside the file was not.
 */
const FOLDERS = ['LD_LIBRARY_PATH', 'DYLD_LIBRARY_PATH', 'PATH'];
/**
 * What moves collectives opens a library of this name: a plain one is looked up, one with a slash
 * is a file.
 */
const PLUGIN = /^NCCL_\w*PLUGIN$/;

/**
 * Why `name` with this value lets the file that sets it run code of its choice; null where it does
 * not. NCCL_*, UCX_* and absolute library paths, which DeepSpeed's users keep in .deepspeed_env,
 * are fine.
 */
function loadsCode(name: string, value: string): string | null {
  if (ALWAYS.includes(name)) return 'a variable that loads no code';
  const entries = value.split(':');
  if (FOLDERS.includes(name) && !entries.every((entry) => entry.startsWith('/'))) {
    return 'absolute folders only';
  }
  if (PLUGIN.test(name) && value.includes('/') && !value.startsWith('/')) {
    return 'the plain name of a library, or an absolute path';
  }
  return null;
}
