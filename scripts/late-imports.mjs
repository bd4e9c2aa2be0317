// What a compiled module takes from other modules, and when it reads them: the compiler has all
// read at once, so that an import of the package would read every file of it.
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

const STAR = /^__exportStar\(require\("(\.[^"]+)"\), exports\);/gm;
const RE_EXPORT = /^var (\w+) = require\("(\.[^"]+)"\);/gm;
const IMPORT = /^const (\w+) = require\("(\.[^"]+|node:[^"]+)"\);/gm;

/** What a module of the build exports, by what the compiler writes for it. */
export function namesOf(file) {
  const text = readFileSync(file, 'utf8');
  const own = [
    ...text.matchAll(/\bexports\.(\w+) =/g),
    ...text.matchAll(/Object\.defineProperty\(exports, "(\w+)"/g),
  ].map(([, name]) => name);
  const starred = Array.from(text.matchAll(STAR), ([, path]) => namesOf(join(dirname(file), path)));
  const names = new Set([...own, ...starred.flat()]);
  return [...names].filter((name) => name !== '__esModule' && name !== 'default');
}

/** The files of which a module exports names of theirs, itself if it has names of its own. */
function* sources(file) {
  const text = readFileSync(file, 'utf8');
  const paths = [STAR, RE_EXPORT].flatMap((form) =>
    Array.from(text.matchAll(form), (m) => m.at(-1)),
  );
  for (const path of paths) yield* sources(join(dirname(file), path));
  if (/^exports\.(?!\w+ = (exports|void 0|__importStar))\w+ =/m.test(text)) yield file;
}

/** Files whose names a module exports, over any number of modules between. */
export const filesBehind = (file) => new Set(sources(file));

/** An object whose property `all` is the module, read when first asked for. */
const late = (name, path) =>
  `const ${name} = { get all() { const all = require("${path}"); ` +
  `Object.defineProperty(this, "all", { value: all }); return all; } };`;

/** As many lines as before, so that a stack names the lines of the text. */
const reader = (text, form) => {
  const names = [];
  const declared = text.replace(form, (_, name, path) => {
    names.push(name);
    return late(name, path);
  });
  if (names.length === 0) return text;
  return declared.replace(new RegExp(`\\b(${names.join('|')})\\.`, 'g'), '$1.all.');
};

/** One getter for each name that the starred module has, and that the module has not itself. */
function starsByName(file, text) {
  let stars = 0;
  return text.replace(STAR, (_, path) => {
    const all = `star_${++stars}`;
    const getters = namesOf(join(dirname(file), path)).map(
      (name) =>
        `if (!Object.hasOwn(exports, "${name}")) ` +
        `Object.defineProperty(exports, "${name}", { enumerable: true, get: () => ${all}.all.${name} });`,
    );
    return [late(all, path), ...getters].join(' ');
  });
}

/** The text of a module that reads what it re-exports when somebody asks for one of the names. */
export const reExportsLate = (file, text) => reader(starsByName(file, text), RE_EXPORT);

/**
 * The text of a module that reads what it imports when first used: at once where a class extends.
 */
export const importsLate = (text) => reader(text, IMPORT);
