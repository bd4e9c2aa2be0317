// Rewrites the imports of compiled modules so that they load on first use. The compiler's output
// loads all imports at once, so an import of the package would read every file.
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

const STAR = /^__exportStar\(require\("(\.[^"]+)"\), exports\);/gm;
const RE_EXPORT = /^var (\w+) = require\("(\.[^"]+)"\);/gm;
const IMPORT = /^const (\w+) = require\("(\.[^"]+|node:[^"]+)"\);/gm;

/** Exported names of a compiled module, found by the patterns of the compiler's output. */
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

/** Files with names that a module exports, including itself if it declares names. */
function* sources(file) {
  const text = readFileSync(file, 'utf8');
  const paths = [STAR, RE_EXPORT].flatMap((form) =>
    Array.from(text.matchAll(form), (m) => m.at(-1)),
  );
  for (const path of paths) yield* sources(join(dirname(file), path));
  if (/^exports\.(?!\w+ = (exports|void 0|__importStar))\w+ =/m.test(text)) yield file;
}

/** Files that declare the names of a module's exports, directly or through other modules. */
export const filesBehind = (file) => new Set(sources(file));

/** An object with a property `all`: the module, loaded on first access. */
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

/** The text of a module that loads a re-exported module when a program uses one of its names. */
export const reExportsLate = (file, text) => reader(starsByName(file, text), RE_EXPORT);

/**
 * The text of a module that loads its imports on first use; an import for `extends` loads at once.
 */
export const importsLate = (text) => reader(text, IMPORT);
