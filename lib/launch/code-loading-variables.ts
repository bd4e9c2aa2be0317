// Which variables make a process load code, so that a file of somebody else's folder may not set
// them.

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
export function loadsCode(name: string, value: string): string | null {
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
