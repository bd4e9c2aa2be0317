// `ds init`: creates a project that trains immediately on a CPU.

import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { DsError } from '../errors.js';
import { packageRoot } from '../runtime/package-root.js';
import { required } from '../runtime/required.js';
import { absolutePath, workingDirectory } from '../runtime/system-error.js';
import { version } from '../version.js';
import { refuse } from './argument-error.js';
import { quote } from './shell-words.js';
import { TEMPLATES, type Template } from './templates.js';

/** A folder with only these entries counts as empty. */
const IGNORED: ReadonlySet<string> = new Set(['.git']);

/** npm leaves a .gitignore out of packages, so the template has another name for it. */
const RENAMED: Readonly<Record<string, string>> = { gitignore: '.gitignore' };

/**
 * Writes the project of `template` into `folder`, which is new or empty. Returns lines for the
 * terminal: the number of files and the next commands. After an error, no file of the project
 * remains. Throws DS_ARGUMENT for a folder with files or a path of a file, DS_IO if the folder
 * cannot be written.
 */
export function createProject(folder: string, template: Template): string {
  const location = `ds init ${folder}`;
  if (folder === '') refuse('ds init', 'the path of a folder', '""', 'Write `ds init hello`.');
  const target = absolutePath(folder);
  try {
    requireEmpty(location, target);
    const files = readProjectFiles(template, target);
    writeFiles(files);
    return describeNextSteps(folder, template, files.size);
  } catch (error) {
    if (error instanceof DsError) throw error;
    throw new DsError({
      code: 'DS_IO',
      op: location,
      expected: 'a folder that can be written',
      got: error instanceof Error ? error.message : String(error),
      hint: 'Name a folder of your own on a disk with free space.',
      cause: error,
    });
  }
}

function requireEmpty(location: string, target: string): void {
  const expected = 'a folder that is new or empty';
  const hint = 'Name another folder. Nothing was written.';
  const status = statSync(target, { throwIfNoEntry: false });
  if (status && !status.isDirectory()) refuse(location, expected, 'the path of a file', hint);
  const entries = status ? readdirSync(target).filter((name) => !IGNORED.has(name)) : [];
  const [first, ...others] = entries.sort();
  if (first === undefined) return;
  const more = others.length > 0 ? ` and ${others.length} more` : '';
  refuse(location, expected, `a folder with ${first}${more}`, hint);
}

/** Returns the content of each file by its absolute path. */
function readProjectFiles(template: Template, target: string): Map<string, string> {
  const files = new Map<string, string>();
  for (const [from, to] of TEMPLATES[template].sources) {
    const source = join(packageRoot(), from);
    for (const name of readdirSync(source, { encoding: 'utf8', recursive: true })) {
      const file = join(source, name);
      if (!statSync(file).isFile()) continue;
      files.set(join(target, to, RENAMED[name] ?? name), readFileSync(file, 'utf8'));
    }
  }
  const path = join(target, 'package.json');
  const manifest = JSON.parse(required(files.get(path)));
  const dependencies = { '@ds/native': `^${version}` };
  const projectManifest = { ...manifest, name: toPackageName(target), dependencies };
  return files.set(path, `${JSON.stringify(projectManifest, null, 2)}\n`);
}

const MAX_NAME = 214;
const RESERVED: ReadonlySet<string> = new Set(['node_modules', 'favicon.ico']);

/** Returns a name that npm accepts: the name of the folder, without invalid characters. */
export function toPackageName(target: string): string {
  const name = basename(target)
    .normalize('NFKD')
    .toLowerCase()
    .replace(/\p{Mark}/gu, '')
    .replace(/[^a-z0-9._-]+/g, '-')
    .slice(0, MAX_NAME)
    .replace(/^[._-]+|[._-]+$/g, '');
  return name === '' || RESERVED.has(name) ? 'my-project' : name;
}

/** Writes all files. After an error, removes the files and folders that it created. */
function writeFiles(files: ReadonlyMap<string, string>): void {
  const created: string[] = [];
  try {
    for (const [path, content] of files) {
      created.push(...createFolder(dirname(path)));
      writeFileSync(path, content, { flag: 'wx' });
      created.push(path);
    }
  } catch (error) {
    for (const path of created.reverse()) removeCreated(path);
    throw error;
  }
}

/** Removes a file or an empty folder; keeps a folder with files of another process. */
function removeCreated(path: string): void {
  try {
    if (statSync(path).isDirectory()) rmdirSync(path);
    else rmSync(path);
  } catch {
    // The caller throws the first error.
  }
}

/**
 * Creates a folder and its parents, and returns the new folders. mkdirSync's own `recursive` never
 * returns for a path in /proc.
 */
function createFolder(path: string): string[] {
  if (existsSync(path)) return [];
  const parents = createFolder(dirname(path));
  mkdirSync(path);
  return [...parents, path];
}

function describeNextSteps(folder: string, template: Template, count: number): string {
  const target = absolutePath(folder);
  const steps = [
    ...(target === workingDirectory() ? [] : [`cd ${quote(folder)}`]),
    ...(isInstalled(target) ? [] : ['npm install']),
    `npm start   # ${TEMPLATES[template].start}`,
  ];
  const title = `${folder}: ${count} files of the template "${template}". Now run:`;
  return [title, '', ...steps.map((step) => `  ${step}`)].join('\n');
}

/**
 * Returns whether a program in `target` can import this package, from its own node_modules or from
 * a parent's.
 */
function isInstalled(target: string): boolean {
  if (existsSync(join(target, 'node_modules/@ds/native/package.json'))) return true;
  const parent = dirname(target);
  return parent !== target && isInstalled(parent);
}
