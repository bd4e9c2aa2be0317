// Defines the jest environment of a mutation run: records the time of each test, and exits at the
// first failure.
const { appendFileSync } = require('node:fs');
const { join } = require('node:path');
const Environment = require(join(process.cwd(), 'test/support/jest-environment.cjs'));

const file = process.env.MUTATE_HITS;
const isCounting = process.env.MUTATE_IDS !== undefined;

/** Full name of a test for `jest -t`: names of its groups, then its own name. */
function nameOf(test) {
  const names = [];
  for (let at = test; at && at.name !== 'ROOT_DESCRIBE_BLOCK'; at = at.parent)
    names.unshift(at.name);
  return names.join(' ');
}

const note = (kind, text = '') =>
  appendFileSync(file, `${kind}\t${Date.now()}\t${text.replace(/\s+/g, ' ')}\n`);

const firstLine = (error) => {
  const thrown = Array.isArray(error) ? (error[0] ?? error[1]) : error;
  return String(thrown?.message ?? thrown).slice(0, 200);
};

module.exports = class MutationEnvironment extends Environment {
  async handleTestEvent(event) {
    await super.handleTestEvent?.(event);
    const { name, test, hook, error } = event;
    if (name === 'test_start') this.begin(test);
    if (name === 'test_skip') note('skip');
    if (name === 'test_done') this.end(test);
    const isShared = hook?.type === 'beforeAll' || hook?.type === 'afterAll';
    if (isShared && name === 'hook_start') this.beginHook();
    if (isShared && name === 'hook_success') note('end');
    if (isShared && name === 'hook_failure') this.fail(hook.type, error);
    if (name === 'error') this.fail('error outside a test', error);
  }

  beginHook() {
    this.global.mutateTest = (this.global.mutateTest ?? 0) + 1;
    note('hook');
  }

  begin(test) {
    this.global.mutateTest = (this.global.mutateTest ?? 0) + 1;
    note('test', nameOf(test));
  }

  end(test) {
    if (test.errors.length > 0) this.fail(nameOf(test), test.errors[0]);
    note('end');
  }

  fail(name, error) {
    note('fail', `${name}: ${firstLine(error)}`);
    // One failure kills the mutant; the other tests are not needed.
    if (!isCounting) process.exit(1);
  }
};
