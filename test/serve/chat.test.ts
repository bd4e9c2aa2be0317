// A conversation in the terminal, over pipes.
import { PassThrough } from 'node:stream';
import { runInThisContext } from 'node:vm';
import { DsError } from '../../lib/errors.js';
import { type ChatOptions, chat } from '../../lib/serve/index.js';
import { FakeEngine, textOf, tokenizer } from './fake-engine.js';

/** The output when `lines` are typed. */
async function talk(engine: FakeEngine, lines: string, options: ChatOptions = {}) {
  const [input, output] = [new PassThrough(), new PassThrough()];
  input.end(lines);
  await chat(engine, { sampling: { maxNewTokens: 8 }, ...options, input, output });
  output.end();
  return String(output.read() ?? '');
}

const promptOf = (...turns: string[]) => {
  const messages = turns.map((content, i) => ({ role: i % 2 ? 'assistant' : 'user', content }));
  return Array.from(tokenizer.applyChatTemplate(messages, { addGenerationPrompt: true }).ids);
};

test('a conversation keeps its history until /reset, and ends with /quit', async () => {
  const engine = new FakeEngine(tokenizer);
  const printed = await talk(engine, 'Hello\n\nMore\n/reset\nAgain\n/quit\nNothing\n');
  const first = textOf(promptOf('Hello'), 0, 8);
  const prompts = [promptOf('Hello'), promptOf('Hello', first, 'More'), promptOf('Again')];
  expect(engine.requests.map(({ prompt }) => prompt)).toEqual(prompts);
  const answers = prompts.map((prompt) => `${textOf(prompt, 0, 8)}\n`).join('');
  expect(printed).toBe(
    `A line is a message; /reset starts over, /quit ends, Ctrl-C stops an answer.\n${answers}`,
  );
  expect(engine.active).toBe(0);
});

test.each([16, 1])('a closed output ends the chat (after %i bytes)', async (room) => {
  const engine = new FakeEngine(tokenizer);
  const [input, output] = [new PassThrough(), new PassThrough({ writableHighWaterMark: room })];
  input.write('Hello\n');
  engine.pace = async (place) => {
    if (place === 3) output.destroy(new Error('write EPIPE'));
    await new Promise(setImmediate);
  };
  output.resume();
  await chat(engine, { input, output });
  expect([engine.requests.length, engine.active]).toEqual([1, 0]);
});

test('the system message is kept, and the oldest exchanges are dropped', async () => {
  const system = { role: 'system', content: 'Be brief.' };
  const user = (content: string) => ({ role: 'user', content });
  const [one, two] = ['one', 'two'].map((text) => text.repeat(5)) as [string, string];
  const encodeChat = (...messages: object[]) =>
    tokenizer.applyChatTemplate(messages as never, { addGenerationPrompt: true }).ids;
  const alone = encodeChat(system, user(two)).length;
  const engine = new FakeEngine(tokenizer, alone + 9);
  const printed = await talk(engine, `${one}\n${two}\n`, { system: 'Be brief.' });
  expect(engine.requests[1]?.prompt).toEqual(Array.from(encodeChat(system, user(two))));
  expect(printed).toMatch(/! The conversation has grown too long: its beginning is left out\./);
});

test('a system message that the template leaves out is refused', async () => {
  const engine = new FakeEngine(tokenizer);
  const chatTemplate = "{% for m in messages %}{{ m.content if m.role != 'system' }}{% endfor %}";
  const printed = await talk(engine, 'Hello\n', { system: 'Be brief.', chatTemplate });
  expect(printed).toMatch(/! ds chat --system: expected a chat template with system messages/);
  expect(engine.requests).toEqual([]);
  expect(await talk(engine, 'Hello\n', { chatTemplate })).not.toMatch(/!/);
  expect(engine.requests).toHaveLength(1);
});

test('without a system message, the oldest exchange is dropped, and not the new line', async () => {
  const [one, two] = ['one', 'two'].map((text) => text.repeat(5)) as [string, string];
  const engine = new FakeEngine(tokenizer, promptOf(two).length + 9);
  await talk(engine, `${one}\n${two}\n`);
  expect(engine.requests.map(({ prompt }) => prompt)).toEqual([promptOf(one), promptOf(two)]);
});

test('a prompt may fill the context but for one token, and a longer line is sent as it is', async () => {
  const line = 'one'.repeat(5);
  const { length } = promptOf(line);
  for (const [context, tokens] of [
    [length + 1, 1],
    [length, 1],
  ] as const) {
    const engine = new FakeEngine(tokenizer, context);
    const printed = await talk(engine, `${line}\n`);
    expect(engine.requests.map(({ prompt }) => prompt)).toEqual([promptOf(line)]);
    expect(engine.requests[0]?.maxNewTokens).toBe(tokens);
    expect(printed).not.toMatch(/grown too long/);
  }
  // An exchange that leaves room for one token is kept.
  const answer = textOf(promptOf('a'), 0, 8);
  const fullValues = promptOf('a', answer, 'b');
  const engine = new FakeEngine(tokenizer, fullValues.length + 1);
  await talk(engine, 'a\nb\n');
  expect(engine.requests[1]?.prompt).toEqual(fullValues);
});

test('a model without a chat template continues lines', async () => {
  const plain = Object.create(tokenizer);
  Object.defineProperty(plain, 'chatTemplates', { value: [] });
  const engine = new FakeEngine(plain);
  const printed = await talk(engine, 'Hello\nHello\n');
  const prompt = Array.from(tokenizer.encode('Hello'));
  expect(engine.requests.map((request) => request.prompt)).toEqual([prompt, prompt]);
  expect(printed).toMatch(/^This model has no chat template: it continues each line separately/);
  expect(printed.endsWith(`${textOf(prompt, 0, 8)}\n`.repeat(2))).toBe(true);
});

test('errors of the engine are printed, and the conversation continues', async () => {
  const engine = new FakeEngine(tokenizer, 12);
  const printed = await talk(engine, `${'long '.repeat(40)}\nHello\n`, {
    chatTemplate: "{% if messages | length > 0 %}{{ raise_exception('no') }}{% endif %}",
  });
  expect(printed.match(/^! .*its error: no/gm)).toHaveLength(2);
  expect(engine.requests).toHaveLength(0);
});

test('Ctrl-C stops an answer, then the conversation', async () => {
  const engine = new FakeEngine(tokenizer);
  const input = Object.assign(new PassThrough(), { isTTY: true, setRawMode: () => {} });
  const output = new PassThrough();
  const done = chat(engine, { input, output, sampling: { maxNewTokens: 1e6 } });
  engine.pace = () => new Promise((resolve) => setTimeout(resolve, 1));
  input.write('Hello\r');
  while (engine.active === 0) await new Promise((resolve) => setTimeout(resolve, 2));
  input.write('\u0003');
  while (engine.active > 0) await new Promise((resolve) => setTimeout(resolve, 2));
  expect(engine.aborted).toBe(1);
  while (!String(output.read() ?? '').includes(' ...\n')) {
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
  // The conversation goes on; without an answer, Ctrl-C ends it.
  engine.pace = async () => {};
  engine.failAt = { place: 0, error: new DsError(failure) };
  let isOver = false;
  void done.then(() => {
    isOver = true;
  });
  input.write('More\r');
  while (engine.requests.length < 2 && !isOver) {
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
  expect(engine.requests).toHaveLength(2);
  while (!String(output.read() ?? '').includes('! ')) {
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
  input.write('\u0003');
  await done;
});

const failure = { code: 'DS_LIMIT', op: 'a', expected: 'b', got: 'c' } as const;

test('only a running answer can be stopped', async () => {
  const engine = new FakeEngine(tokenizer);
  const input = Object.assign(new PassThrough(), { isTTY: true, setRawMode: () => {} });
  const done = chat(engine, { input, output: new PassThrough() });
  // Without an answer, Ctrl-C ends the conversation.
  input.write('\u0003');
  await done;
  expect(engine.requests).toEqual([]);
});

/** Node's own object receives warnings; a test file has a copy. */
const node: NodeJS.Process = runInThisContext('process');

test('many lines, typed one after the other, give no warning', async () => {
  const warnings: Error[] = [];
  const keep = (warning: Error): void => void warnings.push(warning);
  node.on('warning', keep);
  const input = new PassThrough();
  const done = chat(new FakeEngine(tokenizer), { input, output: new PassThrough() });
  for (let i = 0; i < 15; ++i) {
    input.write('/reset\n');
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
  input.end();
  await done;
  node.off('warning', keep);
  expect(warnings).toEqual([]);
});

test('a model without a tokenizer is refused', async () => {
  await expect(talk(new FakeEngine(null), '')).rejects.toThrow(
    /Pass --tokenizer FOLDER, or copy tokenizer\.json/,
  );
});
