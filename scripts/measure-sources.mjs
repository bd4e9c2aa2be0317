#!/usr/bin/env node
// Measures the sources of lib: files on the path of a gradient, lines, imports, casts. Usage:
// measure-sources.mjs [--list]; needs `npm run build`. --list prints the files of the path.
import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');

/** Hand-written sources of lib: path below lib to syntax tree. */
function sources() {
  const names = readdirSync(join(root, 'lib'), { recursive: true });
  const written = names.filter((name) => name.endsWith('.ts') && !name.endsWith('.generated.ts'));
  return new Map(
    written.map((name) => {
      const text = readFileSync(join(root, 'lib', name), 'utf8');
      return [name, ts.createSourceFile(name, text, ts.ScriptTarget.Latest, true)];
    }),
  );
}

function* nodesOf(node) {
  yield node;
  const below = [];
  ts.forEachChild(node, (one) => void below.push(one));
  for (const one of below) yield* nodesOf(one);
}

const linesOf = (file) => file.text.split('\n').length - 1;

/** Lines of all files that `isCounted` takes. */
function lines(files, isCounted) {
  let sum = 0;
  for (const [name, file] of files) if (isCounted(name)) sum += linesOf(file);
  return sum;
}

/** `as` expressions without `as const`, which changes no type that a reader must trust. */
function casts(files) {
  let count = 0;
  for (const file of files.values()) {
    for (const node of nodesOf(file)) {
      if (ts.isAsExpression(node) && !ts.isConstTypeReference(node.type)) count++;
    }
  }
  return count;
}

/** Class name to the name of the class that it extends, in the files below `room`. */
function classes(files, room) {
  const found = new Map();
  for (const [name, file] of files) {
    if (!name.startsWith(room)) continue;
    for (const node of nodesOf(file)) {
      if (!ts.isClassDeclaration(node)) continue;
      const parent = node.heritageClauses?.find(
        ({ token }) => token === ts.SyntaxKind.ExtendsKeyword,
      );
      found.set(node.name.text, parent?.types[0].expression.getText());
    }
  }
  return found;
}

/** Classes in the longest line of inheritance whose members are all in `found`. */
function inheritance(found) {
  const depth = (name) => (found.has(name) ? 1 + depth(found.get(name)) : 0);
  return Math.max(...[...found.keys()].map(depth));
}

const importsOf = (file) => file.statements.filter(ts.isImportDeclaration).length;

/** Files of lib in which `name` is an identifier or the name of a property. */
function filesNaming(files, name) {
  const names = (node) =>
    (ts.isIdentifier(node) || ts.isStringLiteralLike(node)) && node.text === name;
  return [...files.values()].filter((file) => [...nodesOf(file)].some(names)).length;
}

/** Modules that backward and step of ZeRO-2 with CPU offload call on rank 0 of two. */
function calledModules() {
  const program = join(root, 'scripts/sources/zero2-step.cjs');
  const args = [join(root, 'dist/launch/cli.js'), '--num_procs', '2', program];
  const output = execFileSync(process.execPath, args, { encoding: 'utf8' });
  const list = output.split('\n').find((line) => line.includes('['));
  return JSON.parse(list.slice(list.indexOf('[', list.indexOf('"') - 2)));
}

/** Ops, layers and models: what a step computes, not how a gradient travels. */
const isComputation = (path) => /^(tensor\/ops|nn|models)\//.test(path);
const isStrategy = (path) =>
  /^zero\/state\/(placement\/|split-masters|offloaded-weights)/.test(path);
/** Observers see a step, but move no gradient. */
const isCore = (path) => /^(zero|engine)\/(?!watch\/)/.test(path);

function measures() {
  const files = sources();
  const way = calledModules().filter((path) => !isComputation(path));
  const zero = classes(files, 'zero/');
  const rows = [
    ['files of zero and engine that backward and step call', way.filter(isCore).length],
    ['files that backward and step call, without ops, layers and models', way.length],
    ['longest inheritance in zero, in classes', inheritance(zero)],
    ['strategies of optimizer state', [...files.keys()].filter(isStrategy).length],
    [
      'lines of zero and engine/setup',
      lines(files, (name) => /^(zero|engine\/setup)\//.test(name)),
    ],
    ['lines of plan', lines(files, (name) => name.startsWith('plan/'))],
    ['hand-written lines of lib', lines(files, () => true)],
    ['hand-written files of lib', files.size],
    [
      'imports of engine/setup/build-engine.ts',
      importsOf(files.get('engine/setup/build-engine.ts')),
    ],
    ['`as` casts in lib', casts(files)],
    // Losses have an option labelSmoothing too.
    [
      'files that name the Trainer option neftuneNoiseAlpha',
      filesNaming(files, 'neftuneNoiseAlpha'),
    ],
    ['files that name the server option tokenizerThreads', filesNaming(files, 'tokenizerThreads')],
    ['files that name the sampling option minP', filesNaming(files, 'minP')],
    ['files that name the option nvmeRate of ds plan', filesNaming(files, 'nvmeRate')],
  ];
  return { rows, way };
}

const { rows, way } = measures();
console.log('| measure | value |\n| --- | --- |');
for (const [name, value] of rows) console.log(`| ${name} | ${value} |`);
if (process.argv.includes('--list')) console.log(`\n${way.join('\n')}`);
