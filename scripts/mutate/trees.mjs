// Makes copies of a checkout, so that tests can run in parallel.
import { execFileSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readdirSync, rmSync, statSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';

/** Biome refuses a second configuration below its own. */
const NOT_COPIED = ['', 'biome.json'];
const NOT_SOURCES = /^(node_modules|build|dist)(\/|$)/;

/** Tracked and new files of a checkout; all sources of a folder without git. */
function sourcesOf(root) {
  const wanted = (path) => !NOT_COPIED.includes(path) && !NOT_SOURCES.test(path);
  if (existsSync(join(root, '.git'))) {
    const listed = execFileSync('git', ['ls-files', '-co', '--exclude-standard'], { cwd: root });
    const paths = listed.toString().split('\n').filter(wanted);
    return paths.filter((path) => existsSync(join(root, path)));
  }
  const paths = readdirSync(root).filter(wanted);
  const isFile = (path) => statSync(join(root, path)).isFile();
  return paths.flatMap((path) => {
    if (isFile(path)) return [path];
    const below = readdirSync(join(root, path), { recursive: true });
    return below.map((name) => join(path, name)).filter(isFile);
  });
}

/** Copies the sources of a checkout. Packages, addon and compiled sources are links. */
function copyTree(root, sources, { tree, compiled }) {
  rmSync(tree, { recursive: true, force: true });
  for (const path of sources) cpSync(join(root, path), join(tree, path), { recursive: true });
  symlinkSync(join(root, 'node_modules'), join(tree, 'node_modules'));
  mkdirSync(join(tree, 'build'));
  symlinkSync(join(root, 'build', 'Release'), join(tree, 'build', 'Release'));
  symlinkSync(compiled, join(tree, 'build', 'typescript'));
}

/** Makes `jobs` copies of the checkout `root` below `folder`, and returns their paths. */
export function copyTrees(root, folder, jobs) {
  const sources = sourcesOf(root);
  const nameOf = (job) => (job === 0 ? 'tree' : `tree-${job + 1}`);
  const trees = Array.from({ length: jobs }, (_, job) => join(folder, nameOf(job)));
  // test/support/run-typescript.cjs keeps compiled sources by their text: all jobs share them.
  const compiled = join(folder, 'typescript');
  mkdirSync(compiled, { recursive: true });
  for (const tree of trees) copyTree(root, sources, { tree, compiled });
  return trees;
}

/** Results of `body(tree, item)` in the order of `items`; each tree has one item at a time. */
export async function shareOut(trees, items, body) {
  const results = new Array(items.length);
  let next = 0;
  const runs = trees.map(async (tree) => {
    while (next < items.length) {
      const at = next++;
      results[at] = await body(tree, items[at]);
    }
  });
  await Promise.all(runs);
  return results;
}
