// Tests which files of the installed package an import loads: tensors load at once; other rooms
// load only their entry points.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

const { cache } = createRequire(import.meta.url);
const builtIn = new Set(process.moduleLoadList);
const ds = await import('@ds/native');

/** The package's files that were read until now, as they lie in dist/. */
const read = () =>
  Object.keys(cache).flatMap((file) => /@ds\/native\/dist\/(.*)/.exec(file)?.[1] ?? []);

const early = read();
const others = early.filter((file) => !/^(tensor|runtime)\//.test(file));
assert.ok(early.length > 60 && early.length < 190, `${early.length} files are read`);
assert.ok(others.length < 76, `read at once: ${others}`);
const LATER = /^(data|launch|models|monitor|optim|parallel|peft|plan|text|zero)\/(?!index\.js$)/;
assert.deepEqual(
  others.filter((file) => LATER.test(file)),
  [],
);
const SLOW =
  /^NativeModule (child_process|crypto|https?|inspector|net|readline|tls|worker_threads)$/;
assert.deepEqual(
  process.moduleLoadList.filter((name) => SLOW.test(name) && !builtIn.has(name)),
  [],
);

// The first use loads the code.
assert.equal(typeof ds.nn.models.GPT2, 'function');
assert.ok(read().some((file) => file.startsWith('models/gpt2/')));
console.log(`an import reads ${early.length} files`);
