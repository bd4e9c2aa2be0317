// Follows docs/serving.md with a model that the example has saved: serves it and sends requests.
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { Run } from '../launch/jobs.js';

const root = packageRoot();
const DS = join(root, 'dist', 'launch', 'cli.js');
const ADDRESS = 'http://127.0.0.1:8000';
const page = readFileSync(join(root, 'docs', 'serving.md'), 'utf8');
const folder = mkdtempSync(join(tmpdir(), 'ds-serving-'));
const model = join(folder, 'tiny');
afterAll(() => rmSync(folder, { recursive: true }));

beforeAll(() => {
  const words = ['--model', 'tiny', '--steps', '2', '--batch', '1', '--seq', '16', '--sample', '0'];
  const script = join(root, 'examples', 'gpt2-offload.js');
  execFileSync(process.execPath, [script, ...words, '--device', 'cpu', '--save', model]);
});

/** The code blocks of a language on the page. */
const blocksOf = (language: string): string[] =>
  Array.from(
    page.matchAll(new RegExp(`^\`\`\`${language}\n(.*?)^\`\`\``, 'gms')),
    ([, code = '']) => code,
  );

/** Starts a server and waits until it is ready. */
async function startServer(...words: string[]): Promise<{ run: Run; url: string }> {
  const run = new Run([DS, 'serve', model, '--device', 'cpu', '--port', '0', ...words], folder);
  await run.whenPrinted('ready: ');
  const [, url = ''] = /at (http:\S+)\/v1/.exec(run.stdout) ?? [];
  return { run, url };
}

async function endServer({ child, finished }: Run, signal: NodeJS.Signals) {
  process.kill(child.pid as number, signal);
  return finished;
}

test('the commands of the page work: a server, curl, a program with the OpenAI package, SIGTERM', async () => {
  const template = join(folder, 'chat_template.jinja');
  writeFileSync(template, '{% for message in messages %}{{ message.content }}{% endfor %}');
  const { run, url } = await startServer('--chat-template', template);
  const curl = blocksOf('sh').find((block) => block.startsWith('curl')) ?? '';
  const [, body = ''] = /-d '(.*)'/.exec(curl) ?? [];
  const [, path = ''] = /8000(\S+)/.exec(curl) ?? [];
  const headers = { 'content-type': 'application/json' };
  const answer = await fetch(url + path, { method: 'POST', body, headers });
  expect(await answer.json()).toMatchObject({
    model: 'tiny',
    object: 'chat.completion',
    choices: [{ message: { role: 'assistant', content: expect.stringMatching(/\S/) } }],
    usage: { completion_tokens: 24 },
  });
  const [program = ''] = blocksOf('javascript');
  const code = program.replace(ADDRESS, url);
  expect(code).not.toBe(program);
  // Runs in the folder of node_modules, like a program of a reader.
  const words = ['--input-type=module', '--eval', code];
  const child = spawn(process.execPath, words, { cwd: root });
  let printed = '';
  for await (const text of child.stdout.setEncoding('utf8')) printed += text;
  expect(printed.length).toBeGreaterThan(10);
  expect(await endServer(run, 'SIGTERM')).toMatchObject({ code: 0, stderr: '' });
});

test('after a signal, the server completes the current answer', async () => {
  const { run, url } = await startServer('--drain-timeout', '60');
  const open = () =>
    fetch(`${url}/v1/completions`, {
      method: 'POST',
      body: JSON.stringify({
        prompt: 'interface',
        max_tokens: 100,
        stream: true,
        ignore_eos: true,
      }),
      headers: { 'content-type': 'application/json' },
    });
  const stream = await open();
  const code = endServer(run, 'SIGTERM');
  expect((await stream.text()).endsWith('data: [DONE]\n\n')).toBe(true);
  expect((await code).code).toBe(0);
});

test('two ranks share the model and answer like one', async () => {
  const ask = async (url: string): Promise<unknown> => {
    const answer = await fetch(`${url}/v1/completions`, {
      method: 'POST',
      body: JSON.stringify({ prompt: 'interface', max_tokens: 12, temperature: 0, n: 2 }),
      headers: { 'content-type': 'application/json' },
    });
    return ((await answer.json()) as { choices: unknown }).choices;
  };
  const [one, two] = await Promise.all([startServer(), startServer('--tp', '2')]);
  expect(await ask(two.url)).toEqual(await ask(one.url));
  const codes = [endServer(one.run, 'SIGTERM'), endServer(two.run, 'SIGTERM')];
  expect((await Promise.all(codes)).map(({ code }) => code)).toEqual([0, 0]);
  await two.run.whenGone();
});

test('keys of the environment and of a file protect /v1', async () => {
  const file = join(folder, 'keys');
  writeFileSync(file, 'one\n\ntwo\n');
  const { run, url } = await startServer('--api-key-file', file, '--model-name', 'mine');
  const ask = (key: string) =>
    fetch(`${url}/v1/models`, { headers: { authorization: `Bearer ${key}` } });
  expect((await ask('three')).status).toBe(401);
  expect(await (await ask('two')).json()).toMatchObject({ data: [{ id: 'mine' }] });
  expect((await fetch(`${url}/health`)).status).toBe(200);
  expect(await endServer(run, 'SIGINT')).toMatchObject({ code: 0 });
});

test.each([
  ['', /DS_API_KEY: expected a key, or an unset variable, got an empty string/],
  ['one two', /DS_API_KEY: expected a key of visible ASCII .*, got U\+0020 at character 4/],
])('the key "%s" of the environment is refused before the model is read', (key, message) => {
  const words = ['serve', join(folder, 'absent'), '--device', 'cpu', '--tp', '2'];
  const { status, stderr } = spawnSync(process.execPath, [DS, ...words], {
    encoding: 'utf8',
    env: { ...process.env, DS_API_KEY: key },
  });
  expect(stderr).toMatch(message);
  expect(stderr).not.toContain('one two');
  expect(status).toBe(2);
});

test('a key of a file that no request can show is refused by its line', () => {
  const file = join(folder, 'wrong-keys');
  writeFileSync(file, 'one\n\nschlüssel\n');
  const words = ['serve', model, '--device', 'cpu', '--api-key-file', file];
  const { status, stderr } = spawnSync(process.execPath, [DS, ...words], { encoding: 'utf8' });
  expect(stderr).toMatch(/wrong-keys, line 3: expected .*, got U\+00FC at character 5/);
  expect(status).toBe(2);
});

test('a conversation over a pipe', () => {
  const words = ['chat', model, '--device', 'cpu', '--max-tokens', '4', '--temperature', '0'];
  const talk = spawnSync(process.execPath, [DS, ...words], {
    input: 'interface \ninterface \n/quit\n',
    encoding: 'utf8',
    cwd: folder,
  });
  expect(talk).toMatchObject({ status: 0, stderr: '' });
  const [first, ...answers] = talk.stdout.split('\n');
  expect(first).toMatch(/^This model has no chat template: it continues each line separately/);
  expect(answers[0]).toBe(answers[1]);
  const bare = join(folder, 'bare');
  cpSync(model, bare, { recursive: true });
  for (const name of ['tokenizer.json', 'tokenizer_config.json'])
    rmSync(join(bare, name), { force: true });
  words[1] = bare;
  const [without, named] = [[], ['--tokenizer', model]].map((more) =>
    spawnSync(process.execPath, [DS, ...words, ...more], {
      input: 'interface \n/quit\n',
      encoding: 'utf8',
      cwd: folder,
    }),
  );
  expect(without?.stderr).toMatch(/chat: expected a model with a tokenizer/);
  expect(named?.stdout.split('\n')[1]).toBe(answers[0]);
});

test.each([
  [['serve', 'absent'], /absent: expected a folder on this machine, or a model in the cache/],
  [['serve', 'tiny', '--port', 'x'], /Expected a port, 0 to 65535/],
  [['serve', 'tiny', '--allowed-hosts', 'a:1'], /serve allowedHosts: expected hosts .*"a:1"/],
  [['chat', 'tiny', '--top-p', '2'], /Expected a finite number from 0 to 1/],
  [['serve', 'tiny', '--api-key-file', 'absent'], /--api-key-file: expected a readable file/],
  [['serve', 'tiny', '--chat-template', 'absent'], /--chat-template: expected a readable file/],
  [['serve', 'tiny', '--config', 'absent'], /--config: expected a readable JSON file/],
  [['chat', 'absent'], /absent: expected a folder/],
])('ds %j is refused', (words, message) => {
  const { status, stderr } = spawnSync(process.execPath, [DS, ...words, '--device', 'cpu'], {
    encoding: 'utf8',
    cwd: folder,
    input: '',
  });
  expect(stderr).toMatch(message);
  expect(stderr).not.toMatch(/\n {4}at /);
  expect(status).not.toBe(0);
});
